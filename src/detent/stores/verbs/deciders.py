"""The verbs of event-sourced deciders: streams, letters, inboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ...kernel.decide import BoundDecider, EventRow, InputRow
from ..base_store import BaseStore
from ..driver import rows_to
from . import dead_letters as letters
from . import input_ids, streams

T = TypeVar("T")


class DeciderVerbs(BaseStore):
    """What a store does for deciders."""

    def events(self, run_id: str, *, after: int = 0, limit: int = streams.EVERY) -> list[EventRow]:
        """The events of an instance behind a number, in order."""
        with self._reading() as tx:
            return streams.events(tx, run_id, after=after, limit=limit)

    def head(self) -> int:
        """The position of the newest event over all instances."""
        with self._reading() as tx:
            position: int = tx.query(tx.sql.deciders.counter)[0][0]
            return position

    def events_of_turn(self, run_id: str, turn: str) -> list[EventRow]:
        """The events of one decision."""
        with self._reading() as tx:
            return rows_to(EventRow, tx.query(tx.sql.deciders.of_turn, id=run_id, turn=turn))

    def instance_state(self, run_id: str, bound: BoundDecider, *, upto: int | None = None) -> Any:
        """An instance's state after an event, or as it is now: from its snapshot and what followed."""
        with self._reading() as tx:
            return streams.state_of(tx, run_id, bound, upto)

    def dead_letters(
        self, *, type: str = "", run_id: str = "", since: int = 0, limit: int
    ) -> list[letters.DeadRow]:
        """What was given up, latest first; of a decider or of an instance where one is named."""
        with self._reading() as tx:
            return letters.dead(tx, type=type, run_id=run_id, since=since, limit=limit)

    def walk_dead(
        self, *, type: str, run_id: str, beyond: tuple[int, str, str], until: int, limit: int
    ) -> list[letters.DeadRow]:
        """Dead letters given up between a place and a moment, longest ago first."""
        with self._reading() as tx:
            return letters.walk_dead(tx, type=type, run_id=run_id, beyond=beyond, until=until, limit=limit)

    def count_dead(self) -> list[tuple[str, str, int]]:
        """How many dead letters there are, by decider and kind."""
        with self._reading() as tx:
            return [(row[0], row[1], row[2]) for row in tx.query(tx.sql.deciders.count_dead)]

    def inboxes(self) -> list[letters.InboxRow]:
        """How much waits in inboxes, by decider."""
        # Without a sort, the groups would come from an index over all runs.
        with self._reading(self._sorting) as tx:
            return rows_to(letters.InboxRow, tx.query(tx.sql.deciders.depths))

    def pending_timers(self, run_id: str) -> list[letters.TimerRow]:
        """The timers of an instance that wait, in the order of their times."""
        with self._reading() as tx:
            return rows_to(letters.TimerRow, tx.query(tx.sql.deciders.pending_timers, id=run_id))

    def pending_effects(self, run_id: str) -> list[letters.EffectRow]:
        """The effects of an instance that are not carried out, in the order of their decisions."""
        with self._reading() as tx:
            return rows_to(letters.EffectRow, tx.query(tx.sql.deciders.pending_effects, id=run_id))

    def inbox_depth(self, run_id: str) -> int:
        """How much waits in an instance's inbox."""
        with self._reading() as tx:
            return int(tx.query(tx.sql.deciders.depth, id=run_id)[0][0])

    def observed(self, decider: str, *, limit: int) -> list[letters.Observed]:
        """Which inputs led from which status to which, in the newest instances of a decider."""
        with self._reading() as tx:
            rows = tx.query(tx.sql.deciders.observed, type=decider, limit=limit)
        return rows_to(letters.Observed, rows)

    def inputs(
        self, *, type: str, run_id: str | None, since: int, until: int, beyond: int, limit: int
    ) -> list[InputRow]:
        """Remembered inputs of a decider or of one of its instances, the newest first."""
        span = {"since": since, "until": until, "beyond": beyond, "limit": limit}
        with self._reading() as tx:
            if run_id is not None:
                rows = tx.query(tx.sql.deciders.inputs_of_instance, id=run_id, **span)
            else:
                rows = tx.query(tx.sql.deciders.inputs_of_decider, type=type, **span)
        return rows_to(InputRow, rows)

    def forget_snapshots(self, type: str) -> int:
        """Remove the snapshots of a decider's instances, and say how many; twice removes none."""
        return self.write(lambda tx: tx.run(tx.sql.deciders.delete_snapshots, type=type))

    def pending_inputs(self, run_id: str, *, limit: int) -> list[InputRow]:
        """What waits in an instance's inbox, in the order of arrival."""
        with self._reading() as tx:
            rows = tx.query(tx.sql.deciders.pending_inputs, id=run_id, limit=limit)
        return rows_to(InputRow, rows)

    def forget_input_ids(
        self, observing: Mapping[str, bool], *, before: int, beyond: int, limit: int
    ) -> input_ids.Passed:
        """Forget the ids of inputs that arrived before then, beyond a place; twice does nothing."""
        return self.write(
            lambda tx: input_ids.forget(tx, observing, before=before, beyond=beyond, limit=limit)
        )
