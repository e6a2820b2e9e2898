"""A world of one run: several workers, an operator, deaths; and what must hold after every step.

Workers are plain objects that claim from a real store and settle through it.  Nothing here waits:
time is a number that only `tick` moves.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from detent.errors import InvalidState, NodeNotFound, StepNotDefined
from detent.execution.new_runs import Terms, _opened
from detent.execution.rows import claimed_of, claimed_of_run
from detent.execution.run_graphs import Values
from detent.kernel.advance import RunGraph
from detent.kernel.ancestry import verify
from detent.kernel.external_changes import (
    Cancel,
    Pause,
    PauseWith,
    Reattempt,
    Reconcile,
    ReplaceGraph,
    Resume,
    Skip,
)
from detent.kernel.graph import AWAIT_JOB, RESULT, SPREAD, Document, Graph, structure_text
from detent.kernel.operations import Park, Settle, Settled, Verdict
from detent.kernel.rows import Claimed, ExecutionRow, Lease, NewRun, RunRow, WorkerRow, stored_error
from detent.kernel.settle import Ending, Outcome, settle
from detent.serialization.codec import Codec
from detent.stores.batch.graphs import MustGoAlone
from detent.stores.store import Store
from detent.stores.verbs.graphs import parts
from tests.conformance.builders import NOW, SECOND, key_of
from tests.simulation.shapes import COUNT, LIST, compiled, expected, perform

ERROR = '{"type":"ValueError","message":"broken"}'
DONE = ("completed", "skipped")
SCHEDULED = ("ready", "timer", "parked", "held")
MAX_RECOVERIES = 2
CODEC = Codec()
_numbers = itertools.count()

LIKELY = [Outcome.SUCCESS] * 12
GENTLE = [
    Outcome.SKIPPED_BY_FLOW_CONTROL,
    Outcome.SKIPPED_BY_EXCEPTION,
    Outcome.PAUSED_BY_EXCEPTION,
    Outcome.PAUSED_BY_FLOW_CONTROL,
    Outcome.PAUSED_AFTER,
    Outcome.REATTEMPTED,
    Outcome.REATTEMPTED_BY_EXCEPTION,
]
FATAL = [Outcome.CANCELED_BY_EXCEPTION, Outcome.CANCELED_BY_FLOW_CONTROL, Outcome.FINISHED_BY_FLOW_CONTROL]
SUCCEEDS = (Outcome.SUCCESS, Outcome.PAUSED_AFTER, Outcome.FINISHED_BY_FLOW_CONTROL)


@dataclass(eq=False)
class SimWorker:
    """Holds what it has claimed until told what becomes of it.  It knows one version of a class."""

    id: str
    graph: Graph | None = None
    held: list[Claimed] = field(default_factory=list)
    room: int = 0  # how much it takes over in the commits of its own process
    jobs: tuple[str, ...] = ()
    lent: dict[str, None] = field(default_factory=dict)

    # As a Slots

    def reserve(self, job: str, queue: str, *, handed_on: bool = False) -> Lease | None:
        if self.room <= 0 or job not in self.jobs:
            return None
        self.room -= 1
        token = f"{self.id}-{next(_numbers)}"
        self.lent[token] = None
        return Lease(worker=self.id, token=token)

    def give_back(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            self.room += 1
            del self.lent[token]

    def unconfirmed(self, tokens: Iterable[str]) -> None:
        raise AssertionError("nothing goes unconfirmed here")


class World:
    """One run, and all who work on it."""

    def __init__(self, store: Store, graph: Document | Graph, *, workers: int = 3) -> None:
        self.store = store
        self.now = NOW
        self.id = f"run-{next(_numbers)}-{random.getrandbits(32):08x}"
        self.type = f"Flow-{self.id}"  # nobody else's workers know it
        self.values = Values(CODEC)
        self.methods = isinstance(graph, Graph)
        self.text = ""
        if isinstance(graph, Document):
            self.graph, self.text = compiled(graph)
        else:
            self.graph = graph
        self.graphs = {self.graph.signature: self.graph}  # all that it was ever settled under
        self.workers: list[SimWorker] = []
        self.healed = False  # the run has had another graph
        self.ran: dict[str, int] = {}  # how often a node has succeeded
        self.done: set[str] = set()  # all that was found done up to now
        self.final: tuple[str, str | None] | None = None
        self.operator_paused = False
        self.finished_early = False
        self._start()
        for _ in range(workers):
            self.hire()

    def _start(self) -> None:
        run = NewRun(
            id=self.id,
            type=self.type,
            kind="class" if self.methods else "graph",
            queue=self.id,
            priority=0,
            input="{}",
            created_at=self.now,
            signature=self.graph.signature,
            frozen_at=None if self.methods else self.now,
        )
        terms = Terms(id=self.id, queue=self.id, priority=0, now=self.now, declared=(self.id,))
        start = _opened(CODEC, self.graph, run, terms, methods=self.methods)
        if not self.methods:
            start.graphs = parts(self.id, self.text)
        else:
            self.store.save_graphs({self.graph.signature: structure_text(self.graph.document)})
        [answer] = self.store.apply([start]).answers
        assert answer[0].created

    # -- Workers -----------------------------------------------------------------------------------

    def hire(self, graph: Graph | None = None) -> SimWorker:
        """A new worker; of a class, with the code of today or with an older one."""
        graph = graph or self.graph
        jobs = tuple(f"{self.type}.{id}" for id in graph.nodes) if self.methods else (COUNT, LIST, AWAIT_JOB)
        worker = SimWorker(f"w{next(_numbers)}-{self.id}", graph=graph, jobs=jobs)
        self.store.register(
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

    def claim(self, worker: SimWorker, limit: int = 1) -> list[Claimed]:
        tokens = [f"{worker.id}-{next(_numbers)}" for _ in range(limit)]
        found = self.store.claim(worker.id, queues=[self.id], jobs=worker.jobs, tokens=tokens, now=self.now)
        return [claimed for claimed in found if self._begin(worker, claimed)]

    def _begin(self, worker: SimWorker, claimed: Claimed) -> bool:
        """What a worker does before the body runs: heal the run, if its code is another."""
        assert claimed.run_id == self.id
        assert claimed.node not in self.ran, f"{claimed.node} had completed"
        if self.methods and claimed.frozen_at is None:
            run_graph = self.run_graph(claimed, worker)
            if claimed.signature != run_graph.graph.signature and not self.store.change(
                Reconcile(self.id, run_graph=run_graph, mine=claimed.node), now=self.now
            ):
                return False
        worker.held.append(claimed)
        return True

    def run_graph(self, claimed: Claimed, worker: SimWorker | None = None) -> RunGraph:
        graph = self.graph if worker is None or worker.graph is None or not self.methods else worker.graph
        return RunGraph(graph=graph, values=self.values, claimed=claimed, methods=self.methods)

    def operators_run_graph(self) -> RunGraph:
        return self.run_graph(claimed_of_run(self.run))

    def settling(self, worker: SimWorker, claimed: Claimed, outcome: Outcome, wait: int = 0) -> Settle:
        result = None
        if outcome in SUCCEEDS:
            kwargs = msgspec.json.decode(claimed.input or "{}").get("kwargs", {})
            result = msgspec.json.encode(perform(claimed.job, kwargs)).decode()
        error = ERROR if "exception" in outcome else None
        ending = Ending(outcome=outcome, now=self.now, result=result, error=error, wait=wait)
        return Settle(
            worker=claimed.worker,
            key=key_of(claimed),
            token=claimed.token,
            now=self.now,
            plan=settle(claimed, ending),
            run_graph=self.run_graph(claimed, worker),
        )

    def settle(
        self, ends: Sequence[tuple[SimWorker, Claimed, Outcome, int]], slots: SimWorker | None = None
    ) -> list[Settle]:
        """Settle these in one batch; twice in it or not."""
        operations = [
            self.settling(worker, claimed, outcome, wait) for worker, claimed, outcome, wait in ends
        ]
        answers = self.commit(operations, slots)
        settled: set[tuple[str, int]] = set()
        for (worker, claimed, outcome, _), answer in zip(ends, answers, strict=True):
            known = (claimed.node, claimed.attempt) in settled or claimed not in worker.held
            assert answer.verdict is (Verdict.STALE if known else Verdict.APPLIED), answer
            settled.add((claimed.node, claimed.attempt))
            if claimed in worker.held:
                worker.held.remove(claimed)
                self._settled(claimed, outcome, answer)
        return operations

    def _settled(self, claimed: Claimed, outcome: Outcome, answer: Settled) -> None:
        if answer.run_state == "canceled":
            return
        if outcome in SUCCEEDS or outcome.startswith("skipped"):
            self.ran[claimed.node] = self.ran.get(claimed.node, 0) + 1
        if outcome is Outcome.FINISHED_BY_FLOW_CONTROL and answer.ended is not None:
            self.finished_early = True

    def commit(self, operations: Sequence[Any], slots: SimWorker | None = None) -> list[Any]:
        """As the committer does it: together, and one by one where one has to go alone."""
        try:
            applied = self.store.apply(operations, slots=slots)
        except MustGoAlone:
            assert len(operations) > 1
            return [answer for operation in operations for answer in self.commit([operation], slots)]
        if slots is not None:
            for row, parent in applied.leased:
                claimed = claimed_of(row, parent)
                assert claimed.token in slots.lent
                assert self.run.state == "ready", "nothing new begins in a run that is not"
                assert self._begin(slots, claimed) or self.methods
            slots.room, slots.lent = 0, {}
        else:
            assert not applied.leased
        return applied.answers

    def again(self, operations: Sequence[Settle]) -> None:
        """A settle that was sent twice changes nothing, and says so."""
        before = self.rows
        answers = self.commit(operations)
        assert [answer.verdict for answer in answers] == [Verdict.STALE] * len(operations)
        assert self.rows == before

    def put_down(self, worker: SimWorker, claimed: Claimed) -> None:
        """The worker goes away in good order: the node is due again."""
        park = Park(
            worker=worker.id,
            key=key_of(claimed),
            token=claimed.token,
            now=self.now,
            wake_at=self.now,
            awaits=[],
        )
        [answer] = self.commit([park])
        assert answer.verdict is Verdict.APPLIED
        worker.held.remove(claimed)

    def hand_back(self, worker: SimWorker, claimed: Claimed) -> None:
        self.store.release([claimed])
        worker.held.remove(claimed)

    def die(self, worker: SimWorker) -> list[Settle]:
        """A worker dies; what it would have settled comes too late."""
        late = [self.settling(worker, claimed, Outcome.SUCCESS) for claimed in worker.held]
        self.store.reap(worker.id, max_recoveries=MAX_RECOVERIES, now=self.now)
        self.workers.remove(worker)
        worker.held = []
        return late

    # -- The operator ------------------------------------------------------------------------------

    def tried(self, verb: Callable[[], object]) -> bool:
        """An operator's verb; what is refused has changed nothing."""
        before = self.rows, self.run
        try:
            verb()
        except (InvalidState, NodeNotFound):
            assert (self.rows, self.run) == before
            return False
        return True

    def pause(self) -> None:
        if self.tried(lambda: self.store.change(Pause(self.id, reason=None), now=self.now)):
            self.operator_paused = True

    def resume(self) -> None:
        if self.tried(
            lambda: self.store.change(Resume(self.id, run_graph=self.operators_run_graph()), now=self.now)
        ):
            self.operator_paused = False

    def cancel(self) -> None:
        self.tried(lambda: self.store.change(Cancel(self.id, reason=None), now=self.now))

    def skip(self, node: str) -> None:
        if self.tried(
            lambda: self.store.change(Skip(self.id, node, run_graph=self.operators_run_graph()), now=self.now)
        ):
            self.ran[node] = self.ran.get(node, 0) + 1

    def reattempt(self, node: str) -> None:
        self.tried(
            lambda: self.store.change(
                Reattempt(self.id, node, run_graph=self.operators_run_graph()), now=self.now
            )
        )

    def tick(self, seconds: int = 10) -> None:
        self.now += seconds * SECOND

    # -- Deploys -----------------------------------------------------------------------------------

    def deploy(self, graph: Graph) -> None:
        """New code for those who are hired from now on."""
        self.healed = True
        self.graph = graph
        self.graphs[graph.signature] = graph
        self.store.save_graphs({graph.signature: structure_text(graph.document)})

    def look_after(self) -> None:
        """What a worker does beside its work: heal the runs of its classes, pause what nobody can execute."""
        for run in self.store.outdated(self.type, self.graph.signature):
            self.store.change(Reconcile(run, run_graph=self.operators_run_graph()), now=self.now)
        for run, node, _, _ in self.store.unknown_jobs(before=self.now):
            if run == self.id:
                error = stored_error(StepNotDefined(run, self.type, node))
                self.store.change(PauseWith(run, error), now=self.now)

    def replace(self, document: Document) -> None:
        """Another graph for a dynamic run; only when paused."""
        graph, text = compiled(document)

        def act() -> None:
            run_graph = msgspec.structs.replace(self.operators_run_graph(), graph=graph)
            self.store.change(ReplaceGraph(self.id, text, run_graph=run_graph), now=self.now)

        if self.tried(act):
            self.healed, self.graph = True, graph
            self.graphs[graph.signature] = graph
            for worker in self.workers:
                worker.graph = graph

    # -- Looks -------------------------------------------------------------------------------------

    @property
    def run(self) -> RunRow:
        return self.store.run(self.id)

    @property
    def rows(self) -> list[ExecutionRow]:
        return self.store.executions(self.id)

    def latest(self) -> dict[str, ExecutionRow]:
        return {row.node: row for row in sorted(self.rows, key=lambda row: row.attempt)}

    @property
    def all_held(self) -> list[tuple[SimWorker, Claimed]]:
        return [(worker, claimed) for worker in self.workers for claimed in worker.held]

    # -- What must hold ----------------------------------------------------------------------------

    def check(self) -> None:
        self.now += 1  # no two deeds at the same moment: ancestry tells them apart by that
        run, rows, latest = self.run, self.rows, self.latest()
        self._check_attempts(rows)
        self._check_run(run, latest)
        self._check_spreads(latest)
        if not self.healed:
            self._check_readiness(run, latest)
        assert all(number == 1 for number in self.ran.values()), self.ran
        assert verify(self.id, list(self.graphs.values()), rows) == []

    def _check_attempts(self, rows: list[ExecutionRow]) -> None:
        by_node: dict[str, list[ExecutionRow]] = {}
        for row in sorted(rows, key=lambda row: row.attempt):
            by_node.setdefault(row.node, []).append(row)
        for node, attempts in by_node.items():
            assert [row.attempt for row in attempts] == list(range(1, len(attempts) + 1)), node
            for row in attempts[:-1]:
                assert not is_done(row), f"{node} was done, and was begun again"
                assert not is_active(row), f"two attempts at {node} at once"

    def _check_spreads(self, latest: dict[str, ExecutionRow]) -> None:
        """A spread is collected with all of its items, also with those that it has from another graph."""
        new = {node for node, row in latest.items() if is_done(row)} - self.done
        self.done |= new
        for node in new & self.graph.nodes.keys():
            if self.graph.nodes[node].kind == SPREAD and latest[node].outcome == "success":
                items = {item for item in latest if self.graph.spread_of(item) == node}
                assert latest[node].kind != "inline" or items <= self.done, f"{node} was collected too early"

    def _check_run(self, run: RunRow, latest: dict[str, ExecutionRow]) -> None:
        scheduled = {node: row.state for node, row in latest.items() if row.state in SCHEDULED}
        executing = {node for node, row in latest.items() if row.state == "executing"}
        assert executing == {claimed.node for _, claimed in self.all_held}
        if self.final is not None:
            assert (run.state, run.result) == self.final, "a final state has changed"
        if run.state in ("finished", "canceled"):
            self.final = (run.state, run.result)
            assert not scheduled, f"scheduled in a run that is {run.state}: {scheduled}"
            assert run.finished_at is not None
        elif run.state == "paused":
            assert all(state == "held" for state in scheduled.values()), scheduled
            stopped = any(
                row.state == "failed" or row.outcome == "paused_by_flow_control" for row in latest.values()
            )
            assert run.error is not None or self.operator_paused or stopped or self._paused_by_flow()
        else:
            assert run.state == "ready"
            assert "held" not in scheduled.values()
            assert scheduled or executing, "nothing will ever happen in this run"

    def _paused_by_flow(self) -> bool:
        return any(event == "paused" for _, event, _ in self.store.history(self.id))

    def _check_readiness(self, run: RunRow, latest: dict[str, ExecutionRow]) -> None:
        graph = self.graph
        done = {node for node, row in latest.items() if is_done(row)}
        for node in latest:
            missing = set(graph.parents(node)) - done
            assert not missing, f"{node} was readied before {missing}"
        concluded = {id for id in done if id in graph.nodes and graph.nodes[id].kind == RESULT}
        if (
            run.state not in ("finished", "canceled") and not concluded
        ):  # (paused with its result: it is over)
            for node, needs in graph.needs.items():
                begun = node in latest or f"{node}[0]" in latest
                assert begun or not set(needs) <= done, f"{node} is ready, and nobody knows"
        for node in done:
            if node in graph.nodes and graph.nodes[node].kind == SPREAD:
                items = {item for item in latest if graph.spread_of(item) == node}
                assert items <= done, f"{node} was collected before its items"
        ended = run.state == "finished"
        if ended and not (self.finished_early or concluded):
            assert set(graph.nodes) <= done, "finished with nodes unrun"
        if not ended:
            assert not (set(graph.sinks) <= done) or run.state != "ready"

    # -- The end -----------------------------------------------------------------------------------

    def bring_to_its_end(self) -> None:
        """A healthy worker, and an operator who resumes: every run comes to its end by that."""
        for worker in list(self.workers):
            self.die(worker)
        worker = self.hire()
        for _ in range(60):
            self.check()
            if self.run.state in ("finished", "canceled"):
                break
            if self.run.state == "paused":
                self.help_on()
            if self.methods:
                self.look_after()
            self.tick(60)
            self.claim(worker, 3)
            self.settle([(worker, claimed, Outcome.SUCCESS, 0) for claimed in list(worker.held)])
        else:
            raise AssertionError(f"it does not come to an end: {self.run}, {self.latest()}")
        self.check_end()
        self.die(worker)

    def help_on(self) -> None:
        """Resume; what cannot be evaluated, or is not defined any more, is skipped."""
        before = {
            node for node, row in self.latest().items() if row.state == "failed" and row.kind == "inline"
        }
        self.resume()
        self.check()
        if self.run.state != "paused":
            return
        for node, row in self.latest().items():
            gone = not self.graph.knows(node) and not is_done(row) and row.outcome != "bypassed_by_deploy"
            if gone or (row.state == "failed" and (row.kind == "inline" and node in before)):
                self.skip(node)
                self.check()

    def check_end(self) -> None:
        run, latest = self.run, self.latest()
        if run.state == "canceled":
            return
        done = {node: row for node, row in latest.items() if is_done(row)}
        if self.healed:
            self._check_healed_end(latest, done)
            return
        skipped = {
            node: str(row.outcome)
            for node, row in done.items()
            if row.state == "skipped" and row.outcome != "skipped_by_condition"
        }
        if self.methods:
            return
        outputs = expected(self.graph, skipped)
        for node, row in done.items():
            found = None if row.result is None else msgspec.json.decode(row.result)
            assert found == outputs[node], f"the output of {node}"
            branch = self.graph.nodes[node].branch if node in self.graph.nodes else None
            by_condition = node not in skipped and branch is not None and outputs[branch[0]] is not branch[1]
            assert (row.outcome == "skipped_by_condition") == by_condition
        if not self.finished_early:
            self._check_result(run, done, outputs)

    def _check_result(self, run: RunRow, done: dict[str, ExecutionRow], outputs: dict[str, Any]) -> None:
        found = None if run.result is None else msgspec.json.decode(run.result)
        if "z" in done:
            assert found == outputs["z"]
        elif len(self.graph.sinks) == 1:
            assert found == outputs[self.graph.sinks[0]]
        else:
            assert found is None

    def _check_healed_end(self, latest: dict[str, ExecutionRow], done: dict[str, ExecutionRow]) -> None:
        graph = self.graphs[self.run.signature or ""]
        early = self.finished_early or any(graph.nodes[id].kind == RESULT for id in done if id in graph.nodes)
        if early:
            return
        for node in graph.nodes:
            if node in done:
                continue
            assert node in latest, f"finished, and {node} was not run"
            assert latest[node].outcome == "bypassed_by_deploy", f"{node} is {latest[node]}"
            assert graph.descendants(node) & set(done), f"{node} was bypassed, and stands before nothing done"
        for node, row in latest.items():
            if not graph.knows(node):
                # (No worker executes an inline node: it is removed together with its graph.)
                passed = row.outcome == "bypassed_by_deploy" or row.kind == "inline"
                assert is_done(row) or passed, f"{node} is gone, and was not done"


def is_done(row: ExecutionRow) -> bool:
    return row.state in DONE and row.outcome != "reattempted"


def is_active(row: ExecutionRow) -> bool:
    return row.state in (*SCHEDULED, "executing")
