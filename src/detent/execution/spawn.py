"""Giving work away: spawned steps, child runs, and waiting for them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from ..arguments import refuse
from ..definitions.callers import Handle
from ..definitions.child_options import ChildOptions
from ..definitions.context import Routine
from ..definitions.functions import Definition, FunctionWorkflow
from ..definitions.transactional import NO_ISOLATION
from ..errors import DefinitionError, RunCanceled, RunConflict, UnknownQueue
from ..kernel import rows as kernel_rows
from ..kernel.journal import FINAL, REFUSED, Scope
from ..kernel.operations import Record, Start, Verdict
from ..kernel.queues import check_queue_key
from ..kernel.rows import Await, ExecutionState, NewExecution, StepState, limited_topic
from ..stores.batch.apply import drop_lease
from ..stores.batch.names import unfit_attributes
from .calls import encode_checked
from .failures import encode_error
from .frame import FrameCore
from .outgoing import Outgoing
from .requests import Commit, Read, Wait
from .rows import claimed_of, new_run, tokens_of

LONGEST_ID = 200


def spawn(
    frame: FrameCore,
    scope: Scope,
    definition: Definition[Any, Any],
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    options: ChildOptions | None = None,
    limit: int | None = None,
) -> list[Handle[Any]]:
    """Note what is to be started, unless the journal knows it already; of steps, `limit` begin at once."""
    frame.services.require(definition)
    if options is not None and options.id is not None and len(calls) > 1:
        refuse(options.where, "id", options.id, f"an id names one run, and map() starts {len(calls)}")
    if getattr(definition, "isolation", None) is not None:
        raise DefinitionError(f"{definition.place} is spawned: {NO_ISOLATION}")
    queue = getattr(definition, "queue", None)
    if queue is not None and queue not in frame.services.queues:
        raise UnknownQueue(queue, frame.services.queues)
    handles: list[Handle[Any]] = []
    topic, going = "", 0
    for args, kwargs in calls:
        key = scope.key(definition.name)
        topic = topic or (key if limit is None else limited_topic(key, limit))
        args, kwargs = definition.without_context(args, kwargs)
        definition.check_arguments(args, kwargs)
        text = encode_checked(frame.services.codec, f"the input of {key!r}", args, kwargs, definition)
        if isinstance(definition, FunctionWorkflow):
            run_id = child_id(frame.run_id, key)
            if options is not None and options.id is not None:
                run_id = options.id
            if (found := frame.journal.find(key)) is None:
                frame.begin_new(key, "child", definition.name)
                _add_child(frame, definition, key, run_id, text, options)
            else:
                if found.kind in ("child", REFUSED):
                    run_id = found.name  # the options of a replay may differ
                frame.check_drift(definition, found, text)
            handles.append(Handle(frame, key, run_id, definition, run_id))  # type: ignore[arg-type]
        else:
            if (found := frame.journal.find(key)) is None:
                frame.begin_new(key, "spawn", definition.name)
                queue_key = _queue_key(frame, definition, args, kwargs)
                _add_step(
                    frame, definition, key, topic, text, queue_key, waits=limit is not None and going >= limit
                )
                going += 1
            else:
                frame.check_drift(definition, found, text)
                going += found.state not in FINAL
            handles.append(Handle(frame, key, topic, definition, None))  # type: ignore[arg-type]
    return handles


def child_id(parent: str, key: str) -> str:
    """The same child for the same call, however often it is replayed."""
    return fitting_id(f"{parent}/{key}")


def fitting_id(name: str) -> str:
    """The name as an id: one that is too long ends with its hash."""
    if len(name) <= LONGEST_ID:
        return name
    return f"{name[: LONGEST_ID - 33]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _queue_key(frame: FrameCore, step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The key whose limits a spawned step counts against: its own, or that of its run."""
    key = step.key(*args, **kwargs) if callable(step.key) else step.key
    if key is None:
        return frame.claimed.run_key
    return check_queue_key(f"the key of {step.place}", key)


def _add_step(
    frame: FrameCore, step: Any, key: str, topic: str, text: str, queue_key: str | None, *, waits: bool
) -> None:
    queue, priority = step.queue or frame.claimed.queue, step.priority
    _outgoing(frame).executions.append(
        NewExecution(
            run_id=frame.run_id,
            node=key,
            attempt=1,
            kind="step",
            job=step.name,
            queue=queue,
            precedence=frame.claimed.precedence if priority is None else -priority,
            state=ExecutionState.PARKED if waits else ExecutionState.READY,
            created_at=frame.now(),
            scheduled_for=None if waits else frame.now(),
            topic=topic,
            input=text,
            seq=frame.journal.next_seq(),
            queue_key=queue_key,
            pin=frame.claimed.pin,
        )
    )
    if step.compensation is not None:
        # Cancelling looks into the journal for what has to be undone.
        mark = frame.entry(
            spawned_key(key), "spawned", step.name, StepState.COMPLETED, undo=step.compensation.name
        )
        frame.unwritten.append(frame.journal.put(mark))


