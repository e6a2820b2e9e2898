"""Forking: what a new run keeps of an old one."""

from __future__ import annotations

from ..errors import InvalidState
from .model import Step

_POINTS = ("step", "spawn", "child", "receive", "sleep")


def kept_for_fork(run_id: str, steps: list[Step], from_step: str) -> list[Step]:
    """What was recorded before `from_step` (a key, or a name: its first call), in order."""
    points = sorted((step for step in steps if step.kind in _POINTS), key=_moment)
    cut = next((step for step in points if from_step in (step.key, step.name)), None)
    if cut is None:
        keys = ", ".join(step.key for step in points) or "none yet"
        raise InvalidState(f"fork from {from_step!r} of", run_id, "without such a step", f"it has: {keys}")
    before = [
        step for step in steps if _moment(step) < _moment(cut) and step.kind not in ("undo", "progress")
    ]
    done = [step for step in before if step.state in ("completed", "failed") or step.kind == "sleep"]
    return sorted(done, key=_moment)


def _moment(step: Step) -> tuple[int, int]:
    return (step.finished_at or step.started_at or 0, step.seq)
