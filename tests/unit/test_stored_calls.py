"""Stored arguments come back as annotated, whether they are decoded at once or one by one."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from detent import workflow
from detent.errors import CannotDecode
from detent.execution.calls import decode_call, encode_call
from detent.serialization.codec import Codec


@dataclass
class Order:
    id: int
    at: datetime


@workflow
def nothing() -> None: ...


@workflow
def several(number: int, order: Order, pair: tuple[int, str], anything: Any) -> None: ...


@workflow
def optional(number: int, other: int = 2) -> None: ...


@workflow
def many(*numbers: int, **named: int) -> None: ...


ORDER = Order(7, datetime(2026, 1, 2))


@pytest.mark.parametrize(
    ("definition", "args", "kwargs"),
    [
        (nothing, (), {}),
        (several, (1, ORDER, (2, "b"), {"kwargs": [1]}), {}),
        (several, (1,), {"order": ORDER, "pair": (2, "b"), "anything": None}),
        (optional, (1,), {}),
        (optional, (1, 3), {}),
        (optional, (), {"number": 1}),
        (many, (1, 2, 3), {"a": 4}),
    ],
)
def test_a_call_comes_back_as_it_was_made(
    definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    codec = Codec()
    text = encode_call(codec, "the input", args, kwargs, definition)
    assert decode_call(codec, definition, text) == (args, kwargs)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"args":["x"]}', "'number'"),
        ('{"args":[1,"x"]}', "'other'"),
        ('{"args":[],"kwargs":{"number":"x"}}', "'number'"),
    ],
)
def test_an_argument_that_cannot_be_read_is_named(text: str, named: str) -> None:
    @workflow
    def strict(number: int) -> None: ...

    definition: Any = optional if "other" in named else strict
    with pytest.raises(CannotDecode, match=named):
        decode_call(Codec(), definition, text)


def test_calls_with_a_fixed_number_of_arguments_are_decoded_at_once() -> None:
    assert several.stored_call is not None
    assert nothing.stored_call is not None
    assert optional.stored_call is None
    assert many.stored_call is None
