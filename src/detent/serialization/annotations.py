"""Looking at annotations: what is inside them, and what msgspec can read by itself.

`needs_form` decides whether values of an annotation come back as annotated without help (see forms.py).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec

from .decoders import decoder

BY_NAME = {"by_name": True, "by_alias": True}  # how pydantic reads what it has dumped, since 2.11
_Class = type  # where a parameter is called `type`
PLAIN: tuple[Any, ...] = (str, int, float, bool, type(None))
_SCALARS: tuple[Any, ...] = (
    *PLAIN,
    *(bytes, bytearray, memoryview, datetime, date, time, timedelta, Decimal, UUID),
    *(msgspec.Raw, msgspec.UnsetType),
)
_KEYS: tuple[Any, ...] = (str, int, float, bytes, datetime, date, time, timedelta, Decimal, UUID)
# What msgspec makes of an abstract annotation, too.
ARRAYS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Set: set,
    abc.MutableSet: set,
}
MAPPINGS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    dict: dict,
    collections.OrderedDict: collections.OrderedDict,
    abc.Mapping: dict,
    abc.MutableMapping: dict,
}
_QUALIFIERS = tuple(
    getattr(typing, name)
    for name in ("Required", "NotRequired", "ReadOnly", "Final")
    if hasattr(typing, name)
)


class NoForm(TypeError):
    """A type whose values cannot come back from JSON."""


def encode_unknown(value: Any) -> Any:
    """What msgspec encodes in place of a value of a class that it does not know."""
    if _is_path(type(value)):
        return str(value)
    if isinstance(value, str):  # a subclass, as below: msgspec takes exact types
        return str.__str__(value)
    for base in (int, float):
        if isinstance(value, base):
            return base(value)
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json", round_trip=True)
    dump = getattr(value, "model_dump", None)  # a class that looks like a pydantic model
    if dump is not None:
        return dump(mode="json")
    if isinstance(value, collections.deque):
        return list(value)
    raise NotImplementedError(f"{type(value).__qualname__} is not supported")


def decode_unknown(type: Any, value: Any) -> Any:
    """A value of a class that msgspec does not know, from decoded JSON."""
    if _is_pydantic(type):
        # From JSON: a strict model takes a datetime from a text only there.  By name: it was dumped so.
        names = BY_NAME if _has_aliases(type) else {}
        return type.model_validate_json(msgspec.json.encode(value), **names)
    validate = getattr(type, "model_validate", None)
    if validate is not None:
        return validate(value)
    if isinstance(type, _Class):
        if isinstance(value, type):
            return value
        is_text = _is_path(type) or issubclass(type, str)
        if is_text and isinstance(value, str):
            return type(value)
        if issubclass(type, int | float) and isinstance(value, int | float) and not isinstance(value, bool):
            return type(value)
        expected = "str" if is_text else "number"
        if is_text or issubclass(type, int | float):
            raise msgspec.ValidationError(f"Expected `{expected}`, got `{_Class(value).__name__}`")
    raise NotImplementedError(f"{getattr(type, '__qualname__', type)} is not supported")


def _is_path(cls: type) -> bool:
    """Whether it is a class of pathlib.  As long as nobody has imported that, there is none."""
    return issubclass(cls, getattr(sys.modules.get("pathlib"), "PurePath", ()))


def _has_aliases(model: Any) -> bool:
    return any(field.validation_alias is not None for field in model.model_fields.values())


def _is_pydantic(cls: Any) -> bool:
    pydantic = sys.modules.get("pydantic")  # a program with a model has imported it
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def bare(type: Any) -> Any:
    """An annotation without names and qualifiers around it."""
    while True:
        origin = typing.get_origin(type)
        if (origin is Annotated and not _has_discriminator(type)) or origin in _QUALIFIERS:
            type = typing.get_args(type)[0]
        elif isinstance(type, typing.NewType):
            type = type.__supertype__
        elif _Class(type).__name__ == "TypeAliasType":
            type = type.__value__
        else:
            return _Class(None) if type is None else type


def _has_discriminator(type: Any) -> bool:
    """Whether pydantic has to read it: `Annotated[Cat | Dog, Field(discriminator="kind")]`."""
    return any(getattr(one, "discriminator", None) is not None for one in type.__metadata__)


def is_union(type: Any) -> bool:
    return typing.get_origin(type) in (typing.Union, types.UnionType)


def members_of(type: Any) -> list[Any]:
    """The members of a union, those of unions inside it too, each once."""
    found: list[Any] = []
    for member in typing.get_args(type):
        member = bare(member)
        for one in members_of(member) if is_union(member) else [member]:
            if one not in found:
                found.append(one)
    return found


def class_of(type: Any) -> Any:
    """The class of an annotation: list for list[int]."""
    return typing.get_origin(type) or type


def is_typeddict(cls: Any) -> bool:
    return typing.is_typeddict(cls)


def is_namedtuple(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def _is_record(cls: Any) -> bool:
    """Whether a class has fields that we know."""
    if not isinstance(cls, type):
        return False
    named = dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__") or is_namedtuple(cls)
    return named or issubclass(cls, msgspec.Struct) or is_typeddict(cls)


class Field:
    """A field of a record: its name, the name in JSON, its type and its default."""

    __slots__ = ("default", "key", "name", "type")

    def __init__(self, name: str, key: str, type: Any, default: Callable[[], Any] | None) -> None:
        self.name = name
        self.key = key
        self.type = type
        self.default = default  # None: it has to be there


def fields_of(type: Any) -> list[Field]:
    cls = class_of(type)
    filled = dict(zip(getattr(cls, "__parameters__", ()), typing.get_args(type), strict=False))
    return [Field(one.name, one.key, _filled(one.type, filled), one.default) for one in _declared_fields(cls)]


def _declared_fields(cls: Any) -> Iterator[Field]:
    if issubclass(cls, msgspec.Struct):
        for info in msgspec.structs.fields(cls):
            yield Field(info.name, info.encode_name, info.type, _default(info, msgspec.NODEFAULT))
        return
    hints = typing.get_type_hints(cls, include_extras=True)
    if is_typeddict(cls):
        for name, hint in hints.items():
            while typing.get_origin(hint) in _QUALIFIERS:
                [hint] = typing.get_args(hint)
            yield Field(name, name, hint, _nothing if name in cls.__optional_keys__ else None)
    elif dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            yield Field(
                field.name, field.name, hints.get(field.name, Any), _default(field, dataclasses.MISSING)
            )
    elif hasattr(cls, "__attrs_attrs__"):
        for attribute in cls.__attrs_attrs__:
            yield Field(
                attribute.name, attribute.name, hints.get(attribute.name, Any), _attrs_default(attribute)
            )
    else:
        for name in cls._fields:
            default = partial(cls._field_defaults.get, name) if name in cls._field_defaults else None
            yield Field(name, name, hints.get(name, Any), default)


def _nothing() -> Any:
    return msgspec.UNSET


def _default(field: Any, missing: Any) -> Callable[[], Any] | None:
    if field.default_factory is not missing:
        factory: Callable[[], Any] = field.default_factory
        return factory
    return None if field.default is missing else lambda: field.default


def _attrs_default(attribute: Any) -> Callable[[], Any] | None:
    default = attribute.default
    if default is sys.modules["attr"].NOTHING:
        return None
    if hasattr(default, "factory"):
        if default.takes_self:
            raise NoForm(f"the default of {attribute.name!r} is computed from the other fields")
        factory: Callable[[], Any] = default.factory
        return factory
    return lambda: default


def _filled(type: Any, arguments: Mapping[Any, Any]) -> Any:
    """A field's type, with the arguments of its generic class in place of the type variables."""
    if isinstance(type, TypeVar):
        return arguments.get(type, Any)
    parameters = getattr(type, "__parameters__", ())
    if isinstance(type, _Class) or not parameters:
        return type
    return type[tuple(arguments.get(one, Any) for one in parameters)]


