"""Leases and rescue: a worker alive holds its work; a dead one's goes back, once, and counted."""

from typing import Any

import pytest

from detent.kernel.external_changes import Cancel, Pause, Resume
from detent.kernel.operations import Start, Verdict
from detent.stores.store import Store
from detent.stores.verbs import claims
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    claim,
    detail,
    enlist,
    events,
    executing,
    execution,
    is_seen_waiting,
    new_main,
    new_run,
    new_step,
    one,
    parking,
    recording,
    settling,
    spawning,
    start,
    state_of,
    worker_row,
)


def reap(store: Store, worker: str = "w1", **given: Any) -> Any:
    return store.reap(worker, **({"max_recoveries": 5, "now": NOW + SECOND} | given))


def test_a_worker_alive_is_listed(store: Store) -> None:
    row = worker_row("w1", queues="default,slow", pid=42)
    store.register(row)
    [found] = store.workers()
    assert (found.id, found.queues, found.pid, found.lock_no) == ("w1", "default,slow", 42, row.lock_no)


def test_a_worker_cannot_take_liveness_twice(store: Store) -> None:
    store.register(worker_row("w1"))
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        store.register(worker_row("w1"))


def test_renewing_extends_the_lease_by_one_clock(store: Store) -> None:
    enlist(store, "w1")
    assert store.renew("w1", lease=30 * SECOND, now=NOW)
    first = store.workers()[0]
    assert first.lease_until - first.beat_at >= 30 * SECOND
    assert store.renew("w1", lease=90 * SECOND, now=NOW)
    assert store.workers()[0].lease_until > first.lease_until


def test_who_is_not_alive_cannot_renew(store: Store) -> None:
    assert not store.renew("w1", lease=SECOND, now=NOW)
    enlist(store, "w1")
    reap(store)
    assert not store.renew("w1", lease=SECOND, now=NOW)


def test_a_dead_workers_executions_go_back_as_new_attempts(store: Store) -> None:
    executing(store)
    [again] = reap(store)
    assert (again.attempt, again.state, again.recoveries, again.scheduled_for) == (
        2,
        "ready",
        1,
        NOW + SECOND,
    )
    first, second = store.executions("run")
    assert (first.state, first.outcome, first.finished_at) == ("failed", "recovered", NOW + SECOND)
    assert (second.state, second.worker, second.recoveries) == ("ready", None, 1)
    assert store.workers() == []
    assert "recovered" in events(store)


def test_a_worker_is_reaped_once(store: Store) -> None:
    executing(store)
    assert len(reap(store)) == 1
    assert reap(store) is None
    assert len(store.executions("run")) == 2


def test_of_two_burials_at_once_one_gives_the_work_back(store: Store, rival: Store) -> None:
    executing(store)
    with store._beats.transaction() as tx:
        claims.reap(tx, "w1", counted=True, max_recoveries=5, now=NOW)
        attempt = Attempt(lambda: reap(rival))
        is_seen_waiting(attempt, store)
    assert attempt.result() is None
    assert len(store.executions("run")) == 2


def test_burying_an_idle_worker_gives_nothing_back(store: Store) -> None:
    enlist(store, "w1")
    assert reap(store) == []


def test_only_the_dead_workers_executions_go_back(store: Store) -> None:
    enlist(store, "w1", "w2")
    one(store, start("a", "b", "c"))
    [ours], [theirs] = claim(store, "w1"), claim(store, "w2")
    assert [row.run_id for row in reap(store)] == [ours.run_id]
    assert (state_of(store, theirs.run_id), state_of(store, "c")) == ("executing", "ready")


def test_what_was_parked_or_settled_does_not_go_back(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("a", "b"))
    first, second = claim(store, limit=2)
    store.apply([parking(first, wake_at=NOW + 60 * SECOND), settling(second)])
    assert reap(store) == []
    assert (state_of(store, "a"), state_of(store, "b")) == ("timer", "completed")


def test_what_dies_again_and_again_pauses_its_run(store: Store) -> None:
    one(store, start("run"))
    for death in range(3):
        enlist(store, "w1")
        [claimed] = claim(store, now=NOW + death * 60 * SECOND)
        assert claimed.recoveries == death
        reaped = reap(store, max_recoveries=2, now=NOW + death * 60 * SECOND)
        assert len(reaped) == (1 if death < 2 else 0)
    run = store.run("run")
    assert run.state == "paused"
    assert detail(run.error or "")["type"] == "detent.errors.runs.TooManyRecoveries"
    assert [row.state for row in store.executions("run")] == ["failed"] * 3
    assert "paused" in events(store)


