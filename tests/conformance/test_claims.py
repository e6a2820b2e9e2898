"""Claiming: what is due, most urgent first, to one worker only, and only what that worker knows."""

from typing import Any

import pytest

from detent.kernel.external_changes import Pause
from detent.kernel.operations import Start
from detent.kernel.rows import NewExecution
from detent.stores.claim_cursor import ClaimCursor
from detent.stores.store import Store
from detent.stores.verbs import claims
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    claim,
    enlist,
    executing,
    execution,
    new_main,
    new_run,
    one,
    spawning,
    start,
    state_of,
)

pytestmark = pytest.mark.usefixtures("_workers")


@pytest.fixture
def _workers(store: Store) -> None:
    enlist(store, "w1", "w2")


def schedule(store: Store, *mains: NewExecution) -> None:
    one(store, Start(runs=[new_run(row.run_id) for row in mains], executions=list(mains)))


def ids(claimed: list[Any]) -> list[str]:
    return [row.run_id for row in claimed]


def test_a_claim_tells_all_that_the_worker_needs(store: Store) -> None:
    run = new_run(
        input='{"args":[1]}', parent="p", parent_key="k", deadline=NOW + 9, forked_from="f", priority=2
    )
    one(store, Start(runs=[run], executions=[new_main(precedence=-2, recoveries=1, failures=2, input="5")]))
    [claimed] = store.claim("w1", queues=["default"], jobs=["flow"], tokens=["t1"], now=NOW + 3)
    assert (claimed.run_id, claimed.node, claimed.attempt, claimed.kind) == ("run", "main", 1, "main")
    assert (claimed.type, claimed.run_input, claimed.run_state) == ("flow", '{"args":[1]}', "ready")
    assert (claimed.parent, claimed.parent_key, claimed.deadline, claimed.forked_from) == (
        "p",
        "k",
        NOW + 9,
        "f",
    )
    assert (claimed.worker, claimed.token, claimed.started_at) == ("w1", "t1", NOW + 3)
    assert (claimed.deliveries, claimed.recoveries, claimed.failures) == (1, 1, 2)
    assert (claimed.job, claimed.queue, claimed.precedence, claimed.input) == ("flow", "default", -2, "5")


def test_an_execution_never_begins_before_it_was_made(store: Store) -> None:
    """A claim looks at the clock first, and may then wait for the one who makes it."""
    schedule(store, new_main(created_at=NOW, scheduled_for=NOW))
    [claimed] = claim(store, now=NOW - SECOND)
    assert (claimed.started_at, execution(store).started_at) == (NOW, NOW)


def test_what_is_claimed_is_claimed_once(store: Store) -> None:
    one(store, start("a"))
    assert (ids(claim(store, "w1")), ids(claim(store, "w2"))) == (["a"], [])
    assert (state_of(store, "a"), store.run("a").performing) == ("executing", 1)


def test_a_claim_twice_takes_the_next_ones(store: Store) -> None:
    one(store, start("a", "b", "c"))
    assert [ids(claim(store, limit=2)), ids(claim(store, limit=2)), ids(claim(store))] == [
        ["a", "b"],
        ["c"],
        [],
    ]


def test_the_order_is_priority_then_time_then_id(store: Store) -> None:
    schedule(
        store,
        new_main("late", scheduled_for=NOW),
        new_main("early", scheduled_for=NOW - SECOND),
        new_main("b", scheduled_for=NOW - 2 * SECOND),
        new_main("a", scheduled_for=NOW - 2 * SECOND),
        new_main("urgent", precedence=-1),
        new_main("patient", precedence=1, scheduled_for=NOW - 9 * SECOND),
    )
    claimed = [ids(claim(store))[0] for _ in range(6)]
    assert claimed == ["urgent", "a", "b", "early", "late", "patient"]


def test_queues_are_taken_in_the_order_asked_for(store: Store) -> None:
    schedule(store, new_main("slow", queue="slow", precedence=-9), new_main("fast", queue="fast"))
    assert ids(claim(store, queues=["fast", "slow"])) == ["fast"]
    assert ids(claim(store, queues=["fast"])) == []
    assert ids(claim(store, queues=["fast", "slow"])) == ["slow"]


def test_what_a_worker_does_not_know_stays_for_others(store: Store) -> None:
    schedule(store, new_main("old", job="flow", precedence=-1), new_main("new", job="flow_v2"))
    assert ids(claim(store, "w1", limit=5, jobs=["flow_v2"])) == ["new"]
    assert state_of(store, "old") == "ready"
    assert ids(claim(store, "w2", limit=5, jobs=["flow"])) == ["old"]


