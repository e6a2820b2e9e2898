"""How one batch is committed: together if possible, else in parts, again after an error.

the database refuses a batch     it is split in halves, until the bad operation is alone
the database is away             wait and try again, until the caller's patience ends
the error is no clear answer     look up whether the commit went through, then as above
another transaction blocks it    it is split too; the operation that is blocked waits aside (blocked.py)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from ..errors import DatabaseUnavailable, DetentError
from ..events import Committed
from ..kernel.decide import Decided
from ..kernel.operations import Operation, Settled, Verdict
from ..observe import Observer
from ..stores.batch.apply import Applied, drop_lease
from ..stores.batch.graphs import MustGoAlone
from ..stores.driver import Line, Slots, Trouble
from ..stores.store import PartlyApplied, Store
from .blocked import Asides
from .entries import Entry, came_second, new_executions, parts

log = logging.getLogger("detent")
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0  # seconds between two tries while the database is away
LONGEST_ASIDE = 0.5  # seconds between two tries aside, where the database does not wait for locks
AWAY = (Trouble.GONE, Trouble.RETRY)  # RETRY comes here when the store has given up trying


class BatchAttempts:
    """Attempts to commit a batch; the committer says which, and answers the callers."""

    def __init__(
        self,
        store: Store,
        *,
        patience: float = 30.0,
        helpers_wanted: Callable[[], bool] = lambda: True,
        slots: Callable[[], Slots | None] = lambda: None,
        on_commit: Callable[[Sequence[Operation], Applied], None] = lambda operations, applied: None,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self.patience = patience
        self.helpers_wanted = helpers_wanted
        self.slots = slots
        self.on_commit = on_commit
        self._observer = observer if observer is not None else Observer()
        self._closing = threading.Event()
        self._asides = Asides(self._commit_aside, self._give_up_aside, self._answer)

    def _answer(self, entries: Sequence[Entry]) -> None:
        """Tell the callers."""
        raise NotImplementedError

    def _impatient(self, now: float) -> list[Entry]:
        """Take those that cannot wait until it is their turn."""
        raise NotImplementedError

    def _commit(self, entries: list[Entry], leader: Entry | None = None) -> None:
        """Answer every entry: commit them together if possible, else in parts, in their order.

        A leader whose own patience has ended leaves the rest to the next one.
        """
        groups = [entries]  # the next one last
        line, wait = Line.MAIN, FIRST_WAIT
        while groups and not (leader is not None and leader.done):
            group = [entry for entry in groups.pop() if not entry.answered]
            if self._asides:
                group = self._asides.sift(group)
            if not group:
                continue
            error = self._advance(groups, group, line)
            if error is None:
                wait = FIRST_WAIT
            elif self._store.driver.blocked(error) and self._step_aside(groups):
                line = Line.SPLIT
            else:
                self._pause(groups[-1], error, wait)
                gone = self._store.driver.trouble(error) is Trouble.GONE
                wait = min(wait * 2, LONGEST_WAIT) if gone else FIRST_WAIT  # else it has waited already

    def _advance(self, groups: list[list[Entry]], group: list[Entry], line: Line) -> Exception | None:
        """Try to commit a group.  What is left of it goes back to `groups`; return why it has to wait."""
        error = self._try(group, line)
        if error is None:
            groups.append(self._to_look_up(group))
            return None
        group = [entry for entry in group if not entry.answered]
        if self._is_away(error):
            groups.append(group)
            return error
        if len(group) > 1:
            groups += reversed(parts(group, error))
        elif group:
            again = self._refuse(group[0], error)
            if again is not None:
                groups.append(group)
                return again
        return None

    def _step_aside(self, groups: list[list[Entry]]) -> bool:
        """Split the group that is blocked; an operation that is blocked alone waits aside."""
        group = groups[-1]
        if len(group) > 1:
            half = len(group) // 2
            groups[-1:] = [group[half:], group[:half]]
            return True
        for entry in group:
            self._drop_leases(entry)
            if not self._asides.take(entry):
                return False
        groups.pop()
        return True

    def _drop_leases(self, entry: Entry) -> None:
        """Leases that go into its commit hold slots of our worker: others need these meanwhile."""
        slots = self.slots()
        leased = [row for row in new_executions(entry.operation) if row.token is not None]
        if slots is None or not leased:
            return
        tokens = [row.token for row in leased if row.token is not None]
        for row in leased:
            drop_lease(row)
        if entry.retried:  # an earlier try may have been committed
            slots.unconfirmed(tokens)
        else:
            slots.give_back(tokens)

    def _commit_aside(self, entries: list[Entry]) -> None:
        """Try to commit operations that wait aside; those that have to wait for longer get no answer."""
        begun = time.monotonic()
        groups = [entries]
        while groups:
            group = [entry for entry in groups.pop() if not entry.answered]
            error = self._advance(groups, group, Line.ASIDE) if group else None
            if error is not None:
                for entry in entries:
                    entry.reason = error
                    entry.tries += 1
                wait = min(FIRST_WAIT * 2 ** min(entries[0].tries, 8), LONGEST_ASIDE)
                self._closing.wait(max(0.0, begun + wait - time.monotonic()))  # the database may have waited
                return

    def _give_up_aside(self, entries: Sequence[Entry]) -> None:
        now = time.monotonic()
        for entry in entries:
            ended = self._closing.is_set() or (entry.deadline is not None and now >= entry.deadline)
            if ended and not entry.answered:
                entry.fail(_blocked(self._store, entry))

    def _try(self, group: list[Entry], line: Line) -> Exception | None:
        """Commit what has not been committed; return why that failed."""
        try:
            for entry in group:
                self._look_up(entry)
        except Exception as error:
            return error
        group = [entry for entry in group if not entry.answered]
        if not group:
            return None
        begun = time.perf_counter() if self._observer.active else 0.0
        try:
            applied = self._store.apply(
                [entry.operation for entry in group],
                helpers_wanted=self.helpers_wanted(),
                slots=self.slots() if line is not Line.ASIDE else None,  # it would hold slots while it waits
                line=line,
            )
        except Exception as error:
            if isinstance(error, PartlyApplied):
                group, error = self._partly_applied(group, error), error.error
            self._doubt(group, error)
            return error
        if begun:
            self._report(len(group), time.perf_counter() - begun)
        self._applied(group, applied)
        return None

    def _report(self, operations: int, seconds: float) -> None:
        event = Committed(time=datetime.now(UTC), operations=operations, duration=timedelta(seconds=seconds))
        self._observer.emit(event)

    def _partly_applied(self, group: list[Entry], partly: PartlyApplied) -> list[Entry]:
        """Answer those that were committed; return the others."""
        answers = zip(group, partly.answers, strict=True)
        done = [(entry, answer) for entry, answer in answers if answer is not None]
        self._applied([entry for entry, _ in done], Applied([answer for _, answer in done]))
        return [entry for entry in group if not entry.answered]

    def _applied(self, entries: list[Entry], applied: Applied) -> None:
        for entry, answer in zip(entries, applied.answers, strict=True):
            if answer is Verdict.APPLIED or type(answer) is Settled:  # nearly always
                entry.answer = answer
                entry.answered = True
            elif isinstance(answer, Exception):
                entry.fail(answer)
            elif isinstance(answer, Decided) and answer.postponed is not None:
                # It stays without an answer, and goes into the next batch.
                entry.operation = replace(entry.operation, upto=answer.postponed)
            else:
                entry.succeed(answer)
        self._tell([entry.operation for entry in entries], applied)

    def _tell(self, operations: Sequence[Operation], applied: Applied) -> None:
        """Pass on what was committed.  Nothing that goes wrong there makes it uncommitted."""
        told = False
        try:
            self.on_commit(operations, applied)
            told = True
        except Exception:
            log.exception("callbacks after %d committed operations failed", len(operations))
        finally:
            slots = self.slots() if applied.leased and not told else None
            if slots is not None:
                slots.unconfirmed([row.token for row, _ in applied.leased if row.token is not None])

    def _is_away(self, error: Exception) -> bool:
        return self._store.driver.trouble(error) in AWAY

    def _is_clear(self, error: Exception) -> bool:
        """Whether it is certain that nothing was committed."""
        return isinstance(error, MustGoAlone) or (
            not isinstance(error, DatabaseUnavailable)
            and (isinstance(error, DetentError) or self._store.driver.refused(error))
        )

    def _look_up(self, entry: Entry) -> None:
        """Find out whether an operation in doubt was committed, and answer it if so."""
        if not entry.doubted or entry.answered:
            return
        answer = self._store.already_applied(entry.operation)
        entry.doubted = False
        if answer is not None:
            entry.succeed(answer)
            self._tell([entry.operation], Applied([answer], made_ready=True))

    def _to_look_up(self, group: list[Entry]) -> list[Entry]:
        """Those who were told that another came first, and may have been that other themselves.

        A commit in doubt may still be under way in the server when it is looked up.
        """
        found = [entry for entry in group if entry.retried and came_second(entry.answer)]
        for entry in found:
            entry.answered, entry.retried, entry.doubted = False, False, True
        return found

    def _refuse(self, entry: Entry, error: Exception) -> Exception | None:
        """Answer an operation that failed alone; return why it cannot be answered yet."""
        try:
            entry.doubted = entry.doubted or entry.retried
            self._look_up(entry)
            if entry.answered:
                return None
            found: Any = None
            if self._store.driver.trouble(error) is Trouble.UNIQUE:
                # Something with that key exists: say what, or find that it is ours.
                found = self._store.explain_conflict(entry.operation)
        except Exception as broken:
            if self._is_away(broken):
                return broken
            found = broken
        if found is None:
            entry.fail(error)
        elif isinstance(found, Exception):
            entry.fail(found)
        else:
            entry.succeed(found)
        return None

    def _pause(self, entries: Sequence[Entry], error: Exception, wait: float) -> None:
        """Wait before the next try; callers whose patience has ended get an error."""
        now = time.monotonic()
        deadlines = [entry.deadline for entry in entries if entry.deadline is not None]
        self._answer(self._give_up([*entries, *self._impatient(now)], now, error))
        if any(not entry.answered for entry in entries):
            left = [deadline - now for deadline in deadlines if deadline > now]
            self._closing.wait(min([wait, *left]))

    def _give_up(self, entries: Sequence[Entry], now: float, error: Exception) -> list[Entry]:
        """Fail those whose patience has ended, and return them."""
        given_up: list[Entry] = []
        for entry in entries:
            ended = (entry.deadline is not None and now >= entry.deadline) or self._closing.is_set()
            if ended and not entry.answered:
                entry.fail(_unavailable(self._store, error))
                given_up.append(entry)
        return given_up

    def _doubt(self, batch: Sequence[Entry], error: Exception) -> None:
        """A batch failed: unless the database has refused it, it may have been committed."""
        if not self._is_clear(error):
            for entry in batch:
                entry.doubted = entry.retried = True


def _blocked(store: Store, entry: Entry) -> Exception:
    """Why an operation that waited aside was given up."""
    if entry.reason is not None and not store.driver.blocked(entry.reason):
        return _unavailable(store, entry.reason)
    reason = "a transaction that has not ended yet has locked this run, or has taken its id or its hero"
    return DatabaseUnavailable(store.driver.name, reason)


def _unavailable(store: Store, error: Exception) -> Exception:
    if isinstance(error, DatabaseUnavailable):
        return error
    return DatabaseUnavailable(store.driver.name, str(error).strip())
