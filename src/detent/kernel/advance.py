"""Advancing: what follows in a graph when nodes settle.  Pure.

One instance plans for one run, inside the transaction that holds the run's lock:

    1. A settled node counts for each of its followers.  A node is ready when all that
       it needs has settled, and is made ready by that settle and by no other.
    2. What is inline (expressions, conditions, empty spreads) is evaluated here and now,
       and settles in turn, up to the frontier: the nodes that a worker has to execute.
    3. A node whose branch was not taken is skipped, and settles.
    4. The run is finished when its invisible end is ready: it needs every sink.

Values come from the inbox, which is a view: the recorded results of the nodes before,
read in one query, not a table of copies (docs/adr/0009).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ..errors import DeadEnd, DetentError, ExpressionError, ReadinessOverflow
from ..serialization.decoders import decode
from .ancestry import ancestry_hash
from .expressions import error_key, resolve, shown
from .graph import AWAIT_JOB, END, RESULT, RUN, SPREAD, VALUE, WHEN, Graph, Node
from .rows import Claimed, EndedExecution, Error, ExecutionState, NewExecution, RunEnd, RunState, stored_error
from .settle import Outcome, waiting_state

SECOND = 1_000_000
_ID = re.compile(r"\bn_[0-9a-f]{8,}\b")


class Values(Protocol):
    """Payloads as values."""

    def read(self, text: str) -> Any: ...

    def write(self, value: Any, what: str) -> str: ...


Record = tuple[str | None, str | None, str | None]


class Inbox(Protocol):
    """What was recorded of settled nodes: result, ancestry hash, and the error of those that failed."""

    def settled(self, nodes: Collection[str]) -> Mapping[str, Record]: ...

    def items(self, spread: str, number: int) -> Iterable[tuple[str, str | None, str | None]]: ...


class Count(msgspec.Struct):
    """How many of the predecessors of a node have settled."""

    settled: int
    required: int


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's execution takes from its run."""

    id: str
    type: str
    queue: str
    precedence: int
    now: int
    methods: bool  # its nodes are methods of a class
    deadline: int | None = None
    held: bool = False  # the run is paused: nothing new may be claimed
    queue_key: str | None = None  # of its executions, where their nodes have none of their own
    keys: Mapping[str, str] = {}  # of nodes whose key is a function of the run
    pin: str | None = None  # only workers of that version continue the run


class Ended(Protocol):
    """How an execution ended: what its ancestry hash covers beside its place."""

    @property
    def job(self) -> str: ...

    @property
    def outcome(self) -> str: ...

    @property
    def result(self) -> str | None: ...

    @property
    def error(self) -> str | None: ...


class End(msgspec.Struct, frozen=True, gc=False):
    """The end of an execution that a worker settles."""

    job: str
    outcome: str
    result: str | None
    error: str | None = None


class RunGraph(msgspec.Struct, frozen=True, kw_only=True):
    """How a run continues: its graph, how to read its values, and what its nodes take from it.

    A worker puts it into the settles of nodes, and the store plans with it.
    """

    graph: Graph
    values: Values
    claimed: Claimed
    methods: bool
    keys: Mapping[str, str] = {}  # of nodes whose key is a function of the run

    def facts(self, now: int, *, held: bool) -> RunFacts:
        claimed = self.claimed
        return RunFacts(
            id=claimed.run_id,
            type=claimed.type,
            queue=claimed.run_queue,
            precedence=-claimed.run_priority,
            now=now,
            methods=self.methods,
            deadline=claimed.deadline,
            held=held,
            queue_key=claimed.run_key,
            keys=self.keys,
            pin=claimed.pin,
        )


