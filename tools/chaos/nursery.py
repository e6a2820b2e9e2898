"""A process that forks worker and client processes on request.

A Python process that imports Detent and its drivers takes half a second of a core.  This one has imported
them, has no threads and no connections, and forks: a new worker is there within milliseconds, so a thousand
may be killed in a few minutes.

A request is a line of JSON on its standard input, the answer a line of JSON on its standard output.  At the
end of its input it kills what is left and ends.
"""

import ctypes
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
LAZY = {"detent.__main__", "detent.cli", "detent.testing", "detent.demo"}


class Member:
    """A forked process, as seen by who asked for it."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._handle = os.pidfd_open(pid)
        self._status: int | None = None

    @property
    def alive(self) -> bool:
        return self._status is None and not self._ended(0)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.send(signal.SIGKILL)
        self.wait(30)

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None when it has not ended in time."""
        if self._status is None and self._ended(seconds):
            self._status = self._nursery.reap(self.pid)
            os.close(self._handle)
        return self._status

    def _ended(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


class Nursery:
    """Asks the forking process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.chaos.nursery"],
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def fork(self, program: str, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> Member:
        """Run a module as a program; its output is appended to the log."""
        pid = self._ask(program=program, argv=list(argv), log=str(log), environment=dict(environment))
        return Member(self, pid)

    def reap(self, pid: int) -> int:
        return self._ask(reap=pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, **request: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(json.loads(self._process.stdout.readline()))


# -- In the process itself -------------------------------------------------------------------------


def serve() -> dict[str, Any] | None:
    """Answer requests; returns in each child, with what it has to run, and in the parent at the end."""
    children: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            children.discard(request["reap"])
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                return dict(request)
            children.add(answer)
        print(json.dumps(answer), flush=True)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return None


def become(request: dict[str, Any]) -> None:
    """Be the program that was asked for."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(request["environment"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((null, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    sys.argv = [request["program"], *request["argv"]]
    runpy.run_module(request["program"], run_name="__main__", alter_sys=True)


def warm_up() -> None:
    """Import whatever a worker or a client needs."""
    import detent

    for module in pkgutil.walk_packages(detent.__path__, "detent."):
        if not any(module.name.startswith(lazy) for lazy in LAZY):
            importlib.import_module(module.name)
    importlib.import_module("tools.chaos.workload")


if __name__ == "__main__":
    warm_up()
    if (wanted := serve()) is not None:
        become(wanted)
