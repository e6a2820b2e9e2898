"""Inputs, events, effects and states are dataclasses, Structs or pydantic models, with any text in them."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, Self, get_type_hints

import msgspec
import pytest

import detent
from detent import AsyncApp, Decider, Decision, EffectContext
from tests.deciders.operations import remembered
from tests.deciders.orders import Log, Say, log, sql, texts, types
from tests.functions.world import Apps, eventually

TEXTS = [
    "a\x00b",
    "\N{COLLISION SYMBOL}",
    "\\u0000",
    "'\"`;--",
    "\u2028\u200b",
    " ",
    "%s %(a)s :a ?",
    "\x7f\t\n",
]


class Model:
    """As a pydantic model looks from outside."""

    model_config: ClassVar[dict[str, Any]] = {}
    model_fields: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls.model_fields = {name: SimpleNamespace(alias=None) for name in cls.__annotations__}

    def __init__(self, **values: Any) -> None:
        for name in self.model_fields:
            setattr(self, name, values[name] if name in values else getattr(type(self), name))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return id(type(self))

    def model_dump(self, mode: str = "python") -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def model_validate(cls, data: Any) -> Self:
        def nested(type: Any, value: Any) -> Any:
            return type.model_validate(value)

        hints = get_type_hints(cls)
        given = {name: value for name, value in data.items() if name in cls.model_fields}
        if lacking := [name for name in cls.model_fields if name not in given and not hasattr(cls, name)]:
            raise ValueError(f"{lacking} are required")
        return cls(**{name: msgspec.convert(given[name], hints[name], dec_hook=nested) for name in given})

    def but(self, **values: Any) -> Self:
        return type(self)(**(vars(self) | values))


# -- Kinds of records ----------------------------------------------------------------------------------


class Open(msgspec.Struct, tag=True):
    id: str
    limit: int = 0


class Line(Model):
    text: str
    count: int = 1


class Put(Model):
    id: str
    line: Line


@dataclass
class Close:
    id: str
    how: Literal["well", "badly"] = "well"


class Opened(msgspec.Struct, frozen=True):
    limit: int


class LinePut(Model):
    line: Line


@dataclass(frozen=True)
class Closed:
    how: str


class Ask(Model):
    text: str


class Basket(Model):
    limit: int = 0
    lines: list[Line] = []  # noqa: RUF012  (as pydantic has it)
    closed: str | None = None


class Mixed(Decider[Basket, Open | Put | Close, Opened | LinePut | Closed, Ask]):
    type = "mixed"
    snapshot_every = 1
    observe = True

    def initial(self) -> Basket:
        return Basket()

    def decide(self, state: Basket, input: Open | Put | Close, now: datetime) -> Decision:
        match input:
            case Open():
                decision = Decision.event(Opened(input.limit)).with_effect(Ask(text="more"))
                return decision.with_timer(after=timedelta(hours=1), input=Close(input.id, "badly"), key="k")
            case Put():
                return Decision.event(LinePut(line=input.line))
        return Decision.event(Closed(input.how)).cancel_timer("k")

    def evolve(self, state: Basket, event: Opened | LinePut | Closed) -> Basket:
        match event:
            case Opened():
                return state.but(limit=event.limit)
            case LinePut():
                return state.but(lines=[*state.lines, event.line])
        return state.but(closed=event.how)

    def is_terminal(self, state: Basket) -> bool:
        return state.closed is not None

    def handle(self, effect: Ask, ctx: EffectContext) -> Put:
        return Put(id=ctx.instance, line=Line(text=effect.text, count=2))


def test_every_kind_of_record_comes_back_as_it_was(apps: Apps) -> None:
    app = apps(Mixed)
    assert app.execute(Mixed, Open("b", 5)) == [Opened(5)]
    eventually(lambda: len(app.events(Mixed, "b")) == 2, "the effect has answered")
    assert app.execute(Mixed, Put(id="b", line=Line(text="x"))) == [LinePut(line=Line(text="x"))]
    assert app.execute(Mixed, Close("b")) == [Closed("well")]
    expected = Basket(limit=5, lines=[Line(text="more", count=2), Line(text="x")], closed="well")
    assert app.state_at(Mixed, "b") == expected
    assert apps(Mixed, worker=False).state_at(Mixed, "b", sequence=3).lines[1] == Line(text="x")
    assert types(app, Mixed, "b") == ["Opened", "LinePut", "LinePut", "Closed", "detent.TimerCancelled"]


def test_every_kind_of_record_can_be_given_by_name(apps: Apps) -> None:
    app = apps(Mixed, worker=False)
    for payload in (
        {"type": "Open", "id": "b", "limit": 5},
        {"type": "Put", "id": "b", "line": {"text": "x", "count": 3}},
        {"type": "Close", "id": "b"},
    ):
        assert len(app.execute_dynamic("mixed", payload)) == 1
    assert app.state_at(Mixed, "b") == Basket(limit=5, lines=[Line(text="x", count=3)], closed="well")


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "Put", "id": "b", "line": {"text": 7}},
        {"type": "Put", "id": "b"},
        {"type": "Put", "id": "b", "line": {"text": "x"}, "more": 1},
        {"type": "Open", "id": "b", "limit": "five"},
        {"type": "Close", "id": "b", "how": "somehow"},
    ],
    ids=["nested", "missing", "extra", "struct", "literal"],
)
def test_a_record_that_does_not_fit_is_refused_whatever_its_kind(apps: Apps, payload: Any) -> None:
    app = apps(Mixed, worker=False)
    with pytest.raises(detent.DetentError, match="mixed"):
        app.execute_dynamic("mixed", payload)
    assert sql(app, "SELECT COUNT(*) FROM detent_runs") == [(0,)]


# -- Texts ---------------------------------------------------------------------------------------------


def test_any_text_comes_back(apps: Apps) -> None:
    app = apps(decider := log(snapshot_every=1, observe=True))
    for number, text in enumerate(TEXTS):
        app.execute(decider, Say("l", text, mails=[text], timers={f"k{number}": 0.0}), input_id=f"x{number}")
    eventually(lambda: len(texts(app, decider)) == 3 * len(TEXTS), "all has been answered")
    said = texts(app, decider)
    assert [text for text in said if text in TEXTS] == TEXTS
    assert sorted(text for text in said if text.startswith("sent ")) == sorted(
        f"sent {text}" for text in TEXTS
    )
    assert apps(decider, worker=False).state_at(decider, "l").said == said


def test_any_text_comes_back_through_an_inbox(apps: Apps) -> None:
    app = apps(Log)
    for text in TEXTS:
        app.enqueue_input(Log, Say("l", text))
    eventually(lambda: texts(app, Log) == TEXTS, "all were decided")


@pytest.mark.parametrize(
    "instance", ["a:b", "a/b", "a!b", "ä ö", "A", "\N{COLLISION SYMBOL}", "%s", "x" * 200]
)
def test_an_instance_may_be_called_almost_anything(apps: Apps, instance: str) -> None:
    app = apps(Log)
    app.execute(Log, Say(instance, "a", mails=["one"], timers={"k": 0.0}))
    app.enqueue_input(Log, Say(instance, "b"))
    eventually(lambda: len(texts(app, Log, instance)) == 4, "all of it has happened")
    assert len(app.state_at(Log, instance).said) == 4
    assert app.run(f"log:{instance}").id == f"log:{instance}"


def test_instances_whose_names_differ_by_case_or_accent_are_two(apps: Apps) -> None:
    app = apps(Log, worker=False)
    for instance in ("a", "A", "ä", "Ä", "a\u0308"):
        app.execute(Log, Say(instance, instance), input_id="x")
    assert [texts(app, Log, one) for one in ("a", "A", "ä", "Ä", "a\u0308")] == [
        ["a"],
        ["A"],
        ["ä"],
        ["Ä"],
        ["a\u0308"],
    ]


def test_keys_of_timers_that_differ_by_case_are_two(apps: Apps) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a", timers={"k": 60.0, "K": 60.0}))
    app.execute(Log, Say("l", "b", cancels=["K"]))
    assert [one.event for one in app.events(Log, "l", after=2)] == [detent.TimerCancelled("K")]


def test_a_status_may_hold_what_no_database_can_store(apps: Apps) -> None:
    class Odd(Log):
        type = "odd"
        observe = True

        def status(self, state: Any) -> str:
            return f"a\x00b\ud800{'x' * 300}"

    app = apps(Odd, worker=False)
    assert app.execute(Odd, Say("l", "a"))
    [(status,)] = sql(app, "SELECT to_status FROM detent_inputs")
    assert status.startswith("a\\x00b")


# -- Sizes ---------------------------------------------------------------------------------------------


def test_a_state_that_is_too_large_for_a_snapshot_does_not_cost_others_theirs(apps: Apps) -> None:
    decider = log(snapshot_every=2)
    app = apps(decider, worker=False, max_payload=100_000)
    for number in range(4):
        app.execute(decider, Say("large", f"{number}" * 60_000))
    for _ in range(4):
        app.execute(decider, Say("small", "x"))
    assert sql(app, "SELECT run_id, sequence FROM detent_snapshots") == [("log:small", 4)]
    assert len(remembered(app, decider, "large").said) == 4


# -- From asyncio --------------------------------------------------------------------------------------


def test_the_verbs_of_asyncio_are_those_of_the_app(url: str) -> None:

    async def main() -> None:
        async with AsyncApp(url, include=[Log]) as app:
            [event] = await app.execute_dynamic("log", {"type": "Say", "id": "l", "text": "a"})
            assert event.text == "a"
            assert await app.execute(Log, Say("l", "b"), input_id="x") != []
            assert await app.execute(Log, Say("l", "b"), input_id="x") == []
            assert await app.enqueue_input(Log, Say("l", "c"), input_id="y") is True
            assert await app.enqueue_input(Log, Say("l", "c"), input_id="y") is False
            while len(await app.events(Log, "l")) < 3:
                await asyncio.sleep(0.01)
            assert (await app.state_at(Log, "l")).said == ["a", "b", "c"]
            assert (await app.state_at(Log, "l", sequence=1)).said == ["a"]
            assert [one.sequence for one in await app.events(Log, "l", after=1, limit=1)] == [2]
            with pytest.raises(detent.DetentError):
                await app.execute_dynamic("log", {"type": "Shout"})
            run = await app.run("log:l")
            await run.pause()
            with pytest.raises(detent.InvalidState):
                await app.execute(Log, Say("l", "d"))

    asyncio.run(asyncio.wait_for(main(), 30))