def needs_form(type: Any) -> bool:
    """Whether msgspec cannot read an annotation as it is, or any part of it; raises NoForm."""
    seen: list[Any] = []
    todo = [type]
    needed = False
    while todo:
        one = bare(todo.pop())
        if one in seen:
            continue
        seen.append(one)
        needed = _is_special(one) or needed
        todo += _parts(one)
    return needed


def _parts(type: Any) -> list[Any]:
    """The types inside of one."""
    if typing.get_origin(type) in (Literal, Annotated):
        return []
    if is_union(type):
        return members_of(type)
    if _is_record(class_of(type)):
        return [field.type for field in fields_of(type)]
    return [part for part in typing.get_args(type) if part is not Ellipsis]


def _is_special(type: Any) -> bool:
    """Whether msgspec does not do what we want of the annotation itself; raises NoForm."""
    origin, cls = typing.get_origin(type), class_of(type)
    if type in (Any, object) or isinstance(type, TypeVar):
        return False
    if origin is Annotated:  # only where pydantic has to read it
        return True
    if type in (typing.Never, typing.NoReturn, typing.LiteralString):
        return True
    if is_union(type):
        return not _readable(type)
    if origin is Literal:
        return not _readable(type)
    if not isinstance(cls, _Class):
        raise NoForm(f"{name_of(type)} is not a type whose values can be stored")
    if issubclass(cls, enum.Enum):
        return not _readable(cls)
    if cls in MAPPINGS:
        key = bare(typing.get_args(type)[0]) if typing.get_args(type) else str
        return not is_key(key) or cls is collections.OrderedDict
    if cls in ARRAYS:
        return cls is collections.deque
    if _is_record(cls):
        # msgspec leaves out the private fields of an attrs class with slots.
        return any(one.name.startswith("_") for one in getattr(cls, "__attrs_attrs__", ()))
    if cls in _SCALARS or cls is tuple or hasattr(cls, "model_validate"):
        return False
    if _is_path(cls) or issubclass(cls, str | int | float):
        return False
    raise NoForm(f"{name_of(type)} cannot be represented as JSON")


def _readable(type: Any) -> bool:
    try:
        decoder(type, decode_unknown)
    except TypeError:
        return False
    return True


def is_key(type: Any) -> bool:
    """Whether JSON objects can have keys of this type, and msgspec reads them back."""
    if type in _KEYS or type is Any or isinstance(type, TypeVar):
        return True
    if typing.get_origin(type) is Literal:
        return len({_Class(value) for value in typing.get_args(type)} | {str}) == 1
    return isinstance(type, _Class) and issubclass(type, enum.Enum) and _readable(type)


def name_of(type: Any) -> str:
    """An annotation as people write it."""
    if typing.get_origin(type) is None and isinstance(type, _Class):
        return type.__qualname__
    return str(type).replace("typing.", "")
