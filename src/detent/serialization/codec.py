"""Python values to JSON text and back, typed.

`Codec` encodes all values that go to the database, and decodes all that come from it.  A value
comes back equal and as annotated, or it is refused: msgspec would write NaN as null without an
error, so we look for it, and what it cannot read back by itself has a form (see forms.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from ..errors import CannotDecode, NotSerializable, PayloadTooLarge
from .annotations import NoForm, decode_unknown, encode_unknown, name_of
from .decoders import decoder
from .forms import Form, form_of

DEFAULT_MAX_PAYLOAD = 4 * 1024 * 1024
_EXACT = frozenset((str, int, float, bool))  # JSON has each value of these classes


# What msgspec, our hooks and users' classes raise for a value that has no JSON form.
_UNFIT = (TypeError, ValueError, NameError, OverflowError, RecursionError, NotImplementedError)


class Transform(Protocol):
    """A reversible change of the stored text, such as encryption."""

    def encode(self, text: str) -> str: ...

    def decode(self, text: str) -> str: ...


class Codec:
    """Encode and decode payloads.

    `max_payload` is the largest text in bytes; `transform` sees every payload
    on its way in and out.
    """

    def __init__(self, *, max_payload: int = DEFAULT_MAX_PAYLOAD, transform: Transform | None = None) -> None:
        self.max_payload = max_payload
        self._transform = transform
        self._encoder = msgspec.json.Encoder(enc_hook=encode_unknown)
        self._decoders: dict[Any, _Decoder] = {}
        self._native: set[Any] = {Any}  # annotations that msgspec reads by itself
        self._forms: dict[Any, Form] = {}

    def encode(self, value: Any, what: str, type: Any = Any) -> str:
        """Return the JSON text of `value`, annotated as `type`; `what` names it in errors."""
        if value is None and self._transform is None:
            return "null"
        try:
            native = type in self._native
        except TypeError:  # an annotation that cannot be hashed
            native = False
        try:
            data = self._encoder.encode(value if native else self._dumped(value, type))
        except _UNFIT as error:
            raise NotSerializable(what, _culprit(value), str(error)) from None
        if b"null" in data and _has_nan(value):
            raise NotSerializable(what, "a float that is NaN or infinite", "JSON has no such number")
        if len(data) > self.max_payload:
            raise PayloadTooLarge(what, len(data), self.max_payload)
        text = data.decode()
        return text if self._transform is None else self._transform.encode(text)

    def dump(self, value: Any, type: Any, what: str) -> Any:
        """A value annotated as `type`, as a part of a larger one that is encoded without types."""
        try:
            return self._dumped(value, type)
        except _UNFIT as error:
            raise NotSerializable(what, _culprit(value), str(error)) from None

    def stored(self, value: Any, what: str, type: Any) -> tuple[str, Any]:
        """The JSON text of `value`, and the value as it will be read back from it."""
        text = self.encode(value, what, type)
        kind = value.__class__
        if kind in _EXACT and (type is kind or type is Any) and self._transform is None:
            return text, value  # the same is read back
        return text, self.decode(text, type, what)

    def decode(self, text: str, type: Any = Any, what: str = "a stored value") -> Any:
        """Return the value of the JSON `text`, as `type`."""
        if self._transform is not None:
            text = self._transform.decode(text)
        try:
            return self._decoder(type).decode(text)
        except (msgspec.MsgspecError, ValueError, TypeError, NameError, NotImplementedError) as error:
            raise CannotDecode(what, name_of(type), str(error)) from None

    def sealed(self, value: Any, what: str) -> Any:
        """A value as a part of a stored document: plain, or a text where payloads are transformed."""
        text = self.encode(value, what)
        return text if self._transform is not None else msgspec.json.decode(text)

    def plain(self, value: Any, what: str) -> Any:
        """A value as a part of a stored document that everybody may read."""
        if value is None:
            return None
        checked = Codec(max_payload=self.max_payload).encode(value, what)
        return msgspec.json.decode(checked)

    def convert(self, raw: msgspec.Raw, type: Any, what: str) -> Any:
        """Return a part of a decoded payload, as `type`."""
        try:
            return self._decoder(type).decode(raw)
        except (msgspec.MsgspecError, ValueError, TypeError, NameError, NotImplementedError) as error:
            raise CannotDecode(what, name_of(type), str(error)) from None

    def _decoder(self, type: Any) -> _Decoder:
        try:
            return self._decoders[type]
        except KeyError:
            decoder = self._decoders[type] = _decoder_for(type)
            return decoder
        except TypeError:  # an annotation that cannot be hashed
            return _decoder_for(type)

    def _dumped(self, value: Any, type: Any) -> Any:
        """A value in its form; most annotations need none, and are known from then on."""
        try:
            if type in self._native:
                return value
            form = self._forms.get(type) or form_of(type)
            if form is None:
                self._native.add(type)
            else:
                self._forms[type] = form
        except TypeError as error:  # an annotation that cannot be hashed
            if isinstance(error, NoForm):
                raise
            form = form_of(type)
        return value if form is None else form.dump(value)


class _Decoder(Protocol):
    def decode(self, text: Any, /) -> Any: ...


class _FormDecoder:
    """Reads what msgspec cannot read by itself."""

    def __init__(self, form: Form) -> None:
        self._form = form

    def decode(self, text: Any, /) -> Any:
        return self._form.load(msgspec.json.decode(text))


def _decoder_for(type: Any) -> _Decoder:
    form = form_of(type)
    return decoder(type, decode_unknown) if form is None else _FormDecoder(form)


def plain(text: str) -> str:
    """Return text that every database can store: no NUL, no lone surrogate."""
    if "\x00" in text:
        text = text.replace("\x00", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="backslashreplace").decode()
    return text


def _culprit(value: Any) -> str:
    """Name the type of the innermost value that has no JSON form."""
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    for part in parts[:1000]:
        try:
            msgspec.json.encode(part, enc_hook=encode_unknown)
        except RecursionError:
            break
        except Exception:  # whatever it is, this part is the culprit
            return _culprit(part)
    return type(value).__qualname__


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, str | bytes | int) or value is None:
        return False
    if isinstance(value, Mapping):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_nan, value))
    if dataclasses.is_dataclass(value):
        return any(_has_nan(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, msgspec.Struct):
        return any(_has_nan(getattr(value, name)) for name in value.__struct_fields__)
    if hasattr(type(value), "__attrs_attrs__"):
        return any(_has_nan(getattr(value, field.name)) for field in type(value).__attrs_attrs__)
    if hasattr(value, "model_dump"):
        return _has_nan(value.model_dump())
    return False
