"""A world of a decider's instances: processes with workers, whose commits fail and who die; and the model.

Workers carry out the real letters (execution/letter.py), each up to the operation that it wants to commit.
What is committed together, in which order, and what befalls that commit, is for the test to say; it goes
through the process's own committer.  After every deed the store must be as the model says.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from detent.app.deciders import decision_of, enqueuing_of
from detent.commit.entries import Entry
from detent.errors import NotADeadLetter
from detent.execution.bound_decider import LoadedDecider, Memory
from detent.execution.drivers import _perform
from detent.execution.letter import letter as letter_of
from detent.execution.requests import Commit
from detent.execution.rows import claimed_of
from detent.kernel.decide import Decide, Enqueue, EventRow
from detent.kernel.external_changes import DiscardLetter, ReplayLetter
from detent.kernel.operations import Operation, Settle, Settled, Verdict
from detent.kernel.rows import Claimed, ExecutionRow, WorkerRow
from detent.kernel.settle import Outcome
from detent.stores.batch.apply import Applied
from detent.stores.driver import rows_to
from detent.stores.store import Store
from detent.testing import ManualClock, TestingApp
from tests.conformance.builders import SECOND
from tests.simulation.clerk import INSTANCES, Clerk, Input, Refused
from tests.simulation.clerk_faults import BROKEN, CUT, GONE, Broken, Fault, FaultyStore
from tests.simulation.clerk_model import INBOX, Drained, Fact, Letter, Model, Stale
from tests.simulation.world import SimWorker, is_active

MAX_RECOVERIES = 2
MANY = 10_000
_numbers = itertools.count()


@dataclass(eq=False)
class Held:
    """A letter in the hands of a worker, and what it wants to commit next."""

    worker: Worker
    claimed: Claimed
    routine: Any
    operation: Operation | None = None
    refused: bool = False  # what it brought

    @property
    def instance(self) -> str:
        return self.claimed.run_id.partition(":")[2]

    @property
    def place(self) -> tuple[str, str, int]:
        return self.claimed.run_id, self.claimed.node, self.claimed.attempt


@dataclass(eq=False)
class Worker(SimWorker):
    """Takes letters; what a commit leased to it unseen it hands back."""

    process: Process = field(default=None)  # type: ignore[assignment]
    letters: list[Held] = field(default_factory=list)

    def unconfirmed(self, tokens: Iterable[str]) -> None:
        lost = set(tokens)
        self.give_back(lost)
        self.process.store.disclaim(self.id, lost)


class Process:
    """An app of its own on the shared database: its committer, and the states that it remembers."""

    def __init__(self, world: World, snapshot_every: int | None) -> None:
        self.world = world
        self.store = FaultyStore(world.store)
        self.app = TestingApp(
            include=[world.clerk],
            clock=world.clock,
            store=self.store,
            queues=[world.id],
            migrate=False,
        )
        self.services = self.app.engine.services
        self.bound: LoadedDecider = self.services.bound(Clerk)
        self.bound.snapshot_every = snapshot_every
        self.slots: Worker | None = None
        committer = self.committer = self.services.committer
        committer.slots = lambda: self.slots
        committer.on_commit = self._committed

    def _committed(self, operations: Sequence[Operation], applied: Applied) -> None:
        self.app.engine._committed(operations, applied)
        for row, run in applied.leased:
            assert self.slots is not None
            assert row.token in self.slots.lent
            self.world.begin(self.slots, claimed_of(row, run))

    def forget(self) -> None:
        self.bound._memory = Memory()

    def close(self) -> None:
        self.committer.close()
        self.store.close()


Answered = tuple[Entry, Held | None]


class World:
    """The instances, whoever works on them, and what they must come to."""

    def __init__(self, store: Store, *, snapshots: Sequence[int | None] = (2, 3)) -> None:
        self.store = store
        self.id = f"world-{next(_numbers)}-{random.getrandbits(32):08x}"
        self.clock = ManualClock()
        self.clerk = Clerk(self.id)
        self.model = Model(Clerk(self.id))
        self.processes = [Process(self, every) for every in snapshots]
        self.workers: list[Worker] = []
        self.first = self._counter()  # what happens here stands behind this position
        self.committed: list[Operation] = []
        for process in self.processes:
            self.hire(process)

    @property
    def now(self) -> int:
        return self.clock.now()

    def run_id(self, instance: str) -> str:
        return f"{Clerk.type}:{instance}"

    # -- Workers -----------------------------------------------------------------------------------

    def hire(self, process: Process) -> Worker:
        jobs = tuple(process.services.registry.names)
        worker = Worker(f"w{next(_numbers)}-{self.id}", jobs=jobs, process=process)
        process.store.register(
            WorkerRow(
                id=worker.id,
                name=worker.id,
                pid=1,
                queues=self.id,
                concurrency=10,
                lock_no=next(_numbers),
                started_at=self.now,
                beat_at=self.now,
                lease_until=self.now + 30 * SECOND,
                jobs=msgspec.json.encode(jobs).decode(),
            )
        )
        self.workers.append(worker)
        return worker

    def claim(self, worker: Worker, limit: int) -> None:
        tokens = [f"{worker.id}-{next(_numbers)}" for _ in range(limit)]
        found = worker.process.store.claim(
            worker.id, queues=[self.id], jobs=worker.jobs, tokens=tokens, now=self.now
        )
        for claimed in found:
            letter = self._letter(claimed)
            assert letter is not None, f"{claimed.node} was over"
            assert letter.due <= self.now, f"{claimed.node} was not due"
            self.begin(worker, claimed)

    def begin(self, worker: Worker, claimed: Claimed) -> None:
        """Carry a letter out, up to what it commits."""
        work = letter_of(worker.process.services, claimed)
        held = Held(worker, claimed, work._routine())
        worker.letters.append(held)
        self._go_on(held, lambda: next(held.routine))

    def _go_on(self, held: Held, step: Any) -> None:
        services = held.worker.process.services
        held.operation = None
        try:
            request = step()
            while not isinstance(request, Commit):
                try:
                    reply = _perform(services, request, [])
                except Exception as error:
                    request = held.routine.throw(error)
                else:
                    request = held.routine.send(reply)
            held.operation = request.operation
        except StopIteration:
            held.worker.letters.remove(held)

    def die(self, worker: Worker, *, suddenly: bool = True) -> None:
        """A worker dies, or leaves; what it would have committed comes too late."""
        late = [held.operation for held in worker.letters if held.operation is not None]
        worker.process.store.reap(worker.id, max_recoveries=MAX_RECOVERIES, now=self.now, counted=suddenly)
        self.workers.remove(worker)
        for held in worker.letters:
            self._recovered(held)
        worker.letters = []
        self.hire(worker.process)
        for answer in self.store.apply(late).answers if late else ():
            assert answer.verdict is Verdict.STALE if isinstance(answer, Settled) else answer.stale

    def _recovered(self, held: Held) -> None:
        """How often, and when it is tried again, is another test's (kernel/settle.py)."""
        letter = self._letter(held.claimed)
        if letter is None:
            return
        instance = self.model.instances[held.instance]
        rows = [row for row in self.rows(instance.id) if row.node == letter.node]
        latest = max(rows, key=lambda row: row.attempt)
        if latest.outcome == Outcome.DEAD_LETTER:
            self.model.give_up(instance.id, letter)
        else:
            assert latest.attempt == letter.attempt + 1
            assert latest.scheduled_for is not None
            self.model.recovered(instance.id, letter, latest.scheduled_for)

    def _letter(self, claimed: Claimed) -> Letter | None:
        try:
            return self.model.held(claimed.run_id.partition(":")[2], claimed.node, claimed.attempt)
        except Stale:
            return None

    # -- The operator ------------------------------------------------------------------------------

    @property
    def dead(self) -> list[tuple[str, str]]:
        return [(id, node) for id, one in sorted(self.model.instances.items()) for node in sorted(one.dead)]

    def mend(self, id: str, node: str, *, discard: bool) -> None:
        """Take a dead letter up again, or throw it away."""
        change = (DiscardLetter if discard else ReplayLetter)(self.run_id(id), node)
        self.store.change(change, now=self.now)
        (self.model.discard if discard else self.model.replay)(id, node, self.now)
        with pytest.raises(NotADeadLetter):
            self.store.change(change, now=self.now)

    # -- Commits -----------------------------------------------------------------------------------

    def execute(self, process: Process, input: Input, input_id: str | None) -> Operation:
        return decision_of(process.app.engine, Clerk, input, input_id)

    def enqueue(self, process: Process, input: Input, input_id: str | None) -> Operation:
        return enqueuing_of(process.app.engine, Clerk, input, input_id)

    def commit(
        self,
        process: Process,
        operations: Sequence[Operation | Held],
        *,
        fault: Fault | None = None,
        room: int = 0,
    ) -> None:
        """Commit these together, in this order; letters go on with the answers."""
        planned = [(one.operation, one) if isinstance(one, Held) else (one, None) for one in operations]
        entries = [Entry(operation, None) for operation, _ in planned if operation is not None]
        if not entries:
            return
        if fault is not None and fault.kind == BROKEN and isinstance(entries[0].operation, Settle):
            fault = Fault(GONE, fault.statement)  # nobody tries again to settle what broke; a death does
        worker = next(worker for worker in self.workers if worker.process is process)
        worker.room, process.slots, process.store.fault = room, worker, fault
        process.committer._commit(entries)
        happened = fault.kind if fault is not None and process.store.fault is None else None
        worker.room, worker.lent, process.slots, process.store.fault = 0, {}, None, None
        answered = [(entry, held) for entry, (_, held) in zip(entries, planned, strict=True)]
        self._check_answers(answered, happened)
        for entry, held in answered:
            if held is not None and held in held.worker.letters:
                self._reply(held, entry)
        self.committed = [entry.operation for entry in entries if entry.error is None]

    def _reply(self, held: Held, entry: Entry) -> None:
        if entry.error is not None:
            error = entry.error
            self._go_on(held, lambda: held.routine.throw(error))
        else:
            self._go_on(held, lambda: held.routine.send(entry.answer))

    def again(self, operations: Sequence[Operation]) -> None:
        """What was committed changes nothing when it comes again."""
        again = [op for op in operations if _comes_to_nothing(op)]
        if not again:
            return
        answers = self.store.apply(again).answers
        for operation, answer in zip(again, answers, strict=True):
            if isinstance(operation, Enqueue):
                assert not answer.created
            elif isinstance(operation, Settle):
                assert answer.verdict is Verdict.STALE
            else:
                assert answer.stale or not answer.events

    # -- What the answers must be ------------------------------------------------------------------

    def _check_answers(self, answered: Sequence[Answered], fault: str | None) -> None:
        expected: dict[Entry, Any] = {}
        # A batch that broke is tried again in halves.
        half = len(answered) // 2 if fault == BROKEN else 0
        # In a batch, what a letter has failed with stands before all decisions; an inbox stands where it is.
        ordered = [
            one
            for part in (answered[:half], answered[half:])
            for one in sorted(part, key=lambda one: not _stands_first(one[0].operation))
        ]
        for entry, held in ordered:
            if not isinstance(entry.error, Broken):
                expected[entry] = self._expected(entry.operation, held)
        for entry, held in answered:
            # What left no trace was tried again, behind all the others.
            if fault == CUT and self._left_no_trace(expected[entry]):
                expected[entry] = self._expected(entry.operation, held)
        for entry, held in answered:
            wanted = expected.get(entry)
            if held is not None:
                held.refused = entry not in expected or _was_refused(wanted)
            if entry in expected:
                self._check_answer(entry, wanted, lost=fault in (CUT, GONE, BROKEN))

    @staticmethod
    def _left_no_trace(wanted: Any) -> bool:
        """Whether an operation did nothing by which it is known to have been committed."""
        if isinstance(wanted, Drained):  # an inbox that was settled has a trace: its token
            return wanted.more or wanted.refused
        return isinstance(wanted, Refused)

    def _expected(self, operation: Operation, held: Held | None) -> Any:
        """What the model says, and makes of it."""
        model = self.model
        try:
            if isinstance(operation, Enqueue):
                row = operation.input
                input = self.processes[0].bound.input_of(row.type, row.data or "")
                return model.enqueue(input, row.input_id or "", operation.now)
            if isinstance(operation, Decide) and operation.ends is None:
                given = operation.inputs[0]
                return model.execute(given.input, given.input_id, operation.now)
            assert held is not None
            id = held.instance
            letter = model.held(id, held.claimed.node, held.claimed.attempt)
            if isinstance(operation, Settle):
                return self._ended(operation, held, letter)
            assert isinstance(operation, Decide)
            if operation.drain:
                return model.drain(id, [one.input_id or "" for one in operation.inputs], operation.now)
            return model.brings(id, letter, operation.inputs[0].input, operation.now)
        except (Stale, Refused) as nothing:
            return nothing

    def _ended(self, operation: Settle, held: Held, letter: Letter) -> Outcome:
        if operation.plan.outcome == Outcome.SUCCESS:
            self.model.succeeded(held.instance, letter)
            return Outcome.SUCCESS
        unlucky = letter.kind == "effect" and letter.content.fails_at(letter.attempt)
        assert unlucky or held.refused, "it failed without a reason"
        again = self.model.failed(held.instance, letter, operation.now)
        return Outcome.REATTEMPTED_BY_EXCEPTION if again else Outcome.DEAD_LETTER

    def _check_answer(self, entry: Entry, wanted: Any, *, lost: bool) -> None:
        operation, answer = entry.operation, entry.answer
        if isinstance(wanted, Refused):
            assert repr(entry.error) == repr(wanted)
            return
        assert entry.error is None, entry.error
        if isinstance(operation, Enqueue):
            assert answer.created is wanted or lost
        elif isinstance(operation, Settle):
            stale = isinstance(wanted, Stale)
            # (Whoever lost the answer sees a timer that waits no more, and takes that for his own doing.)
            assert answer.verdict is (Verdict.STALE if stale else Verdict.APPLIED) or (stale and lost)
            assert stale or operation.plan.outcome == wanted
        elif isinstance(wanted, Stale):
            assert answer.stale or lost
        elif isinstance(wanted, Drained):
            # After a lost answer it is not known how many of the inputs this very operation has applied.
            found = (answer.applied, answer.error is not None, answer.more)
            assert found == wanted or (lost and (answer.stale or found[1:] == wanted[1:]))
        elif isinstance(operation, Decide) and operation.ends is not None:
            # (What led to no event leaves no trace: whoever lost that answer is told that it is stale.)
            assert not answer.stale or (lost and not wanted)
        else:
            assert isinstance(operation, Decide)
            known = self.model.instance(operation.instance).caused.get(operation.inputs[0].input_id or "")
            # (Whoever lost the answer to a repetition is told what the first has led to.)
            assert answer.events in ([wanted, known] if lost and not wanted else [wanted])

    # -- What must hold ----------------------------------------------------------------------------

    def check(self) -> None:
        """The store is as the model says."""
        self._check_log()
        for instance in self.model.instances.values():
            self._check_letters(instance.id)
            self._check_inbox(instance.id)
            self._check_state(instance.id)
        for unknown in {f"{self.id}-{name}" for name in INSTANCES} - set(self.model.instances):
            assert self.store.find_run(self.run_id(unknown)) is None, "it never began"

    def _counter(self) -> int:
        with self.store._reading() as tx:
            count: int = tx.query(tx.sql.deciders.counter)[0][0]
        return count

    def events(self) -> list[EventRow]:
        """All that happened here, by position."""
        with self.store._reading() as tx:
            rows = tx.query(tx.sql.deciders.events_since, after=self.first, limit=MANY)
        return rows_to(EventRow, rows)

    def _check_log(self) -> None:
        rows = self.events()
        bound = self.processes[0].bound
        assert [row.position for row in rows] == list(range(self.first + 1, self._counter() + 1))
        found = [
            Fact(record.instance, record.sequence, record.event, record.cause, row.happened_at)
            for row in rows
            for record in [bound.recorded(row)]
        ]
        assert found == self.model.log

    def rows(self, instance: str) -> list[ExecutionRow]:
        return self.store.executions(self.run_id(instance))

    def _check_letters(self, id: str) -> None:
        instance, rows = self.model.instances[id], self.rows(id)
        active = [row for row in rows if is_active(row)]
        assert {row.node: (row.attempt, row.failures, row.scheduled_for) for row in active} == {
            letter.node: (letter.attempt, letter.failures, letter.due) for letter in instance.letters.values()
        }
        assert len(active) == len(instance.letters), "two attempts at once"
        assert {row.node for row in rows if row.outcome == Outcome.DEAD_LETTER} == set(instance.dead)
        held = {held.place for worker in self.workers for held in worker.letters}
        executing = {(row.run_id, row.node, row.attempt) for row in active if row.state == "executing"}
        assert executing == {place for place in held if place in executing or self._lasts(place, id)}
        alive = {worker.id for worker in self.workers}
        assert all(row.worker in alive for row in active if row.state == "executing")
        with self.store._reading() as tx:
            timers = tx.query(tx.sql.deciders.pending_timers, id=self.run_id(id))
        bound = self.processes[0].bound
        assert {
            node: (key, due, bound.input_of(job.partition("@")[2], text))
            for node, key, job, due, _, _, _, text in timers
        } == {node: (timer.key, timer.due, timer.content) for node, timer in instance.timers.items()}
        run = self.store.run(self.run_id(id))
        assert run.state == ("finished" if instance.state.over else "ready")

    def _lasts(self, place: tuple[str, str, int], id: str) -> bool:
        """Whether what a worker holds should be executing: it may be over, and the worker not know yet."""
        letter = self.model.instances[id].letters.get(place[1])
        return place[0] == self.run_id(id) and letter is not None and letter.attempt == place[2]

    def _check_inbox(self, id: str) -> None:
        instance, bound = self.model.instances[id], self.processes[0].bound
        with self.store._reading() as tx:
            statement = tx.driver.adapt("SELECT input_id FROM detent_inputs WHERE run_id = :id")
            known = [row[0] for row in tx.query(statement, id=self.run_id(id))]
        assert sorted(known) == sorted(instance.caused)
        waiting = self.store.pending_inputs(self.run_id(id), limit=MANY)
        assert {row.input_id: bound.input_of(row.type, row.data or "") for row in waiting} == instance.inbox
        assert [row.input_id for row in waiting] == list(instance.inbox)
        assert not instance.inbox or INBOX in instance.letters or INBOX in instance.dead

    def _check_state(self, id: str) -> None:
        instance, run = self.model.instances[id], self.run_id(id)
        rows = self.store.events(run)
        assert [row.sequence for row in rows] == list(range(1, instance.sequence + 1))
        for process in self.processes:
            bound = process.bound
            assert bound.fold(bound.initial(), rows) == instance.state
            assert self.store.instance_state(run, bound) == instance.state
            remembered = bound._memory._states.get(run)
            if remembered is not None:
                assert remembered[1] == bound.fold(bound.initial(), rows[: remembered[0]])
        with self.store._reading() as tx:
            found = tx.query(tx.sql.deciders.snapshots, rows=msgspec.json.encode([{"id": run}]).decode())
        for _, sequence, _, body, _ in found:
            bound = self.processes[0].bound
            assert bound.thawed(body) == bound.fold(bound.initial(), rows[:sequence])

    # -- The end -----------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Everybody dies, healthy workers come, and time passes: in the end nothing is left to do."""
        for worker in list(self.workers):
            self.die(worker)
            self.check()
        for _ in range(80):
            due = [letter.due for one in self.model.instances.values() for letter in one.letters.values()]
            if not due:
                break
            self.clock.move_to(max(due))
            for worker in self.workers:
                self.claim(worker, 5)
                while worker.letters:
                    self.commit(worker.process, list(worker.letters))
            self.check()
        else:
            raise AssertionError("it does not come to rest")
        self._check_handled()
        for worker in self.workers:
            self.store.reap(worker.id, max_recoveries=MAX_RECOVERIES, now=self.now)

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def _check_handled(self) -> None:
        """Every effect was tried: at least once, each time under the same key, under no other."""
        tried = {key for key, _ in self.clerk.handled}
        sent = {
            f"{row.run_id}:{row.node}"
            for id in self.model.instances
            for row in self.rows(id)
            if row.kind == "effect"
        }
        assert tried <= sent
        dead = {f"{self.run_id(id)}:{node}" for id, one in self.model.instances.items() for node in one.dead}
        assert sent - tried <= dead


def _stands_first(operation: Operation) -> bool:
    return isinstance(operation, Settle) and operation.key.node != INBOX


def _was_refused(wanted: Any) -> bool:
    return wanted.refused if isinstance(wanted, Drained) else isinstance(wanted, Refused)


def _comes_to_nothing(operation: Operation) -> bool:
    """Whether it changes nothing when it comes once more; an inbox may have been emptied in part."""
    if isinstance(operation, Decide):
        return not operation.drain if operation.ends else operation.inputs[0].input_id is not None
    return True
