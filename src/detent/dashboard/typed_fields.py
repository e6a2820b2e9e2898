"""Fields of a form from the types of a class or a call: texts, numbers, choices; JSON for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any

import msgspec
from msgspec import inspect

from ..definitions.blueprint import Blueprint
from ..definitions.functions import Definition
from .forms import BadAction, Field, Values

PREFIX = "field."
_TEXTS = (
    inspect.StrType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
)
_HINTS = {
    inspect.IntType: "A whole number",
    inspect.FloatType: "A number",
    inspect.DecimalType: "A number",
    inspect.DateTimeType: "Such as 2026-11-16T12:00:00Z",
    inspect.DateType: "Such as 2026-11-16",
    inspect.TimeType: "Such as 12:00:00",
    inspect.TimeDeltaType: "Such as PT5M",
}


def fields_of(found: Sequence[inspect.Field]) -> tuple[Field, ...]:
    """A field of the form for each of them."""
    return tuple(_field(one) for one in found)


def payload_of(found: Sequence[inspect.Field], values: Values) -> dict[str, Any]:
    """The values of a form by name; BadAction says which one is wrong."""
    payload: dict[str, Any] = {}
    for one in found:
        text = values.get(PREFIX + one.encode_name, "").strip()
        if text or one.required:
            payload[one.encode_name] = _value(one, text)
    return payload


def texts_of(found: Sequence[inspect.Field], payload: Mapping[str, Any]) -> dict[str, str]:
    """JSON values as the form shows them: what `payload_of` reads as the same."""
    return {PREFIX + one.encode_name: _text(one, payload.get(one.encode_name)) for one in found}


def _text(one: inspect.Field, value: Any) -> str:
    if value is None:
        return ""
    type = _plain(one.type)
    if isinstance(type, inspect.BoolType):
        return "yes" if value else "no"
    if isinstance(value, str) and (isinstance(type, _TEXTS) or _choices(type)):
        return value
    return str(value) if _choices(type) else msgspec.json.encode(value).decode()


def described_call(definition: Definition[Any, Any] | Blueprint) -> Sequence[inspect.Field] | None:
    """The parameters of a workflow; None if they cannot be listed, as of `*args`."""
    if isinstance(definition, Blueprint):
        return [
            _parameter(name, type, required=not hasattr(definition.cls, name))
            for name, type in definition.fields.items()
        ]
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    if any(one.kind in several for one in definition.own_parameters):
        return None
    return [
        _parameter(one.name, definition.types.known_hint(one.name), required=one.default is one.empty)
        for one in definition.own_parameters
    ]


def _parameter(name: str, type: Any, *, required: bool) -> inspect.Field:
    try:
        found = inspect.type_info(Any if type is None else type)
    except (TypeError, NameError):
        found = inspect.AnyType()
    return inspect.Field(name=name, encode_name=name, type=found, required=required)


def described(cls: Any) -> Sequence[inspect.Field] | None:
    """The fields of a class; None if it is of a kind that is not known."""
    try:
        found = inspect.type_info(cls)
    except (TypeError, NameError):  # a class of a library, or an annotation that cannot be resolved
        return None
    if isinstance(found, inspect.DataclassType | inspect.StructType | inspect.TypedDictType):
        return found.fields
    return None


def _plain(type: inspect.Type) -> inspect.Type:
    """The type of an optional field without its None."""
    if isinstance(type, inspect.UnionType):
        others = [one for one in type.types if not isinstance(one, inspect.NoneType)]
        return others[0] if len(others) == 1 else type
    return type


def _field(one: inspect.Field) -> Field:
    type, optional = _plain(one.type), _optional(one.type)
    name, label = PREFIX + one.encode_name, one.encode_name.replace("_", " ").capitalize()
    required = one.required and not optional
    choices = _choices(type)
    if choices:
        return Field(name, label, "", "choice", required, choices if required else ("", *choices))
    if isinstance(type, (*_TEXTS, inspect.IntType, inspect.FloatType)):
        hint = _HINTS.get(type.__class__, "")
        return Field(name, label, hint if required else f"{hint or 'A text'}; may be empty", "text", required)
    return Field(name, label, "JSON", "json", required)


def _optional(type: inspect.Type) -> bool:
    return isinstance(type, inspect.UnionType) and type.includes_none


def _choices(type: inspect.Type) -> tuple[str, ...]:
    match type:
        case inspect.BoolType():
            return ("no", "yes")
        case inspect.LiteralType(values=values):
            return tuple(str(value) for value in values)
        case inspect.EnumType(cls=cls):
            return tuple(str(member.value) for member in cls)
    return ()


def _value(one: inspect.Field, text: str) -> Any:
    type = _plain(one.type)
    try:
        match type:
            case inspect.BoolType():
                return {"yes": True, "no": False}[text]
            case inspect.LiteralType(values=values):
                return {str(value): value for value in values}[text]
            case inspect.EnumType(cls=cls):
                return {str(member.value): member.value for member in cls}[text]
            case inspect.IntType():
                return int(text)
            case inspect.FloatType():
                return float(text)
        if isinstance(type, _TEXTS):
            return text
        return None if not text and _optional(one.type) else msgspec.json.decode(text)
    except (KeyError, ValueError, msgspec.DecodeError):
        wanted = "JSON" if not isinstance(type, inspect.IntType | inspect.FloatType) else "a number"
        raise BadAction(
            f"{one.encode_name}: {text!r} is not {wanted}.", field=PREFIX + one.encode_name
        ) from None
