"""Supervises several worker processes: starts, replaces and stops them.

The children have their own process groups, so that Ctrl-C in a terminal reaches them
only once, through the supervisor.  Their stdin is a pipe from the supervisor, so that
they drain when it ends for any reason.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from types import FrameType

from .logs import log, tell

LOOK = 0.1  # seconds between two looks at the children
QUICK = 5.0  # a child that lived shorter than this is replaced more slowly each time
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0


class Child:
    """A slot for a worker process, filled again when the process ends."""

    def __init__(self, number: int, arguments: Sequence[str]) -> None:
        self.number = number
        self._arguments = arguments
        self._wait = FIRST_WAIT
        self._due = 0.0
        self._started = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def look(self, now: float) -> None:
        """Replace the process if it has ended and the wait is over."""
        if self.process is not None and self.process.poll() is not None:
            lived = now - self._started
            self._wait = FIRST_WAIT if lived > QUICK else min(self._wait * 2, LONGEST_WAIT)
            self._due = now + self._wait
            log.warning(
                "worker process %d (pid %d) %s; starting another one in %.1f s",
                self.number,
                self.process.pid,
                how_it_ended(self.process.returncode),
                self._wait,
            )
            self.process = None
        if self.process is None and now >= self._due:
            self.start(now)

    def start(self, now: float) -> None:
        self._started = now
        self.process = subprocess.Popen(self._arguments, stdin=subprocess.PIPE, process_group=0)
        tell(f"worker process {self.number} has pid {self.process.pid}", pid=self.process.pid)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


def supervise(arguments: Sequence[str], processes: int) -> int:
    """Keep this many processes running until a signal arrives; return the exit code."""
    children = [Child(number, arguments) for number in range(1, processes + 1)]
    signals: list[int] = []
    called = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        called.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    while not called.is_set():
        for child in children:
            child.look(time.monotonic())
        called.wait(LOOK)
    return _drain(children, signals)


def _drain(children: Sequence[Child], signals: list[int]) -> int:
    """Pass the signals on and wait until all processes have ended; the second signal kills them."""
    tell(f"draining {len(children)} processes; a second signal stops at once", signal=signals[0])
    running = [child for child in children if child.process is not None]
    for child in running:
        child.signal(signal.SIGTERM)
    while any(child.process is not None and child.process.poll() is None for child in running):
        if len(signals) > 1:
            for child in running:
                child.signal(signal.SIGKILL)
            return 128 + signals[1]
        time.sleep(LOOK / 2)
    codes = [child.process.returncode for child in running if child.process is not None]
    tell("all worker processes have drained; stopped")
    return 0 if not any(codes) else 1


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
