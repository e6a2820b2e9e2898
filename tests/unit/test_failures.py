"""Stored errors: what is in the database does not decide which code runs."""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest

from detent.errors import StepFailed
from detent.execution.failures import describe, encode_error, raisable
from detent.kernel.rows import Error

ran: list[str] = []


class Loud(Exception):
    """Does something whenever it is made."""

    def __new__(cls, *args: Any) -> "Loud":
        ran.append("new")
        return super().__new__(cls, *args)

    def __init__(self, text: str) -> None:
        ran.append("init")
        super().__init__(text)

    def __setattr__(self, name: str, value: object) -> None:
        ran.append(f"set {name}")
        super().__setattr__(name, value)


class Picky(Exception):
    """Wants other arguments than those it keeps."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def stored(type: str) -> str:
    return msgspec.json.encode(
        Error(type=type, message="boom", traceback="", args=["boom"], rebuildable=True)
    ).decode()


def test_an_error_in_a_module_that_is_not_imported_is_raised_as_step_failed() -> None:
    for name in ("this.Error", "email.mime.nonmultipart.Surprise", "xmlrpc.server.Fault"):
        module = name.rpartition(".")[0]
        sys.modules.pop(module, None)
        assert isinstance(raisable("step", stored(name)), StepFailed)
        assert module not in sys.modules


def test_looking_for_a_class_does_not_run_a_modules_getattr(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    lazy = ModuleType("lazy_module")
    lazy.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    assert isinstance(raisable("step", stored("lazy_module.Failure")), StepFailed)
    assert asked == []


def test_looking_for_a_class_does_not_load_a_lazy_module(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("this")  # it prints when it is loaded
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "this", module)
    spec.loader.exec_module(module)
    assert isinstance(raisable("step", stored("this.Failure")), StepFailed)
    assert "s" not in object.__getattribute__(module, "__dict__")


@pytest.mark.parametrize(
    "name",
    [
        "builtins.SystemExit",
        "builtins.KeyboardInterrupt",
        "builtins.GeneratorExit",
        "builtins.BaseException",
        "asyncio.exceptions.CancelledError",
        "builtins.print",
        "os.system",
        "builtins",
        "",
        "..",
    ],
)
def test_only_exceptions_are_rebuilt(name: str) -> None:
    error = raisable("step", stored(name))
    assert type(error) is StepFailed


def test_no_code_of_the_class_runs_when_its_error_is_rebuilt() -> None:
    text = encode_error(Loud("boom"))
    ran.clear()
    error = raisable("step", text)
    assert type(error) is Loud
    assert error.args == ("boom",)
    assert ran == []


@pytest.mark.parametrize(
    "error",
    [Picky(code=4), OSError(2, "no such file", "a.txt"), UnicodeDecodeError("utf8", b"x", 0, 1, "bad")],
)
def test_an_error_is_raised_alike_the_first_time_and_on_a_replay(error: Exception) -> None:
    first = raisable("step", encode_error(error))
    again = raisable("step", encode_error(error))
    assert type(first) is type(again)
    assert str(first) == str(again)
    expected = type(error) if describe(error).rebuildable else StepFailed
    assert type(first) is expected


def test_a_class_whose_text_ends_the_process_is_raised_as_step_failed() -> None:
    error = raisable("step", encode_error(Leaving("boom")))
    assert "SystemExit" in describe(Leaving("boom")).message
    assert isinstance(error, StepFailed | Leaving)
