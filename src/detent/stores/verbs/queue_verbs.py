"""The verbs of queues that have limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ...kernel.queues import Configured, Limits
from ...kernel.rows import Claimed
from ..base_store import BaseStore
from ..driver import Tx, news
from . import queues as limited
from .cancel import note
from .claims import promote

WAITING_COUNTED = 10_001  # as far as waiting executions are counted


class LimitedClaim(msgspec.Struct):
    """What was claimed on queues with limits, and when to look again."""

    claimed: list[Claimed]
    wait: int | None  # microseconds until more may begin
    start_within: dict[str, int]  # by token: microseconds from before the claim after which it must not start


class QueueVerbs(BaseStore):
    """What a store does for queues that have limits."""

    def claim_limited(
        self,
        worker: str,
        *,
        queues: Sequence[str],
        running: Mapping[str, int],
        jobs: Sequence[str],
        tokens: Sequence[str],
        now: int,
        version: str = "",
    ) -> LimitedClaim:
        """Lease what is due and permitted on these queues, at most one per token; twice leases the next ones.

        `running` is how many of each queue the worker executes already.
        """

        def claiming(tx: Tx) -> limited.Claiming:
            promote(tx, now)
            return limited.claim(
                tx,
                worker,
                queues=queues,
                running=running,
                jobs=jobs,
                tokens=tokens,
                now=now,
                version=version,
            )

        found = self._again(self._claims, claiming)
        return LimitedClaim(claimed=found.claimed(), wait=found.wait, start_within=found.start_within)

    def queues(self) -> list[Configured]:
        """The queues that have a row: limits are declared, were changed, or the queue was paused."""
        with self._reading() as tx:
            return limited.read(tx)

    def declare_queues(self, declared: Mapping[str, Limits], *, now: int) -> list[Configured]:
        """Store the limits that the code declares; twice does nothing."""
        known = self.queues()
        if not limited.undeclared(known, declared):
            return known
        return self.write(lambda tx: limited.declare(tx, declared, now))

    def change_queue(
        self, name: str, how: Callable[[Configured], Configured], *, event: str, detail: object, now: int
    ) -> Configured:
        """Change a queue's row under its lock, add a line to its history, and wake the workers."""

        def changing(tx: Tx) -> Configured:
            changed = limited.change(tx, name, how, now)
            note(tx, limited.history_of(name), event, detail, now)
            self.driver.notify(tx, news(work=True))
            return changed

        return self.write(changing)

    def refused(self, run_id: str, *, now: int) -> list[limited.Refused]:
        """Which executions of a run are due and have to wait for their queue, and why."""
        with self._reading() as tx:
            return limited.refused(tx, run_id, now)

    def waiting_in(self, name: str) -> int:
        """How many executions of a queue may be claimed now; counted up to WAITING_COUNTED."""
        with self._reading() as tx:
            number: int = tx.query(tx.sql.queues.waiting, queue=name, limit=WAITING_COUNTED)[0][0]
            return number

    def executing_in(self, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """How many execute, by queue and key; the empty key stands for those without one."""
        with self._reading() as tx:
            return limited.executing(tx, names)
