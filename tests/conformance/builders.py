"""A small world for the stores: runs, workers, and what they do, in the words of the operations."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import msgspec

from detent.kernel.operations import Operation, Park, Record, Send, Settle, Start
from detent.kernel.rows import (
    Await,
    Claimed,
    ExecutionKey,
    ExecutionRow,
    NewExecution,
    NewRun,
    Step,
    WorkerRow,
)
from detent.kernel.settle import Ending, Outcome, settle
from detent.stores.batch import apply
from detent.stores.driver import Tx
from detent.stores.store import Store

T = TypeVar("T")
NOW = 1_700_000_000_000_000  # microseconds
SECOND = 1_000_000
TABLES = (
    "graphs waits executions steps messages readiness history attributes deadlines workers"
    " events inputs snapshots streams projections views schedules runs queues begins start_keys chains"
).split()
PATIENCE = 60.0  # seconds until a condition that does not come true fails its test


def empty(tx: Tx) -> None:
    """Leave Detent's tables as a migration makes them.  Most tests touch few of them."""
    [touched] = tx.query("SELECT " + ", ".join(f"EXISTS (SELECT 1 FROM detent_{table})" for table in TABLES))
    for table, has_rows in zip(TABLES, touched, strict=True):
        if has_rows:
            tx.run(f"DELETE FROM detent_{table}")
    tx.run("UPDATE detent_counters SET value = 0 WHERE value <> 0")


# -- Rows ------------------------------------------------------------------------------------------


def new_run(run_id: str = "run", **given: Any) -> NewRun:
    fields: dict[str, Any] = {
        "id": run_id,
        "type": "flow",
        "kind": "function",
        "queue": "default",
        "priority": 0,
        "input": "{}",
        "created_at": NOW,
    }
    return NewRun(**(fields | given))


def new_main(run_id: str = "run", **given: Any) -> NewExecution:
    fields: dict[str, Any] = {
        "run_id": run_id,
        "node": "main",
        "attempt": 1,
        "kind": "main",
        "job": "flow",
        "queue": "default",
        "precedence": 0,
        "state": "ready",
        "created_at": NOW,
        "scheduled_for": NOW,
    }
    return NewExecution(**(fields | given))


def new_spawned(run_id: str, node: str, topic: str, **given: Any) -> NewExecution:
    return new_main(run_id, **({"node": node, "kind": "step", "job": "piece", "topic": topic} | given))


def new_step(run_id: str = "run", key: str = "charge", **given: Any) -> Step:
    fields: dict[str, Any] = {
        "run_id": run_id,
        "key": key,
        "seq": 1,
        "kind": "step",
        "name": key,
        "state": "completed",
        "written_by": 1,
        "result": "1",
    }
    return Step(**(fields | given))


def worker_row(name: str = "w1", **given: Any) -> WorkerRow:
    fields: dict[str, Any] = {
        "id": name,
        "name": name,
        "pid": 1,
        "queues": "default",
        "concurrency": 10,
        "lock_no": sum(map(ord, name)) + 1_000_000,
        "started_at": NOW,
        "beat_at": NOW,
        "lease_until": NOW + 30 * SECOND,
    }
    return WorkerRow(**(fields | given))


# -- Deeds -----------------------------------------------------------------------------------------


def start(*runs: str, chosen: bool = False, **of_run: Any) -> Start:
    ids = runs or ("run",)
    return Start(
        runs=[new_run(run, **of_run) for run in ids], executions=[new_main(run) for run in ids], chosen=chosen
    )


def one(store: Store, operation: Operation) -> Any:
    """Apply an operation alone, and return its answer."""
    return store.apply([operation]).answers[0]


def claim(
    store: Store,
    worker: str = "w1",
    *,
    limit: int = 1,
    now: int = NOW,
    jobs: Sequence[str] = ("flow", "piece"),
    queues: Sequence[str] = ("default",),
) -> list[Claimed]:
    tokens = [f"{worker}-{next(_tokens)}" for _ in range(limit)]
    return store.claim(worker, queues=queues, jobs=jobs, tokens=tokens, now=now)


def _count() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


_tokens = _count()


def executing(store: Store, run: str = "run", worker: str = "w1") -> Claimed:
    """Begin a run, and have a worker claim it."""
    enlist(store, worker)
    one(store, start(run))
    [claimed] = claim(store, worker)
    return claimed


def enlist(store: Store, *workers: str) -> None:
    """Put workers into liveness that are not yet there."""
    known = {worker.id for worker in store.workers()}
    for worker in workers:
        if worker not in known:
            store.register(worker_row(worker))


def settling(
    claimed: Claimed, outcome: Outcome = Outcome.SUCCESS, *, waited: bool = True, **ending: Any
) -> Settle:
    """The operation that ends an execution like this."""
    fields: dict[str, Any] = {"outcome": outcome, "now": NOW + SECOND}
    end = Ending(**(fields | ending))
    return Settle(
        worker=claimed.worker,
        key=key_of(claimed),
        token=claimed.token,
        now=end.now,
        plan=settle(claimed, end),
        parent=claimed.parent,
        waited=waited,
    )


