"""Python values to JSON text and back, typed.

`Codec` is the one door between a user's values and the database.  What goes in
comes out equal, or is refused at the door: msgspec would write NaN as null
without a word, so we look for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from .errors import CannotDecode, NotSerializable, PayloadTooLarge

DEFAULT_MAX_PAYLOAD = 4 * 1024 * 1024


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
        self._encoder = msgspec.json.Encoder(enc_hook=_encode_unknown)
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    def encode(self, value: Any, what: str) -> str:
        """Return the JSON text of `value`; `what` names it in errors."""
        if value is None and self._transform is None:
            return "null"
        try:
            data = self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
            raise NotSerializable(what, _culprit(value), str(error)) from None
        if b"null" in data and _has_nan(value):
            raise NotSerializable(what, "a float that is NaN or infinite", "JSON has no such number")
        if len(data) > self.max_payload:
            raise PayloadTooLarge(what, len(data), self.max_payload)
        text = data.decode()
        return text if self._transform is None else self._transform.encode(text)

    def decode(self, text: str, type: Any = Any, what: str = "a stored value") -> Any:
        """Return the value of the JSON `text`, as `type`."""
        if self._transform is not None:
            text = self._transform.decode(text)
        try:
            return self._decoder(type).decode(text)
        except (msgspec.MsgspecError, ValueError, TypeError, NotImplementedError) as error:
            raise CannotDecode(what, getattr(type, "__name__", str(type)), str(error)) from None

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
        except (msgspec.MsgspecError, ValueError, TypeError, NotImplementedError) as error:
            raise CannotDecode(what, getattr(type, "__name__", str(type)), str(error)) from None

    def _decoder(self, type: Any) -> msgspec.json.Decoder[Any]:
        try:
            return self._decoders[type]
        except KeyError:
            decoder = self._decoders[type] = msgspec.json.Decoder(type, dec_hook=_decode_unknown)
            return decoder
        except TypeError:  # an annotation that cannot be hashed
            return msgspec.json.Decoder(type, dec_hook=_decode_unknown)


def decodable(type: Any) -> bool:
    """Whether an annotation is one that JSON can be decoded to."""
    try:
        msgspec.json.Decoder(type, dec_hook=_decode_unknown)
    except (TypeError, NameError):
        return False
    return True


def plain(text: str) -> str:
    """Return text that every database can store: no NUL, no lone surrogate."""
    if "\x00" in text:
        text = text.replace("\x00", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="backslashreplace").decode()
    return text


def _encode_unknown(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # pydantic, without importing it
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__qualname__} is not supported")


def _decode_unknown(type: Any, value: Any) -> Any:
    validate = getattr(type, "model_validate", None)
    if validate is not None:
        return validate(value)
    if isinstance(type, _Class) and isinstance(value, type):
        return value
    raise NotImplementedError(f"{getattr(type, '__qualname__', type)} is not supported")


_Class = type


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
            msgspec.json.encode(part, enc_hook=_encode_unknown)
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
    if hasattr(value, "model_dump"):
        return _has_nan(value.model_dump())
    return False
