"""An asyncio event loop that waits on the simulation's scheduler."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

from .scheduler import SECOND, Killed, Scheduler, Thread, micros


class SimLoop(asyncio.BaseEventLoop):
    """Runs in a simulated thread; its time is the virtual one."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._selector = self
        self._waiting: Thread | None = None
        self._clock_resolution = 1e-6
        self._poked = False

    def time(self) -> float:
        return self._scheduler.now / SECOND

    # As a selector

    def select(self, timeout: float | None) -> list[Any]:
        scheduler = self._scheduler
        scheduler.pause()
        if timeout is not None and timeout <= 0:
            return []
        if not self._poked:
            self._waiting = scheduler.current
            try:
                scheduler.block(None if timeout is None else scheduler.now + max(1, micros(timeout)))
            finally:
                self._waiting = None
        self._poked = False
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._poked = True
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def run_forever(self) -> None:
        self._check_closed()  # type: ignore[attr-defined]
        if self.is_running() or asyncio._get_running_loop() is not None:
            raise RuntimeError("a loop is running already")
        current = self._scheduler.current
        if current is None:
            raise Killed
        self._thread_id = current.ident
        asyncio._set_running_loop(self)
        try:
            while True:
                self._run_once()  # type: ignore[attr-defined]
                if self._stopping:  # type: ignore[has-type]
                    break
        finally:
            self._stopping = False
            self._thread_id = None  # type: ignore[assignment]
            asyncio._set_running_loop(None)


def forget(loop: SimLoop) -> None:
    """Close what is left on the loop of a process that is gone, without a word."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        try:
            task.get_coro().close()
        except BaseException:
            continue
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that were never awaited
        loop._ready.clear()  # type: ignore[attr-defined]
        loop._scheduled.clear()  # type: ignore[attr-defined]
    loop._thread_id = None  # type: ignore[assignment]
    loop.close()