def test_the_siblings_of_what_paused_its_run_are_held(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a", "b"))
    claim(store)
    reap(store, max_recoveries=0)
    assert store.run("run").state == "paused"
    assert {row.state for row in store.executions("run") if row.node == "b"} == {"held"}


def test_an_attempt_that_got_somewhere_begins_the_count_anew(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("run"))
    [first] = claim(store)
    reap(store)
    enlist(store, "w1")
    [second] = claim(store, now=NOW + SECOND)
    one(store, recording(second, new_step(written_by=second.attempt)))
    [again] = reap(store)
    assert (first.recoveries, second.recoveries, again.recoveries) == (0, 1, 1)


def test_who_leaves_in_good_order_counts_nothing(store: Store) -> None:
    executing(store)
    [again] = reap(store, counted=False)
    assert (again.attempt, again.recoveries, again.state) == (2, 0, "ready")


def test_executions_of_a_paused_run_come_back_held(store: Store) -> None:
    executing(store)
    store.change(Pause("run", reason=None), now=NOW)
    [again] = reap(store)
    assert (again.state, state_of(store)) == ("held", "held")
    assert store.run("run").state == "paused"
    store.change(Resume("run"), now=NOW + 2 * SECOND)
    assert state_of(store) == "ready"


def test_a_paused_run_that_dies_too_often_stays_paused_and_held(store: Store) -> None:
    executing(store)
    store.change(Pause("run", reason=None), now=NOW)
    [again] = reap(store, max_recoveries=0)
    assert (again.state, store.run("run").error) == ("held", None)


def test_a_canceled_runs_main_comes_back_to_be_undone(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a"))
    claim(store)
    store.change(Cancel("run", reason=None), now=NOW)
    assert [row.node for row in reap(store)] == ["main"]
    assert (state_of(store, node="a"), execution(store, node="a").outcome) == (
        "canceled",
        "canceled_by_operator",
    )
    assert store.run("run").state == "canceled"


def test_a_canceled_run_that_kills_its_workers_is_given_up(store: Store) -> None:
    executing(store)
    store.change(Cancel("run", reason=None), now=NOW)
    assert reap(store, max_recoveries=0) == []
    assert (store.run("run").state, state_of(store)) == ("canceled", "failed")


def test_burial_does_not_take_back_what_was_handed_back_meanwhile(store: Store, rival: Store) -> None:
    """A worker that shuts down hands back while somebody thinks it dead."""
    enlist(store, "w1", "w2")
    one(store, start("a"))
    claimed = claim(store, "w1")
    with store._claims.transaction() as tx:
        claims.release(tx, claimed)
        attempt = Attempt(lambda: reap(rival))
        is_seen_waiting(attempt, store)
    assert attempt.result() == []
    assert [(row.attempt, row.state) for row in store.executions("a")] == [(1, "ready")]


def test_a_second_attempt_settles_as_if_nothing_had_been(store: Store) -> None:
    executing(store)
    reap(store)
    enlist(store, "w2")
    [again] = claim(store, "w2", now=NOW + SECOND)
    assert (again.deliveries, one(store, settling(again)).verdict) == (2, Verdict.APPLIED)
    assert store.run("run").state == "finished"


def test_many_orphans_go_back_in_one_burial(store: Store) -> None:
    enlist(store, "w1")
    one(store, start(*[f"r{number}" for number in range(200)]))
    claim(store, limit=200)
    assert len(reap(store)) == 200


# -- The reading -------------------------------------------------------------------------------------


def test_a_reading_tells_who_is_alive_and_what_is_due(store: Store) -> None:
    enlist(store, "w1", "w2")
    quiet = store.read_heartbeat(now=NOW)
    assert {(id, lock) for id, lock, _, _ in quiet.workers} == {
        ("w1", worker_row("w1").lock_no),
        ("w2", worker_row("w2").lock_no),
    }
    assert (quiet.next_due, quiet.ready, quiet.interrupted) == (None, False, [])

    one(store, start("a"))
    later = new_main("later", state="timer", scheduled_for=NOW + 7)
    one(store, Start(runs=[new_run("later")], executions=[later]))
    busy = store.read_heartbeat(now=NOW)
    assert (busy.next_due, busy.ready) == (NOW + 7, True)


def test_a_reading_tells_what_became_of_the_runs_that_are_asked_for(store: Store) -> None:
    enlist(store, "w1", "w2")
    one(store, start("a", "b", "c", "d"))
    claim(store, "w1", limit=3)
    claim(store, "w2")
    store.change(Pause("a", reason=None), now=NOW)
    store.change(Cancel("b", reason=None), now=NOW)
    store.change(Cancel("d", reason=None), now=NOW)
    assert sorted(store.read_heartbeat(now=NOW, runs=["a", "b", "c"]).interrupted) == [
        ("a", "paused"),
        ("b", "canceled"),
    ]


def test_a_reading_and_a_lease_are_by_the_same_clock(store: Store) -> None:
    enlist(store, "w1")
    now = store.read_heartbeat(now=NOW).now
    store.renew("w1", lease=30 * SECOND, now=now)
    [(_, _, until, _)] = store.read_heartbeat(now=now).workers
    assert now < until <= store.read_heartbeat(now=now + SECOND).now + 30 * SECOND
