"""Deciders: event-sourced workflows, described.

A decider is four pure functions and a handler of effects.  Nothing here runs: the
store folds the events and asks for decisions under the instance's lock
(stores/batch/deciders.py), workers carry out effects and fire timers (execution/letter.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from ..digests import sha256
from ..errors import DefinitionError, InvalidDecision, InvalidInput, PermanentError, ReservedException
from ..errors.deciders import RESERVED
from ..kernel.policies import Retry
from ..serialization.annotations import NoForm
from ..serialization.forms import form_of
from ..serialization.signatures import ADVICE
from .context import Context
from .decisions import TIMER_CANCELLED, Decision, TimerCancelled
from .node_options import made

State = TypeVar("State")
Input = TypeVar("Input")
Event = TypeVar("Event")
Effect = TypeVar("Effect")

EFFECTS = Retry(attempts=10, jitter=0.2, never_on=(PermanentError,))
TIMERS = Retry(attempts=20, jitter=0.2)
LONGEST_TYPE = 100  # an instance's id has room behind it


@dataclass(frozen=True, slots=True)
class Transition:
    """A declared transition of the state machine: in status `source`, `input` may lead to `target`.

        Transition("created", Pay, "paid", effects=("ShipParcel",))

    `input` is an input's class or its name; `effects` and `timers` say what comes with it, for the drawing.
    """

    source: str
    input: Any
    target: str
    effects: tuple[str, ...] = ()
    timers: tuple[str, ...] = ()

    @property
    def trigger(self) -> str:
        """The name of the input."""
        return self.input if isinstance(self.input, str) else str(self.input.__name__)


class EffectContext(Context):
    """The context of an effect handler: a `Context` that also names the decider and the instance.

    async def handle(self, effect: SendEmail, ctx: EffectContext) -> None:
        await mail.send(effect.to, idempotency_key=ctx.idempotency_key)
    """

    decider: str
    instance: str

    def of(self, decider: str, instance: str) -> EffectContext:
        """Make the context of an effect."""
        self.decider, self.instance = decider, instance
        return self


class Upcaster(msgspec.Struct, frozen=True):
    """Turns the stored data of an event into that of its next version, or of another type.

    @upcaster("OrderCreated", version=1)
    @staticmethod
    def add_currency(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "currency": "EUR"}
    """

    type: str
    version: int
    change: Callable[[dict[str, Any]], dict[str, Any]]
    to: str | None = None


def upcaster(
    type: str, *, version: int = 1, to: str | None = None
) -> Callable[[Callable[[dict[str, Any]], dict[str, Any]]], Upcaster]:
    """Convert old stored events when they are read; used in the class of a decider:

        @upcaster("Created", version=1)              # converts version 1 to version 2
        @staticmethod
        def add_currency(data: dict) -> dict: return {**data, "currency": "EUR"}

        @upcaster("Made", to="Created")              # a renamed event
        @staticmethod
        def rename(data: dict) -> dict: return data

    Stored events are not changed.
    """
    if version < 1:
        raise DefinitionError(f"upcaster({type!r}, version={version!r}): versions are counted from 1")

    def wrap(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Upcaster:
        return Upcaster(type, version, change, to)

    return wrap


class Decider(Generic[State, Input, Event, Effect]):
    """An event-sourced workflow.

        class Order(Decider[State, Input, Event, Effect]):
            type = "order"

            def initial(self) -> State: ...
            def decide(self, state: State, input: Input, now: datetime) -> Decision: ...
            def evolve(self, state: State, event: Event) -> State: ...

        app.execute(Order, Create(id="o-1"))

    `decide` and `evolve` must be pure: the time is an argument, and the return value is their only
    effect.  They run under the lock of the instance, so they must be fast.  Inputs, events and effects
    are dataclasses, msgspec Structs or pydantic models; several kinds form a union.  If a decider needs
    arguments, include an object: `include=[Order(mailer)]`.
    """

    type: ClassVar[str]
    snapshot_every: ClassVar[int | None] = 500  # events; None: never
    snapshot_version: ClassVar[int] = 1  # another number: forget the snapshots that there are
    observe: ClassVar[bool] = False  # record every input, also what changes nothing
    input_ids_kept: ClassVar[timedelta | None] = None  # since the arrival of an input; None: forever
    retry: ClassVar[Retry] = EFFECTS
    timeout: ClassVar[timedelta | float | None] = None  # of one attempt at an effect
    queue: ClassVar[str | None] = None
    priority: ClassVar[int | None] = None
    transitions: ClassVar[Sequence[Transition]] = ()

    def initial(self) -> State:
        """The state of an instance before its first event."""
        raise NotImplementedError

    def decide(self, state: State, input: Input, now: datetime) -> Decision:
        """The decision about an input in this state."""
        raise NotImplementedError

    def evolve(self, state: State, event: Event) -> State:
        """The state after an event."""
        raise NotImplementedError

    def is_terminal(self, state: State) -> bool:
        """Whether the instance has finished, and ignores further inputs."""
        return False

    def handle(self, effect: Effect, ctx: EffectContext) -> Any:
        """Carry out an effect (`def` or `async def`); return an input as the answer, or None."""
        raise NotImplementedError

    def route(self, input: Input) -> str:
        """The id of the instance of an input: its `workflow_id()`, or its field `id`."""
        named = getattr(input, "workflow_id", None)
        id: Any = named() if callable(named) else getattr(input, "id", None)
        return id  # type: ignore[no-any-return]  # whatever it is, it is looked at

    def status(self, state: State) -> str:
        """The name of a state in diagrams and lists: its `status`, or the name of its class."""
        return str(getattr(state, "status", None) or _class_of(state))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("initial", "decide", "evolve", "is_terminal", "route", "status"):
            if inspect.iscoroutinefunction(getattr(cls, name)):
                raise DefinitionError(
                    f"{cls.__qualname__}.{name} is async, but must be a pure function: write def"
                )


def _class_of(value: Any) -> str:
    return str(value.__class__.__name__)


@dataclass(eq=False)
class DeciderPlan:
    """A decider, looked at closely: what it is called, and the kinds of things that it knows."""

    name: str
    decider: Decider[Any, Any, Any, Any]
    inputs: Mapping[str, type]
    events: Mapping[str, type]
    effects: Mapping[str, type]
    state: Any
    upcasters: Mapping[tuple[str, int], Upcaster]
    snapshots: str  # which snapshots fit this code
    jobs: tuple[str, ...] = ()  # what a worker can claim for it
    names: Mapping[type, str] = field(default_factory=dict)

    @property
    def cls(self) -> type:
        return type(self.decider)

    @property
    def takes_async(self) -> bool:
        """Whether effects are handled by a coroutine."""
        return inspect.iscoroutinefunction(self.decider.handle)

    def version(self, event: str) -> int:
        """The version under which events of this type are stored today."""
        return 1 + max((v for name, v in self.upcasters if name == event), default=0)

    def input_name(self, input: Any) -> str:
        """The name of an input's kind; raises where the decider does not take it."""
        name = self.names.get(type(input))
        if name is None or name not in self.inputs or type(input) is not self.inputs[name]:
            raise InvalidInput(self.name, _shown(input), f"it takes {_listed(self.inputs)}")
        return name

    def kind(self, known: Mapping[str, type], value: Any, what: str) -> str:
        """The name of an event's or effect's kind, that a decision has brought."""
        name = self.names.get(type(value))
        if name is None or known.get(name) is not type(value):
            raise InvalidDecision(
                self.name, f"{_shown(value)} is no {what} of it; it declares {_listed(known)}"
            )
        return name

    def instance(self, input: Any) -> str:
        """Which instance an input is for."""
        try:
            id: Any = self.decider.route(input)
        except RESERVED as error:
            raise ReservedException(f"route of decider {self.name!r}", repr(error)) from error
        if id is None or isinstance(id, bool) or str(id) == "":
            raise InvalidInput(
                self.name,
                _shown(input),
                "it does not name its instance; give it a field `id` or a method `workflow_id()`",
            )
        return str(id)

    def address(self, input: Any) -> str:
        """The id of the run of the instance that an input is for."""
        return self.run_id(self.instance(input))

    def run_id(self, instance: str) -> str:
        """The id of an instance's run."""
        return f"{self.name}:{instance}"


