"""Admission: which executions of a limited queue may begin now, and when the next one may.

A claim counts what executes, reads when executions began, and asks an `Admission` for each candidate, in the
order of the queue.  The store calls it inside the claim's transaction, while it holds the lock of the queue:

    1. At most `concurrency` execute, and at most `key_concurrency` of one key.
    2. In every window of a rate's length, at most its count begin.
    3. Only what executes counts.  A function that sleeps or waits holds no slot.  To continue it needs a
       slot again, but it does not begin a second time: rates do not count it.
    4. An execution without a key has no key limits.

Time is the database's.  A clock that is set back makes executions wait for longer; it never lets more begin.

A begin is recorded when it is leased, and the code starts a little later.  The promise is about the code.  So
windows are longer than the rate says by a margin, and a worker that comes later than the margin hands the
execution back instead of starting it.  Two starts that are less than a rate's length apart then have leases
that are less than a window apart.

The moments of begins are exact up to `EXACT` in one window.  Beyond that they are rounded up to a thousandth
of the window, so that a window is never more than about a thousand rows.  Rounding up keeps rule 2: a begin
is forgotten later, never earlier.

Nothing here reads a clock or a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from .queues import KEYLESS, Limits, Period

EXACT = 1000  # begins in a window up to which their moments are exact
SMALLEST_MARGIN, LARGEST_MARGIN = 20_000, 1_000_000  # microseconds
NO_KEY = ""  # stands for the queue as a whole, and for executions without a key

Begins = Sequence[tuple[int, int]]  # when, and how many


class Refusal(StrEnum):
    """Why an execution may not begin now."""

    PAUSED = "paused"
    CONCURRENCY = "concurrency"
    KEY_CONCURRENCY = "key_concurrency"
    RATE = "rate"
    KEY_RATE = "key_rate"


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An execution that is due, in the order of the fields that a claim reads."""

    run_id: str
    node: str
    attempt: int
    precedence: int
    scheduled_for: int
    key: str | None
    started_at: int | None

    @property
    def scope(self) -> str:
        """The key whose limits count for it."""
        return scope_of(self.key)

    @property
    def begins(self) -> bool:
        """Whether rates count it: a function that continues after a wait has begun already."""
        return self.started_at is None


def scope_of(key: str | None) -> str:
    """The key whose limits count; `NO_KEY` for an execution without one."""
    return NO_KEY if key is None or key == KEYLESS else key


