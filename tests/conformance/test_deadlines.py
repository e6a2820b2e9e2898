"""Deadlines of waiting runs: each is claimed once, by a worker that knows it, and otherwise left alone."""

import itertools
from typing import Any

import pytest

from detent.kernel.external_changes import Cancel, Pause
from detent.kernel.operations import Start
from detent.kernel.rows import Claimed
from detent.stores.store import Store
from tests.conformance.builders import NOW, SECOND, Attempt, claim, enlist, new_main, new_run, one

pytestmark = pytest.mark.usefixtures("_workers")
_tokens = itertools.count(1)


@pytest.fixture
def _workers(store: Store) -> None:
    enlist(store, "w1", "w2")


def begin(store: Store, run_id: str = "run", deadline: int = NOW + SECOND, **main: Any) -> None:
    start = Start(runs=[new_run(run_id, deadline=deadline)], executions=[new_main(run_id, **main)])
    one(store, start)


def overdue(store: Store, worker: str = "w1", *, now: int = NOW + SECOND, **given: Any) -> list[Claimed]:
    asked: dict[str, Any] = {"queues": {"default"}, "jobs": {"flow"}} | given
    return store.claim_overdue(worker, token=lambda: f"{worker}-late-{next(_tokens)}", now=now, **asked)


@pytest.mark.parametrize(
    "main",
    [{}, {"state": "timer", "scheduled_for": NOW + 60 * SECOND}, {"state": "parked", "scheduled_for": None}],
    ids=["ready", "timer", "parked"],
)
def test_a_waiting_run_is_claimed_at_its_deadline_and_once(store: Store, main: dict[str, Any]) -> None:
    begin(store, **main)
    assert store.next_deadline() == NOW + SECOND
    assert overdue(store, now=NOW) == []
    [claimed] = overdue(store)
    assert (claimed.run_id, claimed.node, claimed.worker) == ("run", "main", "w1")
    assert overdue(store, "w2", now=NOW + 60 * SECOND) == []
    assert (claim(store, now=NOW + 60 * SECOND), store.next_deadline()) == ([], None)


@pytest.mark.parametrize("given", [{"jobs": {"other"}}, {"queues": {"other"}}], ids=["job", "queue"])
def test_a_worker_leaves_what_it_does_not_serve(store: Store, given: dict[str, Any]) -> None:
    begin(store)
    assert overdue(store, **given) == []
    assert len(overdue(store, "w2", now=NOW + 9 * SECOND)) == 1


def test_a_run_that_executes_is_looked_at_again_later(store: Store) -> None:
    begin(store)
    [held] = claim(store)
    assert overdue(store, "w2") == []
    store.release([held])
    assert overdue(store, "w2", now=NOW + 2 * SECOND) == []
    assert len(overdue(store, "w2", now=NOW + 9 * SECOND)) == 1


def test_a_run_that_is_over_or_paused_is_left_alone(store: Store) -> None:
    begin(store, "over")
    store.change(Cancel("over", reason=None), now=NOW)
    begin(store, "paused")
    store.change(Pause("paused", reason=None), now=NOW)
    assert overdue(store) == []
    assert (store.next_deadline(), store.read_heartbeat(now=NOW).next_deadline) == (None, None)


def test_a_worker_that_is_out_of_liveness_gets_nothing(store: Store) -> None:
    begin(store)
    assert overdue(store, "w9") == []
    assert len(overdue(store)) == 1


def test_two_workers_at_once_claim_a_run_once(store: Store, rival: Store) -> None:
    for number in range(20):
        begin(store, f"run-{number:02}")
    first, second = Attempt(lambda: overdue(store)), Attempt(lambda: overdue(rival, "w2"))
    claimed = [*first.result(), *second.result()]
    claimed += overdue(store, now=NOW + 9 * SECOND)
    assert sorted(row.run_id for row in claimed) == [f"run-{number:02}" for number in range(20)]
