"""The graph and the timeline of a run, placed and with the states of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...app.graphs import drawn_of
from ...app.views import Execution
from ...errors import DetentError
from ...kernel.decide import DECIDER
from ...kernel.drawing import Drawn, Seen, folded
from ...kernel.rows import MAIN, RunRow
from ..drawing.folding import fold, overall
from ..drawing.layout import Box, CyclicGraph, place, smooth
from ..drawing.timeline import Span, timeline
from .run import WAITS, shown_step
from .source import Document, Source

CHARACTER = 7.7  # the width of a character of a label
NARROW, WIDE = 116, 280
HEIGHT, WITH_PROGRESS = 40, 56
LONGEST_LABEL = 34


def graph_document(source: Source, row: RunRow, items: Sequence[Execution]) -> Document:
    """The graph of a run, laid out; of a durable function, its steps in the order in which they ran."""
    if row.kind == DECIDER:
        return _empty("An instance of a decider has no graph; its state machine is on its own page.")
    try:
        drawn = _as_it_ran(items) if row.kind == "function" else drawn_of(source.engine, row)
        drawn = fold(drawn)
        layout = place([Box(node.id, _width(node), _height(node), node.needs) for node in drawn])
    except (DetentError, CyclicGraph) as error:
        return _empty(str(error))
    by_id = {node.id: node for node in drawn}
    return {
        "width": layout.width,
        "height": layout.height,
        "recorded": row.kind == "function",
        "nodes": [
            {
                "id": spot.id,
                "label": _label(by_id[spot.id]),
                "short": _short(_label(by_id[spot.id])),
                "state": by_id[spot.id].state,
                "shape": by_id[spot.id].shape,
                "x": spot.x,
                "y": spot.y,
                "width": spot.width,
                "height": spot.height,
                **_progress(by_id[spot.id]),
            }
            for spot in layout.nodes
        ],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "path": smooth(edge.points),
                "error": by_id[edge.target].handles == edge.source,
            }
            for edge in layout.edges
        ],
        "note": "",
    }


def _empty(note: str) -> Document:
    return {"width": 0, "height": 0, "recorded": False, "nodes": [], "edges": [], "note": note}


def _as_it_ran(items: Sequence[Execution]) -> list[Drawn]:
    """The steps of a durable function: those that ran at the same time lie side by side."""
    latest: dict[str, Execution] = {}
    for item in items:
        if item.node != MAIN and item.kind != "undo":
            latest[item.node] = item
    steps = sorted(latest.values(), key=_began)
    layers: list[list[Execution]] = []
    until = float("-inf")
    for step in steps:
        if not layers or _began(step) >= until:
            layers.append([])
            until = float("-inf")
        layers[-1].append(step)
        until = max(until, step.finished_at.timestamp() if step.finished_at else float("inf"))
    seen: list[Seen] = []
    above: tuple[str, ...] = ()
    for layer in layers:
        seen += [Seen(step.node, step.node, step.kind, shown_step(step), above) for step in layer]
        above = tuple(step.node for step in layer)
    return folded(_by_job(seen, latest))


def _by_job(seen: list[Seen], latest: dict[str, Execution]) -> list[Seen]:
    """With the name of the job as the kind, so that only steps of the same function are folded."""
    return [Seen(one.id, one.name, latest[one.id].job, one.state, one.needs) for one in seen]


def _began(step: Execution) -> float:
    moment = step.started_at or step.finished_at or step.scheduled_for
    return moment.timestamp() if moment is not None else float("inf")


def _progress(node: Drawn) -> Document:
    if node.states is None:
        return {"states": None, "total": 1, "done": None}
    total = sum(node.states.values())
    done = node.states.get("completed", 0) + node.states.get("skipped", 0)
    return {"states": dict(node.states), "total": total, "done": done, "state": overall(node.states)}


def _width(node: Drawn) -> float:
    return float(min(WIDE, max(NARROW, round(len(_short(_label(node))) * CHARACTER) + 48)))


def _height(node: Drawn) -> float:
    return float(HEIGHT if node.states is None else WITH_PROGRESS)


def _label(node: Drawn) -> str:
    """The words of a node; a fan-out is named by what it spreads, without the bracket of its items."""
    return node.label.replace("[…", "")


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"


def timeline_document(
    source: Source, row: RunRow, items: Sequence[Execution], *, fold_idle: bool = True
) -> Document:
    """Attempts over time: waiting in the queue apart from running, idle time folded."""
    created = row.created_at / 1e6
    now = source.engine.clock.now() / 1e6
    end = now if row.finished_at is None else row.finished_at / 1e6
    spans = [_span(row, one) for one in items if one.started_at or one.scheduled_for or one.finished_at]
    end = max([end, *(span.ended for span in spans if span.ended is not None)])
    drawn = timeline(spans, begin=created, end=end, fold=fold_idle)
    return {
        "seconds": drawn.seconds,
        "hidden": drawn.hidden,
        "rows": [
            {
                "id": line.id,
                "label": line.label,
                "state": line.state,
                "bars": [
                    {
                        "x": bar.x,
                        "width": bar.width,
                        "kind": bar.kind,
                        "state": bar.state,
                        "attempt": bar.attempt,
                        "seconds": bar.seconds,
                    }
                    for bar in line.bars
                ],
            }
            for line in drawn.rows
        ],
        "folds": [{"x": one.x, "width": one.width, "seconds": one.seconds} for one in drawn.folds],
        "ticks": [{"x": one.x, "seconds": one.seconds} for one in drawn.ticks],
    }


def _span(row: RunRow, one: Execution) -> Span:
    waits = one.kind in WAITS
    main = one.node == MAIN and row.kind == "function"
    due = None if waits or one.created_at is None else one.scheduled_for
    label = row.type if main else one.node
    state = shown_step(one)
    ended = one.finished_at
    if waits and ended is None and state == "completed":
        ended = one.scheduled_for
    return Span(
        row=one.node_id,
        label=label,
        state=state,
        attempt=one.attempt,
        queued=_seconds(due),
        started=_seconds(one.started_at or (one.finished_at if one.finished_at else None)),
        ended=_seconds(ended),
        # The main function of a workflow does nothing while its steps wait: its bar would hide all idle time.
        waits=waits or main or one.kind == "child",
    )


def _seconds(moment: datetime | None) -> Any:
    return None if moment is None else moment.timestamp()
