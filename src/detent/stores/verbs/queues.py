"""Claims on queues that have limits, and the limits themselves.

A claim on a limited queue is one transaction:

    1. Lock the rows of the queues.  A queue that another worker is claiming from is left to that worker.
    2. Count what executes, and read what began: the rows themselves, no counters.
    3. Read candidates, without locks, and let the kernel admit some of them (kernel/admission.py).
    4. Lock those that are still ready, lease them, and record that they began.

Candidates come in the order of the queue.  Where the first `LOOK_AHEAD` of them have to wait because of their
keys, the other keys take turns; in a fair queue they always do.  Keys are found in an index without
reading all that waits under a key, so that a million executions of one key cost as much as a few.

Queues without limits are not claimed here (leases.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...kernel.admission import (
    NO_KEY,
    Admission,
    Candidate,
    Refusal,
    next_permitted,
    scope_of,
    urgency,
    window,
)
from ...kernel.queues import (
    KEYLESS,
    LONGEST_QUEUE_KEY,
    NO_LIMITS,
    Change,
    Configured,
    Limits,
    Period,
    given_key,
)
from ...kernel.rows import Claimed, ExecutionRow, ExecutionState, NewExecution
from ...kernel.settle import LETTERS
from ...serialization.decoders import decode
from ..driver import Tx, batch, rows_to
from ..sql.queues import CONFIGURED, KEYS
from .leases import lease

LOOK_AHEAD = 100  # candidates that are looked at beyond those that fit
MOST_KEYS = 5000  # that one claim looks at
MOST_PAGES = 200  # that one claim reads of the index of keys
MOST_PRECEDENCES = 50
LOWEST = -(2**31)  # no precedence is as low
FORGET_EVERY = 50  # claims that record begins: one in so many deletes old ones
BUSY = 5_000  # microseconds until a queue is looked at again that another worker is claiming from


class Claiming(msgspec.Struct, kw_only=True):
    """What a claim on limited queues came to."""

    claimed: Callable[[], list[Claimed]] = list
    wait: int | None = None  # microseconds until a rate permits more, or a busy queue may be free
    start_within: dict[str, int] = {}  # by token: microseconds after which it must not start any more


def claim(
    tx: Tx,
    worker: str,
    *,
    queues: Sequence[str],
    running: Mapping[str, int],
    jobs: Sequence[str],
    tokens: Sequence[str],
    now: int,
    version: str = "",
) -> Claiming:
    """Lease what is due and permitted; `running` is how many this worker executes, by queue."""
    liveness = tx.ask(tx.sql.fence, id=worker)
    rows = batch([{"name": name} for name in sorted(queues)])
    asked = tx.ask(tx.sql.queues.lock, rows=rows, now=now)
    if not liveness():
        return Claiming()
    found = asked()
    configured = [(configured_of(row), row[-1]) for row in found]
    answer = Claiming(wait=BUSY if len(found) < len(queues) else None)
    active = [(queue, moment) for queue, moment in configured if queue.paused_at is None]
    random.shuffle(active)  # none of them takes all the room each time
    counted = [queue.name for queue, _ in active if _counts(queue.limits)]
    executed = executing(tx, counted)
    taken: list[tuple[Candidate, Admission, Configured]] = []
    for queue, moment in active:
        limits = queue.limits
        room = len(tokens) - len(taken)
        if limits.per_worker is not None:
            room = min(room, limits.per_worker - running.get(queue.name, 0))
        begins = _begins(tx, queue.name, limits, [NO_KEY], moment)
        admission = Admission(
            limits, now=moment, room=room, executing=executed.get(queue.name, {}), begins=begins
        )
        claiming = _Claiming(tx, queue, admission, batch([{"job": job} for job in jobs]), version)
        if admission.room > 0:
            taken += [(candidate, admission, queue) for candidate in claiming.run()]
        next_moment = admission.next_moment
        if next_moment is not None:
            wait = max(1, next_moment - moment)
            answer.wait = wait if answer.wait is None else min(answer.wait, wait)
    if taken:
        answer.claimed = _lease(tx, worker, taken, tokens, now, answer)
    return answer


class _Claiming:
    """One queue in one claim."""

    def __init__(self, tx: Tx, queue: Configured, admission: Admission, jobs: str, version: str) -> None:
        self._tx = tx
        self._queue = queue
        self._limits = admission.limits
        self._admission = admission
        self._jobs = jobs
        self._version = version
        self._taken: dict[tuple[str, str, int], Candidate] = {}
        self._precedences: list[int] | None = None  # with aging: those of what waits

    def run(self) -> list[Candidate]:
        """What begins, in order."""
        if self._limits.aging is not None:
            self._precedences = self._all_precedences()
        if self._limits.fair:
            self._in_turn()
            # Those without a key that were begun by a process which does not know that the queue is fair.
            self._in_order(lambda candidate: candidate.key is None)
        else:
            complete = self._in_order(lambda candidate: True)
            if not complete and self._limits.keyed:
                self._in_turn()
        return list(self._taken.values())

    def _all_precedences(self) -> list[int]:
        found: list[int] = []
        complete = False
        while not complete and len(found) < MOST_PRECEDENCES:
            after = found[-1] if found else LOWEST
            more, complete = self._next(self._tx.sql.queues.precedences, after)
            found += more
        return found[:MOST_PRECEDENCES]

    def _next(self, statement: str, after: Any) -> tuple[list[Any], bool]:
        """The next values of an index, and whether those were the last."""
        limit = self._tx.sql.queues.values_at_once
        found = self._tx.query(statement, queue=self._queue.name, after=after, limit=limit)
        return [row[0] for row in found], sum(row[1] for row in found) < limit

    def _in_order(self, wanted: Callable[[Candidate], bool]) -> bool:
        """Take the first ones in the order of the queue; whether those were all that wait."""
        if self._admission.room <= 0:
            return False
        limit = self._admission.room + LOOK_AHEAD
        found = self._candidates(limit)
        self._learn(candidate.key for candidate in found)
        for candidate in found:
            if wanted(candidate):
                self._take(candidate)
        return len(found) < limit

    def _candidates(self, limit: int) -> list[Candidate]:
        sql = self._tx.sql.queues
        params = {"queue": self._queue.name, "rows": self._jobs, "limit": limit, "version": self._version}
        if self._precedences is None:
            return [Candidate(*row) for row in self._tx.query(sql.candidates, **params)]
        asked = [
            self._tx.ask(sql.candidates_at, precedence=precedence, **params)
            for precedence in self._precedences
        ]
        found = [Candidate(*row) for rows in asked for row in rows()]
        return sorted(found, key=lambda one: urgency(one, self._limits.aging))[:limit]

    def _in_turn(self) -> None:
        """Take one of each key, from behind the key of the last turn on; then a second of each; and so on."""
        start = turn = self._queue.turn
        seen: list[str] = []  # keys that had something to take
        looked, pages, wrapped = 0, 0, False
        while self._admission.room > 0 and looked < MOST_KEYS and pages < MOST_PAGES:
            keys, complete = self._next(self._tx.sql.queues.keys, turn)
            looked, pages = looked + len(keys), pages + 1
            if wrapped:
                complete = complete or keys[-1] >= start
                keys = [key for key in keys if key <= start]
            for key in self._take_heads(keys, skip=0):
                seen.append(key)
                turn = key
            if self._admission.room <= 0:
                break
            turn = keys[-1] if keys else turn
            if complete:
                if wrapped or not start:
                    break
                turn, wrapped = "", True
        skip = 0
        while seen and self._admission.room > 0 and looked < MOST_KEYS:
            skip += 1
            seen = list(self._take_heads(seen, skip=skip))
        if turn != start:
            self._tx.send(self._tx.sql.queues.set_turn, name=self._queue.name, turn=turn)

    def _take_heads(self, keys: Sequence[str], *, skip: int) -> Iterable[str]:
        """Take the next execution of each key, in the order of the keys; yield the keys that had one."""
        self._learn(keys)
        refused = {key: self._admission.refusal(key, begins=False) for key in keys}
        possible = [key for key in keys if refused[key] is None]
        if not possible:
            return
        heads = self._heads(possible, skip)
        for key in possible:
            if self._admission.room <= 0:
                return
            if key in heads and self._take(heads[key]):
                yield key

    def _heads(self, keys: Sequence[str], skip: int) -> dict[str, Candidate]:
        """By key, the one that is next."""
        sql = self._tx.sql.queues
        params = {"queue": self._queue.name, "jobs": self._jobs, "skip": skip, "version": self._version}
        if self._precedences is None:
            rows = batch([{"queue_key": key} for key in keys])
            found = self._tx.query(sql.heads, rows=rows, **params)
        else:
            places = [
                {"queue_key": key, "precedence": precedence}
                for key in keys
                for precedence in self._precedences
            ]
            found = self._tx.query(sql.heads_at, rows=batch(places), **params)
        heads: dict[str, Candidate] = {}
        candidates = [Candidate(*row) for row in found]
        for candidate in sorted(candidates, key=lambda one: urgency(one, self._limits.aging)):
            if _key(candidate) not in self._taken:
                heads.setdefault(candidate.key or NO_KEY, candidate)
        return heads

    def _take(self, candidate: Candidate) -> bool:
        if _key(candidate) in self._taken:
            return False
        if self._admission.take(candidate):
            self._taken[_key(candidate)] = candidate
            return True
        return False

    def _learn(self, keys: Iterable[str | None]) -> None:
        unknown = sorted(self._admission.unknown(keys))
        if unknown:
            name, now = self._queue.name, self._admission.now
            self._admission.learn(_begins(self._tx, name, self._limits, unknown, now))


def _key(candidate: Candidate) -> tuple[str, str, int]:
    return candidate.run_id, candidate.node, candidate.attempt


def _counts(limits: Limits) -> bool:
    return limits.concurrency is not None or limits.key_concurrency is not None


def executing(tx: Tx, queues: Sequence[str]) -> dict[str, dict[str, int]]:
    """How many execute, by queue and key; `NO_KEY` for those without a key."""
    found: dict[str, dict[str, int]] = {}
    if queues:
        rows = batch([{"queue": name} for name in queues])
        for name, key, number in tx.query(tx.sql.queues.executing, rows=rows):
            of_queue = found.setdefault(name, {})
            of_queue[scope_of(key)] = of_queue.get(scope_of(key), 0) + number
    return found


def _begins(
    tx: Tx, queue: str, limits: Limits, keys: Sequence[str], now: int
) -> dict[str, list[tuple[int, int]]]:
    """What began under these keys in the window of their rate; `NO_KEY` is the queue as a whole."""
    wanted = [
        {"queue": queue, "queue_key": key, "begun_at": now - window(rate)}
        for key in keys
        if (rate := limits.key_rate if key else limits.rate) is not None
    ]
    found: dict[str, list[tuple[int, int]]] = {key: [] for key in keys}
    if wanted:
        for _, key, at, number in tx.query(tx.sql.queues.begins, rows=batch(wanted)):
            found[key].append((at, number))
    return found


def _lease(
    tx: Tx,
    worker: str,
    taken: Sequence[tuple[Candidate, Admission, Configured]],
    tokens: Sequence[str],
    now: int,
    answer: Claiming,
) -> Callable[[], list[Claimed]]:
    """Lease those that are still ready.  The others count as begun: that only makes later ones wait."""
    wanted = sorted((_key(candidate) for candidate, _, _ in taken))
    rows = tx.query(tx.sql.queues.lock_ready, rows=batch([_row(key) for key in wanted]))
    ready = {(run, node, attempt) for run, node, attempt, state in rows if state == ExecutionState.READY}
    leased = [(one, admission) for one, admission, _ in taken if _key(one) in ready]
    if not leased:
        return list
    leases = []
    for (candidate, admission), token in zip(leased, tokens, strict=False):
        leases.append({**_row(_key(candidate)), "token": token})
        within = admission.start_within(candidate)
        if within is not None:
            answer.start_within[token] = within
    _record(tx, {id(admission): (admission, queue) for _, admission, queue in taken}.values())
    return lease(tx, worker, leases, now)


def _row(key: tuple[str, str, int]) -> dict[str, Any]:
    return dict(zip(KEYS, key, strict=True))


def _record(tx: Tx, claims: Iterable[tuple[Admission, Configured]]) -> None:
    """Record that executions began, and forget those that no window needs any more."""
    for admission, queue in claims:
        records = admission.records
        if not records:
            continue
        rows = [
            {"queue": queue.name, "queue_key": key, "begun_at": at, "begins": number}
            for key, (at, number) in sorted(records.items())
        ]
        tx.send(tx.sql.queues.put_begins, rows=batch(rows))
        if random.randrange(FORGET_EVERY) == 0:
            longest = max(window(rate) for rate in _rates(admission.limits))
            tx.send(tx.sql.queues.forget_begins, queue=queue.name, before=admission.now - longest)


def _rates(limits: Limits) -> list[Period]:
    return [rate for rate in (limits.rate, limits.key_rate) if rate is not None]


class Refused(msgspec.Struct, frozen=True):
    """Why an execution that is due may not begin: the rule, and when a rate permits it."""

    node: str
    queue: str
    key: str | None
    refusal: Refusal
    until: int | None = None  # microseconds since 1970
    reason: str | None = None  # of a pause, as the operator said


def refused(tx: Tx, run_id: str, now: int) -> list[Refused]:
    """Which executions of a run are due and have to wait for their queue, and why."""
    rows: list[ExecutionRow] = rows_to(ExecutionRow, tx.query(tx.sql.executions, id=run_id))
    due = [row for row in rows if row.state == ExecutionState.READY]
    configured = {queue.name: queue for queue in read(tx)} if due else {}
    now = tx.query(tx.sql.queues.clock, now=now)[0][0] if configured else now
    found = [_refused(tx, row, configured[row.queue], now) for row in due if row.queue in configured]
    return [one for one in found if one is not None]


def _refused(tx: Tx, row: ExecutionRow, queue: Configured, now: int) -> Refused | None:
    key, begins = given_key(row.queue_key), row.started_at is None
    if queue.paused_at is not None:
        return Refused(row.node, queue.name, key, Refusal.PAUSED, None, queue.reason)
    limits, scope = queue.limits, scope_of(row.queue_key)
    counted = executing(tx, [queue.name]).get(queue.name, {}) if _counts(limits) else {}
    begun = _begins(tx, queue.name, limits, sorted({NO_KEY, scope}), now)
    admission = Admission(limits, now=now, room=1, executing=counted, begins=begun)
    refusal = admission.refusal(key, begins=begins)
    if refusal is None:
        return None
    rate = {Refusal.RATE: limits.rate, Refusal.KEY_RATE: limits.key_rate}.get(refusal)
    of = begun[NO_KEY if refusal is Refusal.RATE else scope]
    until = None if rate is None else next_permitted(rate, of, now)
    return Refused(row.node, queue.name, key, refusal, until)


# Configuration


def configured_of(row: Sequence[Any]) -> Configured:
    """A queue from the columns CONFIGURED."""
    values = dict(zip(CONFIGURED, row, strict=False))
    return Configured(
        name=values["name"],
        declared=decode(values["declared"], Limits),
        changes=decode(values["changes"], dict[str, Change]),
        paused_at=values["paused_at"],
        reason=values["reason"],
        turn=values["turn"],
    )


def history_of(name: str) -> str:
    """Under which id the history of a queue is kept."""
    return f"queue:{name}"


def read(tx: Tx) -> list[Configured]:
    """All queues that have a row: those with limits, or that had some, or were paused."""
    return [configured_of(row) for row in tx.query(tx.sql.queues.read)]


def declare(tx: Tx, declared: Mapping[str, Limits], now: int) -> list[Configured]:
    """Store what the code declares; a queue without limits gets no row.  Returns all queues with rows."""
    for name, limits in undeclared(read(tx), declared).items():
        change(tx, name, lambda queue, limits=limits: replace(queue, declared=limits), now)  # type: ignore[misc]
    return read(tx)


def undeclared(known: Iterable[Configured], declared: Mapping[str, Limits]) -> dict[str, Limits]:
    """Those of the declared limits that the database does not have."""
    stored = {queue.name: queue.declared for queue in known}
    return {
        name: limits for name, limits in sorted(declared.items()) if limits != stored.get(name, NO_LIMITS)
    }


def change(tx: Tx, name: str, how: Callable[[Configured], Configured], now: int) -> Configured:
    """Change a queue's row under its lock; a missing row is made first."""
    rows = tx.query(tx.sql.queues.lock_one, name=name)
    if not rows:
        tx.run(tx.sql.queues.insert, rows=batch([_stored(Configured(name=name), now)]))
        rows = tx.query(tx.sql.queues.lock_one, name=name)
    changed = how(configured_of(rows[0]))
    tx.run(tx.sql.queues.update, rows=batch([_stored(changed, now)]))
    return changed


def _stored(queue: Configured, now: int) -> dict[str, Any]:
    return {
        "name": queue.name,
        "declared": msgspec.json.encode(queue.declared).decode(),
        "changes": msgspec.json.encode(queue.changes).decode(),
        "limited": int(queue.limited) + int(queue.limits.keyed),
        "paused_at": queue.paused_at,
        "reason": queue.reason,
        "turn": queue.turn,
        "updated_at": now,
    }


def give_keys(rows: Iterable[NewExecution], keyed: frozenset[str]) -> None:
    """Give executions that have no key a turn of their own, on queues where keys take turns.

    The effects, timers and inboxes of a decider's instance have the instance as their key.
    """
    for row in rows:
        if row.queue_key is None and row.queue in keyed:
            own = row.kind in LETTERS and len(row.run_id) <= LONGEST_QUEUE_KEY
            row.queue_key = row.run_id if own else KEYLESS
