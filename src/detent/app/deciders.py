"""Deciders, from outside: inputs in, events and states out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..definitions.context import Context, Frame, ask_database, current_step
from ..definitions.deciders import Decider, DeciderPlan, inbox_job, is_decider
from ..definitions.decisions import Recorded
from ..definitions.functions import Step
from ..errors import ConfigurationError, InvalidInput, InvalidState
from ..execution.bound_decider import LoadedDecider
from ..ids import turn_id, uuid7
from ..kernel.decide import Decide, Decided, Enqueue, Enqueued, Given, InputState, NewInput
from ..serialization.codec import Codec
from .engine import Engine
from .settings import Options

Asked = type[Decider[Any, Any, Any, Any]] | str
LATEST = 2**62  # behind every event


def decision_of(
    engine: Engine, decider: Asked, input: Any, input_id: str | None, *, within: bool = False
) -> Decide:
    """The operation that gives an input to its instance; `within` the caller's transaction."""
    if not within:
        engine.store.refuse_inside("app.execute()")
    step = current_step()
    if input_id is None and step is not None:
        input_id = step.next_start_id()  # another attempt at the step gives the same input
    return _decide(engine, engine.services.bound(decider), input, input_id)


def starts_instance(engine: Engine, definition: Any) -> bool:
    """Whether `app.start` of this begins an instance of a decider."""
    if isinstance(definition, str):
        return isinstance(engine.registry.find(definition), DeciderPlan)
    return is_decider(definition)


