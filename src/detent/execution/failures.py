"""Exceptions as data: stored once, raised alike the first time and on every replay.

An exception whose class can be found again, and whose arguments and fields are
plain values, is rebuilt; any other is raised as StepFailed, both times.

A class is found in modules that are imported already, never imported; only subclasses of
Exception are rebuilt, and no code of theirs runs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ..errors import StepFailed, WorkerTraceback
from ..kernel.rows import Error
from ..serialization.codec import plain
from ..serialization.decoders import decode

_OURS = str(Path(__file__).parents[1]) + os.sep
_LONGEST_MESSAGE = 10_000
_LONGEST_TRACEBACK = 20_000
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class whose __new__ may be anything


def describe(error: BaseException) -> Error:
    """Return what is stored of an exception."""
    if isinstance(error, StepFailed) and isinstance(error.__cause__, SystemExit):
        error = error.__cause__  # so that it is stored, and comes back, as what it was
    cls = type(error)
    args = _plain_value(list(error.args))
    fields = _plain_value(dict(error.__dict__)) if error.__dict__ else {}
    trace = "".join(traceback.format_exception(_from_user_code(error)))
    stored = Error(
        type=f"{cls.__module__}.{cls.__qualname__}",
        message=plain(message_of(error))[:_LONGEST_MESSAGE],
        traceback=plain(trace)[-_LONGEST_TRACEBACK:],
        args=args,
        fields=fields or None,
    )
    if args is not None and fields is not None:
        again = _rebuild(stored)
        stored.rebuildable = (
            again is not None and type(again) is cls and message_of(again) == message_of(error)
        )
    if not stored.rebuildable:
        stored.args = stored.fields = None
    return stored


def _from_user_code(error: BaseException) -> BaseException:
    """The error without the frames of Detent that lie above the user's: the fault is not there."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def message_of(error: BaseException) -> str:
    """Its text, whatever its class does."""
    try:
        return str(error)
    except (Exception, SystemExit, GeneratorExit) as broken:  # its own __str__ fails
        return f"({type(broken).__name__} in {type(error).__name__}.__str__)"


def unwrapped(error: Exception) -> Exception:
    """The exception that user code raised: a StopIteration comes out of our generators as RuntimeError."""
    own = error.__cause__
    if isinstance(own, StopIteration) and str(error) == "generator raised StopIteration":
        return own
    return error


def encode_error(error: BaseException) -> str:
    return msgspec.json.encode(describe(error)).decode()


def decode_error(text: str) -> Error:
    return decode(text, Error)


def raisable(step: str, text: str | None) -> Exception:
    """Return the exception of a stored failure."""
    if text is None:
        return StepFailed(step, "unknown", "its error was not recorded")
    stored = decode_error(text)
    error = _rebuild(stored) if stored.rebuildable else None
    if error is None:
        error = StepFailed(step, stored.type, stored.message)
    return with_traceback(error, stored.traceback)


def with_traceback(error: Exception, stored: str) -> Exception:
    """The error, with the traceback of the worker as its cause: the lines of user code that raised it."""
    if stored:
        # Not `error.__cause__ =`: its class may have a __setattr__ of its own.
        vars(BaseException)["__cause__"].__set__(error, WorkerTraceback(stored))
    return error


def _plain_value(value: Any) -> Any:
    """The value, if JSON gives it back unchanged; else None."""
    try:
        same = msgspec.json.decode(msgspec.json.encode(value)) == value
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None
    return value if same else None


def _rebuild(stored: Error) -> Exception | None:
    """The exception as it was, made without running any code of its class; None if that is impossible."""
    cls = _find_class(stored.type)
    if cls is None:
        return None
    args = tuple(stored.args or ())
    builtin: Any = next(base for base in cls.__mro__ if not base.__flags__ & _MADE_BY_PYTHON)
    try:
        error: Exception = builtin.__new__(cls, *args)
        vars(BaseException)["args"].__set__(error, args)
        object.__getattribute__(error, "__dict__").update(stored.fields or {})
    except Exception:  # a class that cannot be built this way
        return None
    return error


def _find_class(name: str) -> type[Exception] | None:
    """Find an exception class by name.

    Only in modules that are imported already, and without a module's `__getattr__`: what is stored in
    the database must not decide which code runs.
    """
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:]:
            found = _contents(found).get(part)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None


def _contents(found: object) -> Mapping[str, Any]:
    """What a module or a class contains; looking at it must not load a lazy module."""
    if isinstance(found, ModuleType):
        contents: Mapping[str, Any] = object.__getattribute__(found, "__dict__")
        return contents
    return vars(found) if isinstance(found, type) else {}
