"""Which faults a simulation has, and how often: drawn from its seed, so that each combination is tried."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Faults:
    """How likely each fault is: at each call of the database, or (`per second`) in each virtual second."""

    error: float = 0.0  # an error instead of an answer; nothing was done
    lost: float = 0.0  # the answer is lost, after the commit
    repeated: float = 0.0  # a batch of operations arrives twice
    crash: float = 0.0  # the process is killed
    stop: float = 0.0  # the process does not run for a while
    slow: float = 0.0  # a call takes long
    no_thread: float = 0.0  # a thread cannot be started
    lost_lock: float = 0.0  # per second: the session that shows that a worker lives ends
    interrupt: float = 0.0  # per second: an exception is raised in a client's thread that waits
    restart: float = 0.0  # per second: a process is closed in good order, and opened again
    outage: float = 0.0  # per second: the database is away for a while, for one process
    skew: float = 0.0  # seconds between the clocks of two machines, at most
    preempt: float = 0.0  # a thread is set aside where it could go on

    def __str__(self) -> str:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return ", ".join(f"{name} {value:g}" for name, value in given.items() if value) or "none"


def drawn(source: random.Random) -> Faults:
    """Some faults, often or seldom."""

    def maybe(*levels: float, chance: float = 0.45) -> float:
        return source.choice(levels) if source.random() < chance else 0.0

    return Faults(
        error=maybe(0.01, 0.05, 0.2),
        lost=maybe(0.02, 0.1, 0.3),
        repeated=maybe(0.05, 0.3),
        crash=maybe(0.003, 0.01),
        stop=maybe(0.003, 0.01, chance=0.3),
        slow=maybe(0.02),
        no_thread=maybe(0.05, 0.2, chance=0.3),
        lost_lock=maybe(0.1, 0.4),
        interrupt=maybe(0.3, 1.0),
        restart=maybe(0.1, chance=0.25),
        outage=maybe(0.1, chance=0.25),
        skew=maybe(0.5, 8.0, chance=0.3),
        preempt=maybe(0.02, 0.2, 0.5, chance=0.7),
    )