def test_a_worker_that_knows_nothing_gets_nothing(store: Store) -> None:
    one(store, start("a"))
    assert claim(store, jobs=[]) == []
    assert claim(store, queues=[]) == []
    assert store.claim("w1", queues=["default"], jobs=["flow"], tokens=[], now=NOW) == []


def test_a_worker_that_is_not_alive_gets_nothing(store: Store) -> None:
    one(store, start("a"))
    assert claim(store, "stranger") == []
    assert state_of(store, "a") == "ready"


def test_two_claims_at_once_take_different_rows(store: Store, rival: Store) -> None:
    one(store, start(*[f"r{number}" for number in range(10)]))
    with store._claims.transaction() as tx:
        tokens = [f"t{number}" for number in range(4)]
        ours = claims.claim(tx, "w1", queues=["default"], jobs=["flow"], tokens=tokens, now=NOW)()
        attempt = Attempt(lambda: claim(rival, "w2", limit=10))
        if store.dialect != "sqlite":  # where writers take turns
            attempt.result()
    theirs = attempt.result()
    assert (len(ours), len(theirs)) == (4, 6)
    assert not set(ids(ours)) & set(ids(theirs))


def test_many_claims_from_two_processes_take_each_row_once(store: Store, rival: Store) -> None:
    one(store, start(*[f"r{number:03}" for number in range(300)]))

    def take_all(through: Store, worker: str) -> list[str]:
        taken: list[str] = []
        while rows := claim(through, worker, limit=7):
            taken += ids(rows)
        return taken

    attempts = [Attempt(lambda: take_all(store, "w1")), Attempt(lambda: take_all(rival, "w2"))]
    taken = [run for attempt in attempts for run in attempt.result()]
    left = ids(claim(store, limit=300))  # what one skipped because the other looked at it
    assert len(set(taken)) == len(taken)
    assert len({*taken, *left}) == 300


def test_a_claim_passes_by_what_a_cancel_has_in_hand(store: Store, rival: Store) -> None:
    one(store, start("a", "b"))
    with store._writer.transaction() as tx:
        tx.query(tx.sql.lock_run, id="a")
        tx.run(tx.sql.cancel_executions, id="a", now=NOW, keep="")
        attempt = Attempt(lambda: claim(rival, "w1", limit=5))
        if store.dialect != "sqlite":
            assert ids(attempt.result()) == ["b"]
    assert ids(attempt.result()) == ["b"]
    assert state_of(store, "a") == "canceled"


def test_what_a_claim_skipped_is_told_from_an_empty_queue(store: Store, rival: Store) -> None:
    cursor = ClaimCursor()

    def left() -> bool:
        return store.next_work(cursor, queues=["other", "default"], jobs=["flow"], version="")[1]

    assert not left()
    one(store, start("a"))
    with rival._claims.transaction() as tx:
        claims.claim(tx, "w1", queues=["default"], jobs=["flow"], tokens=["t"], now=NOW)
        if store.dialect != "sqlite":  # there, a claim waits for the other transaction
            assert ids(claim(store, "w2")) == []
            assert left()
    assert not left()
    assert not store.next_work(cursor, queues=[], jobs=["flow"], version="")[1]


def test_what_a_claim_may_not_take_counts_as_nothing_left(store: Store) -> None:
    one(store, start("a"))
    for queue, job in (("default", "unknown"), ("other", "flow")):
        assert not store.next_work(ClaimCursor(), queues=[queue], jobs=[job], version="")[1]


def test_the_next_timer_is_told_with_what_is_left(store: Store) -> None:
    schedule(store, new_main("a", state="timer", scheduled_for=NOW + 20))
    assert store.next_work(ClaimCursor(), queues=["default"], jobs=["flow"], version="") == (NOW + 20, False)


def test_a_pause_finds_what_was_claimed_a_moment_before(store: Store, rival: Store) -> None:
    one(store, start("a"))
    with store._claims.transaction() as tx:
        claims.claim(tx, "w1", queues=["default"], jobs=["flow"], tokens=["t"], now=NOW)()
        attempt = Attempt(lambda: rival.change(Pause("a", reason=None), now=NOW))
    attempt.result()
    assert (store.run("a").state, state_of(store, "a")) == ("paused", "executing")


# -- Timers ----------------------------------------------------------------------------------------


def test_a_timer_is_never_early(store: Store) -> None:
    schedule(store, new_main("a", state="timer", scheduled_for=NOW + 10))
    assert ids(claim(store, now=NOW + 9)) == []
    assert state_of(store, "a") == "timer"
    assert ids(claim(store, now=NOW + 10)) == ["a"]


