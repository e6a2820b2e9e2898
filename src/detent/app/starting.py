"""Starting: from a definition and its arguments to the rows of new runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from ..clock import span_micros, to_micros
from ..definitions.blueprint import Blueprint
from ..definitions.context import Frame, current_frame, current_step
from ..definitions.deciders import DeciderPlan, is_decider
from ..definitions.functions import Definition, FunctionWorkflow, Step
from ..definitions.graphs import Graph, plan_of
from ..definitions.templates import Template
from ..errors import ConfigurationError, DefinitionError, PayloadError, UnknownDefinition, UnknownQueue
from ..execution.new_runs import Startable, Terms, begin, begin_function
from ..execution.registry import Registry
from ..execution.rows import new_run
from ..execution.services import Services
from ..execution.spawn import fitting_id
from ..ids import uuid7
from ..kernel import rows
from ..kernel.operations import Start
from ..kernel.rows import NewRun, RunEnd, RunRow, RunState
from .includes import place_of, replace_redefined
from .settings import Options


def plan_runs(
    services: Services,
    definition: Any,
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    options: Options,
    hero: tuple[str, str] | None,
) -> Start:
    """The operation that begins a run for each call; nothing is leased yet."""
    startable = included(services.registry, definition)
    name = startable.name
    frame = current_frame(name)
    if frame is not None:
        frame.drive(frame.checkpoint())  # what the workflow took from the outside world is durable first
    queue = declared_queue(
        options.queue or _default(startable, "queue") or services.queues[0], services.queues
    )
    priority = options.priority if options.priority is not None else _default(startable, "priority") or 0
    now = services.clock.now()
    due = None if options.delay is None else now + span_micros(options.delay)
    deadline = _deadline(options.deadline, now)
    if options.id is not None and len(calls) != 1:
        raise ConfigurationError("an id names one run; start_many() starts several")
    if hero is not None and not options.allow_multiple and len(calls) > 1:
        raise ConfigurationError(
            f"{' '.join(hero)} has one active run of {name} at a time, and start_many() starts {len(calls)}; "
            f"add app.options(allow_multiple=True)"
        )
    all_of_them = Start(runs=[], executions=[])
    terms = Terms(
        id="",
        queue=queue,
        priority=priority,
        now=now,
        due=due,
        deadline=deadline,
        declared=services.queues,
        key=options.key,
        version=services.version,
    )
    new_id, repeats = _run_ids(name, frame)
    all_of_them.chosen = options.id is not None or (repeats and bool(calls))
    for number, (args, kwargs) in enumerate(calls):
        try:
            _add(all_of_them, services, startable, args, kwargs, terms, options.id or new_id())
        except (TypeError, PayloadError) as error:
            if len(calls) == 1:
                raise
            raise _with_place(error, number) from None
    if hero is not None:
        for run in all_of_them.runs:
            run.hero_type, run.hero_id = hero
            run.exclusive = int(not options.allow_multiple)
    return all_of_them


def _add(
    start: Start,
    services: Services,
    startable: Startable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    terms: Terms,
    id: str,
) -> None:
    """Begin one more run with this operation."""
    if isinstance(startable, FunctionWorkflow):
        run, main = begin_function(services.codec, startable, args, kwargs, terms, id)
        start.runs.append(run)
        start.executions.append(main)
        return
    one = begin(services.codec, startable, args, kwargs, replace(terms, id=id))
    for field in ("runs", "executions", "graphs", "ended", "readiness"):
        getattr(start, field).extend(getattr(one, field))
    start.ends.update(one.ends)
    start.compiled.update(one.compiled)


def _with_place(error: Exception, number: int) -> Exception:
    """The error of one call of start_many(), with its place in the list."""
    if isinstance(error, TypeError):
        return TypeError(f"call {number} of start_many(): {error}")
    named: Any = error
    if hasattr(named, "what"):
        named.what = f"call {number} of start_many(): {named.what}"
    return error


def _default(startable: Startable, name: str) -> Any:
    """What the definition itself says."""
    return getattr(startable, name, None)


def plan_fork(services: Services, row: RunRow, kept: list[rows.Step], options: Options) -> Start:
    """The operation that begins a run which keeps these entries of another."""
    workflow = services.registry.workflow(row.type)
    id, chosen = (options.id, True) if options.id else _run_id(workflow.name)
    run, main = new_run(
        workflow,
        id,
        row.input,
        queue=row.queue,
        priority=row.priority,
        now=services.clock.now(),
        queue_key=row.queue_key,
        version=services.version,
    )
    run.forked_from = row.id
    copies = [replace(step, run_id=run.id, seq=n, written_by=0) for n, step in enumerate(kept, start=1)]
    return Start(runs=[run], executions=[main], steps=copies, chosen=chosen, remote=True)


def fork_row(services: Services, row: RunRow, options: Options) -> tuple[NewRun, bool]:
    """The run that a run with a graph is forked to, and whether its id was chosen."""
    id, chosen = (options.id, True) if options.id else _run_id(row.type)
    run = NewRun(
        id=id,
        type=row.type,
        kind=row.kind,
        queue=row.queue,
        priority=row.priority,
        input=row.input,
        created_at=services.clock.now(),
        queue_key=row.queue_key,
        versions=services.version,
        pin=None if row.pin is None else services.version,
    )
    return run, chosen


def included(registry: Registry, definition: Any) -> Startable:
    """What is to be started, if the app serves it."""
    if isinstance(definition, str):
        found = registry.find(definition)
        if isinstance(found, DeciderPlan):
            definition = found.cls  # refused below
        elif found is None or isinstance(found, Step):
            raise UnknownDefinition(definition)
        else:
            return found
    if isinstance(definition, Graph):
        definition.check()
        for name, job in definition.jobs.items():
            if registry.find(name) is not (plan_of(job) or job):
                raise UnknownDefinition(name)
        return definition
    if isinstance(definition, FunctionWorkflow):
        return _served(registry, definition)
    plan = plan_of(definition)
    if plan is not None:
        _ = plan.graph
    served: Any = plan or definition
    if is_decider(definition):
        raise DefinitionError(
            f"{definition!r} is a decider; app.start() starts one instance and app.execute() gives it "
            f"inputs; inside your own transaction use app.within(connection).enqueue_input()"
        )
    if isinstance(definition, Step):
        raise DefinitionError(f"{definition!r} is a step; app.start() takes a workflow that calls it")
    if not isinstance(served, Template | Blueprint):
        raise DefinitionError(
            f"app.start() takes a workflow, a Workflow class, a graph or a template, not {definition!r}; "
            f"decorate a function with @workflow"
        )
    return _served(registry, served)


def _served(registry: Registry, definition: Definition[Any, Any] | Blueprint) -> Startable:
    """The definition, if the app includes it."""
    if definition not in registry and not replace_redefined(registry, definition):
        known = registry.find(definition.name)
        raise UnknownDefinition(definition.name, "" if known is None else place_of(known))
    return definition


def declared_queue(queue: str, declared: tuple[str, ...]) -> str:
    """The queue, if the app declares it."""
    if queue not in declared:
        raise UnknownQueue(queue, declared)
    return queue


def _run_id(name: str) -> tuple[str, bool]:
    """A new id; inside of a run or a step one that is the same on every replay."""
    new_id, repeats = _run_ids(name, current_frame(name))
    return new_id(), repeats


def _run_ids(name: str, frame: Frame | None) -> tuple[Callable[[], str], bool]:
    """What makes such ids, and whether they are the same on every replay."""
    step = current_step()
    if step is not None:
        return (lambda: fitting_id(step.next_start_id())), True
    return (uuid7, False) if frame is None else ((lambda: frame.start_id(name)), True)


def _deadline(deadline: timedelta | datetime | float | None, now: int) -> int | None:
    if deadline is None:
        return None
    return to_micros(deadline) if isinstance(deadline, datetime) else now + span_micros(deadline)


def fresh_row(run: NewRun, performing: bool, end: RunEnd | None = None) -> RunRow:
    """A run that was just begun, as it would be read."""
    return RunRow(
        id=run.id,
        type=run.type,
        kind=run.kind,
        state=RunState.READY if end is None else end.state,
        queue=run.queue,
        priority=run.priority,
        input=run.input,
        result=None if end is None else end.result,
        error=None if end is None else end.error,
        parent=run.parent,
        parent_key=run.parent_key,
        hero_type=run.hero_type,
        hero_id=run.hero_id,
        deadline=run.deadline,
        forked_from=run.forked_from,
        created_at=run.created_at,
        finished_at=None,
        signature=run.signature,
        frozen_at=run.frozen_at,
        performing=int(performing),
        attributes=run.attributes,
        queue_key=run.queue_key,
        versions=run.versions,
        pin=run.pin,
    )
