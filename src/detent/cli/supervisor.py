"""Several worker processes under one: started, replaced when they die, told to stop.

The children are in process groups of their own, so that a Ctrl-C in a terminal
reaches them only through us, once; and their stdin is a pipe from us, so that
they drain when we are gone, however that came.
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
    """One place for a worker process, filled again when it falls empty."""

    def __init__(self, number: int, arguments: Sequence[str]) -> None:
        self.number = number
        self._arguments = arguments
        self._wait = FIRST_WAIT
        self._due = 0.0
        self._started = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def look(self, now: float) -> None:
        """Replace the process if it is gone, and its time has come."""
        if self.process is not None and self.process.poll() is not None:
            lived = now - self._started
            self._wait = FIRST_WAIT if lived > QUICK else min(self._wait * 2, LONGEST_WAIT)
            self._due = now + self._wait
            log.warning(
                "worker process %d (pid %d) %s; another one follows in %.1f s",
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
    """Keep that many processes running until a signal comes; return the exit code."""
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
    """Pass the signals on, and wait until all are gone; the second one does not wait."""
    tell(f"draining {len(children)} processes; once more leaves at once", signal=signals[0])
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
    tell("all worker processes have drained; bye")
    return 0 if not any(codes) else 1


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
