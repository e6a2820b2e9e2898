"""Decoders of msgspec, made by one thread at a time.

msgspec finds out the fields of a class when it first decodes to it.  It runs Python code for that, and other
threads run meanwhile.  If one of them decodes to the same class, it uses what is half made, and the process
crashes (msgspec 0.22).  So the first look at a type happens here, under a lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_LOOKING = threading.RLock()
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}  # of Detent's own types

# A process that forks while another thread looks at a type would leave it half made in the child.
os.register_at_fork(
    before=_LOOKING.acquire, after_in_parent=_LOOKING.release, after_in_child=_LOOKING.release
)


def decoder(type: Any, dec_hook: Callable[[type[Any], Any], Any] | None = None) -> msgspec.json.Decoder[Any]:
    """A decoder to any type.  Raises TypeError for a type that msgspec cannot decode to."""
    with _LOOKING:
        return msgspec.json.Decoder(type, dec_hook=dec_hook)


def look_at(type: Any) -> None:
    """Let msgspec find out the fields of a type that `msgspec.convert` is used with later.

    A type that it cannot decode to is left for that call to refuse.
    """
    try:
        decoder(type, _as_it_is)
    except TypeError:
        return


def decode(text: str | bytes, type: type[T]) -> T:
    """A JSON text as one of Detent's own types."""
    found = _DECODERS.get(type)
    if found is None:
        found = _DECODERS[type] = decoder(type)
    value: T = found.decode(text)
    return value


def convert(value: Any, type: type[T]) -> T:
    """Decoded JSON as one of Detent's own types."""
    if type not in _DECODERS:
        _DECODERS[type] = decoder(type)
    return msgspec.convert(value, type)


def _as_it_is(type: type[Any], value: Any) -> Any:
    return value
