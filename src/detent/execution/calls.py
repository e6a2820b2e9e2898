"""A call's arguments as they are stored: `{"args": [...], "kwargs": {...}}`."""

from __future__ import annotations

from typing import Any

import msgspec

from ..definitions.functions import Definition
from ..errors import CannotDecode
from ..serialization.codec import Codec
from ..serialization.signatures import positional

KWARGS = '"kwargs"'
_EXACT = (str, int, float, bool)  # a value of exactly this class is read back as it is


class _Call(msgspec.Struct, omit_defaults=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class _StoredCall(msgspec.Struct):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


def encode_call(
    codec: Codec,
    what: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    definition: Definition[Any, Any] | None = None,
) -> str:
    """Return the stored form of a call's arguments, as the definition's annotations want them."""
    if definition is not None and definition.has_forms:
        types, named = definition.argument_types(len(args), tuple(kwargs))
        args = tuple(codec.dump(value, kind, what) for value, kind in zip(args, types, strict=True))
        kwargs = {name: codec.dump(value, named[name], what) for name, value in kwargs.items()}
    return codec.encode(_Call(list(args), kwargs), what)


def encode_checked(
    codec: Codec, what: str, args: tuple[Any, ...], kwargs: dict[str, Any], definition: Definition[Any, Any]
) -> str:
    """The same for a call that another process will make: its arguments must be read back as annotated.

    Raises CannotDecode, naming the parameter.  What decoding converts is accepted: 1 for a float.
    """
    definition.check_parameters()
    text = encode_call(codec, what, args, kwargs, definition)
    types, named = definition.argument_types(len(args), tuple(kwargs))
    if not all(map(_fits, args, types)) or not all(_fits(kwargs[name], named[name]) for name in kwargs):
        decode_call(codec, definition, text)
    return text


def _fits(value: Any, kind: Any) -> bool:
    return kind is Any or (type(value) is kind and kind in _EXACT)


def decode_call(
    codec: Codec, definition: Definition[Any, Any], text: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return stored arguments as the definition's annotations want them."""
    if definition.stored_call is not None and KWARGS not in text:
        try:
            return codec.decode(text, definition.stored_call).args, {}
        except CannotDecode:  # below, the error names the argument
            pass
    call: _StoredCall = codec.decode(text, _StoredCall, f"the input of {definition.name!r}")
    types, named = definition.argument_types(len(call.args), tuple(call.kwargs))
    args = [
        _read(codec, definition, n, raw, kind)
        for n, (raw, kind) in enumerate(zip(call.args, types, strict=True))
    ]
    kwargs = {
        name: codec.convert(raw, named[name], f"the argument {name!r} of {definition.name!r}")
        for name, raw in call.kwargs.items()
    }
    return tuple(args), kwargs


def _read(codec: Codec, definition: Definition[Any, Any], place: int, raw: msgspec.Raw, kind: Any) -> Any:
    try:
        return codec.convert(raw, kind, "")
    except CannotDecode as error:
        name = positional(definition.own_parameters, place + 1)[place]
        error.what = f"the argument {name!r} of {definition.name!r}"
        raise


def same_call(codec: Codec, definition: Definition[Any, Any], one: str, other: str) -> bool:
    """Whether two stored calls pass equal arguments.

    Their texts may differ nevertheless: encryption never writes the same text twice,
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
