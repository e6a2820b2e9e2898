"""Deciders: instances, their events and states, their timers and effects, dead letters."""

from __future__ import annotations

from typing import Any

from ...app.dead_letters import backlogs, count_dead, dead_letters
from ...app.deciders import recorded_events, state_at
from ...app.listing import find_runs
from ...app.machine import instance_view, machine
from ...app.views import cursor_of
from ...definitions.deciders import instance_of
from ...errors import DetentError
from ...kernel.decide import DECIDER
from ...kernel.machine import StateMachineView
from ..drawing.layout import Box, place, smooth
from .runs import run_documents
from .source import Document, Source, error_document

INSTANCES = 50
EVENTS = 200
SEEN = 50  # instances that the observed state machine is made from
FOLLOWED = 2_000  # decisions of these instances, all together
LETTERS = 50


def decider_documents(source: Source) -> Document:
    """The deciders that the app includes."""
    engine = source.engine
    _ = engine.services
    dead: dict[str, int] = {}
    for type, _kind, number in engine.store.count_dead():
        dead[type] = dead.get(type, 0) + number
    waiting = {one.decider: one for one in backlogs(engine)}
    return {
        "deciders": [
            {
                "name": plan.name,
                "inputs": sorted(plan.inputs),
                "dead_letters": dead.get(plan.name, 0),
                "inbox": waiting[plan.name].pending if plan.name in waiting else 0,
            }
            for plan in sorted(engine.registry.deciders, key=lambda plan: plan.name)
        ],
        "dead_letters": sum(dead.values()),
    }


def decider_document(source: Source, name: str, *, cursor: str | None = None) -> Document:
    """One decider: its newest instances, and its state machine."""
    engine = source.engine
    plan = engine.registry.decider(name)
    filters: Any = {"type": plan.name, "limit": INSTANCES + 1}
    if cursor:
        filters["cursor"] = cursor
    rows = [row for row in find_runs(engine, None, filters) if row.kind == DECIDER]
    shown = rows[:INSTANCES]
    instances = [
        {**document, "instance": instance_of(row.id)}
        for row, document in zip(shown, run_documents(source, shown), strict=True)
    ]
    return {
        "name": plan.name,
        "inputs": sorted(plan.inputs),
        "instances": instances,
        "next": cursor_of(shown[-1]) if len(rows) > INSTANCES else None,
        "dead_letters": count_dead(engine, plan.name),
        "machine": _machine(source, plan.name),
    }


def _machine(source: Source, name: str) -> Document:
    """The state machine, declared and observed, laid out."""
    try:
        return machine_document(machine(source.engine, name, "history", SEEN, decisions=FOLLOWED))
    except DetentError as error:
        return {"states": [], "paths": [], "transitions": [], "note": str(error), "width": 0, "height": 0}


def machine_document(view: StateMachineView) -> Document:
    """States in layers by their distance from the initial one, and every transition with its path."""
    names = [state.status for state in view.states]
    depth = _distances(view)
    above: dict[str, dict[str, None]] = {name: {} for name in names}
    for one in view.transitions:
        if depth[one.source] < depth[one.target]:
            above[one.target][one.source] = None
    layout = place([Box(name, max(104.0, len(name) * 7.6 + 48), 36.0, tuple(above[name])) for name in names])
    spots = {spot.id: spot for spot in layout.nodes}
    undeclared = {edge.key for edge in view.undeclared}
    return {
        "states": [
            {
                "name": state.status,
                "initial": state.initial,
                "terminal": state.terminal,
                "x": spots[state.status].x,
                "y": spots[state.status].y,
                "width": spots[state.status].width,
                "height": spots[state.status].height,
            }
            for state in view.states
        ],
        "paths": [
            {
                "d": smooth(edge.points),
                "seen": any(
                    one.count
                    for one in view.transitions
                    if (one.source, one.target) == (edge.source, edge.target)
                ),
            }
            for edge in layout.edges
        ],
        "transitions": [
            {
                "source": one.source,
                "input": one.input,
                "target": one.target,
                "count": one.count,
                "declared": one.declared,
                "undeclared": one.key in undeclared,
            }
            for one in view.transitions
        ],
        "width": layout.width,
        "height": layout.height,
        "note": "",
    }


def _distances(view: StateMachineView) -> dict[str, int]:
    """How many transitions lie between the initial state and each other one."""
    found = {state.status: 0 for state in view.states if state.initial}
    queue = list(found)
    while queue:
        name = queue.pop(0)
        for one in view.transitions:
            if one.source == name and one.target not in found:
                found[one.target] = found[name] + 1
                queue.append(one.target)
    return {**{state.status: 0 for state in view.states}, **found}


def instance_document(source: Source, name: str, instance: str, *, at: int | None = None) -> Document:
    """An instance: its state now or after an event, its events, what it waits for."""
    engine = source.engine
    view = instance_view(engine, name, instance, 1)
    after = max(0, view.sequence - EVENTS)
    shown = view.sequence if at is None else min(max(0, at), view.sequence)
    state = view.state if at is None else state_at(engine, name, instance, shown)
    events = recorded_events(engine, name, instance, after, EVENTS)
    return {
        "decider": view.decider,
        "instance": view.instance,
        "run_id": view.run_id,
        "run_state": view.run_state,
        "status": view.status,
        "terminal": view.terminal,
        "sequence": view.sequence,
        "at": shown,
        "state": source.plain(state),
        "inbox": view.inbox,
        "events": [
            {
                "sequence": one.sequence,
                "position": one.position,
                "type": one.type,
                "cause": one.cause,
                "data": source.plain(one.event),
                "at": one.at,
            }
            for one in reversed(events)
        ],
        "hidden_events": after,
        "timers": [
            {
                "key": one.key,
                "type": one.type,
                "input": source.plain(one.input),
                "due": one.due,
                "failures": one.failures,
            }
            for one in view.timers
        ],
        "effects": [
            {
                "node": one.node,
                "type": one.type,
                "state": one.state,
                "attempt": one.attempt,
                "error": error_document(one.error, traceback=False),
            }
            for one in view.effects
        ],
    }


def letter_documents(source: Source, decider: str | None = None) -> list[Document]:
    """Dead letters, the latest first."""
    return [
        {
            "id": one.id,
            "decider": one.decider,
            "instance": one.instance,
            "kind": one.kind,
            "type": one.type,
            "payload": source.value(one.payload),
            "error": error_document(one.error),
            "attempts": one.attempts,
            "at": one.at,
        }
        for one in dead_letters(source.engine, decider, None, LETTERS)
    ]
