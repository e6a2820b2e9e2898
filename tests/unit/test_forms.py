"""Annotated values come back as annotated, or the annotation is refused."""

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Protocol,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from detent.errors import CannotDecode, NotSerializable
from detent.serialization.annotations import NoForm
from detent.serialization.codec import Codec
from detent.serialization.forms import form_of

T = TypeVar("T")
NOW = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)


@dataclass
class Paid:
    id: str


@dataclass
class Refused:
    id: str


@dataclass
class Fine(Paid):
    reason: str = "late"


class Card(msgspec.Struct):
    number: str


class Wire(msgspec.Struct):
    number: str


class Plus(msgspec.Struct, tag=True):
    left: int


class Minus(msgspec.Struct, tag=True):
    left: int


class Row(msgspec.Struct, array_like=True, tag="row"):
    at: datetime | str


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    name: str


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Horse(pydantic.BaseModel):
    name: str


class Cow(pydantic.BaseModel):
    name: str


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    user: int = pydantic.Field(alias="userId")
    at: datetime = NOW

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return self.user * 2


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@attrs.define
class Plane:
    wings: int
    _secret: str = "x"
    at: datetime | str = "never"
    seats: list[int] = attrs.field(factory=list)


@attrs.frozen
class Boat:
    wings: int


class Ratio(enum.Enum):
    HALF = 0.5
    ONE = 1.0


class Point(enum.Enum):
    ORIGIN = (0, 0)
    X = (1, 0)


class Mixed(enum.Enum):
    NUMBER = 1
    TEXT = "1"
    NOTHING = None


class Alike(enum.Enum):
    TEXT = "1.5"
    EXACT = Decimal("1.5")


class Tools(enum.Enum):
    SPLIT = enum.member(str.split)
    JOIN = enum.member(str.join)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: datetime | str
    right: Path = Path("b")


class Open(TypedDict):
    when: datetime | str
    where: NotRequired[Path]


@dataclass
class Order:
    payment: Paid | Refused
    at: datetime | str
    history: list[Paid | Refused] = field(default_factory=list)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total = len(self.history)


@dataclass(frozen=True, slots=True)
class Tree:
    value: Ratio
    children: tuple["Tree", ...] = ()


@dataclass
class Box(Generic[T]):
    inside: T


@dataclass(frozen=True)
class Place:
    x: int


class UserId(str):
    __slots__ = ()


Number = NewType("Number", int)

ROUND_TRIPS: list[tuple[Any, list[Any]]] = [
    (Paid | Refused, [Paid("1"), Refused("1")]),
    (Paid | Fine, [Paid("1"), Fine("1")]),
    (Paid | Refused | None, [Paid("1"), None]),
    (Card | Wire, [Card("1"), Wire("1")]),
    (Plus | Minus, [Plus(1), Minus(1)]),
    (Card | Paid | Boat | Plane, [Card("1"), Paid("1"), Boat(2), Plane(2, "y", NOW, [1])]),
    (Row | None, [Row(NOW), Row("then")]),
    (Pet, [Cat(name="a"), Dog(name="a")]),
    (list[Pet] | None, [[Cat(name="a"), Dog(name="b")], None]),
    (dict[str, Pet], [{"x": Dog(name="b")}]),
    (Horse | Cow, [Horse(name="a"), Cow(name="a")]),
    (Aliased, [Aliased(userId=3)]),
    (Aliased | Horse, [Aliased(userId=3), Horse(name="x")]),
    (Plane, [Plane(2, "y", NOW), Plane(2)]),
    (datetime | str, [NOW, NOW.isoformat()]),
    (datetime | date | str | int | float, [NOW, date(2024, 1, 1), "x", 1, 1.0]),
    (datetime | float | int, [NOW, 1, 1.5]),
    (Decimal | str | None, [Decimal("1.50"), "1.50", None]),
    (UUID | str, [UUID(int=7), str(UUID(int=7))]),
    (bytes | str, [b"aGk=", "aGk="]),
    (timedelta | str, [timedelta(seconds=5), "PT5S"]),
    (Path | str, [Path("a/b"), "a/b"]),
    (Path, [Path("a/b")]),
    (PurePosixPath | None, [PurePosixPath("a"), None]),
    (list[Path], [[Path("a")]]),
    (dict[Path, int], [{Path("a"): 1}]),
    (Ratio, list(Ratio)),
    (Point, list(Point)),
    (Mixed, list(Mixed)),
    (Mixed | None, [Mixed.NUMBER, None]),
    (Alike, list(Alike)),
    (Tools, list(Tools)),
    (Rights, [Rights.READ | Rights.WRITE]),
    (Point | Ratio, [Point.X, Ratio.ONE]),
    (list[Ratio], [[Ratio.HALF, Ratio.ONE]]),
    (set[Point], [{Point.X}]),
    (frozenset[Point], [frozenset({Point.X})]),
    (dict[Point, Ratio], [{Point.X: Ratio.ONE}]),
    (dict[Place, str], [{Place(1): "a"}]),
    (dict[tuple[int, int], str], [{(1, 2): "a"}]),
    (dict[int | str, int], [{1: 1, "1": 2}]),
    (dict[bool, int], [{True: 1}]),
    (dict[UUID, datetime | str], [{UUID(int=1): NOW}]),
    (tuple[Ratio, datetime | str], [(Ratio.ONE, NOW), (Ratio.HALF, "x")]),
    (tuple[Ratio, ...], [(Ratio.ONE,) * 3]),
    (Sequence[Ratio], [[Ratio.ONE]]),
    (Mapping[str, Ratio], [{"a": Ratio.ONE}]),
    (deque[Ratio], [deque([Ratio.ONE])]),
    (OrderedDict[str, int], [OrderedDict(a=1)]),
    (list[int] | set[int] | tuple[int, ...], [[1], {1}, (1,)]),
    (list[Paid | Refused] | Paid, [[Paid("1"), Refused("2")], Paid("3")]),
    (Paid | dict[str, Any], [Paid("1"), {"id": "1"}, {"$type": "Paid", "id": "1"}]),
    (Pair, [Pair(NOW), Pair("x", Path("c"))]),
    (Open, [{"when": NOW, "where": Path("a")}, {"when": "x"}]),
    (Order, [Order(Refused("1"), NOW, [Paid("2"), Refused("3")]), Order(Paid("1"), "x")]),
    (Order | Paid, [Order(Paid("1"), NOW), Paid("1")]),
    (Tree, [Tree(Ratio.ONE, (Tree(Ratio.HALF), Tree(Ratio.ONE, (Tree(Ratio.HALF),))))]),
    (Box[datetime | str], [Box(NOW), Box("x")]),
    (Box[int], [Box(1)]),
    (Literal["a", "b"] | datetime, ["a", NOW]),
    (Literal[Ratio.HALF, "x"], [Ratio.HALF, "x"]),
    (UserId, [UserId("x")]),
    (UserId | int, [UserId("x"), 1]),
    (Number | datetime | str, [3, NOW, "x"]),
    (Annotated[datetime | str, "when"], [NOW, "x"]),
    (Any, [{"$type": "Paid"}]),
]


