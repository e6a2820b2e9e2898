"""Arguments: a value that is not accepted raises an error that says what is."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import aio, arguments
from detent.errors import ConfigurationError, DefinitionError, DetentError, InvalidArgument, InvalidOption
from detent.testing import ManualClock, TestingApp

MEMORY = "sqlite:///:memory:"


@pytest.fixture(scope="module")
def app() -> detent.App:
    return detent.App(MEMORY)  # never opened: bad arguments are refused before that


def test_an_invalid_argument_is_an_error_of_each_kind_that_callers_expect() -> None:
    with pytest.raises(InvalidArgument) as caught:
        detent.App(MEMORY, lease="5m")  # type: ignore[arg-type]
    error = caught.value
    assert isinstance(error, DetentError | ConfigurationError)
    assert isinstance(error, TypeError)
    assert isinstance(error, ValueError)
    assert (error.where, error.argument, error.given) == ("App()", "lease", "'5m'")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (InvalidArgument, str(error), vars(error))
    assert issubclass(InvalidOption, DefinitionError)


def test_a_message_says_what_was_given_for_what_and_what_is_accepted(app: detent.App) -> None:
    with pytest.raises(InvalidArgument) as caught:
        app.options(delay="5m")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "app.options(): delay='5m' is not accepted: "
        "give a timedelta or a number of seconds, for example delay=timedelta(minutes=5)"
    )


def test_a_huge_value_is_not_printed_in_full(app: detent.App) -> None:
    with pytest.raises(InvalidArgument) as caught:
        app.options(id="x" * 10_000)
    assert len(str(caught.value)) < 300


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"id": 5}, "id=5 is not accepted: give a text of 1 to 200 printable characters"),
    ({"id": ""}, "it is empty"),
    ({"id": "x" * 201}, "it has 201 characters"),
    ({"id": "a\x00b"}, "control characters"),
    ({"id": "half \ud800"}, "surrogates"),
    ({"id": "blank "}, "ends with a space"),
    ({"delay": "5m"}, "timedelta or a number of seconds"),
    ({"delay": True}, "timedelta or a number of seconds"),
    ({"delay": -1}, "cannot be negative"),
    ({"delay": float("nan")}, "timedelta or a number of seconds"),
    ({"delay": float("inf")}, "timedelta or a number of seconds"),
    ({"delay": timedelta.max}, "at most 36,525 days"),
    ({"delay": 1e300}, "at most 36,525 days"),
    ({"delay": 10**400}, "at most 36,525 days"),
    ({"deadline": "tomorrow"}, "a timedelta, a number of seconds or a datetime with a time zone"),
    ({"deadline": datetime(2030, 1, 1)}, "it has no time zone"),
    ({"deadline": 0}, "more than 0"),
    ({"deadline": timedelta(-1)}, "cannot be negative"),
    ({"priority": "high"}, "give a whole number; higher numbers run first"),
    ({"priority": 1.5}, "give a whole number"),
    ({"priority": True}, "give a whole number"),
    ({"priority": 10**12}, "the range is -2,147,483,648 to 2,147,483,647"),
    ({"queue": 5}, "give a text"),
    ({"queue": ""}, "it is empty"),
    ({"allow_multiple": "yes"}, "give True or False"),
    ({"attributes": [("a", 1)]}, "give a dict of names and values"),
    ({"attributes": {"price": 1.5}}, "attributes are texts, whole numbers and bools"),
]


@pytest.mark.parametrize(("options", "said"), OPTIONS, ids=lambda value: str(value)[:40])
def test_an_option_of_a_start_that_makes_no_sense_is_refused_when_it_is_given(
    app: detent.App, options: dict[str, Any], said: str
) -> None:
    [name] = options
    for options_of in (app.options, detent.AsyncApp(MEMORY).options):
        with pytest.raises(InvalidArgument, match=said) as caught:
            options_of(**options)
        assert caught.value.argument == name


def test_durations_and_deadlines_are_accepted_in_every_documented_form(app: detent.App) -> None:
    for span in (5, 0.5, timedelta(seconds=5)):
        app.options(delay=span, deadline=span)
    app.options(delay=0, deadline=datetime.now(UTC))
    app.options(priority=2**31 - 1)
    app.options(priority=-(2**31))


def test_an_unknown_option_of_a_start_names_the_alternatives() -> None:
    options: Any = detent.AsyncApp(MEMORY).options
    with pytest.raises(TypeError, match="no option 'priorty'; did you mean 'priority'"):
        options(priorty=1)
    with pytest.raises(TypeError, match="use deadline="):
        options(timeout=5)


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"concurency": 3}, "there is no setting 'concurency'; did you mean 'concurrency'?"),
    ({"colour": "red"}, "there is no setting 'colour'; it is one of clock, concurrency"),
    ({"concurrency": 0}, "give a whole number, 1 or more"),
    ({"concurrency": "3"}, "give a whole number"),
    ({"concurrency": 2.5}, "give a whole number"),
    ({"pool_size": None}, "give a whole number"),
    ({"max_recoveries": -1}, "give a whole number, 0 or more"),
    ({"lease": 1}, "at least 2 s"),
    ({"grace": "5s"}, "give a timedelta or a number of seconds"),
    ({"grace": -1}, "cannot be negative"),
    ({"patience": None}, "give a timedelta or a number of seconds"),
    ({"missing_after": float("nan")}, "give a timedelta or a number of seconds"),
    ({"retention": 30}, "a plain number is not accepted"),
    ({"queues": "high"}, r"give a list of names, for example queues=\['default', 'mail'\]"),
    ({"queues": []}, "give a list of names"),
    ({"queues": ["mail", 5]}, "give a text"),
    ({"queues": [""]}, "it is empty"),
    ({"migrate": "yes"}, "give True or False"),
    ({"on_error": "log"}, "give a function that takes the exception and the Context"),
    ({"transform": "zlib"}, "give an object with the methods encode and decode"),
    ({"clock": datetime.now}, "give an object with the methods now and wait"),
]


@pytest.mark.parametrize(("settings", "said"), SETTINGS, ids=lambda value: str(value)[:40])
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, Any], said: str) -> None:
    for make in (detent.App, detent.AsyncApp):
        with pytest.raises(InvalidArgument, match=said):
            make(MEMORY, **settings)


def test_settings_take_durations_in_seconds() -> None:
    settings = detent.App(MEMORY, grace=5, lease=2.5, patience=0, missing_after=1).engine.settings
    assert settings.grace == timedelta(seconds=5)
    assert settings.lease == timedelta(seconds=2.5)
    assert settings.patience == timedelta(0)
    assert settings.missing_after == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, "is its environment variable set"),
        ("", "give the URL of a database"),
        (5, "give the URL of a database"),
        (Path("shop.db"), "give the URL of a database"),
    ],
    ids=str,
)
def test_a_url_that_is_no_text_is_refused_with_an_example(url: Any, said: str) -> None:
    for make in (detent.App, detent.AsyncApp):
        with pytest.raises(InvalidArgument, match=f"{said}.*sqlite:///shop.db"):
            make(url)


@detent.workflow
def alone() -> int:
    return 1


def test_one_definition_may_be_included_without_a_list() -> None:
    assert detent.App(MEMORY, include=alone).engine.registry.workflows == ["alone"]
    assert detent.AsyncApp(MEMORY, include=alone).engine.registry.workflows == ["alone"]
    for wrong in (None, "shop.workflows", 5, {"alone": alone}):
        with pytest.raises(DefinitionError, match="include takes workflows"):
            detent.App(MEMORY, include=wrong)


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (detent.sleep, ("5m",), {}, "seconds='5m' is not accepted"),
    (detent.sleep, (), {"minutes": "5"}, "minutes='5' is not accepted"),
    (detent.sleep, (), {"weeks": float("nan")}, "weeks=nan is not accepted"),
    (detent.sleep, (), {"days": 10**8}, "at most 36,525 days"),
    (detent.sleep, (), {"weeks": 10**400}, "at most 36,525 days"),
    (detent.sleep_until, (5,), {}, "give a datetime with a time zone"),
    (detent.sleep_until, (datetime(2030, 1, 1),), {}, "it has no time zone"),
    (detent.receive, (5,), {}, "name=5 is not accepted"),
    (detent.receive, ("",), {}, "it is empty"),
    (detent.receive, ("ok",), {"timeout": "5m"}, "timeout='5m' is not accepted"),
    (detent.publish, (5, 1), {}, "name=5 is not accepted"),
    (detent.send, (5, "ok"), {}, "run_id=5 is not accepted"),
    (detent.send, ("r-1", None), {}, "name=None is not accepted"),
    (detent.patched, (5,), {}, "id=5 is not accepted"),
]


@pytest.mark.parametrize(("call", "args", "kwargs", "said"), CALLS, ids=[call[3] for call in CALLS])
def test_a_durable_call_that_makes_no_sense_is_refused(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        call(*args, **kwargs)
    with pytest.raises(InvalidArgument, match=said):
        _await(getattr(aio, call.__name__)(*args, **kwargs))


def _await(coroutine: Any) -> None:
    """Run a coroutine up to its first wait."""
    try:
        coroutine.send(None)
    finally:
        coroutine.close()


def test_a_run_that_is_given_instead_of_its_id_is_explained(app: detent.App) -> None:
    class Run:
        id = "r-1"

    with pytest.raises(InvalidArgument, match=r"give the id of the run: id=run\.id"):
        app.options(id=Run())  # type: ignore[arg-type]


def test_an_id_of_a_run_is_a_text(app: detent.App) -> None:
    for bad in (5, None, ""):
        with pytest.raises(InvalidArgument, match=r"app\.run\(\)"):
            app.run(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"app\.fork\(\)"):
            app.fork(bad, from_step="charge")  # type: ignore[arg-type]


def test_a_negative_wait_of_a_caller_does_not_wait() -> None:
    assert arguments.check_timeout("run.result()", -1) == 0
    assert arguments.check_timeout("run.result()", None) is None


def plain(number: int) -> int:
    return number


step: Any = detent.step
workflow: Any = detent.workflow

DECORATED: dict[str, tuple[Callable[[], Any], str]] = {
    "step on a workflow": (
        lambda: step(workflow(plain)),
        r"workflow 'plain' \(.*\) is decorated with @step as well; a function is a step or a workflow",
    ),
    "workflow on a step": (
        lambda: workflow(step(plain)),
        r"step 'plain' \(.*\) is decorated with @workflow as well",
    ),
    "a step twice": (lambda: step(step(plain)), "remove one of the two decorators"),
    "a step with options on a workflow": (
        lambda: step(timeout=5)(workflow(plain)),
        "is decorated with @step as well",
    ),
    "a name by place": (lambda: step("charge"), r"write @step\(id='charge'\)"),
    "a workflow's name by place": (lambda: workflow("fulfil"), r"write @workflow\(id='fulfil'\)"),
    "a class": (lambda: step(int), "decorates a function, not <class 'int'>"),
    "a partial": (lambda: step(partial(plain, 1)), "decorates a function with a name"),
    "an id that is no text": (lambda: step(id=5)(plain), "id=5 is not accepted: give a text"),
    "an empty id": (lambda: step(id="")(plain), "step name '' is invalid: use 1 to"),
}


@pytest.mark.parametrize("wrong", DECORATED)
def test_what_is_no_function_cannot_be_decorated(wrong: str) -> None:
    decorate, said = DECORATED[wrong]
    with pytest.raises(DefinitionError, match=said):
        decorate()


STEP_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": "5m"}, "give a timedelta or a number of seconds"),
    ({"timeout": 0}, "more than 0"),
    ({"timeout": float("inf")}, "give a timedelta or a number of seconds"),
    ({"priority": 10**12}, "to 2,147,483,647"),
    ({"priority": "high"}, "give a whole number"),
    ({"queue": ""}, "it is empty"),
    ({"strict": "yes"}, "give True or False"),
    ({"transactional": 1}, "give True or False"),
    ({"retyr": 3}, "no option 'retyr'; did you mean 'retry'"),
    ({"retries": 3}, r"write retry=detent\.Retry\(attempts=5\)"),
    ({"name": "charge"}, "write id='charge'"),
]


@pytest.mark.parametrize(("options", "said"), STEP_OPTIONS, ids=lambda value: str(value)[:40])
def test_an_option_of_a_step_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=rf"step 'plain' \(.*test_arguments.py:\d+\): .*{said}"):
        step(**options)(plain)


WORKFLOW_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": 5}, r"app\.options\(deadline=timedelta\(hours=1\)\)"),
    ({"deadline": 5}, r"app\.options\(deadline="),
    ({"retry": detent.Retry()}, "only steps are retried"),
    ({"name": "fulfil"}, "write id='fulfil'"),
    ({"stirct": True}, "did you mean 'strict'"),
    ({"strict": None}, "give True or False"),
    ({"priority": True}, "give a whole number"),
]


@pytest.mark.parametrize(("options", "said"), WORKFLOW_OPTIONS, ids=lambda value: str(value)[:40])
def test_an_option_of_a_workflow_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        workflow(**options)(plain)


CLOCKS: dict[str, tuple[Callable[[], Any], str]] = {
    "a naive start": (lambda: ManualClock(datetime(2030, 1, 1)), "it has no time zone"),
    "a start that is no moment": (lambda: ManualClock(5), "give a datetime"),  # type: ignore[arg-type]
    "an advance by a text": (lambda: ManualClock().advance("5m"), "give a timedelta"),  # type: ignore[arg-type]
    "an advance by an unknown part": (lambda: ManualClock().advance(minuets=5), "did you mean 'minutes'"),
    "an advance by a part that is no number": (
        lambda: ManualClock().advance(minutes="5"),  # type: ignore[arg-type]
        "give a number, for example minutes=5",
    ),
    "an advance backwards": (lambda: ManualClock().advance(-5), "cannot be negative"),
    "a move to a naive moment": (lambda: ManualClock().move_to(datetime(2031, 1, 1)), "no time zone"),
    "an unknown setting": (lambda: TestingApp(concurency=3), "did you mean 'concurrency'"),  # type: ignore[call-arg]
    "an unknown option": (lambda: TestingApp().options(dleay=3), "did you mean 'delay'"),  # type: ignore[call-arg]
    "a bad option": (lambda: TestingApp().options(delay="5m"), "give a timedelta"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("wrong", CLOCKS)
def test_the_testing_kit_refuses_the_same(wrong: str) -> None:
    call, said = CLOCKS[wrong]
    with pytest.raises(InvalidArgument, match=said):
        call()


def test_a_sqlite_url_with_two_slashes_is_not_a_database_in_memory() -> None:
    with pytest.raises(InvalidArgument, match=r"a path has three slashes before it: sqlite:///shop\.db"):
        detent.App("sqlite://shop.db")
    detent.App("sqlite://")  # in memory, as in SQLAlchemy


def test_a_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such"
    acts: list[Callable[[detent.App], Any]] = [
        lambda app: app.open(),
        lambda app: app.migrate(),
        lambda app: app.runs(),
    ]
    for act in acts:
        app = detent.App(f"sqlite:///{missing / 'shop.db'}")
        with pytest.raises(InvalidArgument, match=f"the folder {missing} does not exist; create it"):
            act(app)
    missing.mkdir(parents=True)
    app = detent.App(f"sqlite:///{missing / 'shop.db'}")  # made in time
    app.open()
    app.close()
    with pytest.raises(InvalidArgument, match="is a folder; give the path of a file"):
        detent.App(f"sqlite:///{missing}").open()


def test_an_async_app_refuses_a_missing_folder_too(tmp_path: Path) -> None:
    async def program() -> None:
        async with detent.AsyncApp(f"sqlite:///{tmp_path}/none/shop.db"):
            pass

    with pytest.raises(InvalidArgument, match="does not exist"):
        asyncio.run(program())
