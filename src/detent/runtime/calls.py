"""A call's arguments as they are stored: `{"args": [...], "kwargs": {...}}`."""

from __future__ import annotations

from typing import Any

import msgspec

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