def parking(claimed: Claimed, *awaits: Await, wake_at: int | None = None, **given: Any) -> Park:
    fields: dict[str, Any] = {"worker": claimed.worker, "token": claimed.token, "now": NOW + SECOND}
    return Park(**(fields | given), key=key_of(claimed), awaits=list(awaits), wake_at=wake_at)


def recording(claimed: Claimed, *steps: Step, **given: Any) -> Record:
    return Record(worker=claimed.worker, run_id=claimed.run_id, steps=list(steps), **given)


def spawning(claimed: Claimed, *nodes: str, topic: str = "pieces") -> Record:
    return recording(claimed, executions=[new_spawned(claimed.run_id, node, topic) for node in nodes])


def begetting(claimed: Claimed, child: str) -> Record:
    """A child run, begun by its parent."""
    run = new_run(child, parent=claimed.run_id, parent_key=f"flow/{child}")
    return recording(claimed, children=Start(runs=[run], executions=[new_main(child)]))


def message(run_id: str = "run", message_id: str = "m1", name: str = "paid", value: str = "1") -> Send:
    return Send(run_id=run_id, message_id=message_id, name=name, value=value, sent_at=NOW + SECOND)


def for_steps(run_id: str = "run", topic: str = "pieces") -> Await:
    return Await(run_id=run_id, kind="steps", name=topic)


def for_child(child: str, run_id: str = "run") -> Await:
    return Await(run_id=run_id, kind="child", name=child)


def for_message(name: str = "paid", run_id: str = "run") -> Await:
    return Await(run_id=run_id, kind="message", name=name)


def key_of(claimed: Claimed) -> ExecutionKey:
    return ExecutionKey(run_id=claimed.run_id, node=claimed.node, attempt=claimed.attempt)


# -- Looks -----------------------------------------------------------------------------------------


def execution(store: Store, run_id: str = "run", node: str = "main") -> ExecutionRow:
    """The latest attempt at a node."""
    return [row for row in store.executions(run_id) if row.node == node][-1]


def state_of(store: Store, run_id: str = "run", node: str = "main") -> str:
    return execution(store, run_id, node).state


def events(store: Store, run_id: str = "run") -> list[str]:
    return [event for _, event, _ in store.history(run_id)]


def everything(store: Store) -> dict[str, list[Any]]:
    """All rows of all tables, to show that nothing was changed."""
    with store._reading() as tx:
        return {
            table: sorted(map(repr, tx.query(f"SELECT * FROM detent_{table}")))
            for table in (*TABLES, "counters")
        }


def detail(text: str) -> Any:
    return msgspec.json.decode(text)


# -- At the same time ------------------------------------------------------------------------------


class Attempt(Generic[T]):
    """A verb under way in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "still waiting"
        if self._error is not None:
            raise self._error
        return self._outcome[0]

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def is_inside(self, function: str) -> bool:
        """Whether the thread is in a function of that name at this moment."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            if frame.f_code.co_name == function:
                return True
            frame = frame.f_back
        return False


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.005)


def is_seen_waiting(attempt: Attempt[Any], store: Store) -> None:
    """Return when the database says that somebody waits for a lock; fail if nobody had to."""
    eventually(lambda: attempt.done or _somebody_waits(attempt, store), "somebody waits for a lock")
    assert not attempt.done, "it did not wait"


def _somebody_waits(attempt: Attempt[Any], store: Store) -> bool:
    if store.dialect == "sqlite":
        return attempt.is_inside("begin")  # knocking at BEGIN IMMEDIATE
    with store._reading() as tx:
        return bool(tx.query(_WAITERS[store.dialect])[0][0])


_WAITERS = {
    "postgres": "SELECT COUNT(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'",
    # Not innodb_trx: it is a copy that does not change as long as somebody keeps looking at it.
    "mysql": "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status"
    " WHERE variable_name = 'Innodb_row_lock_current_waits'",
}


@contextmanager
def held_open(store: Store, *operations: Operation) -> Iterator[Tx]:
    """Operations that are applied, and not yet committed."""
    with store._writer.transaction() as tx:
        apply.apply(tx, operations, helpers_wanted=False)
        tx.query("SELECT 1")  # with it goes what would be sent with the commit
        yield tx


def analyze(store: Store, *tables: str) -> None:
    """Collect statistics of these tables for the planner; SQLite works without."""
    with store._writer.autocommit() as tx:
        if store.dialect == "mysql":
            for table in tables:
                tx.query(f"ANALYZE TABLE {table}")
        elif store.dialect == "postgres":
            tx.run("SET lock_timeout = '60s'")  # autovacuum may hold the lock
            for table in tables:
                tx.run(f"ANALYZE {table}")
