"""What the engine takes from `threading`, `queue` and `time`, on the simulation's scheduler."""

from __future__ import annotations

import queue as real_queue
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from .scheduler import SECOND, Killed, Scheduler, Thread, micros

BEGINNING = 1_800_000_000 * SECOND  # the wall clock when a simulation begins


class Primitives:
    """The namespaces that replace the modules, for one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.threading = FakeThreading(scheduler)
        self.queue = FakeQueue(scheduler)
        self.time = FakeTime(scheduler)


class FakeTime:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)

    def monotonic(self) -> float:
        return self._scheduler.now / SECOND

    perf_counter = monotonic

    def time_ns(self) -> int:
        return self.wall() * 1000

    def time(self) -> float:
        return self.wall() / SECOND

    def wall(self) -> int:
        current = self._scheduler.current
        return BEGINNING + self._scheduler.now + (0 if current is None else current.process.skew)

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(max(1, micros(seconds)))


class FakeThreading:
    """`threading`, as far as the engine uses it."""

    Thread: Any
    TIMEOUT_MAX = real_threading.TIMEOUT_MAX

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.Thread = type("Thread", (SimThread,), {"scheduler": scheduler})

    def Lock(self) -> Lock:  # noqa: N802
        return Lock(self._scheduler)

    def RLock(self) -> RLock:  # noqa: N802
        return RLock(self._scheduler)

    def Condition(self, lock: Any = None) -> Condition:  # noqa: N802
        return Condition(self._scheduler, lock)

    def Event(self) -> Event:  # noqa: N802
        return Event(self._scheduler)

    def Semaphore(self, value: int = 1) -> Semaphore:  # noqa: N802
        return Semaphore(self._scheduler, value)

    BoundedSemaphore = Semaphore

    def get_ident(self) -> int:
        current = self._scheduler.current
        return 0 if current is None else current.ident

    def current_thread(self) -> Any:
        return self._scheduler.current

    def main_thread(self) -> Any:
        current = self._scheduler.current
        return None if current is None else current.process.main


class FakeQueue:
    Empty = real_queue.Empty

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    @property
    def SimpleQueue(self) -> Any:  # noqa: N802
        return _Making(self._scheduler)


class _Making:
    """`queue.SimpleQueue`, which is called, and subscripted in annotations."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def __call__(self) -> SimpleQueue:
        return SimpleQueue(self._scheduler)

    def __getitem__(self, item: Any) -> _Making:
        return self


class _Waiting:
    """Threads that wait for something."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters: deque[Thread] = deque()

    def _wait(self, until: int | None) -> bool:
        thread = self._scheduler.current
        if thread is None:
            raise Killed
        self._waiters.append(thread)
        try:
            return self._scheduler.block(until)
        finally:
            if thread in self._waiters:
                self._waiters.remove(thread)

    def _wake(self, number: int | None = None) -> None:
        while self._waiters and number != 0:
            thread = self._waiters.popleft()
            if thread.waits and not thread.process.dead:
                self._scheduler.wake(thread)
                number = None if number is None else number - 1

    def _until(self, timeout: float | None) -> int | None:
        if timeout is None or timeout < 0:
            return None
        return self._scheduler.now + micros(min(timeout, 1e9))


class Lock(_Waiting):
    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._locked = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._scheduler.pause()
        until = self._until(timeout)
        while self._locked:
            if not blocking:
                return False
            try:
                woken = self._wait(until)
            except BaseException:
                if not self._locked:
                    self._wake(1)  # it was our turn: the next one has it
                raise
            if not woken and self._locked:
                return False
        self._locked = True
        return True

    def release(self) -> None:
        if not self._locked:
            if self._scheduler.over:
                return
            raise RuntimeError("release unlocked lock")
        self._locked = False
        self._wake(1)

    def locked(self) -> bool:
        return self._locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class RLock:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = Lock(scheduler)
        self._owner: Thread | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._scheduler.current
        if self._owner is me and me is not None:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count <= 0:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Condition(_Waiting):
    def __init__(self, scheduler: Scheduler, lock: Any = None) -> None:
        super().__init__(scheduler)
        self._lock = RLock(scheduler) if lock is None else lock
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        try:
            return self._wait(self._until(timeout))
        finally:
            if not self._scheduler.over:
                self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = self._until(timeout)
        while not (found := predicate()):
            if until is not None and self._scheduler.now >= until:
                return found
            self.wait(None if until is None else (until - self._scheduler.now) / SECOND)
        return found

    def notify(self, n: int = 1) -> None:
        self._wake(n)

    def notify_all(self) -> None:
        self._wake()


class Event(_Waiting):
    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        self._wake()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.pause()
        until = self._until(timeout)
        while not self.is_set() and self._wait(until):
            pass
        return self._flag


class Semaphore(_Waiting):
    def __init__(self, scheduler: Scheduler, value: int = 1) -> None:
        super().__init__(scheduler)
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        self._scheduler.pause()
        until = self._until(timeout)
        while self._value <= 0:
            if not blocking:
                return False
            try:
                woken = self._wait(until)
            except BaseException:
                if self._value > 0:
                    self._wake(1)
                raise
            if not woken and self._value <= 0:
                return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        self._wake(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class SimpleQueue(_Waiting):
    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._wake(1)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self._scheduler.pause()
        until = self._until(timeout)
        while not self._items:
            if not self._wait(until) and not self._items:
                raise real_queue.Empty
        return self._items.popleft()


class SimThread:
    """`threading.Thread`, started in the process of the thread that starts it."""

    scheduler: Scheduler

    def __init__(
        self,
        target: Callable[..., Any] | None = None,
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self.name = name
        self.daemon = daemon
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self._thread: Thread | None = None

    def start(self) -> None:
        current = self.scheduler.current
        if current is None:
            raise Killed
        if current.process.thread_fault(self.name):
            raise RuntimeError("can't start new thread")
        target = self._target
        assert target is not None
        self._thread = current.process.spawn(self.name, lambda: target(*self._args, **self._kwargs))
        self.scheduler.pause()

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.over

    def join(self, timeout: float | None = None) -> None:
        thread, me = self._thread, self.scheduler.current
        if thread is None:
            raise RuntimeError("cannot join thread before it is started")
        if me is None:
            raise Killed
        until = None if timeout is None else self.scheduler.now + micros(max(0.0, timeout))
        while not thread.over:
            thread.watchers.append(me)
            if not self.scheduler.block(until):
                return

    def __eq__(self, other: object) -> bool:
        return self is other or (self._thread is not None and self._thread is other)

    def __hash__(self) -> int:
        return id(self)