def instance_of(run_id: str) -> str:
    """The instance whose run has that id."""
    return run_id.partition(":")[2]


def effect_job(decider: str, effect: str) -> str:
    """What a worker must know to carry out an effect."""
    return f"{decider}!{effect}"


def timer_job(decider: str, input: str) -> str:
    """What a worker must know to fire a timer."""
    return f"{decider}@{input}"


def inbox_job(decider: str) -> str:
    """What a worker must know to empty an inbox."""
    return f"{decider}<"


def is_decider(item: Any) -> bool:
    """Whether this is a decider: its class, or an object of it."""
    return issubclass(item if isinstance(item, type) else type(item), Decider)


def plan_decider(item: Any) -> DeciderPlan | None:
    """The plan of a decider's class or object; None for anything else."""
    if isinstance(item, Decider):
        return _plan(item)
    if isinstance(item, type) and issubclass(item, Decider) and item is not Decider:
        return _plan(made(item))
    return None


def _plan(decider: Decider[Any, Any, Any, Any]) -> DeciderPlan:
    cls = type(decider)
    name = getattr(cls, "type", None)
    if not isinstance(name, str) or not _is_name(name):
        raise DefinitionError(
            f"{cls.__qualname__} needs a name for the database: type = 'order'"
            f" (at most {LONGEST_TYPE} characters, without : ! @ < # /)"
        )
    for method in ("initial", "decide", "evolve"):
        if getattr(cls, method) is getattr(Decider, method):
            raise DefinitionError(f"decider {name!r} ({cls.__qualname__}) has no method {method}")
    state, *kinds = _arguments(cls)
    inputs, events, effects = (
        _variants(kind, f"{role} of decider {name!r}")
        for kind, role in zip(kinds, ("an input", "an event", "an effect"), strict=True)
    )
    if not inputs or not events:
        raise DefinitionError(
            f"decider {name!r} declares no inputs or no events: Decider[State, Input, Event, Effect]"
        )
    if effects and cls.handle is Decider.handle:
        raise DefinitionError(f"decider {name!r} declares effects, and has no method handle")
    for called, kind in inputs.items():
        if "type" in _fields(kind) and _tag_field(kind) != "type":
            raise DefinitionError(
                f"input {called} of decider {name!r} has a field `type`: "
                f"that is where execute_dynamic reads its kind; rename the field"
            )
    for declared in (inputs, events, effects):
        for called, kind in declared.items():
            _check_fields(f"{called} of decider {name!r}", kind)
    _check_options(cls, name)
    upcasters = _upcasters(cls, name, events)
    return DeciderPlan(
        name=name,
        decider=decider,
        inputs=inputs,
        events=events,
        effects=effects,
        state=state,
        upcasters=upcasters,
        snapshots=_fingerprint(cls, state),
        jobs=(
            *(effect_job(name, effect) for effect in effects),
            *(timer_job(name, input) for input in inputs),
            inbox_job(name),
        ),
        names={kind: called for known in (inputs, events, effects) for called, kind in known.items()}
        | {TimerCancelled: TIMER_CANCELLED},
    )


