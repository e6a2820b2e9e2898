"""How values of an annotated type are stored, so that they come back as annotated.

msgspec reads most annotations by itself.  `form_of` finds those that it cannot read, or reads as
something else, and answers with a `Form` that can:

    annotation                                  stored as
    A | B, two classes with fields              the fields, and "$type": "A"
    datetime | str, other unions of one kind    str as it is; {"$type": "datetime", "$value": "2024-..."}
    an enum of floats, tuples, mixed values     its value; its name, where values cannot tell members apart
    dict[tuple[int, int], str]                  [[key, value], ...]
    a container or a class with one of these    as always, with these inside

    None         msgspec gives the value back as annotated: nothing has to be done (the usual case)
    Form         `dump` before encoding, `load` after decoding
    NoForm       raised: a value of this type cannot come back from JSON

Values stored without "$type", by older versions or by hand, are read as the one member of the union
that they fit.  Where they fit several, they come back as plain values, as they did before.
"""

from __future__ import annotations

import collections
import enum
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Protocol

import msgspec

from .annotations import (
    ARRAYS,
    BY_NAME,
    MAPPINGS,
    PLAIN,
    Field,
    NoForm,
    bare,
    class_of,
    decode_unknown,
    encode_unknown,
    fields_of,
    is_key,
    is_namedtuple,
    is_typeddict,
    is_union,
    members_of,
    name_of,
    needs_form,
)
from .decoders import decoder, look_at

TAG, VALUE = "$type", "$value"
_READ_AS: dict[Any, Any] = {typing.Never: Any, typing.NoReturn: Any, typing.LiteralString: str}
_Class = type  # where a parameter is called `type`


class Form(Protocol):
    """How values of one type are stored."""

    def dump(self, value: Any) -> Any:
        """What to encode instead of the value.  One of another type is left as it is: loading decides."""
        ...

    def load(self, raw: Any) -> Any:
        """The value of decoded JSON."""
        ...


def form_of(type: Any) -> Form | None:
    """The form of an annotation; None if msgspec needs no help.  Raises NoForm, or NameError."""
    if not needs_form(type):
        try:
            decoder(type, decode_unknown)
        except TypeError as error:
            raise NoForm(str(error)) from None
        return None
    return _Builder().form(type)


class _Builder:
    """Makes the forms of one annotation; a class that contains itself has one form."""

    def __init__(self) -> None:
        self._records: list[tuple[Any, Form]] = []

    def form(self, type: Any) -> Form | None:
        type = bare(type)
        for known, form in self._records:
            if known == type:
                return form
        return self._made(type) if needs_form(type) else None

    def _made(self, type: Any) -> Form:
        origin, cls = typing.get_origin(type), class_of(type)
        if origin is Annotated:
            return _Adapted(type)
        if type in _READ_AS:
            return _Read(_READ_AS[type])
        if is_union(type):
            return self._union(type)
        if origin is Literal:
            return _Choice(list(typing.get_args(type)), [_plain(one) for one in typing.get_args(type)])
        if issubclass(cls, enum.Enum):
            return _enum(cls)
        if cls in MAPPINGS:
            key, value = typing.get_args(type) or (Any, Any)
            return _Mapping(MAPPINGS[cls], key, self.form(key), not is_key(bare(key)), self._some(value))
        if cls in ARRAYS:
            [item] = typing.get_args(type) or [Any]
            return _Array(ARRAYS[cls], self._some(item))
        return self._tuple(type) if cls is tuple else self._record(type, cls)

    def _tuple(self, type: Any) -> Form:
        items = typing.get_args(type)
        if len(items) == 2 and items[1] is Ellipsis:
            return _Array(tuple, self._some(items[0]))
        return _Tuple([self._some(item) for item in items])

    def _some(self, type: Any) -> Form:
        return self.form(type) or _Read(type)

    def _record(self, type: Any, cls: Any) -> Form:
        record = _Record(cls)
        self._records.append((type, record))
        record.fields = [(field, self._some(field.type)) for field in fields_of(type)]
        return record

    def _union(self, type: Any) -> Form:
        members = members_of(type)
        others = [one for one in members if one is not _Class(None)]
        if len(others) == 1:
            return _Optional(self._some(others[0]))
        return _Union(type, [_Member(one, self._some(one)) for one in _distinct(type, members)])


