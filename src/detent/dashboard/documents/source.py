"""Where documents come from: the app, and the mask that all payloads pass."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ...app.app import App
from ...app.engine import Engine
from ...clock import from_micros
from ...definitions.functions import FunctionWorkflow, Step
from ...errors import PayloadError
from ...kernel.rows import Attribute, Error
from ...serialization.codec import Codec
from ...serialization.signatures import positional
from ..masking import MASKED, Mask

Document = dict[str, Any]
_CALL = {"args", "kwargs"}


class Source:
    """An app as the dashboard reads it."""

    def __init__(self, app: App, mask: Mask) -> None:
        self.app = app
        self.mask = mask

    @property
    def engine(self) -> Engine:
        return self.app.engine

    def now(self) -> datetime:
        return from_micros(self.engine.clock.now())

    # Payloads

    def value(self, text: str | None, *names: str) -> Any:
        """A stored payload, decoded and masked; `names` say where it stands."""
        if text is None:
            return None
        try:
            decoded = self._codec.decode(text)
        except PayloadError as error:
            return {"unreadable": str(error)}
        except Exception as error:  # of the app's own transform, which may raise anything
            return {"unreadable": f"{type(error).__name__}: the payload cannot be decoded"}
        return self.mask(decoded, names)

    def call(self, job: str | None, text: str | None) -> Any:
        """Stored arguments, by the names of their parameters."""
        if text is None:
            return None
        unmasked = Source(self.app, Mask(None)).value(text)
        if not isinstance(unmasked, dict) or not unmasked.keys() <= _CALL:
            return self.mask(unmasked)
        args: list[Any] = unmasked.get("args", [])
        named = dict(unmasked.get("kwargs", {}))
        found = self.engine.registry.find(job or "")
        if isinstance(found, Step | FunctionWorkflow):
            names = positional(found.own_parameters, len(args))
            if len(set(names)) == len(args):
                return self.mask({**dict(zip(names, args, strict=True)), **named})
        hidden = self.mask.active and bool(args)
        shown = {"arguments": [MASKED] * len(args) if hidden else args} if args else {}
        return {**shown, **self.mask(named)}

    def plain(self, value: Any, *names: str) -> Any:
        """A Python value (a state, an event) as JSON, masked."""
        try:
            return self.mask(msgspec.to_builtins(value, enc_hook=repr, str_keys=True), names)
        except Exception:  # what people show of their own objects may raise anything
            return MASKED if self.mask.active else f"<{type(value).__name__}>"

    def attributes(self, given: dict[str, Attribute]) -> dict[str, Any]:
        masked: dict[str, Any] = self.mask(dict(given))
        return masked

    @property
    def _codec(self) -> Codec:
        return self.engine.codec


def error_document(error: Error | None, *, traceback: bool = True) -> Document | None:
    """An error as data."""
    if error is None:
        return None
    shown: Document = {"type": error.type, "message": error.message}
    return {**shown, "traceback": error.traceback} if traceback else shown


def seconds_between(first: datetime | None, last: datetime | None) -> float | None:
    """From one moment to another; clocks of two machines may differ."""
    return None if first is None or last is None else max(0.0, (last - first).total_seconds())
