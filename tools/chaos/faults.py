"""The faults.  Each is a class with one method that injects it once."""

import random
import time
from abc import ABC, abstractmethod

from .crew import Crew
from .places import Place

SPARED_FOR = 8.0  # seconds
CLIENT_SHARE = 0.1
ALL_SHARE = 0.02


class Fault(ABC):
    """A kind of fault, on one place."""

    name: str
    databases: tuple[str, ...]
    private = False  # needs a server of its own
    mean = 0.4  # seconds between two faults
    workers_live = True  # every worker that dies is in the crew's record

    def __init__(self, place: Place, crew: Crew, chance: random.Random) -> None:
        self.place = place
        self.crew = crew
        self.chance = chance

    @abstractmethod
    def inject(self) -> str:
        """Inject it once; says what happened."""

    def close(self) -> None:  # noqa: B027 - most faults leave nothing behind
        """Bring everything back into order."""


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
    databases = ("postgres", "mysql")
    mean = 0.25

    def inject(self) -> str:
        admin = self.place.admin
        assert admin is not None
        while True:
            if (open_now := admin.sessions()) and admin.end_session(victim := self.chance.choice(open_now)):
                return f"ended session {victim}, one of {len(open_now)}"
            time.sleep(0.01)


FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in (Kill9, Sessions)}
