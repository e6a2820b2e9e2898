"""A run as a file: everything that is stored of it, to be looked at or replayed elsewhere.

`detent show ID --export run.json` writes it, `detent.testing.replay` reads it.  Times are
microseconds, payloads are the JSON text that is in the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from ..clock import from_micros, to_micros
from ..errors import ExportUnfit
from ..kernel.drift import Recording
from ..kernel.rows import RunRow, Step
from ..serialization.decoders import convert
from .engine import Engine

FORMAT = 1


def export(engine: Engine, row: RunRow) -> dict[str, Any]:
    """A run with nothing left out."""
    store = engine.store
    return {
        "detent": FORMAT,
        "exported_at": from_micros(engine.clock.now()).isoformat(),
        "run": msgspec.to_builtins(row),
        "journal": msgspec.to_builtins(store.journal([row.id])[row.id]),
        "executions": msgspec.to_builtins(store.executions(row.id)),
        "events": msgspec.to_builtins(store.events(row.id)),
        "history": [
            {"happened_at": moment, "event": event, "detail": detail}
            for moment, event, detail in store.history(row.id)
        ],
    }


class _HistoryEvent(msgspec.Struct):
    happened_at: int
    event: str
    detail: str


class _Export(msgspec.Struct):
    exported_at: datetime
    run: RunRow
    journal: list[Step]
    history: list[_HistoryEvent] = []


def read_export(source: str, document: Any) -> Recording:
    """The recording in an exported document; `source` names it in errors."""
    if not isinstance(document, Mapping) or "detent" not in document:
        raise ExportUnfit(source, "it is not an exported run")
    if document["detent"] != FORMAT:
        raise ExportUnfit(
            source, f"it has the format {document['detent']!r}, and this version of Detent reads {FORMAT}"
        )
    try:
        found = convert(document, _Export)
    except msgspec.ValidationError as error:
        raise ExportUnfit(source, f"its content was changed or is damaged: {error}") from None
    history = [(item.happened_at, item.event, item.detail) for item in found.history]
    return Recording.of(found.run, found.journal, history, to_micros(found.exported_at))
