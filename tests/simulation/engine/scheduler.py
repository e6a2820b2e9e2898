"""A cooperative scheduler with virtual time: every simulated thread is a greenlet, and one runs at a time.

Time stands still while a thread can run.  When none can, it jumps to the next deadline.  Which of several
threads runs next is drawn from a seeded random source, so the same seed gives the same schedule.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

SECOND = 1_000_000  # virtual time is counted in whole microseconds


class Killed(BaseException):
    """Unwinds the threads that are left when a simulation is over."""


class Stalled(AssertionError):
    """The simulation used up its steps without coming to an end."""


class Process:
    """A simulated process: threads that are killed and stopped together, and share a clock."""

    def __init__(self, scheduler: Scheduler, name: str, *, skew: int = 0) -> None:
        self.scheduler = scheduler
        self.name = name
        self.skew = skew  # of its wall clock, in microseconds
        self.dead = False
        self.stopped_until = 0
        self.parked: list[Thread] = []  # what could run if the process were not stopped
        self.threads: list[Thread] = []
        self.main: Thread | None = None
        self.thread_fault: Callable[[str], bool] = lambda name: False  # asked at each start of a thread

    def spawn(self, name: str, target: Callable[[], Any]) -> Thread:
        thread = Thread(self, name, target)
        self.threads.append(thread)
        if self.main is None:
            self.main = thread
        self.scheduler.ready.append(thread)
        return thread

    def kill(self) -> None:
        """Run none of its threads any more, from now on."""
        self.dead = True

    def stop(self, span: int) -> None:
        """Run none of its threads for a while, as SIGSTOP does."""
        self.stopped_until = max(self.stopped_until, self.scheduler.now + span)
        self.scheduler.at(self.stopped_until, self)


class Thread:
    """A simulated thread."""

    _numbers = itertools.count(1)

    def __init__(self, process: Process, name: str, target: Callable[[], Any]) -> None:
        self.process = process
        self.name = name
        self.ident = next(Thread._numbers)
        self.over = False
        self.waits = False  # it is blocked, and may be woken
        self.woken = False
        self.ticket = 0  # a timer of an earlier wait is void
        self.injected: BaseException | None = None
        self.interruptible = False  # an exception may be raised in it while it waits
        self.watchers: list[Thread] = []
        self.error: BaseException | None = None
        self._target = target
        self.greenlet = greenlet(self._run, parent=process.scheduler.hub)  # not the one that starts it

    def _run(self) -> None:
        try:
            self._target()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
            if not self.process.scheduler.over:
                self.process.scheduler.failed.append(self)
        self.over = True
        scheduler = self.process.scheduler
        for watcher in self.watchers:
            scheduler.wake(watcher)


class Scheduler:
    """Runs threads one at a time, and moves the time."""

    def __init__(self, seed: int, *, preempt: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.preempt = preempt  # how likely a thread is set aside where it could go on
        self.ready: list[Thread] = []
        self.steps = 0
        self.over = False
        self.current: Thread | None = None
        self.processes: list[Process] = []
        self.failed: list[Thread] = []  # threads that ended with an exception
        self._timers: list[tuple[int, int, Thread | Process, int]] = []
        self._numbers = itertools.count()
        self.hub = getcurrent()
        Thread._numbers = itertools.count(1)

    def process(self, name: str, *, skew: int = 0) -> Process:
        process = Process(self, name, skew=skew)
        self.processes.append(process)
        return process

    def at(self, moment: int, sleeper: Thread | Process, ticket: int = 0) -> None:
        heapq.heappush(self._timers, (max(moment, self.now), next(self._numbers), sleeper, ticket))

    # From inside of a thread

    def block(self, until: int | None = None) -> bool:
        """Wait to be woken; False if the time was up first."""
        thread = self.current
        if thread is None or self.over:
            raise Killed
        thread.waits, thread.woken = True, False
        if until is not None:
            self.at(until, thread, thread.ticket)
        self._switch(thread)
        if thread.injected is not None:
            error, thread.injected = thread.injected, None
            raise error
        return thread.woken

    def sleep(self, span: int) -> None:
        until = self.now + span
        while self.block(until):
            pass

    def pause(self) -> None:
        """Let others run first, perhaps."""
        thread = self.current
        if thread is None:
            return
        if self.over or thread.process.dead:
            raise Killed
        if self.preempt and self.random.random() < self.preempt:
            self.ready.append(thread)
            self._switch(thread)

    def _switch(self, thread: Thread) -> None:
        # The running loop belongs to the thread of the operating system, which all of ours share.
        loop = asyncio._get_running_loop()
        if loop is not None:
            asyncio._set_running_loop(None)
        self.hub.switch()
        if self.over:
            raise Killed
        if loop is not None:
            asyncio._set_running_loop(loop)

    def wake(self, thread: Thread) -> None:
        if thread.waits:
            thread.waits, thread.woken = False, True
            thread.ticket += 1
            self.ready.append(thread)

    def interrupt(self, thread: Thread, error: BaseException) -> None:
        """Raise an exception in a thread that waits."""
        thread.injected = error
        self.wake(thread)

    # The hub

    def run(self, done: Callable[[], bool], *, until: int, steps: int) -> None:
        """Run until `done`, or until the virtual time is up."""
        last = self.steps + steps
        while not done() and self.now < until:
            thread = self._next(until)
            if thread is None:
                self.now = until
                return
            self.steps += 1
            if self.steps > last:
                raise Stalled(f"{steps} steps did not suffice; {thread.process.name}/{thread.name} was next")
            self.current = thread
            thread.greenlet.switch()
            self.current = None

    def _next(self, until: int) -> Thread | None:
        while True:
            while self.ready:
                number = self.random.randrange(len(self.ready)) if len(self.ready) > 1 else 0
                thread = self.ready[number]
                self.ready[number] = self.ready[-1]
                self.ready.pop()
                process = thread.process
                if process.dead or thread.over:
                    continue
                if process.stopped_until > self.now:
                    process.parked.append(thread)
                    continue
                return thread
            if not self._timers or self._timers[0][0] > until:
                return None
            moment, _, sleeper, ticket = heapq.heappop(self._timers)
            if isinstance(sleeper, Process):
                self.now = max(self.now, moment)
                if sleeper.stopped_until <= self.now:
                    self.ready += sleeper.parked
                    sleeper.parked = []
            elif ticket == sleeper.ticket and sleeper.waits:
                self.now = max(self.now, moment)
                sleeper.waits = False
                sleeper.ticket += 1
                self.ready.append(sleeper)

    def close(self) -> None:
        """Unwind all that is left; nothing that it does has an effect any more."""
        self.over = True
        for process in self.processes:
            process.dead = True
            for thread in process.threads:
                for _ in range(200):
                    if not thread.greenlet:  # over, or never begun
                        break
                    self.current = thread
                    thread.greenlet.throw(Killed)
        self.current = None
        asyncio._set_running_loop(None)


def micros(seconds: float) -> int:
    """Whole microseconds, rounded up: who waits so long has waited long enough."""
    return max(0, math.ceil(seconds * SECOND - 1e-3))
