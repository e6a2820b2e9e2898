"""The public face: documented, exported, and the same in sync and async code.

`detent.__all__`, `detent.aio.__all__` and `detent.testing.__all__` are the public names.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TypeVar

import pytest

import detent
from detent import aio, testing
from detent.aio.deciders import AsyncDeadLetters, AsyncDeciders
from detent.app.dead_letters import DeadLetters
from detent.app.machine import Deciders
from detent.app.projections import AsyncProjections, Projections
from detent.app.settings import AppSettings, Options, Settings, StartOptions
from detent.definitions.child_options import ChildKeywords, ChildOptions
from detent.definitions.decorators import StepKeywords, WorkflowKeywords
from detent.definitions.graphs import Graph
from detent.definitions.node_options import JobKeywords, NodeOptions
from detent.definitions.workflows import TaskKeywords

PUBLIC: dict[str, Any] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (detent, aio, testing)
    for name in module.__all__
}
PLAIN_VALUES = {"detent.PREVIOUS"}
# Public for other layers of the package, not for users: what they return is not exported.
MACHINERY = {"limits", "engine", "row", "routine", "documented", "wire", "group"}
# Each pair has the same methods with the same parameters; what waits is awaited.
TWINS = [
    (detent.App, detent.AsyncApp),
    (detent.Run, detent.AsyncRun),
    (detent.Runs, detent.AsyncRuns),
    (detent.Stream, detent.AsyncStream),
    (detent.Starter, detent.AsyncStarter),
    (detent.Within, detent.AsyncWithin),
    (detent.View, detent.AsyncView),
    (detent.Transaction, detent.AsyncTransaction),
    (Deciders, AsyncDeciders),
    (DeadLetters, AsyncDeadLetters),
    (Projections, AsyncProjections),
]
ONLY_ASYNC = {
    "AsyncApp": {"sync", "engine", "ensure_open"},  # an App has its engine as an attribute
    "AsyncTransaction": {"fetchall", "in_turn"},  # a cursor would block the loop
}
# In async code a value that is read from the database is awaited, so it is a method there.
READ = {"AsyncRun": {"waiting_for"}}
ONLY_SYNC = {
    "AsyncTransaction": {"cursor"},
    "AsyncProjections": {"waiting"},  # the looks that both forms of wait() share
}


# -- Documentation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - PLAIN_VALUES))
def test_every_public_name_has_a_docstring_with_an_example(name: str) -> None:
    thing = PUBLIC[name]
    if isinstance(thing, ModuleType):
        assert thing.__doc__
        return
    assert examples(own_docstring(thing)), f"{name}: add an example of two or three lines to its docstring"


@pytest.mark.parametrize("name", sorted(name for name, thing in PUBLIC.items() if inspect.isclass(thing)))
def test_every_public_method_has_a_docstring(name: str) -> None:
    assert not [method for method, value in methods(PUBLIC[name]) if not inspect.getdoc(value)], (
        f"methods of {name} without a docstring"
    )


def test_an_example_is_told_from_prose() -> None:
    assert examples("Wait.\n\n    run = app.start(fulfil, 42)\n")
    assert examples("Wait.\n\nrun = app.start(fulfil, 42)\n")
    assert not examples("Wait for the result; the worker is free meanwhile.")
    assert not examples("Wait.\n\nSee the guide.")


# -- Types -------------------------------------------------------------------------------------------


def test_every_type_that_a_public_call_returns_is_exported() -> None:
    exported = {thing.__name__ for thing in PUBLIC.values() if inspect.isclass(thing)}
    exported |= vars(detent.events).keys()
    hidden = {
        f"{owner} returns {name}"
        for owner, function in public_functions()
        for name in returned_names(function)
        if name in OURS and name not in exported and owner.rpartition(".")[2] not in MACHINERY
    }
    assert not hidden


def test_no_public_call_takes_unnamed_options() -> None:
    """`**options: Any` hides the keywords from editors; `**kwargs` are passed on to the user's function."""
    assert not [
        f"{owner}(**{parameter.name}: {parameter.annotation})"
        for owner, function in public_functions()
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD
        and parameter.annotation == "Any"
        and parameter.name not in ("kwargs", "params", "fields")
    ]


# -- Keywords ----------------------------------------------------------------------------------------


