"""The processes of a campaign: workers, and a client."""

import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.acceptance.programs import effects

from .nursery import Member, Nursery

WORKER = "tests.acceptance.programs.worker"
CLIENT = "tools.chaos.client"
WORKLOAD = "tools.chaos.workload"
ENDS_WITHIN = 60.0  # seconds for a worker after SIGTERM


class Crew:
    """Starts them, ends them, replaces them, and keeps a record of who died when."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        workers: int,
        pause: float,
        in_flight: int,
        settings: dict[str, Any],
        program: Callable[[int], str] = lambda slot: WORKER,
        client_works: bool = False,
    ) -> None:
        self.log = folder / "effects.log"
        self.stop_file = folder / "stop"
        # When processes died, of the monotonic clock; a thousand of them get some numbers twice.
        self.killed: dict[int, list[int]] = defaultdict(list)
        self.ended_alone: list[str] = []
        self._folder = folder
        self._url = url
        self._in_flight = in_flight
        self._settings = settings
        self._program = program
        self._client_works = client_works
        self._nursery = Nursery({})
        self._environment = {effects.VARIABLE: str(self.log), "DETENT_ACCEPTANCE_PAUSE": str(pause)}
        self.workers = [self._worker(slot) for slot in range(workers)]
        self.client = self._client()

    def kill(self, member: Member) -> None:
        member.kill()
        # Noted behind the signal: until then it may begin another body.
        self.killed[member.pid].append(time.monotonic_ns())

    def kill_worker(self, slot: int) -> int:
        """Kill a worker without warning, and start another one in its place."""
        victim = self.workers[slot]
        self.kill(victim)
        self.workers[slot] = self._worker(slot)
        return victim.pid

    def kill_client(self) -> int:
        victim = self.client
        self.kill(victim)
        self.client = self._client()
        return victim.pid

    def replace_fallen(self) -> None:
        """Start another process for each that ended by itself, which the judge will hear of."""
        for slot, worker in enumerate(self.workers):
            if not worker.alive:
                self.ended_alone.append(f"worker {worker.pid} with code {worker.wait(1)}")
                self.killed[worker.pid].append(time.monotonic_ns())
                self.workers[slot] = self._worker(slot)
        if not self.client.alive and not self.stop_file.exists():
            self.ended_alone.append(f"client {self.client.pid} with code {self.client.wait(1)}")
            self.client = self._client()

    def stop_client(self, within: float) -> int | None:
        """Let the client end behind the start that it is at; None when it does not."""
        self.stop_file.touch()
        return self.client.wait(within)

    def drain(self) -> list[int | None]:
        """SIGTERM to all workers; gives their exit codes, None for one that hangs."""
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        codes = [worker.wait(ENDS_WITHIN) for worker in self.workers]
        for worker in self.workers:
            if worker.alive:
                worker.send(signal.SIGABRT)  # faulthandler writes into its log what its threads do
        return codes

    def close(self) -> None:
        self._nursery.close()

    def _worker(self, slot: int) -> Member:
        given = json.dumps({"url": self._url, "max_recoveries": 1000, "grace": 5, **self._settings})
        log = self._folder / f"worker-{slot}.log"
        return self._nursery.fork(self._program(slot), [WORKLOAD, given], log, self._environment)

    def _client(self) -> Member:
        given = {
            "url": self._url,
            "stop": str(self.stop_file),
            "in_flight": self._in_flight,
            "works": self._client_works,
        }
        return self._nursery.fork(CLIENT, [json.dumps(given)], self._folder / "client.log", self._environment)
