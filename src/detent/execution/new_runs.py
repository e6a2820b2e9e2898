"""Beginning runs: from a definition and its arguments to the rows of a new run, of any kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC
from typing import Any

import msgspec

from ..clock import from_micros
from ..definitions.blueprint import Blueprint
from ..definitions.functions import Definition, FunctionWorkflow
from ..definitions.graphs import Graph
from ..definitions.templates import Template
from ..errors import UnknownQueue
from ..kernel.advance import Advance, RunGraph
from ..kernel.advance import Record as Recorded
from ..kernel.graph import VERSION, Document, freeze, json_text, read_export, signature_of, validated
from ..kernel.graph import Graph as Compiled
from ..kernel.operations import Start
from ..kernel.rows import ExecutionState, NewExecution, NewRun, Readiness
from ..serialization.codec import Codec
from ..stores.verbs.graphs import parts
from .calls import encode_call, encode_checked
from .fields import decode_fields, node_keys
from .rows import claimed_of_run, new_run
from .run_graphs import Values

Startable = Definition[Any, Any] | Blueprint | Graph


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How a run begins, apart from its arguments."""

    id: str
    queue: str
    priority: int
    now: int
    due: int | None = None
    deadline: int | None = None
    declared: tuple[str, ...]  # the queues that nodes may name
    key: str | None = None  # whose limits on the queue it counts against
    version: str | None = None  # of the code that starts it


def begin(
    codec: Codec, definition: Startable, args: tuple[Any, ...], kwargs: dict[str, Any], terms: Terms
) -> Start:
    """The rows of one run."""
    if isinstance(definition, Blueprint):
        return _begin_class(codec, definition, args, kwargs, terms)
    if isinstance(definition, Graph):
        return _begin_graph(codec, definition, None, terms)
    if isinstance(definition, Template):
        definition.check_arguments(args, kwargs)
        text = encode_checked(codec, f"the input of {definition.name!r}", args, kwargs, definition)
        return _begin_graph(codec, definition.build(args, kwargs), text, terms)
    assert isinstance(definition, FunctionWorkflow)
    run, main = begin_function(codec, definition, args, kwargs, terms, terms.id)
    return Start(runs=[run], executions=[main])


def begin_function(
    codec: Codec,
    definition: FunctionWorkflow[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    terms: Terms,
    id: str,
) -> tuple[NewRun, NewExecution]:
    """The rows of a function; thousands that are started at once share their terms, apart from the id."""
    args, kwargs = definition.without_context(args, kwargs)
    definition.check_arguments(args, kwargs)
    text = encode_checked(codec, f"the input of {definition.name!r}", args, kwargs, definition)
    return new_run(
        definition,
        id,
        text,
        queue=terms.queue,
        priority=terms.priority,
        now=terms.now,
        due=terms.due,
        deadline=terms.deadline,
        queue_key=terms.key,
        version=terms.version,
    )


def _begin_class(
    codec: Codec, plan: Blueprint, args: tuple[Any, ...], kwargs: dict[str, Any], terms: Terms
) -> Start:
    fields = plan.bound_fields(args, kwargs)
    what = f"the input of {plan.name!r}"
    stored = {name: codec.dump(value, plan.fields[name], what) for name, value in fields.items()}
    text = encode_call(codec, what, (), stored)
    decode_fields(codec, plan, text)  # every node must get them back
    run = _new_run(plan.name, "class", text, terms)
    run.pin = terms.version if plan.pin else None
    run.signature = plan.graph.signature
    return _opened(codec, plan.graph, run, terms, methods=True, keys=node_keys(codec, plan, text))


def _begin_graph(codec: Codec, g: Graph, text: str | None, terms: Terms) -> Start:
    nodes = g.documented(codec.sealed, codec.plain)
    frozen = from_micros(terms.now).astimezone(UTC)
    document = validated(
        Document(version=VERSION, name=g.name, nodes=nodes, frozen_at=frozen), f"graph {g.name!r}"
    )
    content = signature_of(json_text(nodes))
    run = _new_run(g.name, "graph", text or encode_call(codec, "a graph", (), {"graph": content}), terms)
    body, run.signature = freeze(document)
    run.frozen_at = terms.now
    compiled = Compiled(document, run.signature)
    start = _opened(codec, compiled, run, terms, methods=False)
    start.graphs = parts(run.id, body)
    start.compiled[run.id] = compiled
    return start


def _new_run(type: str, kind: str, text: str, terms: Terms) -> NewRun:
    return NewRun(
        id=terms.id,
        type=type,
        kind=kind,
        queue=terms.queue,
        priority=terms.priority,
        input=text,
        created_at=terms.now,
        deadline=terms.deadline,
        queue_key=terms.key,
        versions=terms.version,
    )


def _opened(
    codec: Codec,
    graph: Compiled,
    run: NewRun,
    terms: Terms,
    *,
    methods: bool,
    keys: Mapping[str, str] | None = None,
) -> Start:
    """The run with what is ready at once: its roots, and what follows from inline ones."""
    for node in graph.nodes.values():
        if node.queue is not None and node.queue not in terms.declared:
            raise UnknownQueue(node.queue, terms.declared)
    run_graph = RunGraph(
        graph=graph,
        values=Values(codec),
        claimed=claimed_of_run(run),
        methods=methods,
        keys=keys or {},
    )
    advance = Advance(graph, run_graph.facts(terms.now, held=False), run_graph.values, _Empty())
    advance.begin(graph.roots)
    due = terms.due
    if due is not None and due > terms.now:
        for row in advance.executions:
            row.state = ExecutionState.TIMER
            row.scheduled_for = due + (row.scheduled_for or terms.now) - terms.now
    counts = [
        Readiness(
            run_id=run.id,
            node=node,
            required=advance.counts[node].required,
            settled=advance.counts[node].settled,
        )
        for node in sorted(advance.counted)
    ]
    return Start(
        runs=[run],
        executions=advance.executions,
        ended=advance.ended,
        readiness=counts,
        ends={run.id: advance.end} if advance.end is not None else {},
    )


class _Empty:
    """The inbox of a run that has not begun."""

    def settled(self, nodes: Collection[str]) -> Mapping[str, Recorded]:
        return {}

    def items(self, spread: str, number: int) -> list[tuple[str, str | None, str | None]]:
        return []


def read_graph(text: str, what: str, now: int) -> tuple[str, str]:
    """A graph from JSON text: validated, frozen anew, signed; its text and signature."""
    document = read_export(text, what)
    moment = from_micros(now)
    return freeze(Document(version=VERSION, name=document.name, nodes=document.nodes, frozen_at=moment))
