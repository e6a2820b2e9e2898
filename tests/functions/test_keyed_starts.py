"""Dedup windows and debounces: several starts that are one run."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Debounce, Workflow, step, workflow
from detent.errors import ConfigurationError, InvalidArgument, InvalidOption
from detent.events import RunStarted
from detent.kernel.start_keys import Holder, StartKey, deduplicated
from detent.stores.verbs import start_keys
from detent.testing import TestingApp

from .world import Apps, Gate, eventually, result, wait_for

HOUR = timedelta(hours=1)
LATER = Debounce("user-7", wait=HOUR)


@workflow
def reindex(user: int) -> int:
    return user


class Index(Workflow):
    user: int

    @step
    def index(self) -> int:
        return self.user


def together(number: int, action: Callable[[int], Any]) -> list[Any]:
    """Call it in so many threads, which all begin at the same moment."""
    found: list[Any] = [None] * number
    barrier = threading.Barrier(number)

    def work(place: int) -> None:
        barrier.wait()
        found[place] = action(place)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# The rules


def test_a_debounced_run_begins_after_the_wait_and_not_later_than_at_most() -> None:
    key = StartKey(mode="debounce", type="reindex", key="k", span=5, at_most=12)
    assert [key.until(100, now) for now in (100, 104, 108, 112, 120)] == [105, 109, 112, 112, 120]
    assert StartKey(mode="debounce", type="reindex", key="k", span=5).until(0, 100) == 105


def test_a_window_ends_at_its_end() -> None:
    holder = Holder("run", 0, 10)
    assert [deduplicated(holder, now) for now in (0, 9, 10, 11)] == [True, True, False, False]
    assert not deduplicated(Holder("", 0, 10), 5)


# Dedup windows


def test_the_second_start_inside_of_the_window_returns_the_first_run(testing: TestingApp) -> None:
    testing.include(reindex)
    options = testing.options(dedup_key="user-7", within=HOUR)
    first = options.start(reindex, 1)
    assert result(first) == 1
    testing.advance(HOUR - timedelta(seconds=1))
    assert options.start(reindex, 2).id == first.id  # although it is over
    testing.advance(timedelta(seconds=1))
    later = options.start(reindex, 3)
    assert later.id != first.id
    assert result(later) == 3


def test_keys_are_kept_apart_by_key_and_by_workflow(apps: Apps) -> None:
    app = apps(reindex, Index, worker=False)
    runs = [
        app.options(dedup_key="a", within=1000).start(reindex, 1),
        app.options(dedup_key="b", within=1000).start(reindex, 1),
        app.options(dedup_key="a", within=1000).start(Index, user=1),
        app.options(debounce=Debounce("a", wait=1000)).start(reindex, 1),
    ]
    assert len({run.id for run in runs}) == 4


def test_a_run_that_was_removed_does_not_answer_for_its_window(apps: Apps) -> None:
    app = apps(reindex)
    options = app.options(dedup_key="user-7", within=HOUR)
    first = options.start(reindex, 1)
    result(first)
    first.delete()
    assert options.start(reindex, 2).id != first.id


@pytest.mark.parametrize("definition", [reindex, Index])
def test_of_many_starts_at_once_one_begins_a_run(apps: Apps, definition: Any) -> None:
    several = [apps(definition, worker=False) for _ in range(4)]

    def start(place: int) -> str:
        options = several[place % 4].options(dedup_key="user-7", within=HOUR)
        return options.start(definition, user=place).id

    assert len(set(together(8, start))) == 1
    assert len(several[0].runs()) == 1


def test_a_start_waits_for_another_that_has_not_committed(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race is held open: the first has decided to begin a run, and has not written it."""
    gate, original, first = Gate(), start_keys._begin, threading.Lock()

    def held(*args: Any, **kwargs: Any) -> Any:
        if first.acquire(blocking=False):
            gate.pass_through()
        return original(*args, **kwargs)

    monkeypatch.setattr(start_keys, "_begin", held)
    found: list[str] = []

    def start() -> None:
        app = apps(reindex, worker=False)
        found.append(app.options(dedup_key="user-7", within=HOUR).start(reindex, 1).id)

    threads = [threading.Thread(target=start) for _ in range(2)]
    threads[0].start()
    gate.wait_for_arrival()
    threads[1].start()
    threads[1].join(0.3)
    assert found == []  # the second waits for the lock of the key
    gate.open()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert len(set(found)) == 1


