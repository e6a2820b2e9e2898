"""Annotated values: the first run and every replay see the same value, of the annotated type."""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import pytest

import detent
from detent import step, workflow
from detent.errors import CannotDecode, DefinitionError
from tests.functions.world import SOON, Apps, result

if TYPE_CHECKING:
    from fractions import Fraction

NOW = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)


@dataclass
class Paid:
    id: str


@dataclass
class Refused:
    id: str


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Point(enum.Enum):
    ORIGIN = (0, 0)
    X = (1, 0)


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
VALUES: list[tuple[Any, Any]] = [
    (Paid | Refused, Refused("1")),
    (list[Paid | Refused], [Paid("1"), Refused("2")]),
    (Pet, Dog()),
    (datetime | str, NOW),
    (Path, Path("a/b")),
    (dict[Point, Decimal | str], {Point.X: Decimal("1.5")}),
    (Point | None, Point.X),
]


@pytest.mark.parametrize(("type", "value"), VALUES, ids=lambda it: str(it)[:30])
@pytest.mark.parametrize("how", ["called", "spawned", "transactional", "child", "async"])
def test_the_first_run_and_a_replay_see_the_annotated_value(
    apps: Apps, type: Any, value: Any, how: str
) -> None:
    seen: list[Any] = []

    def body(given: Any) -> Any:
        assert given == value
        assert given.__class__ is value.__class__
        return given

    def transactional(tx: Any, given: Any) -> Any:
        return body(given)

    async def soon(given: Any) -> Any:
        return body(given)

    for function in (body, transactional, soon):
        function.__annotations__ = {"given": type, "return": type}
    made: Any
    if how == "child":
        made = workflow(id="inner")(body)
    elif how == "transactional":
        made = step(id="inner", transactional=True)(transactional)
    else:
        made = step(id="inner")(soon if how == "async" else body)

    def flow(given: Any) -> Any:
        found = made.spawn(given).result() if how == "spawned" else made.sync(given)
        seen.append(found)
        detent.sleep(SOON)
        assert body(given) == found
        return found

    flow.__annotations__ = {"given": type, "return": type}
    outer: Any = workflow(flow)
    run = apps(outer, made).start(outer, value)
    assert result(run) == value
    assert seen == [value, value]
    assert {one.__class__ for one in seen} == {value.__class__}


@step
def charge(order: int) -> Paid | Refused:
    return Refused(str(order))


@step
def undo(payment: Paid | Refused) -> Paid | Refused:
    return payment


def test_a_compensation_gets_the_annotated_values(apps: Apps) -> None:
    undone: list[Any] = []

    @step
    def pay(payment: Paid | Refused) -> Paid | Refused:
        return Paid(payment.id)

    @step
    def refund(payment: Paid | Refused, result: Paid | Refused) -> None:
        undone.append((payment, result))

    pay.compensate_with(refund)

    @workflow
    def flow() -> None:
        pay(Refused("1"))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        result(apps(flow, refund).start(flow))
    assert undone == [(Refused("1"), Paid("1"))]


class Shop(detent.Workflow):
    payment: Paid | Refused
    at: datetime | str = "never"

    @detent.step
    def look(self) -> None:
        assert (self.payment, self.at) == (Refused("1"), NOW)


def test_the_fields_of_a_class_are_as_annotated(apps: Apps) -> None:
    run = apps(Shop).start(Shop, payment=Refused("1"), at=NOW)
    result(run)
    assert run.state == "finished"


def test_values_between_nodes_of_a_graph_keep_their_types(apps: Apps) -> None:
    seen: list[Any] = []

    @step
    def look(payment: Paid | Refused) -> None:
        seen.append(payment)

    g = detent.Graph("payments")
    first = g.node("charge", job=charge, args={"order": 1})
    g.node("look", job=look, args={"payment": first.output})
    result(apps(charge, look).start(g))
    assert seen == [Refused("1")]


# -- definitions that are refused ---------------------------------------------------------------------


class Gadget: ...


def test_a_result_that_could_not_come_back_is_refused_when_the_step_is_defined() -> None:
    with pytest.raises(
        DefinitionError, match=r"step 'make' .* returns Gadget: Gadget cannot be represented as JSON"
    ):

        @step
        def make() -> Gadget:
            return Gadget()