def _distinct(type: Any, members: list[Any]) -> list[Any]:
    """The members, if a value's class tells which one it belongs to."""
    # Literal["a"] | str is str.
    members = [
        one for one in members if typing.get_origin(one) is not Literal or not _classes(one) <= {*members}
    ]
    seen: dict[Any, Any] = {}
    for member in members:
        for cls in _classes(member):
            if cls in seen:
                raise NoForm(
                    f"values of {name_of(type)} cannot be told apart: {name_of(seen[cls])} and "
                    f"{name_of(member)} are both {cls.__name__}"
                )
            seen[cls] = member
    return members


def _classes(member: Any) -> set[Any]:
    """The classes of a member's values."""
    if typing.get_origin(member) is Literal:
        return {_Class(value) for value in typing.get_args(member)}
    cls = class_of(member)
    if is_typeddict(cls):
        return {dict}
    if cls in MAPPINGS:
        return {_Class(MAPPINGS[cls](()))}
    if cls in ARRAYS:
        return {_Class(ARRAYS[cls](()))}
    return {cls}


class _Read:
    """What msgspec reads by itself."""

    __slots__ = ("_type",)

    def __init__(self, type: Any) -> None:
        self._type = type
        look_at(type)

    def dump(self, value: Any) -> Any:
        return value

    def load(self, raw: Any) -> Any:
        return msgspec.convert(raw, self._type, str_keys=True, dec_hook=decode_unknown)


class _Adapted:
    """What pydantic reads: a union with a discriminator."""

    def __init__(self, type: Any) -> None:
        self._adapter = sys.modules["pydantic"].TypeAdapter(type)

    def dump(self, value: Any) -> Any:
        if isinstance(value, dict | list):  # as JSON already: loading decides
            return value
        return self._adapter.dump_python(value, mode="json", round_trip=True)

    def load(self, raw: Any) -> Any:
        return self._adapter.validate_json(msgspec.json.encode(raw), **BY_NAME)


class _Optional:
    def __init__(self, form: Form) -> None:
        self._form = form

    def dump(self, value: Any) -> Any:
        return None if value is None else self._form.dump(value)

    def load(self, raw: Any) -> Any:
        return None if raw is None else self._form.load(raw)


class _Choice:
    """One of a few values: members of an enum, of a Literal."""

    def __init__(self, values: list[Any], stored: list[Any]) -> None:
        self._stored = stored
        self._values = values

    def dump(self, value: Any) -> Any:
        for one, stored in zip(self._values, self._stored, strict=True):
            if one is value or (type(one) is type(value) and one == value):
                return stored
        return value

    def load(self, raw: Any) -> Any:
        for one, stored in zip(self._values, self._stored, strict=True):
            if type(stored) is type(raw) and stored == raw:
                return one
        for one, stored in zip(self._values, self._stored, strict=True):
            if stored == raw and not isinstance(raw, bool) and not isinstance(stored, bool):
                return one  # 1 for 1.0
        raise msgspec.ValidationError(f"{raw!r} is none of {', '.join(map(repr, self._stored))}")


def _enum(cls: Any) -> Form:
    """By value, as msgspec writes it; by name, where values have no JSON form or are alike in JSON."""
    members = list(cls)
    try:
        stored = [_plain(member.value) for member in members]
    except (TypeError, NotImplementedError):
        stored = []
    if len({repr(one) for one in stored}) < len(members):
        stored = [member.name for member in members]
    return _Choice(members, stored)


