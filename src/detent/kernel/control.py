"""Control from outside: which verb applies in which state.  Pure."""

from __future__ import annotations

from ..errors import InvalidState
from ..serialization.decoders import decode
from .journal import ACCEPTED, CANCEL, ORDER
from .rows import Error, RunState, Step, StepState

_ALLOWED = {
    "pause": (RunState.READY,),
    "resume": (RunState.PAUSED, RunState.FAILED),
    "cancel": (RunState.READY, RunState.PAUSED),
}


def check(verb: str, run_id: str, state: str) -> None:
    """Raise InvalidState unless `verb` applies to a run in `state`."""
    if state not in _ALLOWED[verb]:
        raise InvalidState(verb, run_id, state, _HINTS.get((verb, state), ""))


_HINTS: dict[tuple[str, str], str] = {
    ("resume", RunState.READY): "it continues by itself",
    ("resume", RunState.CANCELED): "app.fork(run) continues it in a new run",
    ("resume", RunState.FINISHED): "app.fork(run) continues it in a new run",
    ("pause", RunState.PAUSED): "run.resume() continues it",
}


def set_aside(steps: list[Step], error: str | None = None, *, main_failed: bool = True) -> list[Step]:
    """The recorded failures that a resume forgets: those behind the last success, and the run's own `error`.

    A failure that the workflow caught, and went on from, stays.  So does every one
    where the main function itself did not fail, but was held up by something else.
    """
    broken = [step for step in steps if step.state in (StepState.FAILED, StepState.RETRYING)]
    done = [step for step in steps if step.state == StepState.COMPLETED and step.kind not in NO_SUCCESS]
    last = max((step.seq for step in done), default=0)
    moment = max((step.finished_at or 0 for step in done), default=0)

    def behind(step: Step) -> bool:
        # What was given away has no place in the sequence, only a time.
        return (step.finished_at or 0) > moment if step.kind in GIVEN_AWAY else step.seq > last

    fatal = _facts(error)
    own = [step for step in broken if fatal is not None and _facts(step.error) == fatal]
    # Where the same error is behind the last success, an earlier one like it was caught.
    last_own = [step for step in own if behind(step)] or own
    return [step for step in broken if step in last_own or (main_failed and behind(step))]


GIVEN_AWAY = ("spawn", "child")
NO_SUCCESS = (*GIVEN_AWAY, ORDER, CANCEL, ACCEPTED)  # kinds that say nothing about how far the run has got


def _facts(error: str | None) -> tuple[str, str] | None:
    if error is None:
        return None
    stored = decode(error, Error)
    return stored.type, stored.message


def taken_up(run_state: str, outcome: str) -> bool:
    """Whether a resume of a run in `run_state` begins a new attempt where the latest one failed like this.

    A paused run continues where it was stopped.  A step that failed for good, and
    whose failure the workflow has seen, is a recorded outcome and stays one.
    """
    return run_state == RunState.FAILED or stops(outcome)


def stops(outcome: str) -> bool:
    """Whether an attempt that ends like this pauses its run, to be made again by the resume."""
    return outcome in ("paused_by_exception", "recovered")


def undone(steps: list[Step]) -> bool:
    """Whether compensations of this run have run."""
    return any(step.kind == "undo" for step in steps)