# Debounce


@pytest.mark.parametrize("definition", [reindex, Index])
def test_debounced_starts_are_one_run_with_the_latest_arguments(testing: TestingApp, definition: Any) -> None:
    testing.include(definition)
    options = testing.options(debounce=Debounce("user-7", wait=5, at_most=60))
    first = options.start(definition, user=1)
    for user in (2, 3):
        testing.advance(4)
        assert options.start(definition, user=user).id == first.id
    testing.advance(4)
    assert testing.run(first.id).state == "ready"
    testing.advance(1)
    assert result(first) == 3
    assert len(testing.runs()) == 1


def test_starts_that_keep_coming_delay_a_run_at_most_so_long(testing: TestingApp) -> None:
    testing.include(reindex)
    options = testing.options(debounce=Debounce("user-7", wait=5, at_most=12))
    runs = []
    for user in range(5):
        runs.append(options.start(reindex, user))
        testing.advance(4)
    assert [run.id == runs[0].id for run in runs] == [True, True, True, False, False]
    assert result(runs[0]) == 2
    testing.advance(5)
    assert result(runs[-1]) == 4


def test_a_start_after_the_run_has_begun_is_another_run(apps: Apps) -> None:
    gate = Gate()

    @workflow
    def slow(user: int) -> int:
        gate.pass_through()
        return user

    app = apps(slow)
    options = app.options(debounce=Debounce("user-7", wait=0.01))
    first = options.start(slow, 1)
    gate.wait_for_arrival()
    second = options.start(slow, 2)
    assert second.id != first.id
    gate.open()
    assert (result(first), result(second)) == (1, 2)


def test_a_claim_and_a_debounced_start_never_share_a_run(apps: Apps) -> None:
    """Each start's arguments are executed, or were replaced by a later start's; the last one always runs."""
    seen: list[int] = []

    @workflow
    def collect(number: int) -> int:
        seen.append(number)
        return number

    app = apps(collect)
    clients = [app, apps(collect, worker=False)]
    runs = {}
    for number in range(40):
        options = clients[number % 2].options(debounce=Debounce("k", wait=0.002, at_most=0.004))
        runs[options.start(collect, number).id] = number
    assert [result(app.run(id)) for id in runs] == list(runs.values())
    assert sorted(seen) == sorted(runs.values())
    assert seen[-1] == 39


def test_a_debounced_start_keeps_messages_pauses_and_those_who_wait(apps: Apps) -> None:
    @workflow
    def listens(user: int) -> str:
        return f"{user} {detent.receive('word')}"

    app = apps(listens)
    options = app.options(debounce=LATER)
    run = options.start(listens, 1)
    run.send("word", "hello")
    run.pause(reason="not now")
    waiting = threading.Thread(target=lambda: found.append(run.result(timeout=60, wait_paused=True)))
    found: list[str] = []
    waiting.start()
    assert options.start(listens, 2).state == "paused"
    run.resume()
    sooner = app.options(debounce=Debounce("user-7", wait=0.01))
    assert sooner.start(listens, 3).id == run.id
    waiting.join(60)
    assert found == ["3 hello"]


def test_of_many_debounced_starts_at_once_one_run_is_left(apps: Apps) -> None:
    several = [apps(reindex, worker=False) for _ in range(4)]

    def start(place: int) -> str:
        return several[place % 4].options(debounce=LATER).start(reindex, place).id

    assert len(set(together(8, start))) == 1
    [run] = several[0].runs()
    assert len([item for item in run.executions() if item.kind == "main"]) == 1


def test_a_process_that_dies_inside_of_a_start_leaves_the_key_free(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*args: Any, **kwargs: Any) -> Any:
        raise Killed

    app = apps(reindex, worker=False)
    options = app.options(debounce=LATER)
    first = options.start(reindex, 1)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(start_keys, "_begin", killed)
        options.start(reindex, 2)
    assert app.run(first.id).refresh().state == "ready"  # nothing of the second start stays
    assert options.start(reindex, 3).id == first.id


