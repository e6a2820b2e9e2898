"""The reads of runs, workers and graphs, each on a connection of its own.

A read takes no lock and is not repeated by itself.  Reads of one subject (deciders, queues, schedules,
streams) are beside its writes in stores/verbs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..errors import RunNotFound
from ..kernel.rows import (
    ExecutionRow,
    ExecutionState,
    HeartbeatReading,
    Message,
    RunEnd,
    RunRow,
    Step,
    WorkerRow,
)
from .base_store import BaseStore
from .claim_cursor import ClaimCursor
from .driver import batch, rows_to
from .verbs import claims, graphs, listing, retention, waiting
from .verbs.heal import known_jobs


class StoreReader(BaseStore):
    """What can be asked of one database."""

    # Runs

    def run(self, run_id: str) -> RunRow:
        row = self.find_run(run_id)
        if row is None:
            raise RunNotFound(run_id)
        return row

    def find_run(self, run_id: str) -> RunRow | None:
        with self._reading() as tx:
            rows = tx.query(tx.sql.run, id=run_id)
        return listing.to_runs(rows)[0] if rows else None

    def runs(self, *, limit: int, **filters: Any) -> list[RunRow]:
        """The newest runs that fit all filters (see listing.Wanted)."""
        wanted = listing.Wanted(limit=limit, **filters)
        # On the other connections the planner is set never to sort.
        with self._reading(self._sorting if wanted.sorts else None) as tx:
            return listing.runs(tx, wanted)

    def ends(self, runs: Sequence[str]) -> list[tuple[str, RunEnd]]:
        """Those of the runs that are over or paused."""
        with self._reading() as tx:
            return ends_of(tx.query(tx.sql.ends, rows=batch([{"id": run} for run in runs])))

    def existing(self, runs: Sequence[str]) -> set[str]:
        """Those of the runs that are there."""
        with self._reading() as tx:
            return {row[0] for row in tx.query(tx.sql.existing, rows=batch([{"id": run} for run in runs]))}

    def executions(self, run_id: str) -> list[ExecutionRow]:
        with self._reading() as tx:
            return rows_to(ExecutionRow, tx.query(tx.sql.executions, id=run_id))

    def executions_of(
        self, runs: Sequence[str], *, states: Sequence[ExecutionState], queue: str | None = None
    ) -> list[ExecutionRow]:
        """The executions of these runs in these states, and on this queue, in no order."""
        with self._reading() as tx:
            return listing.executions(tx, runs, states=states, queue=queue)

    def last_reattempt(self, run_id: str, node: str) -> str | None:
        """The error after which a node was last reattempted."""
        with self._reading() as tx:
            rows = tx.query(tx.sql.graphs.last_reattempt, id=run_id, node=node)
            return rows[0][0] if rows else None

    def journal(self, runs: Sequence[str]) -> dict[str, list[Step]]:
        """All that was recorded of these runs."""
        with self._reading() as tx:
            return claims.journal(tx, runs)

    def history(self, run_id: str) -> list[tuple[int, str, str]]:
        with self._reading() as tx:
            return [(row[0], row[1], row[2]) for row in tx.query(tx.sql.history, id=run_id)]

    def unread(self, run_id: str, name: str, *, limit: int) -> list[Message]:
        """The oldest messages of that name that were not received yet."""
        with self._reading() as tx:
            return rows_to(Message, tx.query(tx.sql.unread_messages, run_id=run_id, name=name, limit=limit))

    def published(self, run_id: str, name: str) -> str | None:
        with self._reading() as tx:
            rows = tx.query(tx.sql.published, id=run_id, name=name)
        return rows[0][0] if rows else None

    # What runs wait for, and what is overdue

    def awaited(self, run_id: str) -> list[tuple[str, int]]:
        """The topics that a parked run waits for, and how many events of each are missing."""
        with self._reading() as tx:
            return waiting.awaited(tx, run_id)

    def runs_awaited(self, run_id: str) -> list[tuple[str, str]]:
        """The nodes of a run that wait for other runs, and the ids of those."""
        with self._reading() as tx:
            return waiting.runs_awaited(tx, run_id)

    def waiting(self, runs: Sequence[str]) -> set[str]:
        """Those of the runs that are neither executed nor ready to be."""
        with self._reading() as tx:
            return waiting.waiting(tx, runs)

    def overdue(self, runs: Sequence[str], *, due: int) -> list[listing.Overdue]:
        """What of these runs has been due since then or longer, longest first."""
        with self._reading() as tx:
            return listing.overdue(tx, runs, due=due)

    def executing(self) -> dict[str, int]:
        """How much each worker executes at this moment."""
        with self._reading() as tx:
            return listing.executing(tx)

    def next_due(self, claim_cursor: ClaimCursor | None = None) -> int | None:
        """When the next timer is due."""
        with self._reading() as tx:
            due: int | None = tx.query(
                tx.sql.next_due, floor=claim_cursor.timers if claim_cursor is not None else 0
            )[0][0]
            return due

    def next_work(
        self, claim_cursor: ClaimCursor, *, queues: Sequence[str], jobs: Sequence[str], version: str
    ) -> tuple[int | None, bool]:
        """When the next timer is due, and whether a claim from these queues has left something.

        A claim leaves what another transaction has locked.  It is not looked for while that takes long.
        """
        if not queues or not self.driver.statements.next_work or claim_cursor.slow_scan:
            return self.next_due(claim_cursor), False
        known = {"rows": batch([{"job": job} for job in jobs]), "version": version}
        found: list[tuple[int | None, bool]] = []
        with self._reading() as tx:
            for queue in queues:
                found += tx.query(tx.sql.next_work, queue=queue, floor=claim_cursor.timers, **known)
        # The earliest: a timer that was read first may be ready by now, in a queue that was read before.
        return min((due for due, _ in found if due is not None), default=None), any(left for _, left in found)

    def next_deadline(self) -> int | None:
        """When the next deadline of a run passes that is not over."""
        with self._reading() as tx:
            due: int | None = tx.query(tx.sql.deadlines.next)[0][0]
            return due

    # Workers

    def workers(self) -> list[WorkerRow]:
        with self._reading() as tx:
            return claims.workers(tx)

    def held_tokens(self, worker: str) -> set[str]:
        """The tokens of all that a worker holds."""
        with self._reading() as tx:
            return {row[0] for row in tx.query(tx.sql.held_tokens, worker=worker)}

    def read_heartbeat(
        self, *, now: int, runs: Sequence[str] = (), claim_cursor: ClaimCursor | None = None
    ) -> HeartbeatReading:
        """Workers, timers, ready work, and which of these runs are paused or canceled."""
        with self._beats.autocommit() as tx:
            return claims.read_heartbeat(tx, runs=runs, now=now, claim_cursor=claim_cursor or ClaimCursor())

    # Graphs

    def graph(self, id: str) -> str | None:
        """The stored text of a run's graph, or of the class's with that signature."""
        with self._reading() as tx:
            return graphs.read(tx, id)

    def outdated(
        self, type: str, signature: str, *, behind: str = "", limit: int = 100, version: str = ""
    ) -> list[str]:
        """Runs of a class that were last settled under another graph, and are not pinned elsewhere."""
        asked = {"type": type, "signature": signature, "behind": behind, "limit": limit, "version": version}
        with self._reading() as tx:
            rows = tx.query(tx.sql.graphs.outdated_runs, **asked)
        return [row[0] for row in rows]

    def unknown_jobs(self, *, before: int, limit: int = 100) -> list[tuple[str, str, int, str]]:
        """Nodes that have been due since before then, and that no worker can run."""
        with self._reading() as tx:
            known = sorted(known_jobs(claims.workers(tx)))
            rows = tx.query(
                tx.sql.graphs.unknown_jobs,
                before=before,
                rows=batch([{"job": job} for job in known]),
                limit=limit,
            )
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    # Retention

    def expired(self, *, before: int, beyond: retention.Place, limit: int) -> list[retention.Expired]:
        """Runs that ended before then, longest ago first, beyond a place; some of them may not go yet."""
        with self._reading() as tx:
            return retention.expired(tx, before=before, beyond=beyond, limit=limit)

    def going_with(self, parents: Collection[str], *, before: int) -> set[str]:
        """Those of the runs that may be removed, or could be if their parents were; reads only."""
        with self._reading() as tx:
            return retention.going_with(tx, parents, before=before)


def ends_of(rows: Sequence[tuple[Any, ...]]) -> list[tuple[str, RunEnd]]:
    return [(row[0], RunEnd(*row[1:])) for row in rows]