def test_an_argument_that_could_not_come_back_is_refused_when_the_workflow_is_defined() -> None:
    with pytest.raises(DefinitionError, match=r"workflow 'flow' .* parameter 'call' of type .*Callable"):

        @workflow
        def flow(call: Callable[[], int]) -> None: ...


def test_a_union_that_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(DefinitionError, match="cannot be told apart"):

        @step
        def many() -> list[Paid] | list[Refused]:
            return []


def test_a_field_that_could_not_come_back_is_refused_when_its_class_is_included() -> None:
    class Broken(detent.Workflow):
        gadget: Gadget

        @detent.step
        def look(self) -> None: ...

    with pytest.raises(DefinitionError, match=r"Broken\.gadget has the type Gadget"):
        detent.App("sqlite:///:memory:", include=[Broken])


@step
def later() -> "Later":
    return Later("1")


@workflow
def uses_later(given: "Later | Paid") -> "Later | Paid":
    return given


@dataclass
class Later:
    id: str


@workflow
def never_known(number: "Fraction") -> None: ...


def test_what_is_defined_later_is_known_when_it_is_included(apps: Apps) -> None:
    assert result(apps(uses_later).start(uses_later, Later("1"))) == Later("1")


def test_a_name_that_nobody_defines_is_refused_when_it_is_included() -> None:
    with pytest.raises(DefinitionError, match=r"'number' of type Fraction, .* TYPE_CHECKING"):
        detent.App("sqlite:///:memory:", include=[never_known])


def test_a_step_may_take_what_cannot_be_stored_unless_it_is_spawned(apps: Apps) -> None:
    @step
    def use(gadget: Gadget) -> int:
        return 7

    @workflow
    def calls() -> int:
        return use(Gadget())

    @workflow
    def spawns() -> int:
        return use.spawn({"a": 1}).result()  # type: ignore[arg-type]

    app = apps(calls, spawns)
    assert result(app.start(calls)) == 7
    with pytest.raises(Exception, match="parameter 'gadget' of type"):
        result(app.start(spawns))


# -- arguments of start -------------------------------------------------------------------------------


@workflow
def fulfil(order: int, price: float = 1.0, *tags: str, at: datetime | None = None) -> float:
    return order * price


def test_a_wrong_argument_is_refused_where_the_run_is_started(apps: Apps, url: str) -> None:
    app: Any = apps(fulfil, worker=False)
    with pytest.raises(CannotDecode, match="the argument 'order' of 'fulfil' does not fit int"):
        app.start(fulfil, "one")
    with pytest.raises(CannotDecode, match="'price'"):
        app.options(id="x").start(fulfil, 1, price="much")
    with pytest.raises(CannotDecode, match="'tags'"):
        app.start(fulfil, 1, 2.0, "a", 5)
    with pytest.raises(CannotDecode, match="'at'"):
        app.start(fulfil, 1, at="tomorrow")
    with pytest.raises(CannotDecode, match=r"call 2 of start_many\(\): the argument 'order'"):
        app.start_many(fulfil, [(1,), (2,), ("three",), (4,)])
    with pytest.raises(TypeError, match=r"call 1 of start_many\(\): fulfil\(\)"):
        app.start_many(fulfil, [(1,), ()])
    assert app.runs() == []


def test_a_wrong_argument_is_refused_by_asyncio_too(url: str) -> None:
    async def program() -> None:
        async with detent.AsyncApp(url, include=[fulfil]) as app:
            with pytest.raises(CannotDecode, match="'order'"):
                await app.start(fulfil, "one")  # type: ignore[call-overload]
            with pytest.raises(CannotDecode, match="call 1 of"):
                await app.start_many(fulfil, [(1,), ("two",)])  # type: ignore[list-item, arg-type]
            assert await app.runs() == []

    asyncio.run(program())


def test_a_wrong_argument_is_refused_where_it_is_spawned(apps: Apps) -> None:
    @step
    def double(number: int) -> int:
        return number * 2

    @workflow
    def flow() -> str:
        for definition in (double, fulfil):
            with pytest.raises(CannotDecode, match=r"the argument '(number|order)'"):
                definition.spawn("one")  # type: ignore[arg-type]
        return "refused"

    assert result(apps(flow).start(flow)) == "refused"


def test_what_decoding_converts_is_accepted(apps: Apps) -> None:
    app: Any = apps(fulfil)
    assert result(app.start(fulfil, 2, 3)) == 6.0
    assert result(app.start(fulfil, 2, 3, at="2024-02-29T12:30:00Z")) == 6.0
