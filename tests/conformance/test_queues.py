"""Claims on limited queues: nothing begins that a limit forbids, and a crash frees its slots."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from detent import Queue, Rate
from detent.kernel.external_changes import Delete
from detent.kernel.operations import Start
from detent.kernel.rows import Claimed
from detent.stores.driver import Tx
from detent.stores.store import Store
from detent.stores.verbs.queue_verbs import LimitedClaim
from tests.conformance.builders import (
    NOW,
    SECOND,
    enlist,
    new_main,
    new_run,
    one,
    parking,
    settling,
    state_of,
)

QUEUE = "llm"
pytestmark = pytest.mark.usefixtures("_workers")


@pytest.fixture
def _workers(store: Store) -> None:
    enlist(store, "w1", "w2")


def declare(store: Store, **limits: Any) -> None:
    store.declare_queues({QUEUE: Queue(QUEUE, **limits).limits}, now=NOW)


def arrive(store: Store, *names: str, key: str | None = None, **given: Any) -> None:
    """Runs whose names are `key.number`, or have no key."""
    mains = []
    for name in names:
        own = key if key is not None else name.partition(".")[0] if "." in name else None
        mains.append(new_main(name, queue=QUEUE, queue_key=own, **given))
    one(store, Start(runs=[new_run(row.run_id, queue=QUEUE) for row in mains], executions=mains))


_tokens = iter(range(1_000_000))


def claim_limited(
    store: Store, room: int = 10, worker: str = "w1", now: int = NOW + SECOND, running: int = 0
) -> LimitedClaim:
    tokens = [f"{worker}-q{next(_tokens)}" for _ in range(room)]
    return store.claim_limited(
        worker, queues=[QUEUE], running={QUEUE: running}, jobs=["flow"], tokens=tokens, now=now
    )


def claimed(store: Store, room: int = 10, worker: str = "w1", **given: Any) -> list[Claimed]:
    return sorted(claim_limited(store, room, worker, **given).claimed, key=lambda row: row.run_id)


def names(rows: list[Claimed]) -> list[str]:
    return [row.run_id for row in rows]


def end(store: Store, row: Claimed) -> None:
    one(store, settling(row, result="1"))


def test_no_more_than_the_limit_execute_over_all_workers(store: Store) -> None:
    declare(store, concurrency=3)
    arrive(store, "a", "b", "c", "d", "e")
    first = claimed(store, 2, "w1")
    second = claimed(store, 5, "w2")
    assert names(first) == ["a", "b"]
    assert names(second) == ["c"]
    assert claimed(store, 5) == []
    end(store, first[0])
    assert names(claimed(store, 5)) == ["d"]


def test_a_dead_worker_frees_its_slots_when_its_work_is_handed_on(store: Store) -> None:
    declare(store, concurrency=2)
    arrive(store, "a", "b", "c")
    assert len(claimed(store, 2, "w1")) == 2
    assert claimed(store, 5, "w2") == []
    again = store.reap("w1", max_recoveries=5, now=NOW + SECOND)
    assert again is not None
    assert len(again) == 2
    assert len(claimed(store, 5, "w2", now=NOW + 60 * SECOND)) == 2


def test_what_is_handed_back_or_waits_holds_no_slot(store: Store) -> None:
    declare(store, concurrency=1)
    arrive(store, "a", "b", "c")
    [first] = claimed(store)
    store.release([first])
    [again] = claimed(store)
    assert again.run_id == "a"
    one(store, parking(again, wake_at=NOW + 100 * SECOND))
    assert names(claimed(store)) == ["b"]


def test_a_function_that_goes_on_needs_a_slot_again(store: Store) -> None:
    declare(store, concurrency=1)
    arrive(store, "a", "b")
    [first] = claimed(store)
    one(store, parking(first, wake_at=NOW + 5 * SECOND))
    [second] = claimed(store)
    assert claimed(store, now=NOW + 6 * SECOND) == []
    end(store, second)
    assert names(claimed(store, now=NOW + 6 * SECOND)) == ["a"]


def test_one_worker_takes_no_more_than_its_share(store: Store) -> None:
    declare(store, per_worker=2)
    arrive(store, "a", "b", "c")
    assert names(claimed(store, running=1)) == ["a"]
    assert claimed(store, running=2) == []
    assert names(claimed(store, worker="w2")) == ["b", "c"]


def test_a_key_at_its_limit_does_not_hold_up_other_keys(store: Store) -> None:
    declare(store, key_concurrency=1)
    arrive(store, *(f"a.{n}" for n in range(150)))
    arrive(store, "b.1", "b.2", scheduled_for=NOW + 1)
    arrive(store, "free", scheduled_for=NOW + 2)
    found = claimed(store)
    assert names(found)[:2] == ["a.0", "b.1"]
    assert names(claimed(store)) == []  # (the one without a key stands behind 149 that wait)
    end(store, found[0])
    assert names(claimed(store)) == ["a.1"]


def test_executions_without_a_key_have_no_key_limit(store: Store) -> None:
    declare(store, key_concurrency=1)
    arrive(store, "x", "y", "z")
    assert names(claimed(store)) == ["x", "y", "z"]


def test_in_every_window_no_more_than_the_rate_begin(store: Store, frozen: Callable[[int], None]) -> None:
    declare(store, rate=Rate(2, per=timedelta(seconds=10)))
    arrive(store, "a", "b", "c", "d")
    frozen(0)
    assert names(claimed(store, 1)) == ["a"]
    frozen(5 * SECOND)
    found = claim_limited(store)
    assert names(found.claimed) == ["b"]
    assert found.wait == 6 * SECOND
    assert list(found.start_within.values()) == [SECOND]
    frozen(10 * SECOND)
    assert claimed(store) == []
    frozen(11 * SECOND)
    assert names(claimed(store)) == ["c"]
    frozen(14 * SECOND)
    assert claimed(store) == []


def test_a_rate_of_a_key_is_its_own(store: Store, frozen: Callable[[int], None]) -> None:
    declare(store, key_rate=Rate(1, per=timedelta(seconds=10)))
    arrive(store, "a.1", "a.2", "b.1", "b.2")
    frozen(0)
    found = claim_limited(store)
    assert sorted(names(found.claimed)) == ["a.1", "b.1"]
    assert found.wait == 11 * SECOND
    for row in found.claimed:
        end(store, row)
    frozen(9 * SECOND)
    assert claimed(store) == []
    frozen(11 * SECOND)
    assert names(claimed(store)) == ["a.2", "b.2"]


def test_a_begin_counts_also_when_its_run_was_deleted(store: Store, frozen: Callable[[int], None]) -> None:
    declare(store, rate=Rate(1, per=timedelta(seconds=10)))
    arrive(store, "a", "b")
    frozen(0)
    [first] = claimed(store)
    end(store, first)
    store.change(Delete("a"), now=NOW)
    frozen(5 * SECOND)
    assert claimed(store) == []


def test_keys_take_turns(store: Store) -> None:
    declare(store, fair=True)
    arrive(store, *(f"big.{n:03}" for n in range(300)))
    arrive(store, "small.1", "tiny.1", "tiny.2", scheduled_for=NOW + 5)
    order = [names(claimed(store, 1))[0] for _ in range(6)]
    assert order == ["big.000", "small.1", "tiny.1", "big.001", "tiny.2", "big.002"]


def test_one_claim_gives_each_key_a_turn_before_a_second_one(store: Store) -> None:
    declare(store, fair=True)
    arrive(store, *(f"a.{n}" for n in range(9)), "b.1", "b.2", "c.1")
    assert names(claimed(store, 6)) == ["a.0", "a.1", "a.2", "b.1", "b.2", "c.1"]


@pytest.mark.parametrize("seed", [1, 2])
def test_between_two_turns_of_a_key_every_other_that_waits_has_one(store: Store, seed: int) -> None:
    """Whatever arrives meanwhile, and however much a claim takes: nobody starves."""
    chance = random.Random(seed)
    declare(store, fair=True)
    waiting: Counter[str] = Counter()
    served: dict[str, set[str]] = {}  # by key that waits: the keys that had a turn since its own
    for number in range(40):
        for key in chance.sample("abcdef", 2) if number < 30 else ():
            arrive(store, f"{key}.{number}")
            waiting[key] += 1
            served.setdefault(key, set())
        for row in claim_limited(store, 1).claimed:
            key = str(row.queue_key)
            waiting[key] -= 1
            for other, seen in served.items():
                if other != key:
                    assert key not in seen, f"{key} has a second turn while {other} waits"
                    seen.add(key)
            served[key] = set()
            served = {one: seen for one, seen in served.items() if waiting[one]}


def test_the_unkeyed_take_turns_with_the_keys(store: Store) -> None:
    declare(store, fair=True)
    store.driver.keyed = frozenset({QUEUE})
    arrive(store, "x", "y", "z", "a.1", "a.2")
    order = [names(claimed(store, 1))[0] for _ in range(5)]
    assert order == ["a.1", "x", "a.2", "y", "z"]


def test_what_a_process_began_that_does_not_know_of_turns_is_not_lost(store: Store) -> None:
    declare(store, fair=True)
    arrive(store, "x", "y", "a.1")
    assert names(claimed(store)) == ["a.1", "x", "y"]


def test_priority_counts_within_a_key(store: Store) -> None:
    declare(store, fair=True)
    arrive(store, "a.1", "b.1")
    arrive(store, "a.2", precedence=-5)
    assert sorted(names(claimed(store, 2))) == ["a.2", "b.1"]


def test_aging_lets_old_work_of_low_priority_begin(store: Store) -> None:
    declare(store, concurrency=10, aging=1)
    arrive(store, "old", precedence=0)
    arrive(store, "urgent", precedence=-5, scheduled_for=NOW + 4 * SECOND)
    arrive(store, "late", precedence=-5, scheduled_for=NOW + 6 * SECOND)
    order = [names(claimed(store, 1, now=NOW + 9 * SECOND))[0] for _ in range(3)]
    assert order == ["urgent", "old", "late"]


def test_aging_counts_within_a_key_too(store: Store) -> None:
    declare(store, fair=True, aging=1)
    arrive(store, "a.old", precedence=0)
    arrive(store, "a.late", precedence=-5, scheduled_for=NOW + 6 * SECOND)
    order = [names(claimed(store, 1, now=NOW + 9 * SECOND))[0] for _ in range(2)]
    assert order == ["a.old", "a.late"]


def test_a_timer_of_a_limited_queue_begins_when_it_is_due(store: Store) -> None:
    declare(store, concurrency=1)
    arrive(store, "a", state="timer", scheduled_for=NOW + 5 * SECOND)
    assert claimed(store, now=NOW + 4 * SECOND) == []
    assert names(claimed(store, now=NOW + 5 * SECOND)) == ["a"]


def test_jobs_that_a_worker_does_not_know_stay(store: Store) -> None:
    declare(store, key_concurrency=1, fair=True)
    arrive(store, "a.1", job="other")
    arrive(store, "a.2", scheduled_for=NOW + 1)
    assert names(claimed(store)) == ["a.2"]
    assert state_of(store, "a.1") == "ready"


def test_a_worker_thought_dead_claims_nothing(store: Store) -> None:
    declare(store, concurrency=1)
    arrive(store, "a")
    store.reap("w1", max_recoveries=5, now=NOW)
    assert claimed(store, worker="w1") == []
    assert names(claimed(store, worker="w2")) == ["a"]


def test_a_queue_that_another_worker_claims_from_is_left_to_it(
    store: Store, another: Callable[[], Store]
) -> None:
    if store.dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    declare(store, concurrency=1)
    arrive(store, "a")
    with another()._writer.transaction() as tx:
        tx.query(tx.sql.queues.lock_one, name=QUEUE)
        found = claim_limited(store)
        assert found.claimed == []
        assert found.wait is not None


@pytest.fixture
def frozen(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the clock of the database, as the claim reads it."""

    def set_clock(moment: int) -> None:
        real = Tx.ask

        def ask(tx: Any, statement: str, **params: Any) -> Any:
            asked = real(tx, statement, **params)
            if statement == tx.sql.queues.lock:
                return lambda: [(*row[:-1], NOW + moment) for row in asked()]
            return asked

        monkeypatch.setattr(Tx, "ask", ask)

    return set_clock