def test_keys_that_are_over_are_forgotten_but_not_those_of_runs_that_wait(apps: Apps) -> None:
    app = apps(reindex, worker=False)
    over = app.options(dedup_key="over", within=0.001).start(reindex, 1)
    over.cancel()
    waiting = app.options(debounce=Debounce("waits", wait=0.001))
    run = waiting.start(reindex, 1)
    now = app.engine.clock.now()
    assert app.engine.store.forget_start_keys(before=now + 1_000_000) == 1
    assert waiting.start(reindex, 2).id == run.id


def test_a_run_of_several_starts_is_reported_once(apps: Apps) -> None:
    app = apps(reindex, worker=False)
    seen: list[str] = []
    app.subscribe(lambda event: seen.append(event.run_id), events=(RunStarted,))
    runs = [app.options(debounce=LATER).start(reindex, user) for user in (1, 2)]
    runs += [app.options(dedup_key="k", within=HOUR).start(reindex, user) for user in (1, 2)]
    eventually(lambda: len(seen) == 2)
    app.close()  # which delivers the rest
    assert seen == [runs[0].id, runs[2].id]


# In other places


def test_keyed_starts_in_asyncio(url: str) -> None:
    async def program() -> None:
        async with detent.AsyncApp(url, include=[reindex]) as app:
            dedup = app.options(dedup_key="user-7", within=HOUR)
            runs = await asyncio.gather(*(dedup.start(reindex, 5) for _ in range(5)))
            assert len({run.id for run in runs}) == 1
            assert await runs[0].result(timeout=60) == 5
            first = await app.options(debounce=LATER).start(reindex, 1)
            sooner = app.options(debounce=Debounce("user-7", wait=0.01))
            assert (await sooner.start(reindex, 2)).id == first.id
            assert await first.result(timeout=60) == 2

    asyncio.run(program())


def test_a_step_starts_with_a_key_once_and_a_workflow_is_told_to_use_a_step(apps: Apps) -> None:
    @step(retry=detent.Retry(attempts=2, first=timedelta(0)))
    def starts(ctx: detent.Context) -> str:
        run = app.options(debounce=LATER).start(reindex, ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("after the start")
        return run.id

    @workflow
    def good() -> str:
        return starts()

    @workflow
    def bad() -> None:
        app.options(dedup_key="k", within=1).start(reindex, 1)

    app = apps(good, bad, reindex)
    run = app.run(result(app.start(good)))
    assert [one.id for one in app.runs(type=reindex)] == [run.id]
    with pytest.raises(ConfigurationError, match="do it in a step"):
        result(app.start(bad))


def test_a_keyed_start_within_a_transaction_exists_if_that_commits(sqlite_url: str) -> None:
    import sqlite3

    app = detent.App(sqlite_url, include=[reindex]).open(worker=False)
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    options = app.options(dedup_key="user-7", within=HOUR)
    lost = options.within(connection).start(reindex, 1)
    connection.rollback()
    kept = options.within(connection).start(reindex, 2)
    connection.commit()
    assert kept.id != lost.id
    assert [run.id for run in app.runs()] == [kept.id]
    assert options.start(reindex, 3).id == kept.id
    connection.close()
    app.close()


@pytest.mark.parametrize(
    "options",
    [
        {"dedup_key": "k"},
        {"within": 5},
        {"dedup_key": "", "within": 5},
        {"dedup_key": "k", "within": 0},
        {"dedup_key": "k", "within": 5, "id": "x"},
        {"debounce": "k"},
        {"debounce": LATER, "id": "x"},
        {"debounce": LATER, "delay": 5},
        {"debounce": LATER, "dedup_key": "k", "within": 5},
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: Any) -> None:
    with pytest.raises(InvalidArgument):
        detent.App("sqlite:///:memory:").options(**options)


@pytest.mark.parametrize(
    ("key", "given"), [("", {"wait": 5}), ("k", {"wait": 0}), ("k", {"wait": 5, "at_most": 4})]
)
def test_a_debounce_needs_a_key_and_a_wait(key: str, given: Any) -> None:
    with pytest.raises(InvalidOption):
        Debounce(key, **given)


def test_start_many_takes_no_keys(apps: Apps) -> None:
    app = apps(reindex, worker=False)
    with pytest.raises(ConfigurationError, match="start_many"):
        app.options(debounce=LATER).start_many(reindex, [(1,), (2,)])
    wait_for(app.options(debounce=LATER).start(reindex, 1), "ready")
