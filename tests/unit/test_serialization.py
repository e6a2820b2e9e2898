"""Payloads: what goes in comes out equal, or is refused at the door."""

import math
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import CannotDecode, NotSerializable, PayloadError, PayloadTooLarge
from detent.serialization.codec import DEFAULT_MAX_PAYLOAD, Codec, plain


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Mood(StrEnum):
    FINE = "fine"


@dataclass
class Line:
    sku: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


@dataclass
class Order:
    lines: list[Line]
    at: datetime


class Point(msgspec.Struct):
    x: int
    y: float | None = None


class Pair(NamedTuple):
    left: int
    right: str


class Card(TypedDict):
    number: str


class Model:
    """Looks like a pydantic model, as far as we look."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def model_dump(self, mode: str = "python") -> dict[str, Any]:
        return {"value": self.value}

    @classmethod
    def model_validate(cls, data: Any) -> "Model":
        if not isinstance(data, dict) or "value" not in data:
            raise ValueError("value: Field required")
        return cls(data["value"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


ROUND_TRIPS: list[tuple[Any, Any]] = [
    (None, None),
    (True, bool),
    (-(2**63), int),
    (10**30, int),
    (1.5e-300, float),
    ("🚀 \x00 \" ' \\ \u2028", str),
    (b"\x00\xff", bytes),
    (datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC), datetime),
    (date(2024, 2, 29), date),
    (timedelta(days=1, microseconds=1), timedelta),
    (Decimal("1.10"), Decimal),
    (Decimal("NaN"), Decimal),
    (uuid.UUID(int=7), uuid.UUID),
    ({1, 2}, set[int]),
    (frozenset({"a"}), frozenset[str]),
    ((1, "a"), tuple[int, str]),
    ({1: "a"}, dict[int, str]),
    (Colour.RED, Colour),
    (Size.SMALL, Size),
    (Mood.FINE, Mood),
    (Line("a", Decimal("9.99"), {"x"}), Line),
    (Order([Line("a", Decimal(1))], datetime(2024, 1, 1, tzinfo=UTC)), Order),
    (Point(1), Point),
    ([Point(1, 2.5), None], list[Point | None]),
    (Pair(1, "a"), Pair),
    ({"number": "4111"}, Card),
    ("a", Literal["a", "b"]),
    (Model([1, 2]), Model),
    ([Model(1)], list[Model]),
]


@pytest.mark.parametrize(("value", "type"), ROUND_TRIPS, ids=lambda item: str(item)[:40])
def test_a_value_comes_back_equal_and_of_its_type(value: Any, type: Any) -> None:
    codec = Codec()
    found = codec.decode(codec.encode(value, "it"), type)
    assert repr(found) == repr(value) or found == value
    assert isinstance(found, value.__class__)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_plain_value_comes_back_equal(value: Any) -> None:
    codec = Codec()
    text = codec.encode(value, "it")
    assert codec.decode(text) == value
    assert "\x00" not in text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda number: number,
        lambda number: [1, [number]],
        lambda number: {"a": {"b": number}},
        lambda number: (None, number),
        lambda number: Point(1, number),
        lambda number: Line("a", number),
        Model,
        lambda number: [Model([number])],
    ],
    ids=["bare", "list", "dict", "tuple", "struct", "dataclass", "model", "model in a list"],
)
def test_a_number_that_json_does_not_have_is_refused_wherever_it_hides(number: float, wrap: Any) -> None:
    with pytest.raises(NotSerializable, match="NaN or infinite"):
        Codec().encode(wrap(number), "the result of 'charge'")


def test_an_honest_null_is_not_taken_for_nan() -> None:
    assert Codec().encode({"a": None, "b": 1.5, "null": [None]}, "it") == '{"a":null,"b":1.5,"null":[null]}'


@pytest.mark.parametrize("value", ["\ud800", ["\udfff"], {"\ud800": 1}, Line("\ud800", Decimal(1))])
def test_a_lone_surrogate_is_refused(value: Any) -> None:
    with pytest.raises(NotSerializable, match="surrogates not allowed") as caught:
        Codec().encode(value, "it")
    assert caught.value.type == "str"


class Gadget:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Gadget(),
        [1, "a", Gadget()],
        {"a": {"b": [Gadget()]}},
        ({"x": (Gadget(),)},),
        Line(Gadget(), Decimal(1)),  # type: ignore[arg-type]
        [Point(Gadget())],  # type: ignore[arg-type]
    ],
    ids=["bare", "list", "nested", "tuple", "dataclass", "struct"],
)
def test_the_error_names_the_innermost_type_that_has_no_json_form(value: Any) -> None:
    with pytest.raises(NotSerializable) as caught:
        Codec().encode(value, "the result of step 'charge'")
    assert caught.value.type == "Gadget"
    assert "the result of step 'charge'" in str(caught.value)
    assert isinstance(caught.value, PayloadError)


@pytest.mark.parametrize("value", [lambda: 0, range(3), complex(1), ValueError("x"), Gadget, Model, iter([])])
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(NotSerializable):
        Codec().encode(value, "it")


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotSerializable):
        Codec().encode(endless, "it")


def test_the_largest_payload_is_measured_in_bytes() -> None:
    codec = Codec(max_payload=10)
    assert codec.encode("12345678", "it") == '"12345678"'
    with pytest.raises(PayloadTooLarge) as caught:
        codec.encode("üüüüü", "the input")
    assert (caught.value.what, caught.value.size, caught.value.limit) == ("the input", 12, 10)


def test_four_mebibytes_are_allowed_unless_told_otherwise() -> None:
    assert len(Codec().encode("x" * (DEFAULT_MAX_PAYLOAD - 2), "it")) == DEFAULT_MAX_PAYLOAD
    with pytest.raises(PayloadTooLarge):
        Codec().encode("x" * (DEFAULT_MAX_PAYLOAD - 1), "it")


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ('"x"', int),
        ("{}", Point),
        ("5", Model),
        ("{", Any),
        ("1", complex),
        ('{"x":"a"}', Point),
        ("", Any),
    ],
)
def test_what_does_not_fit_the_annotation_says_so(text: str, type: Any) -> None:
    with pytest.raises(CannotDecode, match="the input of 'charge'"):
        Codec().decode(text, type, "the input of 'charge'")


def test_an_annotation_that_cannot_be_hashed_is_no_obstacle() -> None:
    kind = Annotated[int, msgspec.Meta(ge=1), []]
    assert Codec().decode("1", kind) == 1


class Mirror:
    """The simplest transform that one can see."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


