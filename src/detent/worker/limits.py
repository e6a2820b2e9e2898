"""What a worker knows of the queues that have limits, and how it claims from them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from ..execution.services import Services
from ..kernel.rows import Claimed

PUNCTUAL = 0.75  # the share of the time to start in which a body must be called
MOST_KEPT = 10_000
Claim = Callable[[Sequence[str], Sequence[str]], list[Claimed]]


class Running(Protocol):
    @property
    def claimed(self) -> Claimed: ...


class LimitedQueues:
    """The queues of one worker that have limits or are paused.  An app without such queues has none here.

    The worker learns of them when it starts and from each heartbeat.  What they allow is read with each
    claim.
    """

    def __init__(self, services: Services, served: Sequence[str]) -> None:
        self._services = services
        self._served = frozenset(served)
        self.names: frozenset[str] = frozenset()
        self.learned = 0  # how often
        self._guard = threading.Lock()
        self.next_moment: int | None = None  # when a rate permits more, by our clock
        self.start_by: dict[str, float] = {}  # by token: when it is too late to start

    def learn(self, limited: Mapping[str, bool], *, since: int | None = None) -> None:
        """These queues have limits now; True if the keys of executions matter.

        `since` is the value of `learned` before they were read.  If it has changed, a pause or a limit
        was set here meanwhile, and this reading may not have it.
        """
        with self._guard:
            if since is not None and since != self.learned:
                return
            self.learned += 1
            self.names = self._served & limited.keys()
        keyed = frozenset(name for name, by_key in limited.items() if by_key)
        if keyed - self._services.store.driver.keyed:
            self._services.store.driver.keyed |= keyed

    def claim(
        self,
        worker: str,
        queues: Sequence[str],
        tokens: Sequence[str],
        running: Callable[[], Iterable[Running]],
        otherwise: Claim,
    ) -> list[Claimed]:
        """Claim from all queues: those without limits by `otherwise`, in a random order with the others."""
        names = self.names

        def unlimited(queues: Sequence[str], tokens: Sequence[str]) -> list[Claimed]:
            claimed = otherwise(queues, tokens)
            return self._without(self.names - names, claimed)

        if not names:
            return unlimited(queues, tokens)
        others = [queue for queue in queues if queue not in names]

        def permitted(queues: Sequence[str], tokens: Sequence[str]) -> list[Claimed]:
            counted = Counter(work.claimed.queue for work in running())
            return self._claim(worker, queues, tokens, counted)

        ways: list[tuple[Claim, Sequence[str]]] = [(permitted, sorted(names)), (unlimited, others)]
        random.shuffle(ways)
        claimed: list[Claimed] = []
        for way, some in ways:
            left = tokens[len(claimed) :]
            if some and left:
                claimed += way(some, left)
        return claimed

    def _without(self, limited: Collection[str], claimed: list[Claimed]) -> list[Claimed]:
        """Hand back what was claimed from queues that were paused or limited here since the claim began."""
        late = [item for item in claimed if item.queue in limited]
        if late:
            self._services.store.release(late)
        return [item for item in claimed if item.queue not in limited] if late else claimed

    def _claim(
        self, worker: str, queues: Sequence[str], tokens: Sequence[str], running: Mapping[str, int]
    ) -> list[Claimed]:
        now, begun = self._services.clock.now(), time.monotonic()
        found = self._services.store.claim_limited(
            worker,
            queues=queues,
            running=running,
            jobs=self._services.registry.names,
            tokens=tokens,
            now=now,
            version=self._services.version,
        )
        self.next_moment = None if found.wait is None else now + found.wait
        if len(self.start_by) > MOST_KEPT:  # of deliveries that failed
            self.start_by = {token: by for token, by in self.start_by.items() if by > begun}
        for token, within in found.start_within.items():
            self.start_by[token] = begun + within * PUNCTUAL / 1e6
        return found.claimed

    def hand_back(self, claimed: Claimed, then: Callable[[], None]) -> None:
        """Give an execution back that came too late; it is claimed again when the rate permits."""
        try:
            self._services.store.release([claimed])
        finally:
            then()

    def is_late(self, token: str) -> bool:
        """Whether an execution comes too late to start: in the window of its rate others may start then."""
        start_by = self.start_by.pop(token, None)
        return start_by is not None and time.monotonic() > start_by
