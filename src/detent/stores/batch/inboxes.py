"""Inboxes, as one batch sees them: what arrived in them before an operation of the batch.

Inputs of one instance are decided in the order of arrival.  So an operation that brings an input decides
what waits in the inbox first: inputs that are stored, then inputs that the batch itself has enqueued.

    1. An input that cannot be decided blocks its inbox, and nothing else: the operation continues.
       The same holds for an inbox that is a dead letter.
    2. A commit takes at most `AT_ONCE` inputs from an inbox.  An operation behind more of them is postponed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import field

from ...kernel.decide import InputRow, NewInput
from ...kernel.settle import Outcome
from ..driver import Tx, batch, rows_to

AT_ONCE = 200  # inputs of an inbox that share a commit
NO_BOUND = 2**62  # behind every input


class Arrived(msgspec.Struct, frozen=True):
    """An input in an inbox: stored under a number, or enqueued in this batch."""

    row: NewInput
    seq: int | None = None
    place: int | None = None  # among the inputs that the batch will store


class Inbox(msgspec.Struct):
    """The inbox of one instance."""

    stored: list[InputRow] | None = None  # None: not read yet
    enqueued: list[Arrived] = field(default_factory=list)
    decided: set[int] = field(default_factory=set)  # stored inputs that left it in this batch
    dead: bool = False
    full: bool = False  # the batch has taken as many as it may, and others wait


class Inboxes:
    """The inboxes of the instances of one batch."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._inboxes: dict[str, Inbox] = {}

    def __contains__(self, run_id: str) -> bool:
        """Whether the batch has touched an instance's inbox."""
        return run_id in self._inboxes

    def of(self, run_id: str) -> Inbox:
        return self._inboxes.setdefault(run_id, Inbox())

    def before(self, run_id: str, *, waits: bool, upto: int | None) -> Iterator[Arrived]:
        """The inputs to decide before an operation, in the order of arrival; `waits`: some are stored.

        The caller stops at an input that cannot be decided: it stays in the inbox, and so do those behind it.
        """
        inbox = self.of(run_id)
        if inbox.dead or inbox.full:
            return
        bound = NO_BOUND if upto is None else upto
        if waits:
            stored = self._stored(run_id, inbox)
            if stored is None:
                inbox.dead = True
                return
            while stored and stored[0].seq <= bound:
                if len(inbox.decided) >= AT_ONCE:
                    inbox.full = True
                    return
                if stored[0].seq not in inbox.decided:
                    yield Arrived(stored[0], seq=stored[0].seq)
                    inbox.decided.add(stored[0].seq)
                stored.pop(0)
        while inbox.enqueued and bound == NO_BOUND:
            yield inbox.enqueued[0]
            inbox.enqueued.pop(0)

    def _stored(self, run_id: str, inbox: Inbox) -> list[InputRow] | None:
        """What is stored, as far as one commit may take it; None if the inbox is a dead letter."""
        if inbox.stored is None:
            sql = self._tx.sql.deciders
            latest = self._tx.query(sql.inboxes, rows=batch([{"id": run_id}]))
            if any(outcome == Outcome.DEAD_LETTER for *_, outcome in latest):
                return None
            limit = AT_ONCE + len(inbox.decided) + 1
            inbox.stored = rows_to(InputRow, self._tx.query(sql.pending_inputs, id=run_id, limit=limit))
        return inbox.stored

    def postponed(self, run_id: str, upto: int | None) -> int | None:
        """The input up to which a postponed operation waits; None if it need not wait.

        What arrives later does not hold the operation up.
        """
        inbox = self.of(run_id)
        if not inbox.full:
            return None
        if upto is not None and upto != NO_BOUND:
            return upto
        if inbox.enqueued:
            return NO_BOUND  # they have no number yet
        last: int = self._tx.query(self._tx.sql.deciders.last_pending, id=run_id)[0][0]
        return last
