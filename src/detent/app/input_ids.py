"""Forgetting input ids: those that arrived longer ago than their decider keeps them.

Inputs are numbered in the order of arrival, so a pass walks over what arrived since the last one, and stops
where inputs are too young.  It needs no index of its own.  Several workers may do this at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from ..clock import Clock, span_micros
from ..definitions.deciders import DeciderPlan
from ..stores.store import Store

AT_ONCE = 1_000  # inputs that are looked at in one transaction


class InputIds:
    """Forgets the input ids of an app's deciders; remembers how far it has come."""

    def __init__(self, store: Store, clock: Clock, deciders: Callable[[], Iterable[DeciderPlan]]) -> None:
        self._store = store
        self._clock = clock
        self._deciders = deciders
        self._places: dict[int, int] = {}  # by how long ids are kept: the last input that was looked at

    @property
    def wanted(self) -> bool:
        """Whether a decider keeps its input ids for a limited time."""
        return any(plan.decider.input_ids_kept is not None for plan in self._deciders())

    def forget(self, *, stop: threading.Event | None = None) -> int:
        """Forget what is due, and return how many."""
        stop = stop if stop is not None else threading.Event()
        kept: dict[int, dict[str, bool]] = {}
        for plan in self._deciders():
            if plan.decider.input_ids_kept is not None:
                window = span_micros(plan.decider.input_ids_kept)
                kept.setdefault(window, {})[plan.name] = plan.decider.observe
        return sum(self._walk(window, observing, stop) for window, observing in kept.items())

    def _walk(self, window: int, observing: dict[str, bool], stop: threading.Event) -> int:
        before = self._clock.now() - window
        forgotten = 0
        while True:
            began = time.monotonic()
            passed = self._store.forget_input_ids(
                observing, before=before, beyond=self._places.get(window, 0), limit=AT_ONCE
            )
            forgotten += passed.forgotten
            self._places[window] = passed.place
            # Half of the time at most: where writers take turns, others have theirs now.
            if not passed.more or stop.wait(time.monotonic() - began):
                return forgotten