def test_help_shows_the_keywords_and_their_defaults() -> None:
    assert parameters(detent.App)["concurrency"].default == Settings().concurrency
    assert parameters(detent.AsyncApp) == parameters(detent.App)
    assert parameters(detent.App.options).keys() >= keys(StartOptions)
    assert parameters(detent.step).keys() >= {*keys(StepKeywords), "transactional", "isolation", "executor"}
    assert parameters(detent.workflow)["on_exception"].default == "fail"


def test_each_list_of_keywords_agrees_with_what_checks_it() -> None:
    assert keys(AppSettings) == set(Settings.__struct_fields__)
    assert keys(StartOptions) == set(Options.__struct_fields__)
    assert keys(ChildKeywords) == set(ChildOptions.__struct_fields__) - {"where"}
    made_from = {*NodeOptions.__struct_fields__, *parameters(detent.Step.__init__)}
    made_from -= {"self", "function", "node", "chained"}
    assert {*keys(StepKeywords), "transactional", "isolation", "executor"} == made_from
    assert keys(TaskKeywords) <= made_from
    assert keys(WorkflowKeywords) == parameters(detent.FunctionWorkflow.__init__).keys() - {
        "self",
        "function",
    }
    assert keys(JobKeywords) <= parameters(Graph.node).keys()


# -- Parity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sync", "other"), TWINS, ids=lambda cls: cls.__name__)
def test_sync_and_async_code_have_the_same_methods(sync: type, other: type) -> None:
    ours, theirs = dict(methods(sync)), dict(methods(other))
    assert theirs.keys() - ours.keys() == ONLY_ASYNC.get(other.__name__, set())
    assert ours.keys() - theirs.keys() == ONLY_SYNC.get(other.__name__, set())
    differing = {
        name: f"{shape(ours[name])} and {shape(theirs[name])}"
        for name in ours.keys() & theirs.keys() - READ.get(other.__name__, set())
        if shape(ours[name]) != shape(theirs[name])
    }
    assert not differing


def test_the_durable_functions_have_awaitable_forms_with_the_same_parameters() -> None:
    for name in set(detent.__all__) & set(aio.__all__):
        ours, theirs = getattr(detent, name), getattr(aio, name)
        if not inspect.isclass(ours):
            assert shape(ours) == shape(theirs), name


# -- Reading the face --------------------------------------------------------------------------------


def own_docstring(thing: Any) -> str:
    """The docstring of a function or a class itself: neither inherited, nor made by @dataclass."""
    doc = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return inspect.cleandoc(doc) if doc and not doc.startswith(f"{thing.__name__}(") else ""


def examples(doc: str) -> list[str]:
    """The paragraphs of a docstring that are Python code, and use something."""
    return [one for one in re.split(r"\n\s*\n", inspect.cleandoc(doc)) if _is_code(textwrap.dedent(one))]


def _is_code(text: str) -> bool:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(
        isinstance(node, ast.Call | ast.ClassDef | ast.FunctionDef | ast.Raise | ast.ExceptHandler)
        for node in ast.walk(tree)
    )


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that are ours."""
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        made_here = getattr(value, "__module__", None) or getattr(
            getattr(value, "fget", None) or getattr(value, "func", None), "__module__", ""
        )
        is_method = inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)
        if not name.startswith("_") and is_method and str(made_here).startswith("detent"):
            yield name, value


def public_functions() -> Iterator[tuple[str, Any]]:
    """All public functions, and the public methods of public classes."""
    for name, thing in PUBLIC.items():
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            for method, value in methods(thing):
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if function is not None:
                    yield f"{name}.{method}", function


def returned_names(function: Any) -> set[str]:
    """The names in what a function says that it returns."""
    annotation = function.__annotations__.get("return", "")
    names = set(re.findall(r"[A-Za-z_]\w*", annotation if isinstance(annotation, str) else ""))
    return {name for name in names if not isinstance(function.__globals__.get(name), TypeVar)}


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def keys(typed_dict: Any) -> set[str]:
    return set(typed_dict.__annotations__)


def shape(value: Any) -> list[tuple[str, Any, Any]] | str:
    """The parameters of a method: their names, kinds and defaults."""
    if isinstance(value, property):
        return "a property"
    function = getattr(value, "__func__", value)
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def _classes_of_the_package() -> set[str]:
    import pkgutil
    from importlib import import_module

    found = set()
    for info in pkgutil.walk_packages(detent.__path__, "detent."):
        if info.name.endswith("__main__"):
            continue
        module = import_module(info.name)
        found |= {
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__
        }
    return found


OURS = _classes_of_the_package()
