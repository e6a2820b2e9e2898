"""How a worker claims from the queues that have no limits.

A claim skips what another transaction has locked.  It cannot tell that from an empty queue.  The other
transaction may be a claim that takes what it has locked.  It may also be one that does not: MariaDB locks
every execution that a claim looks at, also those of kinds that its worker does not serve.  So after a claim
that had room for more, the worker looks once more, without locks.  If something is left, it claims again
soon, and then less and less often.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..execution.services import Services
from ..kernel.rows import Claimed
from ..stores.claim_cursor import ClaimCursor
from .next_moment import NextMoment

FIRST_WAIT = 0.002  # seconds until the next claim; most transactions are over by then
BEGINNING = 0.002  # seconds for what was claimed to begin
LONGEST_WAIT = 0.25  # while another transaction keeps something locked


class UnlimitedQueues:
    """Claims, and knows when to claim again; for the dispatcher's thread."""

    def __init__(self, services: Services, due: NextMoment, claim_cursor: ClaimCursor) -> None:
        self._services = services
        self._due = due
        self._claim_cursor = claim_cursor
        self._queues: Sequence[str] = ()  # that were claimed from since the last look
        self._wait = 0.0

    def claim(self, worker: str, queues: Sequence[str], tokens: Sequence[str]) -> list[Claimed]:
        """Claim from these queues; make timers ready first if one is due, as far as we know."""
        self._queues = queues
        now, due = self._services.clock.now(), self._due.at
        return self._services.store.claim(
            worker,
            queues=queues,
            jobs=self._services.registry.names,
            tokens=tokens,
            now=now,
            version=self._services.version,
            claim_cursor=self._claim_cursor,
            timers=due is not None and due <= now,
        )

    def look(self, poked: threading.Event, *, busy: bool) -> bool:
        """Learn when the next timer is due; return whether the claim has left something.

        `busy`: something was claimed.  It begins on another thread, which the look would hold up.
        """
        if busy:
            poked.wait(BEGINNING)
        mark = self._due.look()
        queues, self._queues = self._queues, ()  # the next claim may be from limited queues only
        due, left = self._services.store.next_work(
            self._claim_cursor,
            queues=queues,
            jobs=self._services.registry.names,
            version=self._services.version,
        )
        self._due.found(mark, due)
        self._wait = min(LONGEST_WAIT, self._wait * 2 or FIRST_WAIT) if left else 0.0
        return left

    def wait(self, poked: threading.Event) -> None:
        """Wait before the next claim, at most until there is another reason for it."""
        poked.wait(self._wait)