def margin(rate: Period) -> int:
    """How long after its lease the code may start, in microseconds: a tenth of the period, within limits."""
    return max(SMALLEST_MARGIN, min(rate.per // 10, LARGEST_MARGIN))


def window(rate: Period) -> int:
    """How long a begin counts, in microseconds."""
    return rate.per + margin(rate)


def stamp(rate: Period, now: int) -> int:
    """The moment that is recorded for a begin at `now`: the same, or a little later."""
    if rate.count <= EXACT:
        return now
    step = max(1, rate.per // EXACT)
    return -(-now // step) * step


def permitted(rate: Period, begins: Begins, now: int) -> int:
    """How many may begin at `now`."""
    return max(0, rate.count - sum(number for at, number in begins if at > now - window(rate)))


def next_permitted(rate: Period, begins: Begins, now: int) -> int:
    """The first moment at which one more may begin: `now`, or later."""
    counted = sorted((at, number) for at, number in begins if at > now - window(rate))
    excess = sum(number for _, number in counted) - rate.count
    moment = now
    for at, number in counted:
        if excess < 0:
            break
        excess -= number
        moment = at + window(rate)
    return moment


class Admission:
    """The state of one queue during one claim.

    `executing` and `begins` are by key; the begins of the queue as a whole are under `NO_KEY`.  The begins of
    keys may be added with `learn` before they are asked for.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        now: int,
        room: int,
        executing: Mapping[str, int] | None = None,
        begins: Mapping[str, Begins] | None = None,
    ) -> None:
        self.limits = limits
        self.now = now
        self._executing = dict(executing or {})
        self._begins: dict[str, list[tuple[int, int]]] = {}
        self._begun: dict[str, int] = {}  # by key: what was taken in this claim
        self._left: dict[str, int] = {}  # by key: how many may still begin
        self._room = room
        if limits.concurrency is not None:
            self._room = min(room, limits.concurrency - sum(self._executing.values()))
        self._refused: dict[str, Refusal] = {}
        self.learn(begins or {})

    @property
    def room(self) -> int:
        """How many more can be taken."""
        return max(0, self._room)

    def learn(self, begins: Mapping[str, Begins]) -> None:
        """Take note of when executions of these keys began."""
        for key, found in begins.items():
            rate = self._rate(key)
            if rate is not None:
                self._begins[key] = list(found)
                self._left[key] = permitted(rate, found, self.now)

    def unknown(self, keys: Iterable[str | None]) -> set[str]:
        """Those of the keys whose begins are needed and not known."""
        if self.limits.key_rate is None:
            return set()
        return {scope_of(key) for key in keys} - {NO_KEY} - self._begins.keys()

    def refusal(self, key: str | None, *, begins: bool = True) -> Refusal | None:
        """Why an execution with this key may not begin; None if it may."""
        scope, limits = scope_of(key), self.limits
        if self._room <= 0:
            return Refusal.CONCURRENCY
        most = limits.key_concurrency if scope else None
        if most is not None and self._executing.get(scope, 0) >= most:
            return Refusal.KEY_CONCURRENCY
        if begins and limits.rate is not None and self._left.get(NO_KEY, limits.rate.count) <= 0:
            return Refusal.RATE
        rate = limits.key_rate if scope and begins else None
        if rate is not None and self._left.get(scope, rate.count) <= 0:
            return Refusal.KEY_RATE
        return None

    def take(self, candidate: Candidate) -> bool:
        """Let it begin, and count it; False if a limit refuses that."""
        key = candidate.scope
        refused = self.refusal(candidate.key, begins=candidate.begins)
        if refused is not None:
            self._refused[NO_KEY if refused is Refusal.RATE else key] = refused
            return False
        self._room -= 1
        self._executing[key] = self._executing.get(key, 0) + 1
        if candidate.begins:
            for scope in {NO_KEY, key}:
                if (rate := self._rate(scope)) is not None:
                    self._left[scope] = self._left.get(scope, rate.count) - 1
                    self._begun[scope] = self._begun.get(scope, 0) + 1
        return True

    @property
    def records(self) -> dict[str, tuple[int, int]]:
        """By key, what is to be recorded: a moment, and how many have begun at it in all."""
        found: dict[str, tuple[int, int]] = {}
        for scope, number in self._begun.items():
            rate = self._rate(scope)
            assert rate is not None
            at = stamp(rate, self.now)
            before = sum(count for moment, count in self._begins.get(scope, ()) if moment == at)
            found[scope] = (at, before + number)
        return found

    def start_within(self, candidate: Candidate) -> int | None:
        """How many microseconds after its lease it may start; None if no rate counts it."""
        rates = [self._rate(scope) for scope in {NO_KEY, candidate.scope}] if candidate.begins else []
        return min((margin(rate) for rate in rates if rate is not None), default=None)

    @property
    def next_moment(self) -> int | None:
        """When a rate permits the next of those that it has refused; None if no rate did."""
        moments = [
            next_permitted(rate, [*self._begins.get(key, ()), (self.now, self._begun.get(key, 0))], self.now)
            for key, refused in self._refused.items()
            if refused in (Refusal.RATE, Refusal.KEY_RATE) and (rate := self._rate(key)) is not None
        ]
        return min(moments, default=None)

    def _rate(self, key: str) -> Period | None:
        return self.limits.key_rate if key else self.limits.rate


def urgency(candidate: Candidate, aging: int | None) -> tuple[int, int, str, str]:
    """The order of a queue: priority, then due time.

    With aging each level of priority is worth so many microseconds of waiting.  That order does not change
    while executions wait.
    """
    if aging is None:
        return candidate.precedence, candidate.scheduled_for, candidate.run_id, candidate.node
    rank = candidate.scheduled_for + candidate.precedence * aging
    return rank, candidate.scheduled_for, candidate.run_id, candidate.node
