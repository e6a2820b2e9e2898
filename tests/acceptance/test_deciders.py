"""Deciders in processes that are killed: nothing is lost, nothing is decided twice."""

import random
import time
from collections import Counter

import pytest

from detent import App
from tests.acceptance.programs.ledger import Add, Ledger
from tests.acceptance.support import Process, World, eventually, query

pytestmark = pytest.mark.acceptance

MAX_RECOVERIES = 3
INSTANCES = 12
LINES = 5
TICKS = 4


def lines(app: App, instance: str) -> list[str]:
    return app.state_at(Ledger, instance).lines


def without_gaps(app: App) -> None:
    """Positions count up over all events, sequences in each instance."""
    rows = query(app, "SELECT run_id, sequence, position FROM detent_events ORDER BY position")
    assert [position for *_, position in rows] == list(range(1, len(rows) + 1))
    seen: Counter[str] = Counter()
    for run, sequence, _ in rows:
        seen[run] += 1
        assert sequence == seen[run]


def test_an_effect_that_kills_its_process_is_a_dead_letter_and_its_instance_goes_on(world: World) -> None:
    app = world.app(Ledger)

    def new_worker() -> Process:
        return world.worker("ledger", max_recoveries=MAX_RECOVERIES)

    worker = new_worker()
    app.execute(Ledger, Add("poisoned", "a", deadly=True))
    for number in range(INSTANCES):
        app.execute(Ledger, Add(str(number), "a", post=True))

    def over() -> bool:
        nonlocal worker
        if not worker.alive:
            worker = new_worker()
        return app.dead_letters.count() == 1

    eventually(over, "it is a dead letter")
    eventually(
        lambda: all(lines(app, str(number)) == ["a", "posted a"] for number in range(INSTANCES)),
        "everything else is done",
    )
    [letter] = app.dead_letters(Ledger)
    assert letter.error is not None
    assert letter.error.type.endswith("TooManyRecoveries")
    assert (letter.kind, letter.instance) == ("effect", "poisoned")
    begun = [effect for effect in world.effects() if effect.run == "ledger:poisoned"]
    assert len({effect.pid for effect in begun}) == len(begun) == MAX_RECOVERIES + 1
    assert len({effect.place for effect in begun}) == 1, "its key is the same for every attempt"
    app.execute(Ledger, Add("poisoned", "b", post=True))
    eventually(lambda: lines(app, "poisoned") == ["a", "b", "posted b"], "the instance goes on")
    without_gaps(app)


def test_workers_that_are_killed_lose_nothing_and_decide_nothing_twice(world: World) -> None:
    app = world.app(Ledger)
    chance = random.Random(4)  # which of them dies; not when
    workers = [world.worker("ledger", max_recoveries=1000) for _ in range(2)]
    for number in range(LINES):
        for instance in map(str, range(INSTANCES)):
            app.enqueue_input(Ledger, Add(instance, f"queued {number}"))
            ticks = TICKS if number == 0 else 0
            app.execute(Ledger, Add(instance, f"line {number}", post=True, ticks=ticks))
        place = chance.randrange(2)
        workers[place].kill()
        workers[place] = world.worker("ledger", max_recoveries=1000)

    expected = Counter(
        [f"line {number}" for number in range(LINES)]
        + [f"posted line {number}" for number in range(LINES)]
        + [f"queued {number}" for number in range(LINES)]
        + [f"tick {number}" for number in range(1, TICKS + 1)]
    )

    def all_done() -> bool:
        return all(sum(Counter(lines(app, str(n))).values()) >= expected.total() for n in range(INSTANCES))

    eventually(all_done, "all of it has happened")
    for instance in map(str, range(INSTANCES)):
        written = lines(app, instance)
        assert Counter(written) == expected
        for kind, order in (("line", range(LINES)), ("queued", range(LINES)), ("tick", range(TICKS, 0, -1))):
            assert [line for line in written if line.startswith(kind)] == [f"{kind} {n}" for n in order]
    assert app.dead_letters.count() == 0
    without_gaps(app)


def test_processes_that_write_into_one_instance_lose_no_update(world: World) -> None:
    app = world.app(Ledger)
    count = 40
    clerks = [world.start("clerk", world.url, who, str(count)) for who in "abc"]
    assert [clerk.wait() for clerk in clerks] == [0] * 3, world.logs()[-5_000:]
    written = lines(app, "shared")
    assert len(written) == 3 * count
    for who in "abc":
        assert [line for line in written if line.startswith(who)] == [f"{who}-{n}" for n in range(count)]
    without_gaps(app)


def test_a_client_that_is_killed_and_begins_anew_repeats_no_input(world: World) -> None:
    app = world.app(Ledger)
    count = 300
    for _ in range(3):
        clerk = world.start("clerk", world.url, "a", str(count))
        known = _written(app)
        eventually(
            lambda clerk=clerk, known=known: _written(app) > known or not clerk.alive,  # type: ignore[misc]
            "it has written something more",
        )
        time.sleep(0.02)  # somewhere between two statements
        clerk.kill()
    assert world.start("clerk", world.url, "a", str(count)).wait() == 0
    assert lines(app, "shared") == [f"a-{number}" for number in range(count)]
    without_gaps(app)


def _written(app: App) -> int:
    return int(query(app, "SELECT COUNT(*) FROM detent_events")[0][0])