def spawned_key(key: str) -> str:
    """Where it is noted that a spawned step may have to be undone."""
    return f"spawned/{key}"


def _add_child(
    frame: FrameCore, workflow: Any, key: str, run_id: str, text: str, options: ChildOptions | None
) -> None:
    queue = workflow.queue or frame.claimed.queue
    priority = -frame.claimed.precedence if workflow.priority is None else workflow.priority
    deadline, attributes, queue_key = frame.claimed.deadline, {}, frame.claimed.run_key
    if options is not None:
        _check_options(frame, options)
        queue, queue_key = options.queue or queue, options.key or queue_key
        priority = priority if options.priority is None else options.priority
        deadline, attributes = options.deadline_at(frame.now(), deadline), dict(options.attributes)
    run, main = new_run(
        workflow,
        run_id,
        text,
        queue=queue,
        priority=priority,
        now=frame.now(),
        deadline=deadline,
        queue_key=queue_key,
        version=frame.services.version,
    )
    run.parent, run.parent_key, run.parent_seq = frame.run_id, key, frame.journal.next_seq()
    run.attributes = attributes
    outgoing = _outgoing(frame)
    outgoing.runs.append(run)
    outgoing.mains.append(main)
    outgoing.chosen = outgoing.chosen or (options is not None and options.id is not None)


def _check_options(frame: FrameCore, options: ChildOptions) -> None:
    """What only the app and the database can tell of them."""
    if options.queue is not None and options.queue not in frame.services.queues:
        raise UnknownQueue(options.queue, frame.services.queues)
    unfit = unfit_attributes(options.attributes)
    if unfit is not None:
        options.refuse_attributes(str(unfit))


def _outgoing(frame: FrameCore) -> Outgoing:
    if frame.outgoing is None:
        frame.outgoing = Outgoing()
    return frame.outgoing


def flush(frame: FrameCore) -> Routine[None]:
    """Make what was spawned durable; what fits into this worker's free slots begins at once.

    A child whose id belongs to another run is not started.  Its entry in the journal holds that error, so
    every replay raises it again; a resume of the failed run deletes the entry and starts the child anew.
    """
    outgoing, frame.outgoing = _outgoing(frame), None
    steps, frame.unwritten = frame.unwritten, []
    frame.carrying += 1
    try:
        while True:
            try:
                yield from _write(frame, outgoing, steps)
                return
            except RunConflict as error:
                steps = [*steps, _refuse_child(frame, outgoing, error)]
    except asyncio.CancelledError:
        # Raised in place of the commit (drivers.adrive): other tasks wait for what they have spawned.
        _outgoing(frame).put_back(outgoing)
        frame.unwritten = steps + frame.unwritten
        raise
    finally:
        frame.carrying -= 1


def _write(frame: FrameCore, outgoing: Outgoing, steps: list[kernel_rows.Step]) -> Routine[None]:
    leased = frame.services.lease([*outgoing.executions, *outgoing.mains])
    children = None
    if outgoing.runs:
        children = Start(runs=outgoing.runs, executions=outgoing.mains, chosen=outgoing.chosen)
    operation = Record(
        worker=frame.claimed.worker,
        run_id=frame.run_id,
        steps=steps,
        executions=outgoing.executions,
        children=children,
        about=frame.claimed,
    )
    answer = None
    try:
        answer = yield Commit(operation)
    except asyncio.CancelledError:
        frame.services.give_back(leased)
        leased = []
        raise
    finally:
        if answer is not Verdict.APPLIED and leased and frame.services.local is not None:
            frame.services.local.unconfirmed(tokens_of(leased))
    frame.answered(answer)
    runs = {run.id: run for run in outgoing.runs}
    if leased and frame.services.local is not None:
        held = [row for row in leased if row.state == ExecutionState.EXECUTING]
        frame.services.local.give_back(tokens_of(leased) - tokens_of(held))  # a pause came between
        frame.services.local.deliver([claimed_of(row, runs.get(row.run_id) or frame.claimed) for row in held])


