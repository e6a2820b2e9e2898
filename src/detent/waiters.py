"""Who waits for the end of which run, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


class Waiters:
    """Who waits for the end of which run, in this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._wakes: dict[str, list[Callable[[], None]]] = {}

    def add(self, run_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        with self._guard:
            self._wakes.setdefault(run_id, []).append(wake)

        def remove() -> None:
            with self._guard:
                wakes = self._wakes.get(run_id, [])
                if wake in wakes:
                    wakes.remove(wake)
                if not wakes:
                    self._wakes.pop(run_id, None)

        return remove

    def wake(self, runs: Iterable[str] | None) -> None:
        """Wake who waits for these runs; None: everybody."""
        with self._guard:
            if not self._wakes:
                return
            wakes = [
                wake
                for run in (list(self._wakes) if runs is None else runs)
                for wake in self._wakes.get(run, ())
            ]
        for wake in wakes:
            wake()
