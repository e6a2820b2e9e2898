"""What is wrong is refused with an error that helps, and leaves nothing behind."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

import detent
from detent import Decider, Decision, DetentError, step, workflow
from detent.definitions.decisions import Timer
from detent.errors import (
    ConfigurationError,
    DefinitionError,
    InvalidDecision,
    InvalidInput,
    NameUnfit,
    NotSerializable,
    PayloadError,
    PayloadTooLarge,
    RunConflict,
    UnknownDefinition,
)
from tests.conformance.builders import everything
from tests.deciders.operations import applied, deciding_of
from tests.deciders.orders import Create, Log, LogState, Order, Ring, Said, Say, sql, texts
from tests.functions.world import Apps

SURROGATE = "\ud800"


@dataclass
class Nameless:
    """An input without an instance."""

    text: str = ""


@dataclass
class Foreign:
    id: str


@pytest.fixture
def app(apps: Apps) -> detent.App:
    return apps(Log, worker=False)


def refused(app: detent.App, error: type[Exception], deed: Callable[[], Any]) -> Exception:
    """It is refused with this error, and nothing has changed; returns the error."""
    assert issubclass(error, DetentError)
    before = everything(app.engine.store)
    with pytest.raises(error) as caught:
        deed()
    assert everything(app.engine.store) == before
    assert str(caught.value)
    return caught.value


# -- Inputs --------------------------------------------------------------------------------------------


VERBS = ["execute", "enqueue_input"]

INPUTS: dict[str, tuple[Any, type[Exception], str]] = {
    "another class": (Foreign("l"), InvalidInput, "Say"),
    "a text": ("hello", InvalidInput, "Say"),
    "None": (None, InvalidInput, "Say"),
    "the class itself": (Say, InvalidInput, "Say"),
    "an empty id": (Say(""), InvalidInput, "instance"),
    "no id": (Say(None), DetentError, "Say"),  # type: ignore[arg-type]
    "an id that is true": (Say(True), PayloadError, "Say"),  # type: ignore[arg-type]
    "a field of another type": (Say("l", 7), PayloadError, "str"),  # type: ignore[arg-type]
    "a very long id": (Say("x" * 300), NameUnfit, "characters"),
    "an id with NUL": (Say("a\x00b"), NameUnfit, "NUL"),
    "an id that ends with a space": (Say("a "), NameUnfit, "space"),
    "an id with a lone surrogate": (Say(f"a{SURROGATE}"), PayloadError, "surrogate"),
    "a lone surrogate": (Say("l", f"a{SURROGATE}"), PayloadError, "surrogate"),
    "too large": (Say("l", "x" * 5_000_000), PayloadTooLarge, "Say"),
    "NaN": (Say("l", every=math.nan), NotSerializable, "NaN"),
    "infinite": (Say("l", timers={"k": math.inf}), NotSerializable, "infinite"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", INPUTS)
def test_an_input_that_cannot_be_is_refused(app: detent.App, verb: str, what: str) -> None:
    input, error, part = INPUTS[what]
    found = refused(app, error, lambda: getattr(app, verb)(Log, input))
    assert part in str(found)


INPUT_IDS: dict[str, tuple[Any, type[Exception]]] = {
    "empty": ("", InvalidInput),
    "a number": (7, InvalidInput),
    "very long": ("x" * 501, NameUnfit),
    "with NUL": ("a\x00b", NameUnfit),
    "ends with a space": ("a ", NameUnfit),
    "a lone surrogate": (SURROGATE, NameUnfit),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", INPUT_IDS)
def test_an_input_id_that_cannot_be_is_refused(app: detent.App, verb: str, what: str) -> None:
    input_id, error = INPUT_IDS[what]
    refused(app, error, lambda: getattr(app, verb)(Log, Say("l", "a"), input_id=input_id))


def test_an_instance_may_be_called_by_a_number(app: detent.App) -> None:
    @dataclass
    class Numbered:
        id: int

    class Counter(Decider[LogState, Numbered, Said, None]):
        type = "counter"

        def initial(self) -> LogState:
            return LogState()

        def decide(self, state: LogState, input: Numbered, now: datetime) -> Decision:
            return Decision.event(Said(str(input.id), now))

        def evolve(self, state: LogState, event: Said) -> LogState:
            return LogState([*state.said, event.text])

    with detent.App(app.engine.url, include=[Counter]) as other:
        other.execute(Counter, Numbered(7))
        other.execute(Counter, Numbered(0))
        assert other.state_at(Counter, "7").said == ["7"]
        assert other.run("counter:0").state == "ready"


PAYLOADS: dict[str, tuple[Any, str]] = {
    "an unknown type": ({"type": "Shout", "id": "l"}, "Say"),
    "no type": ({"id": "l"}, "type"),
    "a type that is a number": ({"type": 7, "id": "l"}, "type"),
    "a missing field": ({"type": "Say"}, "id"),
    "a field of another type": ({"type": "Say", "id": "l", "text": 7}, "text"),
    "a field too many": ({"type": "Say", "id": "l", "texts": "a"}, "texts"),
    "an empty id": ({"type": "Say", "id": ""}, "instance"),
    "NaN": ({"type": "Say", "id": "l", "every": math.nan}, "NaN"),
    "an object": ({"type": "Say", "id": "l", "text": object()}, "object"),
    "a text": ("Say", "type"),
    "None": (None, "type"),
    "a list": ([], "type"),
}


@pytest.mark.parametrize("what", PAYLOADS)
def test_a_payload_that_cannot_be_is_refused(app: detent.App, what: str) -> None:
    payload, part = PAYLOADS[what]
    found = refused(app, PayloadError, lambda: app.execute_dynamic("log", payload))
    assert part in str(found)


def test_a_decider_that_is_not_included_is_refused(app: detent.App) -> None:
    for deed in (
        lambda: app.execute(Order, Create("o")),
        lambda: app.enqueue_input(Order, Create("o")),
        lambda: app.execute_dynamic("order", {"type": "Create", "id": "o"}),
        lambda: app.state_at(Order, "o"),
        lambda: app.events(Order, "o"),
    ):
        assert "order" in str(refused(app, UnknownDefinition, deed)).lower()


# -- Decisions -----------------------------------------------------------------------------------------


def deciding(what: Callable[[datetime], Any]) -> type[Log]:
    """A log that decides this, whatever it is told."""
    return type("Log", (Log,), {"decide": lambda self, state, input, now: what(now)})


RINGING = Ring("l", "k")
DECISIONS: dict[str, tuple[Callable[[datetime], Any], type[Exception], str]] = {
    "None": (lambda now: None, InvalidDecision, "Decision"),
    "a list": (lambda now: [Said("a", now)], InvalidDecision, "Decision"),
    "an event": (lambda now: Said("a", now), InvalidDecision, "Decision"),
    "no events": (lambda now: Decision.event(), InvalidDecision, "at least one event"),
    "an event of another class": (lambda now: Decision.event(Foreign("l")), InvalidDecision, "Said"),
    "an event that is a text": (lambda now: Decision.event("Said"), InvalidDecision, "Said"),
    "an event that is a class": (lambda now: Decision.event(Said), InvalidDecision, "Said"),
    "an effect of another class": (
        lambda now: Decision.event(Said("a", now)).with_effect(Foreign("l")),
        InvalidDecision,
        "Mail",
    ),
    "an input as an event": (lambda now: Decision.event(Say("l")), InvalidDecision, "Said"),
    "an event with NaN": (lambda now: Decision.event(Said(math.nan, now)), PayloadError, "NaN"),  # type: ignore[arg-type]
    "an event that does not fit its own class": (
        lambda now: Decision.event(Said(7, now)),  # type: ignore[arg-type]
        PayloadError,
        "str",
    ),
    "an event with a lone surrogate": (
        lambda now: Decision.event(Said(SURROGATE, now)),
        PayloadError,
        "surrogate",
    ),
    "an event that is too large": (
        lambda now: Decision.event(Said("x" * 5_000_000, now)),
        PayloadTooLarge,
        "Said",
    ),
    "a timer with both after and at": (
        lambda now: timer(now, after=timedelta(1), at=now, input=RINGING),
        InvalidDecision,
        "both",
    ),
    "a timer with neither": (lambda now: timer(now, input=RINGING), InvalidDecision, "after="),
    "a timer before its decision": (
        lambda now: timer(now, after=timedelta(-1), input=RINGING),
        InvalidDecision,
        "before",
    ),
    "a timer after a number": (lambda now: timer(now, after=5, input=RINGING), InvalidDecision, "timedelta"),
    "a timer at a text": (lambda now: timer(now, at="noon", input=RINGING), InvalidDecision, "datetime"),
    "a timer at a naive datetime": (
        lambda now: timer(now, at=datetime(2030, 1, 1), input=RINGING),
        InvalidDecision,
        "time zone",
    ),
    "a timer after more than there is": (
        lambda now: timer(now, after=timedelta.max, input=RINGING),
        InvalidDecision,
        "far",
    ),
    "a timer with another input": (
        lambda now: timer(now, after=timedelta(1), input=Foreign("l")),
        InvalidDecision,
        "Ring",
    ),
    "a timer whose input has no instance": (
        lambda now: timer(now, after=timedelta(1), input=Ring("", "k")),
        DetentError,
        "instance",
    ),
    "a timer with an empty key": (
        lambda now: timer(now, after=timedelta(1), input=RINGING, key=""),
        InvalidDecision,
        "key",
    ),
    "a timer with a long key": (
        lambda now: timer(now, after=timedelta(1), input=RINGING, key="k" * 256),
        InvalidDecision,
        "key",
    ),
    "a timer with NUL in its key": (
        lambda now: timer(now, after=timedelta(1), input=RINGING, key="a\x00b"),
        DetentError,
        "NUL",
    ),
    "a timer with a lone surrogate in its key": (
        lambda now: timer(now, after=timedelta(1), input=RINGING, key=SURROGATE),
        DetentError,
        "surrogate",
    ),
    "a timer whose key ends with a space": (
        lambda now: timer(now, after=timedelta(1), input=RINGING, key="k "),
        DetentError,
        "space",
    ),
    "a cancel of no key": (
        lambda now: Decision.event(Said("a", now)).cancel_timer(None),  # type: ignore[arg-type]
        InvalidDecision,
        "key",
    ),
    "a cancel of a key with NUL": (
        lambda now: Decision.event(Said("a", now)).cancel_timer("a\x00"),
        DetentError,
        "NUL",
    ),
}


def timer(now: datetime, **given: Any) -> Decision:
    return Decision.event(Said("a", now)).with_timer(**given)


@pytest.mark.parametrize("what", DECISIONS)
def test_a_decision_that_cannot_be_is_refused(apps: Apps, what: str) -> None:
    decision, error, part = DECISIONS[what]
    decider = deciding(decision)
    app = apps(decider, worker=False)
    found = refused(app, error, lambda: app.execute(decider, Say("l", "a"), input_id="x"))
    assert part in str(found)
    if isinstance(found, InvalidDecision):
        assert found.decider == "log"


@pytest.mark.parametrize("what", DECISIONS)
def test_a_decision_that_cannot_be_does_not_disturb_its_neighbours(apps: Apps, what: str) -> None:
    decision, _, _ = DECISIONS[what]

    def decide(self: Any, state: Any, input: Any, now: datetime) -> Any:
        return decision(now) if input.text == "bad" else Decision.event(Said(input.text, now))

    decider = type("Log", (Log,), {"decide": decide})
    app = apps(decider, worker=False)
    answers = applied(
        app,
        deciding_of(app, decider, Say("k", "a")),
        deciding_of(app, decider, Say("k", "bad")),
        deciding_of(app, decider, Say("l", "bad")),
        deciding_of(app, decider, Say("k", "b")),
    )
    assert [isinstance(answer, DetentError) for answer in answers] == [False, True, True, False]
    assert texts(app, decider, "k") == ["a", "b"]
    assert sql(app, "SELECT id FROM detent_runs") == [("log:k",)]


def test_a_timer_says_by_itself_what_is_wrong_with_it() -> None:
    with pytest.raises(InvalidDecision):
        Timer(RINGING)


# -- Definitions ---------------------------------------------------------------------------------------


def defined(name: str = "odd", **members: Any) -> Any:
    """A decider with these members instead of those of the log."""
    return type("Odd", (Log,), {"type": name, **members})


async def coroutine(self: Any, *args: Any) -> Any:
    return None


@pytest.mark.parametrize("method", ["initial", "decide", "evolve", "is_terminal"])
def test_an_async_function_where_a_pure_one_belongs_is_refused_with_the_class(method: str) -> None:
    with pytest.raises(DefinitionError, match=f"{method} is async"):
        type("Odd", (Log,), {method: coroutine})


class _Bare:
    def initial(self) -> Any: ...
    def decide(self, state: Any, input: Any, now: datetime) -> Any: ...
    def evolve(self, state: Any, event: Any) -> Any: ...


def handless() -> Any:
    class Handless(_Bare, Decider[LogState, Say, Said, Foreign]):
        type = "handless"

    return Handless


def untyped() -> Any:
    class Untyped(_Bare, Decider):  # type: ignore[type-arg]
        type = "untyped"

    return Untyped


def unrecorded() -> Any:
    class Unrecorded(_Bare, Decider[LogState, str, Said, None]):
        type = "unrecorded"

    return Unrecorded


@dataclass
class Tagged:
    id: str
    type: str = "x"


def tagged() -> Any:
    class Tag(_Bare, Decider[LogState, Tagged, Said, None]):
        type = "tag"

    return Tag


def lost() -> Any:
    return defined(old=detent.upcaster("Told", to="Nowhere")(lambda data: data))


DEFINITIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "no type": (lambda: defined(name=""), "type"),
    "a type with a colon": (lambda: defined(name="a:b"), "type"),
    "a type that ends with a space": (lambda: defined(name="a "), "type"),
    "a type that is too long": (lambda: defined(name="x" * 256), "type"),
    "a type with NUL": (lambda: defined(name="a\x00"), "type"),
    "snapshot_every": (lambda: defined(snapshot_every=0), "snapshot_every"),
    "retry": (lambda: defined(retry=3), "retry"),
    "transitions": (lambda: defined(transitions=["a"]), "transitions"),
    "effects without handle": (handless, "handle"),
    "no types": (untyped, "types"),
    "inputs that are no records": (unrecorded, "dataclasses"),
    "an input with a field `type`": (tagged, "type"),
    "an upcaster that leads nowhere": (lost, "Nowhere"),
}


@pytest.mark.parametrize("what", DEFINITIONS)
def test_a_decider_that_cannot_be_is_refused_when_the_app_is_built(what: str) -> None:
    make, part = DEFINITIONS[what]
    with pytest.raises(DefinitionError, match=part):
        detent.App("sqlite:///:memory:", include=[make()])


def test_two_deciders_of_one_type_are_refused_when_the_app_is_built() -> None:
    with pytest.raises(DetentError, match="log"):
        detent.App("sqlite:///:memory:", include=[Log, defined(name="log")])


def test_a_decider_that_needs_arguments_is_included_as_an_object() -> None:
    class Needy(Log):
        type = "needy"

        def __init__(self, mailer: str) -> None:
            self.mailer = mailer

    with pytest.raises(DefinitionError, match=r"Needy\(\.\.\.\)"):
        detent.App("sqlite:///:memory:", include=[Needy])
    with detent.App("sqlite:///:memory:", include=[Needy("m")]) as app:
        assert app.execute(Needy, Say("l", "a"))


# -- Ids that are taken --------------------------------------------------------------------------------


@workflow
def flow() -> str:
    return "done"


def test_a_function_run_cannot_have_the_id_of_an_instance(apps: Apps) -> None:
    app = apps(Log, flow, worker=False)
    app.execute(Log, Say("l", "a"))
    refused(app, RunConflict, lambda: app.options(id="log:l").start(flow))


def test_an_instance_cannot_have_the_id_of_a_function_run(apps: Apps) -> None:
    app = apps(Log, flow, worker=False)
    app.options(id="log:l").start(flow)
    for verb in (app.execute, app.enqueue_input):
        found = refused(app, RunConflict, lambda verb=verb: verb(Log, Say("l", "a")))  # type: ignore[misc]
        assert "log:l" in str(found)
    assert app.execute(Log, Say("m", "a")), "others are not disturbed"


def test_a_conflict_does_not_disturb_the_neighbours_in_its_commit(apps: Apps) -> None:
    app = apps(Log, flow, worker=False)
    app.options(id="log:l").start(flow)
    answers = applied(app, *(deciding_of(app, Log, Say(instance, "a")) for instance in ("k", "l", "m")))
    assert [isinstance(answer, RunConflict) for answer in answers] == [False, True, False]


# -- Places --------------------------------------------------------------------------------------------


def test_inputs_inside_of_a_transactional_step_are_refused(apps: Apps) -> None:
    found: list[Exception] = []

    @step(transactional=True)
    def write(tx: Any) -> None:
        for verb in (serving.execute, serving.enqueue_input):
            try:
                verb(Log, Say("l", "a"))
            except DetentError as error:
                found.append(error)

    @workflow
    def outer() -> None:
        write()

    serving = apps(Log, outer)
    serving.start(outer).result(timeout=20)
    assert len(found) == 2
    assert sql(serving, "SELECT id FROM detent_runs WHERE id = 'log:l'") == []


# -- What is asked of an app ---------------------------------------------------------------------------


@workflow
def not_a_decider(number: int) -> int:
    return number


def test_starting_a_decider_needs_the_input_that_begins_an_instance(app: detent.App) -> None:
    decider: Any = Log
    for args, kwargs in (((), {}), ((Say("l"), Say("l")), {}), ((Say("l"),), {"queue": "q"})):
        error = refused(app, InvalidInput, lambda: app.start(decider, *args, **kwargs))  # noqa: B023
        assert "takes the one input that begins an instance" in str(error)


def test_a_decider_can_be_started_by_its_class_its_object_and_its_name(app: detent.App) -> None:
    decider: Any
    for number, decider in enumerate((Log, Log(), "log")):
        run = app.start(decider, Say(str(number), "a"))
        assert run.id == f"log:{number}"
        assert texts(app, Log, str(number)) == ["a"]


def test_a_decider_cannot_be_started_where_there_is_no_input_for_it(app: detent.App) -> None:
    decider: Any
    for decider in (Log, "log"):
        many = refused(app, DefinitionError, lambda: app.start_many(decider, [(Say("l"),)]))  # noqa: B023
        within = refused(app, DefinitionError, lambda: app.within(None).start(decider, Say("l")))  # noqa: B023
        assert "is a decider" in str(many)
        assert "enqueue_input" in str(within)


@pytest.mark.parametrize("given", [not_a_decider, int, 5, None, "not_a_decider"], ids=repr)
def test_what_is_not_a_decider_is_named(apps: Apps, given: Any) -> None:
    app = apps(Log, not_a_decider, worker=False)
    name: Any = not_a_decider.name if given == "not_a_decider" else given
    for deed in (
        lambda: app.execute(name, Say("l")),
        lambda: app.enqueue_input(name, Say("l")),
        lambda: app.state_at(name, "l"),
        lambda: app.events(name, "l"),
        lambda: app.deciders.machine(name),
    ):
        assert "is not a decider" in str(refused(app, ConfigurationError, deed))


def test_a_decider_that_is_not_included_is_named(app: detent.App) -> None:
    nobody: Any = "nobody"
    assert "Order" in str(refused(app, UnknownDefinition, lambda: app.execute(Order, Create("o"))))
    assert "nobody" in str(refused(app, UnknownDefinition, lambda: app.execute(nobody, Say("l"))))


def test_runs_can_be_found_by_a_decider(app: detent.App) -> None:
    app.execute(Log, Say("l", "a"))
    for decider in (Log, Log(), "log"):
        assert [run.id for run in app.runs(type=decider)] == ["log:l"]
        assert [run.id for run in app.runs.each(type=decider)] == ["log:l"]
    assert app.runs(type=Order) == []
    assert "a workflow, a decider" in str(refused(app, ConfigurationError, lambda: app.runs(type=int)))


@pytest.mark.parametrize("numbers", [{"after": "1"}, {"after": -1}, {"limit": 0}, {"limit": True}], ids=repr)
def test_events_are_counted_by_whole_numbers(app: detent.App, numbers: dict[str, Any]) -> None:
    refused(app, ConfigurationError, lambda: app.events(Log, "l", **numbers))


def test_deciders_are_asked_the_same_from_asyncio(url: str) -> None:
    log: Any = Log
    number: Any = int

    async def main() -> None:
        app = await detent.AsyncApp(url, include=[Log]).open()
        with pytest.raises(InvalidInput, match="the one input"):
            await app.start(log)
        with pytest.raises(ConfigurationError, match="is not a decider"):
            await app.execute(number, Say("l"))
        await app.start(Log, Say("l", "a"))
        assert [run.id for run in await app.runs(type=Log)] == ["log:l"]
        await app.close()

    asyncio.run(main())
