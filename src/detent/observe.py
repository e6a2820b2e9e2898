"""The event seam: the engine emits events here, subscribers receive them.

    engine threads:     observer.emit(event)  ->  the queue of each subscriber that wants it
    subscriber thread:  queue  ->  the function; a coroutine function runs on the app's event loop

The rules:

    1. Emitting never blocks, never raises, and never calls a subscriber.
    2. Each subscriber has a queue and a thread of its own: a slow one delays no other.  When
       its queue is full, new events for it are dropped, and a warning says so.
    3. Each subscriber receives its events one at a time, in the order in which they were emitted.
    4. Without subscribers, `observer.active` is False and no event is built.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from .events import Event

log = logging.getLogger("detent.events")
MOST_WAITING = 10_000  # events that may wait for one subscriber
REST = 5.0  # seconds that subscribers have for their last events when the app closes
LOOK = 1.0  # seconds between two looks whether the event loop of a coroutine still runs
Subscriber = Callable[[Any], Any]
Loops = Callable[[], asyncio.AbstractEventLoop | None]


class Observer:
    """The subscribers of one app."""

    def __init__(self, loop: Loops = lambda: None) -> None:
        self.active = False  # whether there are subscribers: all that hot paths look at
        self._loop = loop
        self._guard = threading.Lock()
        self._subscriptions: tuple[Subscription, ...] = ()

    def subscribe(self, function: Subscriber, kinds: tuple[type[Event], ...]) -> Callable[[], None]:
        """Pass events of these classes to the function; what is returned ends that."""
        subscription = Subscription(function, kinds, self._loop)
        with self._guard:
            self._subscriptions = (*self._subscriptions, subscription)
            self.active = True

        def unsubscribe() -> None:
            with self._guard:
                self._subscriptions = tuple(one for one in self._subscriptions if one is not subscription)
                self.active = bool(self._subscriptions)
            subscription.end()

        return unsubscribe

    def wants(self, kind: type[Event]) -> bool:
        """Whether a subscriber wants events of this class."""
        return self.active and any(issubclass(kind, one.kinds) for one in self._subscriptions)

    def emit(self, event: Event) -> None:
        """Hand an event to the subscribers that want it; returns at once."""
        for subscription in self._subscriptions:
            if isinstance(event, subscription.kinds):
                subscription.put(event)

    def flush(self, timeout: float) -> bool:
        """Wait until what was emitted before has been received; False when that takes longer."""
        deadline = time.monotonic() + timeout
        received = [one.flush(deadline - time.monotonic()) for one in self._subscriptions]
        return all(received)

    def forked(self) -> None:
        """In a forked child: keep the subscribers, without the parent's locks, threads and events."""
        self._guard = threading.Lock()
        for subscription in self._subscriptions:
            subscription.begin()

    def rest(self, timeout: float = REST) -> None:
        """Deliver what is left, then end the threads; the next event starts them again."""
        if not self.flush(timeout):
            log.warning("closed while subscribers had not received all events")
        for subscription in self._subscriptions:
            subscription.rest()


class Subscription:
    """One subscriber: its queue, and the thread that calls it."""

    def __init__(self, function: Subscriber, kinds: tuple[type[Event], ...], loop: Loops) -> None:
        self.kinds = kinds
        self.name = getattr(function, "__qualname__", None) or type(function).__qualname__
        self._function = function
        self._loop = loop
        self._ended = False
        self._failing = False  # it raised for the last event, and the log says so
        self.begin()

    def begin(self) -> None:
        """With an empty queue, and no thread yet."""
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[Event] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False  # an event is being received
        self._dropped = 0

    def put(self, event: Event) -> None:
        with self._changed:
            if self._ended:
                return
            if len(self._waiting) >= MOST_WAITING:
                self._dropped += 1
                return
            self._waiting.append(event)
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        """Start the thread; where none can be started now, the next event tries again."""
        thread = threading.Thread(target=self._work, name=f"detent-events-{self.name}", daemon=True)
        try:
            contextvars.Context().run(thread.start)
        except RuntimeError:
            log.exception("no thread could be started for the subscriber %s", self.name)
        else:
            self._thread = thread

    def flush(self, timeout: float) -> bool:
        """Wait until the queue is empty; a subscriber that asks this itself does not wait."""
        with self._changed:
            if threading.current_thread() is self._thread:
                return True
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, max(0.0, timeout))

    def rest(self) -> None:
        """End the thread, after the event that it is at."""
        with self._changed:
            self._waiting.clear()
            self._thread = None
            self._busy = False
            self._changed.notify_all()

    def end(self) -> None:
        """Receive nothing more."""
        with self._changed:
            self._ended = True
        self.rest()

    # In its thread

    def _work(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._receive(event)
            finally:
                with self._changed:
                    if self._is_ours():
                        self._busy = False
                    self._changed.notify_all()

    def _next(self) -> Event | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._is_ours())
            if not self._is_ours():
                return None
            dropped, self._dropped = self._dropped, 0
            self._busy = True
            event = self._waiting.popleft()
        if dropped:
            log.warning("the subscriber %s is too slow: %d events were dropped", self.name, dropped)
        return event

    def _is_ours(self) -> bool:
        return self._thread is threading.current_thread()

    def _receive(self, event: Event) -> None:
        try:
            answer = self._function(event)
            if inspect.iscoroutine(answer):
                self._await(answer)
        except BaseException as error:  # a SystemExit, say: it is the subscriber's, and ends nothing
            if self._failing:
                log.debug("the subscriber %s failed again: %r", self.name, error)
            else:
                log.error("the subscriber %s failed for %r", self.name, event, exc_info=error)
            self._failing = True
        else:
            self._failing = False

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine on the app's loop, and wait for its end, as long as that loop runs."""
        try:
            loop = self._loop()
            if loop is None:
                raise RuntimeError("the app is closed and has no event loop for a coroutine")
            # In an empty context: it belongs to no workflow.
            future = contextvars.Context().run(asyncio.run_coroutine_threadsafe, _contained(coroutine), loop)
        except BaseException:
            coroutine.close()
            raise
        while True:
            try:
                future.result(LOOK)
                return
            except TimeoutError:
                if future.done():
                    raise
                if not loop.is_running():
                    future.cancel()
                    return


async def _contained(coroutine: Coroutine[Any, Any, Any]) -> None:
    """A task must not end with SystemExit: asyncio would raise it out of the loop."""
    try:
        await coroutine
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error


def checked_kinds(events: Any) -> tuple[type[Event], ...] | None:
    """The event classes that a subscriber asks for; None if one of them is not an event class."""
    if events is None:
        return (Event,)
    if isinstance(events, type):
        events = (events,)
    try:
        kinds = tuple(events)
    except TypeError:
        return None
    fit = all(isinstance(kind, type) and issubclass(kind, Event) for kind in kinds)
    return kinds if kinds and fit else None
