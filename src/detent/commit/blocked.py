"""Operations that wait for another transaction, aside from all others.

A user's transaction may have started a run inside `within()` and not have committed yet, or have locked a
run.  An operation on the same id, hero or run has to wait for its end.  It waits here, in a thread and on
a connection of its own, while the committer continues.

Order is kept: an operation that concerns the same run, or needs the same lock, waits behind the one that
came first, and is committed together with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ..kernel.decide import Decide, Enqueue
from ..kernel.operations import Note, Operation, Park, Record, Send, Settle, Start
from ..stores.base_store import MOST_ASIDE
from .entries import Entry

log = logging.getLogger("detent")
LARGEST = 100  # operations that are committed together
Keys = frozenset[tuple[str, ...]]


class Asides:
    """The operations that wait aside, and the threads that commit them.

    `attempt` tries to commit some of them: those without an answer stay.  `give_up` answers those that have
    waited too long.  `answer` tells the callers.
    """

    def __init__(
        self,
        attempt: Callable[[list[Entry]], None],
        give_up: Callable[[Sequence[Entry]], None],
        answer: Callable[[Sequence[Entry]], None],
    ) -> None:
        self._attempt = attempt
        self._give_up = give_up
        self._answer = answer
        self._members: dict[Entry, Keys] = {}  # in the order of their arrival
        self._tried: dict[Entry, float] = {}  # when the last attempt at it ended
        self._busy: set[Entry] = set()
        self._guard = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self.idents: set[int] = set()  # of those threads: deciders run in them

    def __bool__(self) -> bool:
        return bool(self._members)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._members

    def take(self, entry: Entry) -> bool:
        """Let an operation wait here; False if no thread can be started for it.

        The caller may be interrupted at any point.  The one assignment decides whether the operation is
        here; `wake` may be called again.
        """
        self._members[entry] = keys_of(entry.operation)
        if self.wake():
            return True
        with self._guard:
            return self._members.pop(entry, None) is None

    def sift(self, group: list[Entry]) -> list[Entry]:
        """Take those that have to stay behind an operation that waits here; return the others."""
        held = set[tuple[str, ...]]().union(*list(self._members.values()))
        passing: list[Entry] = []
        for entry in group:
            if entry in self._members:
                continue
            keys = keys_of(entry.operation)
            if keys.isdisjoint(held):
                passing.append(entry)
            else:
                held |= keys
                self._members[entry] = keys
        if len(passing) < len(group):
            self.wake()
        return passing

    def forget(self, entry: Entry) -> None:
        """The caller does not wait any longer: leave it out, unless its commit is under way."""
        with self._guard:
            if entry not in self._busy:
                self._members.pop(entry, None)

    def wake(self) -> bool:
        """Start a thread if there is something to do for one; once too often does no harm.

        Returns False if that failed and there is no thread.
        """
        if len(self._threads) >= MOST_ASIDE or not self._waiting():
            return True
        try:
            threading.Thread(target=self._serve, name="detent-aside", daemon=True).start()
        except RuntimeError:  # the process has as many threads as it may have
            log.exception("no thread could be started for an operation that is blocked")
            return bool(self._threads)
        return True

    def close(self) -> None:
        """Wait until every operation has its answer.  The committer is closing, so that is soon."""
        while self._members or self._threads:
            self.wake()
            for thread in list(self._threads):
                thread.join()

    def _serve(self) -> None:
        me = threading.current_thread()
        self._threads.add(me)
        self.idents.add(threading.get_ident())
        try:
            while batch := self._next():
                self._try(batch)
        finally:
            self.idents.discard(threading.get_ident())
            self._threads.discard(me)
        if self._waiting():  # it came while this thread was about to end
            self.wake()

    def _try(self, batch: list[Entry]) -> None:
        try:
            self._attempt(batch)
        except BaseException as error:  # a bug; every caller gets an answer
            log.exception("committing %d blocked operations failed", len(batch))
            for entry in batch:
                if not entry.answered:
                    entry.fail(error)
        with self._guard:
            self._busy.difference_update(batch)
            now = time.monotonic()
            for entry in batch:
                self._tried[entry] = now
            idle = [entry for entry in list(self._members) if entry not in self._busy]
            self._give_up(idle)
            answered = [entry for entry in idle if entry.answered]
            for entry in answered:
                self._members.pop(entry, None)
                self._tried.pop(entry, None)
        self._answer(answered)

    def _waiting(self) -> bool:
        with self._guard:
            return any(True for _ in self._heads())

    def _heads(self) -> Iterator[Entry]:
        """Those that nothing before them keeps back, and that no thread has."""
        held: set[tuple[str, ...]] = set()
        for entry, keys in list(self._members.items()):
            if keys.isdisjoint(held) and entry not in self._busy:
                yield entry
            held |= keys

    def _next(self) -> list[Entry]:
        """The operation whose last attempt is longest ago, and what waits behind it."""
        with self._guard:
            first = min(self._heads(), key=lambda entry: self._tried.get(entry, 0.0), default=None)
            if first is None:
                return []
            batch = [first]
            ours, held = set(self._members[first]), set[tuple[str, ...]]()
            for entry, keys in list(self._members.items()):
                if entry is first:
                    continue
                if keys.isdisjoint(held) and not keys.isdisjoint(ours) and len(batch) < LARGEST:
                    batch.append(entry)
                    ours |= keys
                else:
                    held |= keys
            self._busy.update(batch)
            return batch


def keys_of(op: Operation) -> Keys:
    """What an operation has in common with those that it must not overtake, or that block it too."""
    return frozenset(_keys(op))


def _keys(op: Operation) -> Iterator[tuple[str, ...]]:
    if isinstance(op, Record | Decide | Enqueue):
        yield "run", op.run_id
        if not isinstance(op, Record) or op.children or op.executions:  # a step's record needs no lock
            yield "lock", op.run_id
    if isinstance(op, Record) and op.children is not None:
        yield from _keys(op.children)
    elif isinstance(op, Decide) and op.ends is not None:
        yield from _keys(op.ends)
    elif isinstance(op, Settle | Park):
        yield from (("run", op.key.run_id), ("lock", op.key.run_id))
        yield from (("lock", run) for run in _awaited(op))
    elif isinstance(op, Send):
        yield "lock", op.run_id
    elif isinstance(op, Start):
        for run in op.runs:
            yield "lock", run.id
            if run.exclusive:
                yield "hero", run.type, run.hero_type or "", run.hero_id or ""
    elif isinstance(op, Note):
        yield from (("run", run) for run in [*(line.run_id for line in op.events), *op.drifted])


def _awaited(op: Settle | Park) -> list[str]:
    """Other runs that are locked with that of the execution."""
    if isinstance(op, Park):
        return [item.name for item in op.awaits if item.kind == "run"]
    return [] if op.parent is None else [op.parent]
