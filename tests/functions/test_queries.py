"""Finding runs: by state, type, hero, queue, parent, time and attributes; page by page; sync and async."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from typing import Any, ClassVar

import pytest

import detent
from detent import step, workflow
from detent.errors import ConfigurationError
from detent.stores.driver import Tx
from detent.testing import ManualClock
from tests.functions.world import Apps, Gate, eventually, failure, result, wait_for, wait_parked


class Gates:
    now: ClassVar[Gate]


@workflow
def double(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return 2 * number


@workflow
def asks() -> Any:
    return detent.receive("answer")


@step
def hang() -> None:
    Gates.now.pass_through()


@workflow
def busy() -> None:
    hang()


@workflow
def parent() -> None:
    asks.spawn()
    double(1)


def ids(runs: list[detent.Run[Any]]) -> list[str]:
    return [run.id for run in runs]


# -- By state ----------------------------------------------------------------------------------------


def test_each_state_has_its_question(apps: Apps) -> None:
    gate = Gates.now = Gate()
    app = apps(double, asks, busy, concurrency=5)
    start = {name: app.options(id=name).start for name in ("ready", "performing", "paused", "canceled")}
    start["performing"](busy)
    gate.wait_for_arrival()
    for name in ("ready", "paused", "canceled"):
        wait_parked(start[name](asks))
    app.run("paused").pause()
    app.run("canceled").cancel()
    result(app.options(id="finished").start(double, 1))
    failure(app.options(id="failed").start(double, -1))

    eventually(lambda: ids(app.runs.ready()) == ["ready"], "it waits, and executes no more")
    assert ids(app.runs.performing()) == ["performing"]
    assert ids(app.runs.paused()) == ["paused"]
    assert ids(app.runs.canceled()) == ["canceled"]
    assert ids(app.runs.finished()) == ["finished"]
    assert ids(app.runs.failed()) == ["failed"]
    assert ids(app.runs.active()) == ["paused", "ready", "performing"]
    assert ids(app.runs(state="active")) == ids(app.runs.active())
    assert ids(app.runs(state="failed")) == ["failed"]
    assert len(app.runs()) == 6
    gate.open()
    wait_for(app.run("performing"), "finished")
    assert app.runs.performing() == []


# -- By what is known of a run -----------------------------------------------------------------------


def test_a_type_is_a_name_or_the_definition(apps: Apps) -> None:
    app = apps(double, asks, worker=False)
    app.options(id="a").start(asks)
    app.options(id="d").start(double, 1)
    assert ids(app.runs(type=double)) == ids(app.runs(type="double")) == ["d"]
    assert ids(app.runs.active(type=asks)) == ["a"]
    assert app.runs(type="gone for long") == []


class User:
    def __init__(self, number: int) -> None:
        self.number = number


def test_a_hero_is_whatever_it_was_at_the_start(apps: Apps) -> None:
    app = apps(asks, double, worker=False)
    app.hero(User, key=lambda user: user.number)
    app.options(id="a", hero=User(7)).start(asks)
    app.options(id="b", hero=("User", 8)).start(asks)
    app.options(id="c", hero=("Order", 7)).start(asks)
    app.options(id="d", hero=User(7)).start(double, 1)
    assert ids(app.runs(hero=User(7))) == ids(app.runs(hero=("User", 7))) == ["d", "a"]
    assert ids(app.runs.active(hero=User(7), type=asks)) == ["a"]
    with pytest.raises(ConfigurationError, match="is not registered as a hero"):
        app.runs(hero=object())


def test_children_are_found_by_their_parent(apps: Apps) -> None:
    app = apps(parent, asks, double)
    run = app.start(parent)
    result(run)
    assert {child.type for child in app.runs(parent=run)} == {"asks", "double"}
    assert ids(app.runs.active(parent=run.id)) == [f.id for f in app.runs(type=asks)]


def test_runs_are_found_by_queue_and_time(apps: Apps) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    app = apps(double, worker=False, queues=["default", "slow"], clock=clock)
    app.options(id="old").start(double, 1)
    clock.advance(hours=1)
    noon = clock()
    app.options(id="new", queue="slow").start(double, 1)
    assert ids(app.runs(queue="slow")) == ["new"]
    assert ids(app.runs(after=noon)) == ["new"]
    assert ids(app.runs(before=noon)) == ["old"]
    assert ids(app.runs(after=noon - timedelta(hours=1), before=noon)) == ["old"]


# -- Attributes --------------------------------------------------------------------------------------


def test_a_run_is_found_by_its_attributes(apps: Apps) -> None:
    app = apps(double)
    facts: dict[str, str | int | bool] = {"customer": "acme", "amount": 12, "express": True}
    run = app.options(attributes=facts).start(double, 1)
    app.options(attributes={"customer": "acme", "amount": 13}).start(double, 2)
    app.start(double, 3)

    assert run.attributes == facts
    assert app.run(run.id).attributes == facts
    result(run)
    assert run.attributes == facts
    assert run.refresh().attributes == facts
    assert len(app.runs(attributes={"customer": "acme"})) == 2
    assert ids(app.runs(attributes={"customer": "acme", "amount": 12})) == [run.id]
    assert ids(app.runs.finished(attributes={"express": True})) == [run.id]
    assert app.runs(attributes={"customer": "nobody"}) == []
    assert len(app.runs(attributes={})) == 3


def test_many_runs_may_share_attributes(apps: Apps) -> None:
    app = apps(double, worker=False)
    runs = app.options(attributes={"batch": 7}).start_many(double, [(1,), (2,), (3,)])
    assert {run.id for run in app.runs(attributes={"batch": 7})} == {run.id for run in runs}
    assert [run.attributes for run in runs] == [{"batch": 7}] * 3


def test_attributes_come_and_go_with_the_users_transaction(apps: Apps) -> None:
    app = apps(double, worker=False)
    store = app.engine.store
    for ends_well in (False, True):
        connection = store.driver.connect()
        store.driver.begin(connection)
        run = app.options(attributes={"customer": "acme"}).within(connection).start(double, 1)
        assert run.attributes == {"customer": "acme"}
        connection.commit() if ends_well else connection.rollback()
        connection.close()
        assert ids(app.runs(attributes={"customer": "acme"})) == ([run.id] if ends_well else [])


def test_the_first_start_decides_on_the_attributes(apps: Apps) -> None:
    app = apps(double, worker=False)
    app.options(id="x", attributes={"a": 1}).start(double, 1)
    assert app.options(id="x", attributes={"a": 2}).start(double, 1).attributes == {"a": 1}


def test_a_fork_has_the_attributes_of_its_origin(apps: Apps) -> None:
    Gates.now = Gate()
    Gates.now.open()
    app = apps(busy)
    run = app.options(attributes={"customer": "acme"}).start(busy)
    result(run)
    fork = app.fork(run, from_step="hang")
    assert fork.attributes == app.run(fork.id).attributes == {"customer": "acme"}


def test_a_run_without_attributes_costs_no_statement_more(apps: Apps, monkeypatch: Any) -> None:
    app = apps(double, worker=False)
    said: list[str] = []
    send = Tx.send

    def listen(tx: Any, statement: str, **params: Any) -> None:
        if "INSERT" in statement:  # not: calling others that listen
            said.append(statement)
        send(tx, statement, **params)

    monkeypatch.setattr(Tx, "send", listen)
    app.start(double, 1)
    assert said == []  # a plain start has statements of its own (batch/fast_paths.py)
    app.options(attributes={"a": 1}).start(double, 1)
    assert len(said) == 3


class Colour(str, Enum):  # noqa: UP042  (str() of these is not their value)
    RED = "red"


class Size(IntEnum):
    LARGE = 3


def test_enums_are_attributes_by_their_value(apps: Apps) -> None:
    app = apps(double, worker=False)
    run = app.options(attributes={"colour": Colour.RED, "size": Size.LARGE}).start(double, 1)
    assert app.run(run.id).attributes == {"colour": "red", "size": 3}
    assert ids(app.runs(attributes={"colour": Colour.RED, "size": 3})) == [run.id]


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"price": 1.5}, "attributes are texts, whole numbers and bools"),
        ({"customer": None}, "attributes are texts"),
        ({7: "x"}, "the name of an attribute must be a text"),
        ({"": "x"}, "not empty"),
        (["customer"], "give a dict"),
        ({"n": 2**63}, "64 bits"),
        ({"n" * 101: 1}, "101 characters, 100 are allowed"),
        ({"note": "x" * 256}, "256 characters"),
        ({"note": "with\x00nul"}, "NUL"),
        ({"note": "half \ud800"}, "surrogate"),
        ({"note": "blank "}, "ends with a space"),
    ],
)
def test_what_is_no_attribute_is_refused_at_the_start_and_in_a_question(
    apps: Apps, attributes: Any, said: str
) -> None:
    app = apps(double, worker=False)
    with pytest.raises(ConfigurationError, match=said):
        app.options(attributes=attributes).start(double, 1)
    with pytest.raises(ConfigurationError, match=said):
        app.runs(attributes=attributes)
    assert app.runs() == []


# -- Page by page ------------------------------------------------------------------------------------


@pytest.fixture
def ten(apps: Apps) -> tuple[detent.App, list[str]]:
    """Ten runs that began in the same moment; newest first is then by id."""
    app = apps(double, worker=False, clock=ManualClock())
    runs = app.options(attributes={"batch": 1}).start_many(double, [(number,) for number in range(10)])
    order = ids(app.runs())
    assert sorted(order) == sorted(run.id for run in runs)
    return app, order


def test_a_page_goes_on_behind_a_run(ten: tuple[detent.App, list[str]]) -> None:
    app, order = ten
    first = app.runs(limit=4)
    for cursor in (first[-1], first[-1].id, first[-1].cursor):
        assert ids(app.runs(limit=4, cursor=cursor)) == order[4:8]
        assert ids(app.runs.ready(attributes={"batch": 1}, cursor=cursor)) == order[4:]
    assert app.runs(cursor=order[-1]) == []


def test_a_cursor_outlives_its_run(ten: tuple[detent.App, list[str]]) -> None:
    app, order = ten
    last = app.runs(limit=4)[-1]
    last.cancel()
    assert app.gc(older_than=timedelta(0)) == 0  # it ended just now
    app.engine.clock.advance(days=1)  # type: ignore[attr-defined]
    assert app.gc(older_than=timedelta(hours=1)) == 1
    assert ids(app.runs(cursor=last)) == ids(app.runs(cursor=last.cursor)) == order[4:]
    with pytest.raises(ConfigurationError, match="neither a run's id nor its cursor"):
        app.runs(cursor=last.id)


def test_all_runs_are_walked_over_while_others_begin(
    ten: tuple[detent.App, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, order = ten
    monkeypatch.setattr("detent.app.listing.PAGE", 3)
    seen = []
    for run in app.runs.each():
        seen.append(run.id)
        app.engine.clock.advance(1)  # type: ignore[attr-defined]
        app.start(double, 0)
    assert seen == order
    assert [run.id for run in app.runs.each(attributes={"batch": 1}, limit=7)] == order[:7]
    assert [
        run.id for run in app.runs.each(state="ready", attributes={"batch": 1}, cursor=order[5])
    ] == order[6:]
    assert list(app.runs.each(state="failed")) == []


# -- Overdue -----------------------------------------------------------------------------------------


def test_what_nobody_takes_becomes_overdue(apps: Apps) -> None:
    clock = ManualClock()
    app = apps(double, asks, worker=False, clock=clock)
    app.options(id="late").start(double, 1)
    app.options(id="later", delay=timedelta(minutes=4)).start(double, 1)
    assert app.runs(overdue=timedelta(minutes=5)) == []
    clock.advance(minutes=6)
    assert ids(app.runs(overdue=timedelta(minutes=5))) == ["late"]
    assert ids(app.runs(overdue=timedelta(minutes=1))) == ["later", "late"]
    assert ids(app.runs.ready(overdue=timedelta(minutes=1), type=double, limit=1)) == ["later"]

    helper = apps(double, clock=clock)
    for run in helper.runs():
        result(run)
    assert app.runs(overdue=timedelta(0)) == []


# -- Bad questions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (
            {"state": "sleepy"},
            "give one of 'ready', 'performing', 'paused', 'finished', 'failed'",
        ),
        ({"limit": 0}, "limit=0"),
        ({"limit": "10"}, "whole number"),
        ({"limit": True}, "whole number"),
        ({"type": 7}, "give a workflow, a decider, or its name"),
        ({"type": ""}, "it is empty"),
        ({"type": "nul\x00"}, "databases refuse"),
        ({"queue": 7}, "queue=7"),
        ({"parent": 7}, "parent=7"),
        ({"hero": 7}, "is not registered as a hero"),
        ({"hero": ("User", "nul\x00")}, "databases refuse"),
        ({"after": "yesterday"}, "after='yesterday' is not accepted: give a datetime"),
        ({"before": 7}, "before=7 is not accepted: give a datetime"),
        ({"cursor": 7}, "cursor=7"),
        ({"cursor": "nowhere"}, "neither a run's id nor its cursor"),
        ({"after": datetime(2030, 1, 1)}, "it has no time zone"),
        ({"overdue": "5m"}, "give a timedelta or a number of seconds"),
        ({"overdue": timedelta(-1)}, "cannot be negative"),
        ({"overdue": timedelta(1), "state": "paused"}, "never overdue"),
        ({"colour": "red"}, "no filter 'colour'; it is one of after, attributes, before, cursor"),
    ],
    ids=str,
)
def test_a_question_that_makes_no_sense_is_refused(apps: Apps, filters: Any, said: str) -> None:
    app = apps(double, worker=False)
    questions: list[Callable[[], Any]] = [lambda: app.runs(**filters), lambda: list(app.runs.each(**filters))]
    if "state" not in filters:
        questions.append(lambda: app.runs.active(**filters))
    for question in questions:
        with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
            question()


# -- asyncio -----------------------------------------------------------------------------------------


def test_the_same_questions_are_awaited(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.app.listing.PAGE", 2)

    async def main() -> None:
        async with detent.AsyncApp(url, include=[double, asks]) as app:
            facts = {"customer": "acme"}
            run = await app.options(attributes=facts).start(double, 1)
            await run.result()
            waiting = await app.options(attributes=facts).start_many(asks, [(), (), ()])
            assert waiting[0].attributes == facts
            assert [r.id for r in await app.runs.finished(attributes=facts)] == [run.id]
            assert len(await app.runs.active(type=asks)) == 3
            first = await app.runs(limit=2)
            rest = await app.runs(cursor=first[-1])
            walked = [r.id async for r in app.runs.each(attributes=facts)]
            assert walked == [r.id for r in [*first, *rest]]
            assert len(walked) == 4
            with pytest.raises(ConfigurationError, match="no filter"):
                await app.runs(colour="red")  # type: ignore[call-arg]
            with pytest.raises(ConfigurationError, match="whole number"):
                app.runs.each(limit=0)
            assert [type(r) for r in first] == [detent.AsyncRun] * 2
            assert await app.runs(overdue=timedelta(hours=1)) == []

    asyncio.run(main())


def test_attributes_join_an_async_transaction(url: str) -> None:
    if not url.startswith("postgresql"):
        return
    import psycopg

    async def main() -> None:
        app = detent.AsyncApp(url, include=[double])
        async with await psycopg.AsyncConnection.connect(url) as connection:
            run = await app.options(attributes={"a": 1}).within(connection).start(double, 1)
            assert await app.runs(attributes={"a": 1}) == []
        assert [r.id for r in await app.runs(attributes={"a": 1})] == [run.id]
        await app.close()

    asyncio.run(main())


def test_a_question_opens_the_app(apps: Apps, url: str) -> None:
    apps(double, worker=False).options(id="there").start(double, 1)
    other = detent.App(url)
    assert ids(other.runs()) == ["there"]
    other.close()
    eventually(lambda: not other.engine.is_open)