class Advance:
    """The plan for one run."""

    def __init__(
        self,
        graph: Graph,
        facts: RunFacts,
        values: Values,
        inbox: Inbox,
        *,
        counts: dict[str, Count] | None = None,
        hashes: dict[str, str] | None = None,
        past: Mapping[str, tuple[int, bool]] | None = None,
        results: Mapping[str, str | None] | None = None,
        errors: Mapping[str, str] | None = None,
    ) -> None:
        self.graph = graph
        self.facts = facts
        self.counts = {} if counts is None else counts
        self.hashes = {} if hashes is None else hashes
        self.counted: set[str] = set()  # whose counts were changed
        self.executions: list[NewExecution] = []
        self.ended: list[EndedExecution] = []
        self.end: RunEnd | None = None
        self.concluded = False  # by a result: the run is over, whatever else is under way
        self._values = values
        self._inbox = inbox
        self._past = past or {}  # of a healed run: latest attempts, and whether the node is to be left alone
        # Of what settles now, and of what was read.
        self._results: dict[str, str | None] = dict(results or {})
        self._errors: dict[str, str] = dict(errors or {})  # of nodes that failed, and have an error branch
        self._worth: dict[str, Any] = {}
        self._ready: list[str] = []

    def settle(self, node: str, attempt: int, ended: Ended) -> str:
        """A node has settled, with an error if its error branch is taken; return its ancestry hash."""
        self._results[node] = ended.result
        if ended.outcome == Outcome.BRANCHED_BY_EXCEPTION and ended.error is not None:
            self._errors[node] = ended.error
        digest = self._hash(node, attempt, ended)
        self._follow(node)
        self._drain()
        return digest

    def begin(self, nodes: Iterable[str]) -> None:
        """These nodes are ready, without anything having settled: the roots, or what healing found."""
        self._ready += nodes
        self._drain()

    def hash(self, node: str, attempt: int, ended: Ended) -> str:
        """The ancestry hash of a node that settles without anything following."""
        return self._hash(node, attempt, ended)

    def passed_over(self, node: str, outcome: Outcome) -> EndedExecution:
        """A node that is recorded as canceled without ever having been executed."""
        return self._ended(node, ExecutionState.CANCELED, outcome)

    def renew(self, rows: Sequence[NewExecution]) -> None:
        """Give attempts that are yet to begin what the graph says of their nodes now.

        A repeated attempt is a copy of the one before; the graph may have been replaced since.
        """
        graph = self.graph
        of = {row.node: graph.spread_of(row.node) or row.node for row in rows}
        known = [row for row in rows if graph.knows(row.node)]
        self._prefetch(sorted({of[row.node] for row in known}))
        for row in known:
            node = graph.nodes[of[row.node]]
            given: dict[str, Any] = {}
            if of[row.node] != row.node and node.arg is not None and row.input is not None:
                given = {node.arg: self._values.read(row.input)["kwargs"].get(node.arg)}
            elif node.inline:
                continue
            planned = self._execution(row.node, node, self._input(node, given))
            row.job, row.queue, row.precedence = planned.job, planned.queue, planned.precedence
            row.input, row.queue_key = planned.input, planned.queue_key

    def finish(self) -> RunEnd:
        """The run's end: its value is its result's, or that of its only sink."""
        self._finish()
        assert self.end is not None
        return self.end

    # Counting

    def _follow(self, node: str) -> None:
        spread = self.graph.spread_of(node)
        if spread is not None:
            self._count(f"{spread}[]")
            return
        for follower in self.graph.followers[node]:
            self._count(follower)
        if not self.graph.followers[node]:
            self._count(END)

    def _count(self, node: str) -> None:
        barrier = node.endswith("[]")
        count = self.counts.get(node)
        # How many items a barrier needs is known from its spread alone.
        items = count.required if count is not None else 0
        required = items if barrier else self.graph.required(node)
        if required == 1 and count is None:
            self._ready.append(node)
            return
        if count is None:
            count = self.counts[node] = Count(0, required)
        count.settled += 1
        self.counted.add(node)
        if count.settled > required or count.required != required:
            raise ReadinessOverflow(self.facts.id, self.graph.shown(node), count.settled, required)
        if count.settled == required:
            self._ready.append(node)

    # Planning

    def _drain(self) -> None:
        while self._ready and (self.end is None or self.end.state == RunState.PAUSED):
            wave, self._ready = self._ready, []
            self._prefetch(wave)
            for node in wave:
                if self.end is not None and self.end.state != RunState.PAUSED:
                    return
                self._plan(node)

    def _plan(self, id: str) -> None:
        if id == END:
            self._finish()
        elif id.endswith("[]"):
            self._collect(id[:-2])
        elif self._past.get(id, (0, False))[1]:
            return  # healed: it has settled already, or is under way
        elif not self._taken(id, self.graph.nodes[id]):
            self._settled_here(id, ExecutionState.SKIPPED, Outcome.SKIPPED_BY_CONDITION, None, None)
        else:
            try:
                self._enter(id, self.graph.nodes[id])
            except ReadinessOverflow:
                raise
            except ExpressionError as error:
                self._fail(id, ExpressionError(self._named(error.expression), error.reason))
            except DetentError as error:
                self._fail(id, error)

    def _enter(self, id: str, node: Node) -> None:
        if node.kind == VALUE:
            self._complete(id, self._resolved(node.value))
        elif node.kind == WHEN:
            side = bool(self._resolved(node.value))
            if not side and not node.otherwise:
                raise DeadEnd(node.name, self._named(shown((node.value or {}).get("$expr", node.value))))
            self._complete(id, side)
        elif node.kind == RESULT:
            value = self._resolved(node.value)
            text = self._values.write(value, f"the result of run {self.facts.id}")
            self._settled_here(id, ExecutionState.COMPLETED, Outcome.SUCCESS, text, None)
            self.end = RunEnd(state=RunState.FINISHED, result=text)
            self.concluded = True
        elif node.kind == SPREAD:
            self._spread(id, node)
        else:
            self.executions.append(self._execution(id, node, self._input(node, {})))

    def _spread(self, id: str, node: Node) -> None:
        items = self._resolved(node.value)
        if not isinstance(items, list):
            raise ExpressionError(
                node.name, f"a spread needs a list, not a value of type {type(items).__name__}"
            )
        if not items:
            self._complete(id, [])
            return
        assert node.arg is not None
        settled = 0
        planned = []
        for index, item in enumerate(items):
            if self._past.get(f"{id}[{index}]", (0, False))[1]:
                settled += 1  # a fork has kept it
                continue
            text = self._input(node, {node.arg: item})
            planned.append(self._execution(f"{id}[{index}]", node, text))
        self.executions += planned  # all or none: a spread with one item that has no input has failed
        self.counts[f"{id}[]"] = Count(settled, len(items))
        self.counted.add(f"{id}[]")
        if settled == len(items):
            self._ready.append(f"{id}[]")

    def _collect(self, spread: str) -> None:
        """All items have settled: the list of their results, in their order."""
        number = self.counts[f"{spread}[]"].required
        found = {node: (text, digest) for node, text, digest in self._inbox.items(spread, number)}
        prefix = len(spread) + 1
        ours = [node for node in self._results if self.graph.spread_of(node) == spread]
        for node in ours:
            found[node] = (self._results[node], self.hashes.get(node))
        ordered = sorted(found, key=lambda node: int(node[prefix:-1]))
        self.hashes.update({node: digest for node, (_, digest) in found.items() if digest is not None})
        parents = [self.hashes[node] for node in ordered if node in self.hashes]
        texts = [found[node][0] for node in ordered]
        values = [None if text is None else self._values.read(text) for text in texts]
        self._complete(spread, values, parents)

    def _complete(self, id: str, value: Any, parents: list[str] | None = None) -> None:
        text = self._values.write(value, f"the output of {self.graph.shown(id)!r}")
        self._worth[id] = value
        self._settled_here(id, ExecutionState.COMPLETED, Outcome.SUCCESS, text, parents)

    def _settled_here(
        self, id: str, state: ExecutionState, outcome: Outcome, text: str | None, parents: list[str] | None
    ) -> None:
        row = self._ended(id, state, outcome)
        row.result = text
        self._results[id] = text
        row.ancestry_hash = self._hash(id, row.attempt, row, parents)
        self.ended.append(row)
        self._follow(id)

    def _named(self, expression: str) -> str:
        """An expression with the names that people gave to nodes, instead of ids."""
        return _ID.sub(lambda found: self.graph.shown(found[0]), expression)

    def _fail(self, id: str, error: DetentError) -> None:
        """A node that cannot be evaluated fails with that error, and pauses its run."""
        row = self._ended(id, ExecutionState.FAILED, Outcome.PAUSED_BY_EXCEPTION)
        row.error = stored_error(error)
        self.ended.append(row)
        if self.end is None:
            self.end = RunEnd(state=RunState.PAUSED, error=row.error)

    def _finish(self) -> None:
        # A result that was reached while the run was being paused counts before all else.
        wanted = [id for id, node in self.graph.nodes.items() if node.kind == RESULT]
        if len(self.graph.sinks) == 1:
            wanted += self.graph.sinks
        self._fetch([id for id in wanted if id not in self._results])
        texts = (self._results.get(id) for id in wanted)
        text = next((text for text in texts if text is not None), None)
        self.end = RunEnd(state=RunState.FINISHED, result=text)

    # Rows

    def _execution(self, id: str, node: Node, text: str | None) -> NewExecution:
        facts = self.facts
        due = facts.now + round((node.wait or 0) * SECOND)
        if facts.deadline is not None:
            due = min(due, max(facts.deadline, facts.now))  # then it is looked at, and the run ends
        return NewExecution(
            run_id=facts.id,
            node=id,
            attempt=self._attempt(id),
            kind="node",
            job=job_of(facts, id, node),
            queue=node.queue or facts.queue,
            precedence=facts.precedence if node.priority is None else -node.priority,
            state=ExecutionState.HELD if facts.held else waiting_state(due, facts.now),
            created_at=facts.now,
            scheduled_for=due,
            input=text,
            queue_key=node.key or facts.keys.get(node.name) or facts.queue_key,
            pin=facts.pin,
        )

    def _ended(self, id: str, state: ExecutionState, outcome: Outcome) -> EndedExecution:
        facts = self.facts
        return EndedExecution(
            run_id=facts.id,
            node=id,
            attempt=self._attempt(id),
            kind="inline",
            job=job_of(facts, id, self.graph.nodes.get(id)),
            queue=facts.queue,
            precedence=facts.precedence,
            state=state,
            outcome=outcome,
            created_at=facts.now,
            finished_at=facts.now,
        )

    def _attempt(self, id: str) -> int:
        return self._past.get(id, (0, False))[0] + 1

    def _input(self, node: Node, given: dict[str, Any]) -> str | None:
        """A node's arguments as its job will get them."""
        if self.facts.methods or node.kind == RUN:
            return None
        args = self._values.read(node.args) if isinstance(node.args, str) else node.args or {}
        kwargs = {**self._resolved(args), **given}
        return self._values.write({"kwargs": kwargs}, f"the input of {node.name!r}")

    # Values

    def _taken(self, id: str, node: Node) -> bool:
        """Whether the run reaches this node: its branch was chosen, and nothing before it has failed."""
        if self.graph.handled and any(self._failed(one) for one in self.graph.unless(id)):
            return False
        if node.branch is None:
            return True
        chosen, side = node.branch
        if self.graph.nodes[chosen].on_error:
            return self._failed(chosen)
        return self._output(chosen) is side

    def _failed(self, id: str) -> bool:
        """Whether a node has failed, and its error branch was taken."""
        if id not in self._results:
            self._fetch([id])
        return id in self._errors

    def error(self, id: str) -> dict[str, str] | None:
        """The error of such a node, as data."""
        if not self._failed(id):
            return None
        stored = decode(self._errors[id], Error)
        return {"type": stored.type, "message": stored.message}

    def _resolved(self, value: Any) -> Any:
        return resolve(value, _Outputs(self))

    def _output(self, id: str) -> Any:
        if id not in self._worth:
            if id not in self._results:
                self._fetch([id])
            text = self._results.get(id)
            self._worth[id] = None if text is None else self._values.read(text)
        return self._worth[id]

    def _hash(self, id: str, attempt: int, ended: Ended, parents: list[str] | None = None) -> str:
        if parents is None:
            parents = [self.hashes[node] for node in self.graph.parents(id) if node in self.hashes]
        digest = self.hashes[id] = ancestry_hash(
            self.facts.id,
            id,
            attempt,
            parents,
            job=ended.job,
            outcome=ended.outcome,
            result=ended.result,
            error=ended.error,
        )
        return digest

    def _prefetch(self, wave: list[str]) -> None:
        """Read what the wave needs in one query: values of the inline sub-graph, and parents' hashes."""
        graph, known = self.graph, self._results.keys()
        nodes = [id for id in wave if id in graph.nodes]
        inline = [id for id in nodes if graph.passes(id)]
        if not inline and all(known >= set(graph.needs[id]) for id in nodes):
            return  # a node uses the values of nodes that it needs
        behind = [id for start in inline for id in graph.reach(start) if graph.nodes[id].inline]
        wanted = {ref for id in [*nodes, *behind] for ref in graph.references(id)}
        wanted.update(parent for id in [*inline, *behind] for parent in graph.needs[id])
        self._fetch([id for id in wanted if id not in self._results])

    def _fetch(self, ids: Collection[str]) -> None:
        if ids:
            for id, (text, digest, error) in self._inbox.settled(ids).items():
                self._results[id] = text
                if error is not None:
                    self._errors[id] = error
                if digest is not None:
                    self.hashes[id] = digest


class _Outputs(dict[str, Any]):
    def __init__(self, advance: Advance) -> None:
        self._advance = advance

    def __missing__(self, id: str) -> Any:
        node, error, _ = id.partition(error_key(""))
        return self._advance.error(node) if error else self._advance._output(id)


def job_of(facts: RunFacts, id: str, node: Node | None) -> str:
    """By what name workers claim a node: they take only what they know.  None: it is not in the graph."""
    if node is not None and node.kind == RUN:
        return AWAIT_JOB
    return f"{facts.type}.{id}" if facts.methods or node is None or node.job is None else node.job
