"""What a fault is; and the faults of processes and sessions."""

import random
import signal
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path

from . import places
from .crew import WORKER, Crew
from .places import Place, ServerPlace

SPARED_FOR = 8.0  # seconds
CLIENT_SHARE = 0.1
ALL_SHARE = 0.02
MOST_INTERRUPTS = 5
MOST_JUMPS = 2  # in one direction


class Fault(ABC):
    """A kind of fault, on one place."""

    name: str
    databases: tuple[str, ...] = ("postgres", "mysql")
    mean = 0.4  # seconds between two faults
    lossy = False  # commits may be lost: the client starts everything again with the same ids
    client_works = False  # the client's process has a worker, too

    def __init__(self, place: Place, crew: Crew, chance: random.Random) -> None:
        self.place = place
        self.crew = crew
        self.chance = chance
        self.restored = 0  # when the last one was over, of the monotonic clock in nanoseconds

    @classmethod
    def open_place(cls, database: str, folder: Path) -> AbstractContextManager[Place]:
        """Where it can be injected."""
        return places.sqlite(folder) if database == "sqlite" else places.shared(database, folder)

    @classmethod
    def impossible(cls) -> str | None:
        """Why it cannot be injected on this machine, if so."""
        return None

    @classmethod
    def program(cls, slot: int) -> str:
        """What the worker of this number runs."""
        return WORKER

    def strike(self) -> str:
        """Inject it once, and note when it was over."""
        self.restored = 0
        what = self.inject()
        self.restored = self.restored or time.monotonic_ns()
        return what

    @abstractmethod
    def inject(self) -> str:
        """Inject it once, and bring everything back into order; says what happened."""

    def close(self) -> None:  # noqa: B027 - most faults leave nothing behind
        """There will be no further one."""


class Kill9(Fault):
    """SIGKILL to a worker or to the client.

    A worker is declared dead when another one has seen it without its lock for 2.1 s.  So one of the
    workers, a different one every few seconds, is spared; and at times all are killed at once.
    """

    name = "kill9"
    databases = ("sqlite", "postgres", "mysql")

    def inject(self) -> str:
        slots = range(len(self.crew.workers))
        if self.chance.random() < ALL_SHARE:
            return f"killed all workers: {[self.crew.kill_worker(slot) for slot in slots]}"
        if self.chance.random() < CLIENT_SHARE:
            return f"killed the client {self.crew.kill_client()}"
        spared = int(time.monotonic() / SPARED_FOR) % len(slots)
        victim = self.chance.choice([slot for slot in slots if slot != spared or len(slots) == 1])
        return f"killed worker {self.crew.kill_worker(victim)}"


class Sessions(Fault):
    """A session of the database is ended in the server: pg_terminate_backend, KILL."""

    name = "sessions"
    mean = 0.25
    place: ServerPlace

    def inject(self) -> str:
        admin = self.place.admin
        while True:
            if (open_now := admin.sessions()) and admin.end_session(victim := self.chance.choice(open_now)):
                return f"ended session {victim}, one of {len(open_now)}"
            time.sleep(0.01)


class Interrupts(Fault):
    """SIGINT, several times in a row, to a process that starts runs in its main thread and works beside."""

    name = "interrupts"
    databases = ("sqlite", "postgres", "mysql")
    mean = 0.1
    client_works = True

    def inject(self) -> str:
        count = self.chance.randint(1, MOST_INTERRUPTS)
        for _ in range(count):
            self.crew.client.send(signal.SIGINT)
            time.sleep(self.chance.random() * 0.01)
        return f"{count} times SIGINT to {self.crew.client.pid}"


class Clocks(Fault):
    """The clocks of two of the workers jump, forward and back, by seconds."""

    name = "clocks"
    databases = ("sqlite", "postgres", "mysql")
    mean = 0.5

    def __init__(self, place: Place, crew: Crew, chance: random.Random) -> None:
        super().__init__(place, crew, chance)
        self._jumped = [0, 0]

    @classmethod
    def program(cls, slot: int) -> str:
        return "tools.chaos.skewed" if slot < 2 else WORKER

    def inject(self) -> str:
        slot = self.chance.randrange(2)
        direction = self.chance.choice([1, -1])
        if abs(self._jumped[slot] + direction) > MOST_JUMPS:
            direction = -direction
        self._jump(slot, direction)
        return f"clocks are {self._jumped} jumps away"

    def close(self) -> None:
        for slot, jumped in enumerate(self._jumped):
            for _ in range(abs(jumped)):
                self._jump(slot, -1 if jumped > 0 else 1)
                time.sleep(0.05)  # two signals of one kind at once may be delivered as one

    def _jump(self, slot: int, direction: int) -> None:
        self.crew.workers[slot].send(signal.SIGUSR1 if direction > 0 else signal.SIGUSR2)
        self._jumped[slot] += direction