def first_input(decider: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The input with which `app.start` begins an instance: its one argument."""
    given = [*args, *(value for name, value in kwargs.items() if name == "input")]
    unknown = sorted(kwargs.keys() - {"input"})
    if len(given) == 1 and not unknown:
        return given[0]
    name = decider if isinstance(decider, str) else getattr(decider, "type", None)
    got = f"{len(given)} inputs" + (f" and {', '.join(unknown)}=" if unknown else "")
    raise InvalidInput(str(name), got, "app.start() takes the one input that begins an instance")


def only_id(options: Options) -> str | None:
    """The id of the input that begins an instance: all that can be said of it."""
    given = [name for name, value in options.given.items() if value and name != "id"]
    if given:
        raise ConfigurationError(f"an input of a decider takes only id=, not {', '.join(given)}=")
    return options.id


def dynamic_input(engine: Engine, decider: str, payload: Mapping[str, Any]) -> Any:
    """The input that a plain mapping describes."""
    return engine.services.bound(decider).dynamic(payload)


def _decide(engine: Engine, bound: LoadedDecider, input: Any, input_id: str | None) -> Decide:
    name, text, known = _looked_at(bound, input, input_id)
    instance = bound.plan.instance(known)
    given = Given(
        input=known,
        type=name,
        turn=turn_id() if input_id is None else _turn_of(input_id),
        text=text,
        input_id=input_id,
    )
    return Decide(
        bound=bound,
        run_id=bound.plan.run_id(instance),
        instance=instance,
        inputs=[given],
        now=engine.clock.now(),
    )


def _looked_at(bound: LoadedDecider, input: Any, input_id: str | None) -> tuple[str, str, Any]:
    """An input's kind, its stored form, and how that is read back: the first time is like every other."""
    id: Any = input_id
    if id is not None and not (isinstance(id, str) and id):
        raise InvalidInput(bound.name, f"input_id={id!r:.80}", "an id is a text that is not empty")
    name = bound.plan.input_name(input)
    text = bound.encode_input(input)
    return name, text, bound.input_of(name, text)


def _turn_of(input_id: str) -> str:
    """The same input has the same turn, so that a repeated call finds its events."""
    return hashlib.sha256(input_id.encode(errors="backslashreplace")).hexdigest()[:16]


def enqueuing_of(
    engine: Engine, decider: Asked, input: Any, input_id: str | None, *, within: bool = False
) -> Enqueue:
    """The operation that puts an input into its instance's inbox; `within` the caller's transaction."""
    if not within:
        engine.store.refuse_inside("enqueue_input")
    step = current_step()
    if input_id is None:
        # An id of its own in any case: it tells whether a commit that was cut off went through.
        input_id = uuid7() if step is None else step.next_start_id()
    bound = engine.services.bound(decider)
    name, text, known = _looked_at(bound, input, input_id)
    instance = bound.plan.instance(known)
    row = NewInput(
        run_id=bound.plan.run_id(instance),
        input_id=input_id,
        type=name,
        data=text,
        state=InputState.PENDING,
        received_at=engine.clock.now(),
    )
    return Enqueue(
        bound=bound,
        run_id=row.run_id,
        instance=instance,
        input=row,
        job=inbox_job(bound.name),
        now=row.received_at,
    )


def may_be_repeated(answer: Decided, input_id: str | None) -> bool:
    """Whether it may have been an earlier attempt at the step we are in that has given this input."""
    return not answer.events and input_id is None and current_step() is not None


def decided_before(engine: Engine, operation: Decide) -> list[Any]:
    """The events of an input that was given before."""
    rows = engine.store.events_of_turn(operation.run_id, operation.inputs[0].turn)
    return list(operation.bound.read(rows))


# A workflow that executes or enqueues an input does so as a step: recorded, and once.


class ExecutedEvent(msgspec.Struct):
    type: str
    data: Any


def call_in(frame: Frame, engine: Engine, decider: Asked, input: Any, input_id: str | None) -> Any:
    """The routine by which a workflow's own code executes an input."""
    codec = Codec()

    def execute(ctx: Context, input: str, data: Any, id: str | None) -> list[ExecutedEvent]:
        bound = engine.services.bound(plan.name)
        op = _decide(engine, bound, _read_back(engine, bound, input, data), id or ctx.next_start_id())
        answer: Decided = engine.services.committer.run(op)
        return [
            ExecutedEvent(
                bound.plan.names[type(event)],
                msgspec.json.decode(codec.encode(event, "an event", type(event))),
            )
            for event in answer.events or decided_before(engine, op)
        ]

    plan = engine.registry.decider(decider)
    return frame.call(Step(execute, id=f"execute {plan.name}"), (*_plain(plan, input), input_id), {})


def enqueue_in(frame: Frame, engine: Engine, decider: Asked, input: Any, input_id: str | None) -> Any:
    """The routine by which a workflow's own code enqueues an input."""

    def enqueue(ctx: Context, input: str, data: Any, id: str | None) -> bool:
        bound = engine.services.bound(plan.name)
        known = _read_back(engine, bound, input, data)
        op = enqueuing_of(engine, plan.name, known, id or ctx.next_start_id())
        answer: Enqueued = engine.services.committer.run(op)
        return answer.created or id is None

    plan = engine.registry.decider(decider)
    return frame.call(Step(enqueue, id=f"enqueue {plan.name}"), (*_plain(plan, input), input_id), {})


def _plain(plan: DeciderPlan, input: Any) -> tuple[str, Any]:
    """An input's kind and its fields, as a journal holds them."""
    name = plan.input_name(input)
    return name, msgspec.json.decode(Codec().encode(input, f"input {name}"))


def _read_back(engine: Engine, bound: LoadedDecider, name: str, data: Any) -> Any:
    return bound.input_of(name, engine.services.codec.encode(data, "an input"))


def events_of(engine: Engine, decider: Asked, recorded: list[ExecutedEvent]) -> list[Any]:
    """The events that such a step has brought, as values."""
    plan = engine.registry.decider(decider)
    codec = Codec()
    return [
        codec.decode(codec.encode(one.data, one.type), plan.events[one.type], f"event {one.type}")
        for one in recorded
    ]


# Reading


def recorded_events(
    engine: Engine, decider: Asked, instance: str, after: int, limit: int | None
) -> list[Recorded[Any]]:
    """What stands in the store of an instance, in order."""
    ask_database("the events of an instance")
    bound = engine.services.bound(decider)
    for called, number, least in (("after", after, 0), ("limit", limit, 1)):
        if number is not None and (type(number) is not int or number < least):
            raise ConfigurationError(f"{called}={number!r}: must be a whole number, {least} or more")
    rows = engine.store.events(bound.plan.run_id(str(instance)), after=after, limit=limit or LATEST)
    return [bound.recorded(row) for row in rows]


def state_at(engine: Engine, decider: Asked, instance: str, sequence: int | None) -> Any:
    """The state after an event; without a number, as it is now."""
    ask_database("the state of an instance")
    bound = engine.services.bound(decider)
    run_id = bound.plan.run_id(str(instance))
    engine.row(run_id)  # raises where there is none
    if sequence is not None and sequence < 0:
        raise InvalidState("read the state of", run_id, f"at event {sequence}", "events are counted from 1")
    return engine.store.instance_state(run_id, bound, upto=sequence)
