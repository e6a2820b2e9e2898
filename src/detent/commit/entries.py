"""What the committer carries: operations, and who waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from ..kernel.decide import Decide, Decided, Enqueue
from ..kernel.operations import Operation, Record, Settle, Settled, Start, Verdict
from ..kernel.rows import NewExecution
from ..stores.batch.fast_paths import is_plain_start
from ..stores.batch.graphs import MustGoAlone, without_repeats

FEW_RUNS = 10  # that an event loop starts for another thread: thousands would hold up its tasks


class Entry(msgspec.Struct, eq=False):
    """An operation on its way, and who waits for it.

    A Struct: every step of every run makes one, and this constructor takes half the time of one in Python.
    """

    operation: Operation
    deadline: float | None = None  # of the monotonic clock: how long the caller waits for a lost database
    answer: Any = None
    error: BaseException | None = None
    answered: bool = False  # its answer or its error is known
    done: bool = False  # the caller has been told
    doubted: bool = False  # its commit may have gone through: look it up before the next try
    retried: bool = False  # it was in doubt once: "another writer did it" may mean this process
    reason: Exception | None = None  # why the last try aside did not commit it
    tries: int = 0  # aside
    gone: bool = False  # its caller was interrupted: it waits no more, and cannot lead
    interruptions: int = 0
    may_lead: bool = False
    future: asyncio.Future[Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    signal: threading.Lock | None = None
    size: int = 0  # about how many bytes the operation puts into a batch
    run: str | None = None  # whose operations keep their order, for what an event loop can send

    def __post_init__(self) -> None:
        # Once, because an entry can be looked at for several batches.  By class and without helpers: this is
        # done for every step, and isinstance() and generators took ten calls more.
        operation = self.operation
        if type(operation) is Record:
            self.run = operation.run_id
            size = 0
            for step in operation.steps:
                if step.result is not None:
                    size += len(step.result)
                if step.input is not None:
                    size += len(step.input)
                if step.progress is not None:
                    size += len(step.progress)
            self.size = size
            if operation.executions or operation.appends or operation.children is not None:
                self.size += _size_beside_steps(operation)
        elif type(operation) is Settle:
            self.run = operation.key.run_id
            self.size = len(operation.plan.result or "")
        else:
            self.size = _size_of(operation)

    def prepare_to_wait(self) -> None:
        self.signal = threading.Lock()
        self.signal.acquire()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until it is woken, or for so long; whether it was woken."""
        assert self.signal is not None
        return self.signal.acquire(timeout=seconds)

    def wake(self) -> None:
        """Let the waiting thread look again; once too often does no harm."""
        if self.signal is not None and self.signal.locked():
            try:
                self.signal.release()
            except RuntimeError:  # another thread has just done so
                return

    @property
    def fits_a_turn(self) -> bool:
        """Whether an event loop can probably send it (fast_paths.py), without holding up its tasks."""
        operation = self.operation
        return type(operation) is Start and len(operation.runs) <= FEW_RUNS and is_plain_start(operation)

    @property
    def waits(self) -> bool:
        return self.signal is not None and not self.gone

    def succeed(self, answer: Any) -> None:
        self.answer = answer
        self.answered = True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.answered = True

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer


async def outlast(entry: Entry) -> Any:
    """Wait for an operation whose asyncio caller was cancelled: its answer must not be lost."""
    assert entry.loop is not None
    while not entry.done:  # if it is, the answer has found the cancelled future, and will not come again
        if entry.future is None or entry.future.done():
            entry.future = entry.loop.create_future()
        try:
            return await entry.future
        except asyncio.CancelledError:
            continue
    return entry.outcome()


async def outlast_and_cancel(entry: Entry) -> Any:
    """The same; the cancellation comes to the caller at its next await."""
    answer = await outlast(entry)
    if (task := asyncio.current_task()) is not None:
        task.uncancel()
        task.cancel()
    return answer


def resolve(entries: Sequence[Entry]) -> None:
    """On their loop: give the callers their answers."""
    for entry in entries:
        if entry.future is not None and not entry.future.done():
            if entry.error is not None:
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.answer)


def _size_beside_steps(operation: Record) -> int:
    size = sum(len(row.input or "") for row in operation.executions)
    size += sum(len(entry.value) for entry in operation.appends)
    return size + (_size_of(operation.children) if operation.children is not None else 0)


def _size_of(operation: Operation) -> int:
    """The size of an operation that is neither a record nor a settle."""
    if isinstance(operation, Start):
        return sum(len(run.input) for run in operation.runs)
    if isinstance(operation, Decide):
        return sum(len(given.text or "") for given in operation.inputs)
    if isinstance(operation, Enqueue):
        return len(operation.input.data or "")
    return 0


def new_executions(op: Operation) -> list[NewExecution]:
    """The rows of an operation that may be leased to our worker from the beginning."""
    if isinstance(op, Start):
        return op.executions
    if isinstance(op, Record):
        return op.executions + (op.children.executions if op.children is not None else [])
    return []


def came_second(answer: Any) -> bool:
    """Whether an answer says that the operation changed nothing, because it was done before."""
    if isinstance(answer, Settled):
        return answer.verdict is Verdict.STALE
    if isinstance(answer, Decided):
        return answer.stale
    return isinstance(answer, list) and any(not started.created for started in answer)


def parts(group: list[Entry], error: Exception) -> list[list[Entry]]:
    """Two parts of a batch that failed; each run's operations stay in their order."""
    if isinstance(error, MustGoAlone):
        first = set(without_repeats([entry.operation for entry in group], error.runs))
        parts = [
            [entry for place, entry in enumerate(group) if place in first],
            [entry for place, entry in enumerate(group) if place not in first],
        ]
        if all(parts):
            return parts
    half = len(group) // 2
    return [group[:half], group[half:]]
