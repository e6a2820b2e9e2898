"""Verbs in a transaction that somebody else will end: see app/within.py."""

from __future__ import annotations

from collections.abc import Mapping

from ...kernel.advance import RunGraph
from ...kernel.rows import Attribute, NewEntry, Step
from ..base_store import BaseStore
from ..driver import Tx
from . import control
from .run_stream_verbs import append_from_outside, publish_from_outside


class WithinVerbs(BaseStore):
    """What changes runs in a transaction of the user; `Store` has the same verbs in one of its own."""

    def cancel_within(self, tx: Tx, run_id: str, *, reason: str | None, now: int) -> list[str]:
        """End a run and its children."""
        canceled = self._told(tx, control.cancel(tx, run_id, reason=reason, now=now))
        tx.made_ready = True  # what has a compensation is undone by a worker
        return canceled

    def pause_within(self, tx: Tx, run_id: str, *, reason: str | None, now: int) -> list[str]:
        """Stop new executions of a run."""
        return self._told(tx, [control.pause(tx, run_id, reason=reason, now=now).id])

    def resume_within(
        self, tx: Tx, run_id: str, *, now: int, run_graph: RunGraph | None, accept_drift: bool
    ) -> None:
        """Let a paused or failed run continue."""
        self._told(tx, control.resume(tx, run_id, now=now, run_graph=run_graph, accept_drift=accept_drift))
        tx.made_ready = True

    def set_attributes_within(
        self, tx: Tx, run_id: str, changes: Mapping[str, Attribute | None], *, now: int
    ) -> None:
        """Set attributes of a run, and remove those that are None."""
        control.set_attributes(tx, run_id, changes, now=now)

    def publish_within(self, tx: Tx, row: Step) -> None:
        """Publish a value of an active run."""
        publish_from_outside(tx, row)

    def append_within(self, tx: Tx, entry: NewEntry) -> None:
        """Append to a stream of an active run."""
        append_from_outside(tx, entry)
