"""Following what a run publishes, from any process: `run.watch("progress")`.

The reader looks for a new value, often while values come and seldom while none do.  A publisher pays nothing
for being watched.
"""

from __future__ import annotations

from typing import Any

from ..arguments import check_text
from ..definitions.context import current_frame
from ..errors import InvalidState
from ..kernel.rows import RunState
from .engine import Engine

FIRST_LOOK, LONGEST_LOOK = 0.02, 0.5  # seconds between two looks


class Watching:
    """The latest value under a name, as often as it changes, until the run is over."""

    def __init__(self, engine: Engine, run_id: str, name: str) -> None:
        check_text("run.watch()", "name", name, example="progress")
        if current_frame("run.watch()") is not None:
            raise InvalidState(
                "watch in a workflow", run_id, "not the same for every replay", "watch in a step of it"
            )
        self._engine = engine
        self._run_id = run_id
        self._name = name
        self._latest: str | None = None
        self.wait = FIRST_LOOK  # seconds until the next look
        self.over = False

    def look(self) -> list[Any]:
        """The value, if it has changed since the last look; `over` says that no other will come."""
        engine = self._engine
        # The state first: what is published before the end is there when the end is seen.
        self.over = RunState(engine.row(self._run_id).state).final
        text = engine.store.published(self._run_id, self._name)
        if text is None or text == self._latest:
            self.wait = min(self.wait * 2, LONGEST_LOOK)
            return []
        self._latest, self.wait = text, FIRST_LOOK
        return [engine.services.codec.decode(text)]