@pytest.mark.parametrize("value", [None, {"a": [1, None]}, "text"])
def test_a_transform_sees_every_payload(value: Any) -> None:
    codec = Codec(transform=Mirror())
    text = codec.encode(value, "it")
    assert text == Codec().encode(value, "it")[::-1]
    assert codec.decode(text) == value


@given(st.text(st.characters()))
def test_plain_text_can_be_stored_everywhere(text: str) -> None:
    found = plain(text)
    assert "\x00" not in found
    assert found.encode().decode() == found
    if "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        assert found == text


@pytest.mark.parametrize("annotated", [True, False])
@given(value=st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.none()))
def test_a_stored_value_is_what_is_read_back_later(annotated: bool, value: Any) -> None:
    codec, type_ = Codec(), type(value) if annotated else Any
    try:
        text, now = codec.stored(value, "a value", type_)
    except PayloadError:
        with pytest.raises(PayloadError):
            codec.encode(value, "a value", type_)
        return
    later = codec.decode(text, type_)
    assert (later, type(later), repr(later)) == (now, type(now), repr(now))


def test_a_stored_value_that_does_not_fit_its_annotation_is_refused() -> None:
    codec = Codec()
    with pytest.raises(CannotDecode):
        codec.stored("7", "a value", int)
    with pytest.raises(CannotDecode):
        codec.stored(None, "a value", int)
    assert codec.stored(1, "a value", float) == ("1", 1.0)
    assert type(codec.stored(1, "a value", float)[1]) is float
    assert type(codec.stored(True, "a value", bool)[1]) is bool


def test_a_transformed_value_is_read_back_through_the_transform() -> None:
    class Backwards:
        decoded = 0

        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            self.decoded += 1
            return text[::-1]

    transform = Backwards()
    assert Codec(transform=transform).stored(12, "a value", int) == ("21", 12)
    assert transform.decoded == 1
