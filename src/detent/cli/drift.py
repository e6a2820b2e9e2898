"""The part of `detent show` about a run whose code differs from its record."""

from __future__ import annotations

from typing import Any

from ..app.app import App
from ..app.run import Run
from ..app.views import HistoryEvent
from ..errors import StepMismatch, StepsNotAsked
from .json_documents import payload
from .output import brief_call

_PAUSES = tuple(f"{error.__module__}.{error.__qualname__}" for error in (StepMismatch, StepsNotAsked))


def drift_lines(app: App, run: Run[Any]) -> list[str]:
    """Every difference in the history, once, in the order in which they were noticed."""
    lines = [line for item in run.history() if (line := _line(app, item)) is not None]
    return list(dict.fromkeys(lines)) or ["the history has no details"]


def _line(app: App, item: HistoryEvent) -> str | None:
    detail = item.detail if isinstance(item.detail, dict) else {}
    if item.event == "drift":
        recorded, asked = (brief_call(payload(app, detail.get(side)), 80) for side in ("recorded", "asked"))
        return f"{detail.get('step')} was recorded with ({recorded}), the code requested ({asked})"
    if item.event == "unasked":
        return f"recorded, but not requested: {', '.join(detail.get('steps', ()))}"
    if item.event == "drift_accepted":
        return "accepted by an operator"
    if item.event == "paused" and detail.get("type") in _PAUSES:
        return f"paused: {detail.get('message')}"
    return None
