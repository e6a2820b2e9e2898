"""`--follow`: print what happens to a run as it happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from ..app.run import Run
from ..app.views import HistoryEvent
from ..kernel.rows import RunState

LOOK = 0.3  # seconds between two looks


def followed(run: Run[Any]) -> Iterator[HistoryEvent]:
    """The events of a run, each once, until the run is over."""
    seen: set[bytes] = set()
    while True:
        # The state first: what happened before the end is there when the end is seen.
        over = RunState(run.refresh().row.state).final
        for event in run.history():
            key = msgspec.json.encode([event.at, event.event, event.detail])
            if key not in seen:
                seen.add(key)
                yield event
        if over:
            return
        time.sleep(LOOK)
