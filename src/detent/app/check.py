"""Checking: what the runs in flight would meet in the code of this app.  Reads only.

    detent check shop:app

A run of a class is healed on paper; a frozen graph is asked for jobs that nobody includes;
a durable function is replayed against its journal, without executing any step; the events
of a decider's instance are read and folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from ..clock import from_micros
from ..errors import AnonymousStepMoved, DetentError, MissingJob, StepNotDefined, UnknownDefinition
from ..kernel.anonymous import moved
from ..kernel.decide import DECIDER
from ..kernel.drift import Kind
from ..kernel.graph import JOB, SPREAD, thaw
from ..kernel.heal import Past, heal
from ..kernel.rows import SCHEDULED_STATES, ExecutionState, RunRow, WorkerRow
from .drift import function_drift
from .engine import Engine
from .listing import ACTIVE, Walk
from .liveness import alive


class Verdict(StrEnum):
    """What becomes of a run when this code is deployed."""

    UNCHANGED = "unchanged"  # the code does exactly what is recorded
    CONTINUES = "continues"  # it continues, but differently than with the old code
    HEALS = "heals"  # its graph changes, and it continues with the new one
    CANNOT_CONTINUE = "cannot continue"  # it pauses, fails, or no worker of this app can execute it


class Checked(msgspec.Struct, frozen=True):
    """A run that would notice the deploy, and how."""

    run_id: str
    type: str
    state: str
    verdict: Verdict
    reasons: tuple[str, ...]


def check(engine: Engine) -> Iterator[Checked]:
    """Every run in flight, and what this code would do to it."""
    walk = Walk(engine, ACTIVE, {})
    workers: list[WorkerRow] | None = None
    while not walk.over:
        for row in walk.next_page():
            if row.pin is not None and workers is None:
                workers = alive(engine.store)
            yield check_run(engine, row, workers or [])


def check_run(engine: Engine, row: RunRow, workers: Sequence[WorkerRow]) -> Checked:
    """What this code would do to one run; `workers` are those that are alive."""
    try:
        if row.pin is not None and row.pin != engine.version:
            verdict, reasons = _pinned(row, workers)
        elif row.kind == "class":
            verdict, reasons = _class(engine, row)
        elif row.kind == "graph":
            verdict, reasons = _graph(engine, row)
        elif row.kind == DECIDER:
            verdict, reasons = _instance(engine, row)
        else:
            verdict, reasons = _function(engine, row)
    except UnknownDefinition:
        verdict, reasons = Verdict.CANNOT_CONTINUE, [f"the app does not include {row.type!r}"]
    except DetentError as error:
        verdict, reasons = Verdict.CANNOT_CONTINUE, [str(error)]
    return Checked(row.id, row.type, row.state, verdict, tuple(reasons))


def _pinned(row: RunRow, workers: Sequence[WorkerRow]) -> tuple[Verdict, list[str]]:
    """A run that this code leaves to the workers of another version."""
    if any(worker.version == row.pin and row.queue in worker.queues.split(",") for worker in workers):
        return Verdict.UNCHANGED, []
    return Verdict.CANNOT_CONTINUE, [
        f"it is pinned to version {row.pin!r}, and no live worker on the queue {row.queue!r} has it; "
        f"start one, or pin the run to another version: detent repin"
    ]


def _instance(engine: Engine, row: RunRow) -> tuple[Verdict, list[str]]:
    """Whether this code can read all events of an instance, and knows what it still has to do."""
    bound = engine.services.bound(row.type)
    try:
        bound.fold(bound.initial(), engine.store.events(row.id))
    except DetentError:
        raise
    except Exception as error:
        return Verdict.CANNOT_CONTINUE, [f"evolve raises {type(error).__name__}: {error}"]
    waits = {*SCHEDULED_STATES, ExecutionState.EXECUTING}
    jobs = sorted({item.job for item in engine.store.executions(row.id) if item.state in waits})
    unknown = [job for job in jobs if not engine.registry.knows(job)]
    if unknown:
        return Verdict.CANNOT_CONTINUE, [f"the app does not know pending work: {', '.join(unknown)}"]
    return Verdict.UNCHANGED, []


def _class(engine: Engine, row: RunRow) -> tuple[Verdict, list[str]]:
    graph = engine.services.run_graphs.of_row(row).graph
    past = _past(engine, row.id)
    plan = engine.registry.plan(row.type)
    lost = [node for node, latest in past.items() if node not in plan.nodes and _to_come(latest)]
    if row.frozen_at is not None:
        lost = [node for node in graph.nodes if node not in plan.nodes and not _done(past.get(node))]
    if lost:
        return Verdict.CANNOT_CONTINUE, [str(StepNotDefined(row.id, row.type, node)) for node in lost]
    if row.frozen_at is not None or row.signature == graph.signature:
        return Verdict.UNCHANGED, []
    text = engine.store.graph(row.signature or "") if graph.anonymous else None
    if text is not None:
        moves = moved(thaw(text, row.signature, f"the graph of {row.type}"), graph, past)
        if moves:
            return Verdict.CANNOT_CONTINUE, [
                str(AnonymousStepMoved(row.id, row.type, *move)) for move in moves.items()
            ]
    healing = heal(graph, past)
    said = {
        "removed": ("{} is done, and no longer in the code", healing.gone),
        "bypassed": ("{} is new, and comes before completed nodes: it is bypassed", healing.bypassed),
        "withdrawn": ("{} has to wait for new nodes before it", healing.withdrawn),
        "begun": ("{} becomes ready", healing.ready),
    }
    return Verdict.HEALS, [
        sentence.format(", ".join(nodes)) for sentence, nodes in said.values() if nodes
    ] or ["its graph has changed"]


def _graph(engine: Engine, row: RunRow) -> tuple[Verdict, list[str]]:
    graph = engine.services.run_graphs.of_row(row).graph
    past = _past(engine, row.id)
    moment = from_micros(row.frozen_at or row.created_at).isoformat()
    missing = [
        str(MissingJob(row.id, node.job, f"{node.name} ({id})", moment))
        for id, node in graph.nodes.items()
        if node.kind in (JOB, SPREAD)
        and node.job is not None
        and engine.registry.find(node.job) is None
        and not _done(past.get(id))
    ]
    return (Verdict.CANNOT_CONTINUE, missing) if missing else (Verdict.UNCHANGED, [])


def _function(engine: Engine, row: RunRow) -> tuple[Verdict, list[str]]:
    differences = function_drift(engine, row.id)
    reasons = [str(difference) for difference in differences]
    harmless = {Kind.ADDED} if engine.registry.workflow(row.type).strict else {Kind.ADDED, Kind.UNASKED}
    if any(difference.kind not in harmless for difference in differences):
        return Verdict.CANNOT_CONTINUE, reasons
    return (Verdict.CONTINUES, reasons) if reasons else (Verdict.UNCHANGED, [])


def _past(engine: Engine, run_id: str) -> dict[str, Past]:
    found: dict[str, Past] = {}
    for row in sorted(engine.store.executions(run_id), key=lambda row: row.attempt):
        found[row.node] = Past(row.node, row.attempt, row.state, row.outcome, row.kind)
    return found


def _to_come(latest: Past) -> bool:
    return latest.active or latest.stopped


def _done(latest: Past | None) -> bool:
    return latest is not None and latest.done
