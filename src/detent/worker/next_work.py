"""What a worker looks for after a claim that found less than it had room for.

A claim skips what another transaction has locked.  It cannot tell that from an empty queue.  The other
transaction may be a claim that takes what it has locked.  It may also be one that does not: MariaDB locks
every execution that a claim looks at, also those of kinds that its worker does not serve.  So the worker
looks once more, without locks.  If something is left, it claims again soon, and then less and less often.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..execution.services import Services
from ..stores.claim_cursor import ClaimCursor
from .next_moment import NextMoment

FIRST_WAIT = 0.002  # seconds until the next claim; most transactions are over by then
LONGEST_WAIT = 0.25  # while another transaction keeps something locked


class NextWork:
    """When to claim again; for the dispatcher's thread."""

    def __init__(self, services: Services, due: NextMoment, claim_cursor: ClaimCursor) -> None:
        self._services = services
        self._due = due
        self._claim_cursor = claim_cursor
        self._wait = 0.0
        self.queues: Sequence[str] = ()  # of the last claim, without those that have limits

    def look(self) -> bool:
        """Learn when the next timer is due; return whether the claim has left something."""
        mark = self._due.look()
        due, left = self._services.store.next_work(
            self._claim_cursor,
            queues=self.queues,
            jobs=self._services.registry.names,
            version=self._services.version,
        )
        self._due.found(mark, due)
        self._wait = min(LONGEST_WAIT, self._wait * 2 or FIRST_WAIT) if left else 0.0
        return left

    def wait(self, poked: threading.Event) -> None:
        """Wait before the next claim, at most until there is another reason for it."""
        poked.wait(self._wait)