def test_a_claim_that_is_not_for_timers_leaves_those_that_are_due(store: Store) -> None:
    schedule(store, new_main("a", state="timer", scheduled_for=NOW), new_main("b"))
    found = store.claim("w1", queues=["default"], jobs=["flow"], tokens=["t", "u"], now=NOW + 1, timers=False)
    assert ids(found) == ["b"]
    assert state_of(store, "a") == "timer"
    assert ids(claim(store, now=NOW + 1)) == ["a"]


def test_the_next_timer_is_told(store: Store) -> None:
    assert store.next_due() is None
    schedule(
        store,
        new_main("a", state="timer", scheduled_for=NOW + 20),
        new_main("b", state="timer", scheduled_for=NOW + 10),
        new_main("c", state="parked", scheduled_for=None),
    )
    assert store.next_due() == NOW + 10


def test_more_timers_than_are_promoted_at_once_are_all_claimed_in_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "PROMOTED_AT_ONCE", 3)
    runs = [f"r{number}" for number in range(8)]
    schedule(store, *[new_main(run, state="timer", scheduled_for=NOW) for run in runs])
    assert [len(claim(store, limit=8)) for _ in range(4)] == [3, 3, 2, 0]


def test_timers_that_come_due_are_claimed_once_by_two_processes(store: Store, rival: Store) -> None:
    schedule(store, *[new_main(f"r{number}", state="timer", scheduled_for=NOW) for number in range(200)])

    def take_all(through: Store, worker: str) -> list[str]:
        taken: list[str] = []
        while through.next_due() is not None or through.read_heartbeat(now=NOW).ready:
            taken += ids(claim(through, worker, limit=20))
        return taken

    attempts = [Attempt(lambda: take_all(store, "w1")), Attempt(lambda: take_all(rival, "w2"))]
    taken = [run for attempt in attempts for run in attempt.result()]
    assert sorted(taken) == sorted(f"r{number}" for number in range(200))


# -- Handing back ----------------------------------------------------------------------------------


def test_what_is_handed_back_is_as_if_never_claimed(store: Store) -> None:
    one(store, start("a"))
    claimed = claim(store, "w1")
    store.release(claimed)
    row = execution(store, "a")
    assert (row.state, row.worker, row.attempt, row.started_at) == ("ready", None, 1, None)
    store.release(claimed)
    assert ids(claim(store, "w2")) == ["a"]


def test_handing_back_what_others_hold_by_now_does_nothing(store: Store) -> None:
    one(store, start("a"))
    claimed = claim(store, "w1")
    store.release(claimed)
    claim(store, "w2")
    store.release(claimed)
    assert (state_of(store, "a"), execution(store, "a").worker) == ("executing", "w2")


def test_what_is_handed_back_while_its_run_is_paused_is_held(store: Store) -> None:
    one(store, start("a"))
    claimed = claim(store, "w1")
    store.change(Pause("a", reason=None), now=NOW)
    store.release(claimed)
    assert state_of(store, "a") == "held"


def test_handing_back_beside_a_pause_does_not_slip_past_it(store: Store, rival: Store) -> None:
    one(store, start("a"))
    claimed = claim(store, "w1")
    with store._writer.transaction() as tx:
        tx.query(tx.sql.lock_run, id="a")
        tx.run(tx.sql.set_run_state, id="a", state="paused", error=None, finished_at=None)
        tx.run(tx.sql.hold, id="a")
        attempt = Attempt(lambda: rival.release(claimed))
    attempt.result()
    assert state_of(store, "a") == "held"


def test_a_claim_whose_answer_was_lost_is_handed_back_by_its_tokens(store: Store) -> None:
    one(store, start("a", "b", "c"))
    lost = claim(store, "w1", limit=2)
    kept = claim(store, "w1")
    for _ in range(2):
        store.disclaim("w1", [row.token for row in lost] + ["never used"])
    assert [state_of(store, run) for run in "abc"] == ["ready", "ready", "executing"]
    assert ids(kept) == ["c"]
    store.disclaim("w2", [row.token for row in kept])
    assert state_of(store, "c") == "executing"


def test_handing_nothing_back_is_fine(store: Store) -> None:
    store.release([])


def test_a_claim_sees_what_its_own_process_has_just_spawned(store: Store) -> None:
    main = executing(store, "run", "w1")
    one(store, spawning(main, "x"))
    assert [row.node for row in claim(store, "w1")] == ["x"]