@pytest.mark.parametrize(
    ("type", "value"),
    [(type, value) for type, values in ROUND_TRIPS for value in values],
    ids=lambda it: str(it).replace("tests.unit.test_forms.", "")[:50],
)
def test_an_annotated_value_comes_back_equal_and_of_its_type(type: Any, value: Any) -> None:
    codec = Codec()
    text = codec.encode(value, "it", type)
    found = codec.decode(text, type)
    assert found == value
    assert repr(found) == repr(value) or "TzInfo" in repr(found), "pydantic has a UTC of its own"
    assert found.__class__ is value.__class__
    assert codec.encode(found, "it", type) == text, "the second time as the first"


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (Paid | Fine, '{"id":"1","reason":"x"}', {"id": "1", "reason": "x"}),
        (Paid | Refused, '{"id":"1"}', {"id": "1"}),  # it fits both: as before
        (Paid | Wire, '{"number":"1"}', Wire("1")),
        (datetime | str, '"2024-02-29T12:30:00Z"', "2024-02-29T12:30:00Z"),
        (datetime | date, '"2024-02-29"', date(2024, 2, 29)),
        (Ratio, "1", Ratio.ONE),
        (Point, "[1,0]", Point.X),
        (dict[int | str, int], '{"1":2}', {"1": 2}),
        (Pet, '{"kind":"dog","name":"a"}', Dog(name="a")),
        (Aliased, '{"user":3,"at":"2024-02-29T12:30:00Z"}', Aliased(userId=3)),
        (Order, '{"payment":{"id":"1"},"at":"x","history":[],"total":0}', None),
    ],
    ids=str,
)
def test_what_older_versions_wrote_stays_readable(type: Any, text: str, value: Any) -> None:
    found = Codec().decode(text, type)
    assert value is None or found == value


class Gadget: ...


class Shape(Protocol): ...


@dataclass
class Broken:
    gadget: Gadget


@pytest.mark.parametrize(
    "type",
    [
        Gadget,
        list[Gadget],
        Gadget | None,
        Broken,
        dict[str, Broken],
        Shape,
        complex,
        range,
        Callable[[], int],
        Iterator[int],
        Exception,
        list[Paid] | list[Refused],
        Open | dict[str, int],
        type,
    ],
    ids=str,
)
def test_a_type_whose_values_could_not_come_back_is_refused(type: Any) -> None:
    with pytest.raises(NoForm):
        form_of(type)


@pytest.mark.parametrize("type", [str, int, dict, dict[str, Any], list[int], Paid, Card, Cat, None, Path])
def test_plain_types_need_no_form(type: Any) -> None:
    assert form_of(type) is None


def test_json_in_place_of_an_object_is_read_by_its_type() -> None:
    codec = Codec()
    text = codec.encode({"$type": "Refused", "id": "1"}, "it", Paid | Refused)
    assert codec.decode(text, Paid | Refused) == Refused("1")
    text = codec.encode({"number": "1"}, "it", Paid | Wire)
    assert codec.decode(text, Paid | Wire) == Wire("1")


def test_json_that_fits_several_types_is_refused() -> None:
    with pytest.raises(NotSerializable, match="more than one"):
        Codec().encode({"id": "1"}, "it", Paid | Refused)


@pytest.mark.parametrize(
    ("type", "value"),
    [(Paid | Wire, 5), (datetime | str, 5), (Ratio, 3.5), (tuple[Ratio, int], [1]), (Order, {"at": "x"})],
    ids=str,
)
def test_a_value_of_another_type_is_refused(type: Any, value: Any) -> None:
    codec = Codec()
    with pytest.raises((CannotDecode, NotSerializable)):
        codec.decode(codec.encode(value, "it", type), type)


def test_fields_stay_readable_without_the_type() -> None:
    """Expressions and other programs find the fields where they are."""
    assert Codec().encode(Paid("1"), "it", Paid | Refused) == '{"$type":"Paid","id":"1"}'
    assert Codec().encode(Paid("1"), "it", Paid) == '{"id":"1"}'
    assert Codec().encode("x", "it", datetime | str) == '"x"'