def _refuse_child(frame: FrameCore, outgoing: Outgoing, error: RunConflict) -> kernel_rows.Step:
    """Take the child whose id is taken out of what is started; return its failed entry."""
    places = [place for place, run in enumerate(outgoing.runs) if run.id == error.run_id]
    if not places:
        raise error
    place = places[-1]  # of two children with one id, the first is started
    run = outgoing.runs[place]
    outgoing.runs = [*outgoing.runs[:place], *outgoing.runs[place + 1 :]]
    outgoing.mains = [*outgoing.mains[:place], *outgoing.mains[place + 1 :]]
    for row in (*outgoing.executions, *outgoing.mains):
        drop_lease(row)  # nothing of the refused commit was written
    assert run.parent_key is not None
    return frame.journal.put(
        frame.entry(
            run.parent_key,
            REFUSED,
            run.id,
            StepState.FAILED,
            input=run.input,
            error=encode_error(error.with_traceback(None)),  # no place in the user's code
            started_at=run.created_at,
            finished_at=frame.now(),
        )
    )


def gathered(
    frame: FrameCore, handles: Sequence[Handle[Any]], *, return_exceptions: bool = False
) -> Routine[list[Any]]:
    """The results of all, in order; the first failure is raised when all are done."""
    just_spawned = bool(frame.outgoing)
    if just_spawned or not all(_done(frame, handle) for handle in handles):
        yield from frame.checkpoint()
    while missing := [handle for handle in handles if not _done(frame, handle)]:
        if not just_spawned:
            yield from look(frame)
            missing = [handle for handle in missing if not _done(frame, handle)]
            if not missing:
                break
        just_spawned = False
        yield from _wait(frame, missing)
    return outcomes(frame, handles, return_exceptions=return_exceptions)


def wait_for_any(frame: FrameCore, handles: Sequence[Handle[Any]]) -> Routine[None]:
    """Return when one of them is done."""
    just_spawned = bool(frame.outgoing)
    if just_spawned:
        yield from frame.checkpoint()
    while not any(_done(frame, handle) for handle in handles):
        if not just_spawned:
            yield from frame.checkpoint()
            yield from look(frame)
            if any(_done(frame, handle) for handle in handles):
                return
        just_spawned = False
        yield from _wait(frame, handles)


def _wait(frame: FrameCore, handles: Sequence[Handle[Any]]) -> Routine[None]:
    """Put the run down until something of this is done."""
    yield from frame.checkpoint()
    topics = {("child" if handle.run_id else "steps", _awaited(frame, handle)) for handle in handles}
    yield from _wait_for(frame, topics)


def _wait_for(frame: FrameCore, topics: Iterable[tuple[str, str]]) -> Routine[None]:
    awaits = tuple(Await(run_id=frame.run_id, kind=kind, name=name) for kind, name in sorted(topics))
    yield Wait(frame.no_later_than_deadline(None), awaits)


def _awaited(frame: FrameCore, handle: Handle[Any]) -> str:
    """The topic to wait for, by the journal: a child may have been continued as another run, and a deploy
    may have changed how the code spawns the step."""
    entry = frame.journal.peek(handle.key)
    if entry is None:
        return handle.topic
    return entry.name if entry.kind == "child" else entry.progress or handle.topic


def all_ended(frame: FrameCore) -> Routine[None]:
    """Wait until nothing is left that the run has spawned; its results and errors do not matter."""
    while True:
        yield from frame.checkpoint()
        topics = yield Read(lambda: frame.services.store.open_work(frame.run_id))
        if not topics:
            return
        yield from _wait_for(frame, topics)


def outcomes(frame: FrameCore, handles: Sequence[Handle[Any]], *, return_exceptions: bool) -> list[Any]:
    """The results of what is done, in order; with errors in their places, or the first error raised."""
    if not return_exceptions:
        return [_result(frame, handle) for handle in handles]
    values: list[Any] = []
    for handle in handles:
        try:
            values.append(_result(frame, handle))
        except Exception as error:
            values.append(error)
    return values


def _done(frame: FrameCore, handle: Handle[Any]) -> bool:
    entry = frame.journal.find(handle.key)
    return entry is not None and entry.state in FINAL


def look(frame: FrameCore) -> Routine[None]:
    """Learn what became of spawned steps and children meanwhile."""
    steps = yield Read(lambda: frame.services.store.journal([frame.run_id])[frame.run_id])
    for step in steps:
        if step.kind in ("spawn", "child"):
            frame.journal.put(step)


def _result(frame: FrameCore, handle: Handle[Any]) -> Any:
    entry = frame.journal.find(handle.key)
    assert entry is not None
    if entry.state == StepState.FAILED and entry.error is None:
        raise RunCanceled(handle.run_id or frame.run_id)
    return frame.recorded(handle.definition.name, entry, handle.definition.returns)
