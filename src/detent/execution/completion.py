"""Which of several spawned steps and children is done first, and maps that run a few items at a time.

Which one is first depends on the workers, so it is recorded: a replay gets the same answer.  A map with a
limit needs no record.  It asks for its items in their order, and returns when all of them are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..definitions.callers import Handle
from ..definitions.child_options import ChildOptions
from ..definitions.context import PauseRun, Routine
from ..definitions.functions import FunctionWorkflow
from ..errors import StepMismatch
from ..kernel.journal import FINAL, Scope
from ..kernel.rows import StepState
from .frame import FrameCore
from .spawn import gathered, outcomes, spawn, wait_for_any

FIRST = "first"  # the kind of journal entries that say which of several was done first


def first_of(frame: FrameCore, key: str, handles: Sequence[Handle[Any]]) -> Routine[int]:
    """The place of the handle that was done first; it is durable before the code knows it."""
    entry = frame.journal.find(key)
    if entry is None:
        frame.begin_new(key, FIRST, FIRST)
        yield from wait_for_any(frame, handles)
        winner = min((handle for handle in handles if _ended(frame, handle) is not None), key=_end_in(frame))
        text = frame.encode(winner.key, "the step that was done first")
        entry = frame.entry(key, FIRST, FIRST, StepState.COMPLETED, result=text, finished_at=frame.now())
        yield from frame.record(entry)
    recorded = frame.recorded(FIRST, entry, str)
    places = [place for place, handle in enumerate(handles) if handle.key == recorded]
    if not places:
        keys = frame.encode([handle.key for handle in handles], "the steps that are waited for")
        raise PauseRun(StepMismatch(frame.run_id, entry.key, frame.brief(entry.result), frame.brief(keys)))
    return places[0]


def _end_in(frame: FrameCore) -> Any:
    return lambda handle: _ended(frame, handle)


def _ended(frame: FrameCore, handle: Handle[Any]) -> int | None:
    """When it was done; None if it is not."""
    entry = frame.journal.peek(handle.key)
    if entry is None or entry.state not in FINAL:
        return None
    return entry.finished_at or 0


def mapped(
    frame: FrameCore,
    scope: Scope,
    definition: Any,
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    options: ChildOptions | None,
    *,
    concurrency: int,
    return_exceptions: bool,
) -> Routine[list[Any]]:
    """Call all, of which at most `concurrency` are under way; return their results in order.

    Steps are spawned at once.  Those above the limit begin when others end, in the transaction of that end
    (stores/batch/readiness.py), so the workflow is woken when all are done.  Children are spawned by the
    workflow, which is woken for each that ends.
    """
    if not isinstance(definition, FunctionWorkflow):
        all_of_them = spawn(frame, scope, definition, calls, options, limit=concurrency)
        return (yield from gathered(frame, all_of_them, return_exceptions=return_exceptions))
    handles: list[Handle[Any]] = []
    going: list[Handle[Any]] = []
    while len(handles) < len(calls) or going:
        going = [handle for handle in going if _ended(frame, handle) is None]
        room = min(concurrency - len(going), len(calls) - len(handles))
        if room > 0:
            for call in calls[len(handles) : len(handles) + room]:
                [handle] = spawn(frame, scope, definition, [call], options)  # each with a topic of its own
                handles.append(handle)
                going.append(handle)
        elif going:
            yield from wait_for_any(frame, going)
    return outcomes(frame, handles, return_exceptions=return_exceptions)
