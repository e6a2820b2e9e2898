"""Bad arguments of a run's verbs: refused with a clear error, and nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

import detent
from detent import workflow
from detent.errors import InvalidArgument, UnknownDefinition
from tests.functions.world import Apps, result


@workflow
def waits() -> Any:
    return detent.receive("go")


VERBS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "send: a name that is no text": (lambda run: run.send(5), "name=5"),
    "send: an empty name": (lambda run: run.send(""), "it is empty"),
    "send: an id that is no text": (lambda run: run.send("go", id=5), "id=5"),
    "send: an empty id": (lambda run: run.send("go", id=""), "it is empty"),
    "result: a timeout that is no duration": (lambda run: run.result(timeout="5m"), "timeout='5m'"),
    "result: a timeout that is no number": (lambda run: run.result(timeout=float("nan")), "timeout=nan"),
    "pause: a reason that is no text": (lambda run: run.pause(reason=5), "reason=5"),
    "cancel: a reason that is no text": (lambda run: run.cancel(reason=5), "reason=5"),
    "published: a name that is no text": (lambda run: run.published(5), "name=5"),
    "skip: a node that is no text": (lambda run: run.skip(5), "node=5"),
    "reattempt: a node that is no text": (lambda run: run.reattempt(None), "node=None"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_refuses_what_it_does_not_accept_and_changes_nothing(apps: Apps, verb: str) -> None:
    call, said = VERBS[verb]
    run = apps(waits, worker=False).start(waits)
    before = run.refresh().row
    with pytest.raises(InvalidArgument, match=said):
        call(run)
    assert run.refresh().row == before


def test_async_verbs_refuse_the_same(url: str) -> None:
    async def program() -> None:
        app = detent.AsyncApp(url, include=waits)
        await app.open(worker=False)
        run = await app.start(waits)
        for call, said in VERBS.values():
            with pytest.raises(InvalidArgument, match=said):
                await call(run)
        with pytest.raises(InvalidArgument, match="older_than=30"):
            await app.gc(older_than=30)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"app\.run\(\): id=5"):
            await app.run(5)  # type: ignore[arg-type]
        await app.close()

    asyncio.run(program())


def test_options_that_are_refused_start_nothing(apps: Apps) -> None:
    app = apps(waits, worker=False)
    wrong: list[dict[str, Any]] = [
        {"id": 5},
        {"priority": 10**12},
        {"delay": "5m"},
        {"deadline": datetime(2030, 1, 1)},
    ]
    for options in wrong:
        with pytest.raises(InvalidArgument):
            app.options(**options).start(waits)
    assert app.runs() == []


def test_the_largest_priority_and_a_deadline_in_seconds_are_stored(apps: Apps) -> None:
    app = apps(waits, worker=False)
    run = app.options(priority=2**31 - 1, deadline=3600, delay=60).start(waits).refresh()
    assert run.row.priority == 2**31 - 1
    assert run.row.deadline is not None
    assert run.row.deadline - run.row.created_at == 3_600_000_000


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (5, "calls=5 is not accepted: give a list with a tuple of arguments for each run"),
        ("ab", "calls='ab' is not accepted"),
        ([(1,), 2], r"calls\[1\]=2 is not accepted: give the arguments of a run as a tuple"),
        (["ab"], r"calls\[0\]='ab' is not accepted"),
    ],
    ids=str,
)
def test_the_calls_of_start_many_are_tuples(apps: Apps, calls: Any, said: str) -> None:
    app = apps(waits, worker=False)
    with pytest.raises(InvalidArgument, match=said):
        app.start_many(waits, calls)
    assert app.runs() == []


CELL = """
import detent

@detent.step
def charge(number: int) -> str:
    return f"{VERSION} charged {number}"

@detent.workflow
def fulfil(number: int) -> str:
    return charge(number) + ", " + charge.spawn(number).result()
"""


def cell(version: str) -> Any:
    """Run a notebook's cell: every time it makes the same definitions anew."""
    namespace: dict[str, Any] = {"__name__": "notebook"}
    exec(CELL.replace("{VERSION}", version), namespace)
    return namespace["fulfil"]


def test_a_workflow_that_is_defined_again_replaces_the_earlier_definition(apps: Apps) -> None:
    first, second = cell("first"), cell("second")
    app = apps(first)
    assert result(app.start(first, 1)) == "first charged 1, first charged 1"
    assert result(app.start(second, 2)) == "second charged 2, second charged 2"
    assert result(app.start("fulfil", 3)) == "second charged 3, second charged 3"


def test_another_definition_of_the_same_name_is_refused_and_named(apps: Apps) -> None:
    def make(number: int) -> Any:
        @workflow
        def made() -> int:
            return number

        return made

    app = apps(make(1))
    with pytest.raises(
        UnknownDefinition, match=r"another definition of 'made', from .*test_bad_arguments.*made"
    ):
        app.start(make(2))
    assert result(app.start("made")) == 1
