"""Starting: from a definition and its arguments to the rows of new runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from ..clock import span_micros, to_micros
from ..context import current_frame, current_step
from ..errors import ConfigurationError, DefinitionError, UnknownDefinition, UnknownQueue
from ..functions import FunctionWorkflow, Step
from ..ids import uuid7
from ..kernel import model
from ..kernel.fork import kept_for_fork
from ..kernel.model import NewRun, RunRow, RunState, Start
from ..runtime.calls import encode_call
from ..runtime.services import Registry, Services
from ..runtime.spawning import fitting_id, new_run
from .settings import Options

LONGEST_ID = 200


def plan_runs(
    services: Services,
    definition: Any,
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    options: Options,
    hero: tuple[str, str] | None,
) -> Start:
    """The operation that begins a run for each call; nothing is leased yet."""
    workflow = _included(services.registry, definition)
    frame = current_frame(workflow.name)
    if frame is not None:
        frame.drive(frame.checkpoint())  # what the workflow took from the outside world is durable first
    queue = declared_queue(options.queue or workflow.queue or services.queues[0], services.queues)
    priority = options.priority if options.priority is not None else workflow.priority or 0
    now = services.clock.now()
    due = None if options.delay is None else now + span_micros(options.delay)
    deadline = _deadline(options.deadline, now)
    if options.id is not None and len(calls) != 1:
        raise ConfigurationError("an id names one run; start_many() starts several")
    start = Start(runs=[], executions=[], chosen=options.id is not None)
    for args, kwargs in calls:
        args, kwargs = workflow.without_context(args, kwargs)
        workflow.check_arguments(args, kwargs)
        id, repeats = (options.id, True) if options.id is not None else _run_id(workflow.name)
        text = encode_call(services.codec, f"the input of {workflow.name!r}", args, kwargs)
        run, main = new_run(
            workflow, _check_id(id), text, queue=queue, priority=priority, now=now, due=due, deadline=deadline
        )
        if hero is not None:
            run.hero_type, run.hero_id = hero
            run.exclusive = int(not options.allow_multiple)
        start.chosen = start.chosen or repeats
        start.runs.append(run)
        start.executions.append(main)
    return start


def plan_fork(
    services: Services, row: RunRow, steps: list[model.Step], from_step: str, options: Options
) -> Start:
    """The operation that begins a run which keeps what another recorded before a step."""
    workflow = services.registry.workflow(row.type)
    kept = kept_for_fork(row.id, steps, from_step)
    id, chosen = (options.id, True) if options.id else _run_id(workflow.name)
    run, main = new_run(
        workflow, _check_id(id), row.input, queue=row.queue, priority=row.priority, now=services.clock.now()
    )
    run.forked_from = row.id
    copies = [replace(step, run_id=run.id, seq=n, written_by=0) for n, step in enumerate(kept, start=1)]
    return Start(runs=[run], executions=[main], steps=copies, chosen=chosen, remote=True)


def _included(registry: Registry, definition: Any) -> FunctionWorkflow[Any, Any]:
    if isinstance(definition, str):
        return registry.workflow(definition)
    if isinstance(definition, Step):
        raise DefinitionError(f"{definition!r} is a step; app.start() takes a workflow that calls it")
    if not isinstance(definition, FunctionWorkflow):
        raise DefinitionError(f"app.start() takes a workflow, not {definition!r}; decorate it with @workflow")
    if definition not in registry:
        raise UnknownDefinition(definition.name)
    return definition


def declared_queue(queue: str, declared: tuple[str, ...]) -> str:
    """The queue, if the app declares it."""
    if queue not in declared:
        raise UnknownQueue(queue, declared)
    return queue


def _run_id(name: str) -> tuple[str, bool]:
    """A new id; inside of a run or a step one that is the same on every replay."""
    step = current_step()
    if step is not None:
        return fitting_id(step.next_start_id()), True
    frame = current_frame(name)
    return (uuid7(), False) if frame is None else (frame.start_id(name), True)


def _check_id(id: str) -> str:
    if len(id) > LONGEST_ID:
        raise ConfigurationError(f"a run's id has at most {LONGEST_ID} characters, this one has {len(id)}")
    return check_text("a run's id", id)


def check_text(what: str, text: str) -> str:
    """Refuse a name that a database would refuse, or change."""
    if not text:
        raise ConfigurationError(f"{what} is a text that is not empty, not {text!r}")
    if "\x00" in text or not text.isprintable():
        raise ConfigurationError(
            f"{what} {text!r} has characters that databases refuse (NUL, control, surrogates)"
        )
    return text


def _deadline(deadline: timedelta | datetime | None, now: int) -> int | None:
    if deadline is None:
        return None
    return now + span_micros(deadline) if isinstance(deadline, timedelta) else to_micros(deadline)


def fresh_row(run: NewRun, performing: bool) -> RunRow:
    """A run that was just begun, as it would be read."""
    return RunRow(
        id=run.id,
        type=run.type,
        kind=run.kind,
        state=RunState.READY,
        queue=run.queue,
        priority=run.priority,
        input=run.input,
        result=None,
        error=None,
        parent=run.parent,
        parent_key=run.parent_key,
        hero_type=run.hero_type,
        hero_id=run.hero_id,
        deadline=run.deadline,
        forked_from=run.forked_from,
        created_at=run.created_at,
        finished_at=None,
        performing=int(performing),
    )