def _check_fields(what: str, kind: type) -> None:
    try:
        form_of(kind)
    except NoForm as error:
        raise DefinitionError(f"{what} cannot be stored: {error}; {ADVICE}") from None
    except NameError as error:
        raise DefinitionError(
            f"a field of {what} has a type that cannot be found: {error}; "
            f"define it at the top level of the module, where every worker finds it"
        ) from None


def _is_name(name: str) -> bool:
    """Whether instances and jobs can be called by it, on every database."""
    unfit = any(char in ":!@<#/" for char in name) or not name.isprintable()
    return 0 < len(name) <= LONGEST_TYPE and not unfit and name == name.strip()


def _check_options(cls: type[Decider[Any, Any, Any, Any]], name: str) -> None:
    every: Any = cls.snapshot_every
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise DefinitionError(
            f"decider {name!r} has snapshot_every={every!r}; it is a number of events, or None"
        )
    kept: Any = cls.input_ids_kept
    if kept is not None and (not isinstance(kept, timedelta) or kept <= timedelta(0)):
        raise DefinitionError(
            f"decider {name!r} has input_ids_kept={kept!r}; write timedelta(days=30), or None to keep them"
        )
    if not isinstance(cls.retry, Retry):
        raise DefinitionError(f"decider {name!r} has retry={cls.retry!r}; write Retry(attempts=5)")
    for transition in cls.transitions:
        if not isinstance(transition, Transition):
            raise DefinitionError(
                f"decider {name!r} has {transition!r} among its transitions; write Transition(...)"
            )


