"""The slots of a worker: how many executions may begin.

    promised    its lease is between the commit and the delivery
    occupied    it was delivered, and its code is executed
    ending      its code has ended and its end is being committed; another execution may begin

If an end kept its slot until the commit, a full worker and its database would take turns: all executions wait
for their commits, then all slots wait for a claim.  With 100 slots, the worker was idle half of the time.

The worker's lock protects all of this.  A signal handler may raise in any line of the main thread.  So each
slot is known by the token of its execution, and a call that is repeated changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

FEW = 8  # executions that a claim asks for when there is little to do


class WorkerSlots:
    """The slots of one worker."""

    def __init__(self, number: int, *, overlapping: bool) -> None:
        """`overlapping`: a claim need not wait for the commits of ends."""
        self.number = number
        self.promised: dict[str, float] = {}  # tokens, and since when
        self._occupied: set[str] = set()
        self._ending: set[str] = set()
        self._many = False  # the last claim found more than a few
        # A worker with one slot is to execute one run after the other.
        self._most_ending = number if overlapping and number > 1 else 0

    @property
    def free(self) -> int:
        """Negative where a slot is handed on before the end of the execution that occupies it."""
        return self.number - len(self._occupied) - len(self.promised)

    def room(self) -> int:
        """How many the next claim may take: all that fit, or only a few if the last claim found fewer.

        Each needs a token.  For a hundred, that takes longer than anything else in a claim that finds one.
        """
        return max(self.free if self._many else min(self.free, FEW), 0)

    def found(self, number: int) -> None:
        """A claim has found so many."""
        self._many = number >= FEW

    def promise(self, *tokens: str) -> None:
        self.promised |= dict.fromkeys(tokens, time.monotonic())

    def take_back(self, tokens: Iterable[str]) -> None:
        """These leases are not delivered."""
        for token in tokens:
            self.promised.pop(token, None)

    def occupy(self, token: str) -> None:
        self._occupied.add(token)
        self.promised.pop(token, None)

    def occupied_by(self, token: str) -> bool:
        return token in self._occupied

    def end_early(self, token: str) -> bool:
        """Free the slot of an execution whose code has ended; False if too many ends are being committed."""
        if token not in self._ending and len(self._ending) >= self._most_ending:
            return False
        self._ending.add(token)
        self._occupied.discard(token)
        return True

    def vacate(self, token: str) -> None:
        """The execution has ended, or was not begun."""
        self._occupied.discard(token)
        self._ending.discard(token)
