"""A call's arguments as they are stored: `{"args": [...], "kwargs": {...}}`."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import CannotDecode
from ..functions import Definition
from ..serialization import Codec


class _Call(msgspec.Struct, omit_defaults=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class _StoredCall(msgspec.Struct):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


def encode_call(codec: Codec, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the stored form of a call's arguments."""
    return codec.encode(_Call(list(args), kwargs), what)


def decode_call(
    codec: Codec, definition: Definition[Any, Any], text: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return stored arguments as the definition's annotations want them."""
    call: _StoredCall = codec.decode(text, _StoredCall, f"the input of {definition.name!r}")
    kinds, named = definition.argument_types(len(call.args), tuple(call.kwargs))
    what = f"an argument of {definition.name!r}"
    args = tuple(codec.convert(raw, kind, what) for raw, kind in zip(call.args, kinds, strict=True))
    kwargs = {
        name: codec.convert(raw, named[name], f"{name!r} of {definition.name!r}")
        for name, raw in call.kwargs.items()
    }
    return args, kwargs


def same_call(codec: Codec, definition: Definition[Any, Any], one: str, other: str) -> bool:
    """Whether two stored calls pass equal arguments.

    Their texts may differ all the same: encryption never writes the same text twice,
    and a set has no order.
    """
    if one == other:
        return True
    try:
        if codec.decode(one) == codec.decode(other):
            return True
        return decode_call(codec, definition, one) == decode_call(codec, definition, other)
    except CannotDecode:  # to the types of today
        return False