def _plain(value: Any) -> Any:
    """A value as it is read back without a type."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=encode_unknown))


class _Array:
    def __init__(self, make: Callable[[Iterable[Any]], Any], item: Form) -> None:
        self._make = make
        self._item = item

    def dump(self, value: Any) -> Any:
        if not isinstance(value, list | tuple | set | frozenset | collections.deque):
            return value
        return [self._item.dump(one) for one in value]

    def load(self, raw: Any) -> Any:
        return self._make(self._item.load(one) for one in _expected(list, raw))


class _Tuple:
    def __init__(self, items: list[Form]) -> None:
        self._items = items

    def dump(self, value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(self._items):
            return value
        return [form.dump(one) for form, one in zip(self._items, value, strict=True)]

    def load(self, raw: Any) -> Any:
        if len(_expected(list, raw)) != len(self._items):
            raise msgspec.ValidationError(f"Expected `array` of length {len(self._items)}, got {len(raw)}")
        return tuple(form.load(one) for form, one in zip(self._items, raw, strict=True))


class _Mapping:
    """A JSON object; a list of pairs, where its keys could not be those of an object."""

    def __init__(
        self, make: Callable[[Iterable[Any]], Any], key: Any, form: Form | None, pairs: bool, value: Form
    ) -> None:
        self._make = make
        self._key = form or _Read(key)
        self._keys = dict[key, Any]
        look_at(self._keys)
        self._pairs = pairs
        self._value = value

    def dump(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if self._pairs:
            return [[self._key.dump(name), self._value.dump(one)] for name, one in value.items()]
        return {name: self._value.dump(one) for name, one in value.items()}

    def load(self, raw: Any) -> Any:
        if self._pairs and isinstance(raw, list):
            return self._make((self._key.load(name), self._value.load(one)) for name, one in raw)
        if self._pairs:  # an object: written before keys like these were
            return self._make((self._key.load(name), self._value.load(one)) for name, one in _items(raw))
        keys = msgspec.convert(_expected(dict, raw), self._keys, str_keys=True, dec_hook=decode_unknown)
        return self._make((name, self._value.load(one)) for name, one in keys.items())


def _items(raw: Any) -> Iterable[tuple[Any, Any]]:
    items: Iterable[tuple[Any, Any]] = _expected(dict, raw).items()
    return items


def _expected(kind: Any, raw: Any) -> Any:
    if isinstance(raw, kind):
        return raw
    wanted = "array" if kind is list else "object"
    raise msgspec.ValidationError(f"Expected `{wanted}`, got `{type(raw).__name__}`")


class _Record:
    """A class with fields: the same JSON as msgspec writes, with the forms of its fields inside."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self.fields: list[tuple[Field, Form]] = []
        config = getattr(cls, "__struct_config__", None)
        self._array = is_namedtuple(cls) or bool(config is not None and config.array_like)
        self._tag = (config.tag_field, config.tag) if config is not None and config.tag is not None else None

    def dump(self, value: Any) -> Any:
        if is_typeddict(self._cls):
            if not isinstance(value, dict):
                return value
            known = {field.key: form for field, form in self.fields}
            return {name: form.dump(one) if (form := known.get(name)) else one for name, one in value.items()}
        if not isinstance(value, self._cls):
            return value
        stored = {field.key: _dumped(form, getattr(value, field.name)) for field, form in self.fields}
        if self._array:
            return [*([self._tag[1]] if self._tag else []), *stored.values()]
        found = {name: one for name, one in stored.items() if one is not msgspec.UNSET}
        return {self._tag[0]: self._tag[1], **found} if self._tag else found

    def load(self, raw: Any) -> Any:
        values = self._named(raw)
        found: dict[str, Any] = {}
        for field, form in self.fields:
            if field.key in values:
                try:
                    found[field.name] = form.load(values[field.key])
                except ValueError as error:
                    raise msgspec.ValidationError(f"{error} - at `{field.key}`") from None
            elif field.default is None:
                raise msgspec.ValidationError(f"Object missing required field `{field.key}`")
            else:
                found[field.name] = field.default()
        return self._made({name: value for name, value in found.items() if value is not msgspec.UNSET})

    def _named(self, raw: Any) -> dict[str, Any]:
        """The stored fields, by name."""
        if not self._array:
            named: dict[str, Any] = _expected(dict, raw)
            if self._tag is not None and named.get(self._tag[0]) != self._tag[1]:
                raise msgspec.ValidationError(f"Expected `{self._tag[1]}` as `{self._tag[0]}`")
            return named
        values = _expected(list, raw)
        if self._tag is not None:
            if values[:1] != [self._tag[1]]:
                raise msgspec.ValidationError(f"Expected `{self._tag[1]}` in front")
            values = values[1:]
        return dict(zip((field.key for field, _ in self.fields), values, strict=False))

    def _made(self, values: dict[str, Any]) -> Any:
        if is_typeddict(self._cls):
            return values
        if issubclass(self._cls, msgspec.Struct) or is_namedtuple(self._cls):
            return self._cls(**values)
        # As msgspec makes dataclasses: without __init__, which may take other arguments.
        made = self._cls.__new__(self._cls)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        after = getattr(made, "__post_init__", None) or getattr(made, "__attrs_post_init__", None)
        if after is not None:
            after()
        return made