def _arguments(cls: type) -> tuple[Any, Any, Any, Any]:
    """The four type arguments of the Decider that a class is made from."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            if typing.get_origin(generic) is Decider:
                scope = vars(sys.modules.get(base.__module__, types.ModuleType("")))
                arguments = tuple(_resolved(argument, scope, base) for argument in typing.get_args(generic))
                return typing.cast(tuple[Any, Any, Any, Any], arguments)
    raise DefinitionError(
        f"{cls.__qualname__} does not declare its types: Decider[State, Input, Event, Effect]"
    )


def _resolved(annotation: Any, scope: Mapping[str, Any], cls: type) -> Any:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            return eval(
                annotation, dict(scope), dict(vars(cls))
            )  # a forward reference, as typing resolves them
        except NameError as error:
            raise DefinitionError(
                f"{cls.__qualname__}: {annotation!r} could not be resolved ({error})"
            ) from None
    return annotation


def _variants(annotation: Any, what: str) -> dict[str, type]:
    """The classes that an annotation allows, by name."""
    found: dict[str, type] = {}
    for kind in _members(annotation, what):
        if not _is_record(kind):
            raise DefinitionError(
                f"{kind!r} cannot be {what}: it takes dataclasses, msgspec Structs and pydantic models"
            )
        name = _tag(kind) or kind.__name__
        known = found.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            kind.__module__,
            kind.__qualname__,
        ):
            raise DefinitionError(f"two classes called {name!r} cannot both be {what}")
        found[name] = kind
    return found


def _members(annotation: Any, what: str) -> list[type]:
    while hasattr(annotation, "__value__"):  # type Input = Create | Pay
        annotation = annotation.__value__
    if annotation in (None, type(None), typing.Never, typing.NoReturn):
        return []
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _members(part, what)]
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0], what)
    if not isinstance(annotation, type):
        raise DefinitionError(f"{annotation!r} cannot be {what}: name its classes, as a union")
    children: list[type] = annotation.__subclasses__()
    below = [kind for child in children for kind in _members(child, what)]
    if below and (inspect.isabstract(annotation) or not _is_record(annotation)):
        return below
    return [annotation, *below]


def _is_record(kind: type) -> bool:
    return (
        dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "model_validate")
    )


def _fields(kind: Any) -> set[str]:
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "model_fields", None)
    return set(names) if names is not None else {one.name for one in dataclasses.fields(kind)}


def unknown_fields(kind: Any, data: Mapping[str, Any]) -> list[str]:
    """What a mapping names that a record does not have; decoding would leave it out without a word."""
    models = getattr(kind, "model_fields", None)
    if models is not None:
        if kind.model_config.get("extra") == "allow":
            return []
        known = {*models, *(one.alias for one in models.values())}
    else:
        known = set(getattr(kind, "__struct_encode_fields__", None) or _fields(kind)) | {_tag_field(kind)}
    return sorted(str(name) for name in data if name not in known)


def _tag(kind: Any) -> str | None:
    config = getattr(kind, "__struct_config__", None)
    tag = getattr(config, "tag", None)
    return tag if isinstance(tag, str) else None


def _tag_field(kind: Any) -> str | None:
    config = getattr(kind, "__struct_config__", None)
    return getattr(config, "tag_field", None)


def _upcasters(cls: type, name: str, events: Mapping[str, type]) -> dict[tuple[str, int], Upcaster]:
    found: dict[tuple[str, int], Upcaster] = {}
    own: dict[str, Upcaster] = {}
    for base in reversed(cls.__mro__):
        own |= {key: value for key, value in vars(base).items() if isinstance(value, Upcaster)}
    for one in own.values():
        if (one.type, one.version) in found:
            raise DefinitionError(
                f"decider {name!r} has two upcasters for {one.type!r} version {one.version}"
            )
        found[one.type, one.version] = one
    for one in found.values():
        target = one.to or one.type
        if target not in events and not any(other == target for other, _ in found):
            raise DefinitionError(
                f"decider {name!r}: an upcaster leads to {target!r}, which is not one of its events"
            )
    return found


def _fingerprint(cls: type[Decider[Any, Any, Any, Any]], state: Any) -> str:
    """What a snapshot must fit: the shape of the state, the code that made it, the version that is given."""
    try:
        shape = repr(msgspec.json.schema(state))
    except (TypeError, NotImplementedError):  # no shape that msgspec knows, such as a pydantic model's
        shape = getattr(state, "__qualname__", repr(state))
    digest = sha256(shape.encode())
    for part in _code(getattr(cls.evolve, "__code__", None)):
        digest.update(part)
    return f"{cls.snapshot_version}.{digest.hexdigest()[:16]}"


def _code(code: types.CodeType | None) -> list[bytes]:
    if code is None:
        return []
    parts = [code.co_code, repr(code.co_names).encode()]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            parts += _code(constant)
        elif isinstance(constant, frozenset):  # its own order differs from process to process
            parts += sorted(repr(item).encode() for item in constant)
        else:
            parts.append(repr(constant).encode())
    return parts


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _listed(known: Mapping[str, type]) -> str:
    return ", ".join(sorted(known)) or "none"
