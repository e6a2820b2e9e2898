"""An event loop whose time passes only when nothing else can happen.

    something is ready        ->  it runs, and no time passes
    nothing is ready          ->  `rest` decides: let the next timer fire, or come to an end

So a replay never really waits: a timeout of an hour takes no time, and code that waits
for what never comes is seen to do so.  What goes on outside of the loop, in threads of its
executor or on sockets, is really waited for.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PIECE = 0.05  # seconds of really waiting, in one piece
_OURS = 1  # the loop's own end of the pipe that wakes it up
_DEAF_AFTER = 1.0  # seconds without data, after which a socket is not waited for


class VirtualLoop(asyncio.SelectorEventLoop):
    """Calls `rest(left)` when nothing is ready, `left` seconds before the next timer (None: there is none).

    The answer is how many seconds pass, or None to really wait a moment for a word from
    outside, and to be asked again.  `late()` is called, once, when `deadline` on the
    machine's own clock is over.
    """

    def __init__(
        self, rest: Callable[[float | None], float | None], late: Callable[[], None], deadline: float
    ) -> None:
        self._now = 0.0
        self._rest = rest
        self._late: Callable[[], None] | None = late
        self._deadline = deadline
        self._jobs = 0
        self._silence = 0.0
        self.held = 0  # jobs of the executor that wait for the end of the replay
        super().__init__(_Selector(self._idle, self._look_at_the_clock))

    def time(self) -> float:
        return self._now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, future: Any) -> None:
        self._jobs -= 1

    def _look_at_the_clock(self) -> None:
        if self._late is not None and time.monotonic() > self._deadline:
            late, self._late = self._late, None
            late()

    def _idle(self, left: float | None, selector: _Selector) -> list[Any]:
        sockets = len(selector.get_map()) > _OURS and self._silence < _DEAF_AFTER
        if self._late is not None and (self._jobs > self.held or sockets):
            events = selector.really(PIECE)
            self._silence = 0.0 if events else self._silence + PIECE
            return events
        passes = self._rest(left)
        if passes is None:
            return selector.really(PIECE)
        self._now += passes
        return []


class _Selector(selectors.BaseSelector):
    """Looks at sockets without waiting for them; who finds nothing ready asks `idle`."""

    def __init__(
        self, idle: Callable[[float | None, _Selector], list[Any]], look: Callable[[], None]
    ) -> None:
        self._inner = selectors.DefaultSelector()
        self._idle = idle
        self._look = look

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._look()
        events = self._inner.select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        return self._idle(timeout, self)

    def really(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        return self._inner.select(seconds)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()