def _dumped(form: Form, value: Any) -> Any:
    return value if value is msgspec.UNSET else form.dump(value)


class _Member:
    """One type of a union."""

    def __init__(self, type: Any, form: Form) -> None:
        self.type = type
        self.form = form
        cls = class_of(type)
        self.tag = getattr(cls, "__name__", str(cls))
        plain = typing.get_origin(type) is Literal or is_typeddict(cls)
        self.tagged = not plain and cls not in (*PLAIN, list, dict)
        self.kind: Any = dict if is_typeddict(cls) else cls  # of the JSON, where it has no tag


class _Union:
    """A value of one of several types, which its JSON alone does not tell.

    str, numbers, bool, None, list and dict are stored as they are; all others with a tag.
    """

    def __init__(self, type: Any, members: list[_Member]) -> None:
        self._name = name_of(type)
        names = [member.tag for member in members]
        for member in members:
            if names.count(member.tag) > 1:
                cls = class_of(member.type)
                member.tag = f"{cls.__module__}.{cls.__qualname__}"
        self._by_class = {cls: member for member in members for cls in _classes(member.type)}
        self._tagged = {member.tag: member for member in members if member.tagged}
        # float last: it takes whole numbers, too.
        plain = [member for member in members if not member.tagged]
        self._plain = sorted(plain, key=lambda member: member.kind is float)

    def dump(self, value: Any) -> Any:
        member = next((self._by_class[cls] for cls in type(value).__mro__ if cls in self._by_class), None)
        if member is None:
            return self._as_json(value)
        stored = member.form.dump(value)
        if not member.tagged:
            return (
                {TAG: dict.__name__, VALUE: stored} if isinstance(stored, dict) and TAG in stored else stored
            )
        stored = msgspec.to_builtins(stored, str_keys=True, enc_hook=encode_unknown)
        if isinstance(stored, dict) and not stored.keys() & {TAG, VALUE}:
            return {TAG: member.tag, **stored}
        return {TAG: member.tag, VALUE: stored}

    def _as_json(self, value: Any) -> Any:
        """A value that is not of the union; it may be JSON already, as from a command line."""
        if isinstance(value, dict) and TAG in value:
            return value
        raw = _plain(value)
        if not self._plain_of(raw) and len(self._fitting(raw)) > 1:
            raise TypeError(f"it fits more than one member of {self._name}; pass an object of one of them")
        return value

    def load(self, raw: Any) -> Any:
        if isinstance(raw, dict) and TAG in raw:
            member = self._tagged.get(raw[TAG])
            wrapped = VALUE in raw and len(raw) == 2
            if member is not None:
                body = raw[VALUE] if wrapped else {name: raw[name] for name in raw if name != TAG}
                return member.form.load(body)
            if wrapped and raw[TAG] == dict.__name__:
                raw = raw[VALUE]
        fits = self._plain_of(raw) or self._fitting(raw)
        if len(fits) == 1:
            return fits[0]
        if fits:  # of an older version, which read all of this union as plain values
            return raw
        raise msgspec.ValidationError(f"Expected `{self._name}`, got `{type(raw).__name__}`")

    def _plain_of(self, raw: Any) -> list[Any]:
        """The value, if one of the types that are stored without a tag fits it."""
        return _loaded((member for member in self._plain if _may_be(member.kind, raw)), raw)[:1]

    def _fitting(self, raw: Any) -> list[Any]:
        """What a value that has lost its tag, or never had one, may be."""
        return _loaded(self._tagged.values(), raw)


def _loaded(members: Iterable[_Member], raw: Any) -> list[Any]:
    found = []
    for member in members:
        try:
            found.append(member.form.load(raw))
        except (ValueError, TypeError, NotImplementedError):  # msgspec's and pydantic's are ValueErrors
            continue
    return found


def _may_be(kind: Any, raw: Any) -> bool:
    """Whether decoded JSON is of a plain type; a whole number may be a float, unless it is a bool."""
    if typing.get_origin(kind) is Literal or not isinstance(kind, type):
        return True
    if kind is float:
        return isinstance(raw, int | float) and not isinstance(raw, bool)
    return type(raw) is kind
