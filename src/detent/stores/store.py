"""Store: every verb that writes, once, over a driver; reader.py has the reads.

Each verb is one transaction.  Its docstring says what calling it twice does;
`now` is an argument, in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ..errors import AlreadyRunning, DatabaseUnavailable
from ..kernel.decide import Decide
from ..kernel.external_changes import Change, Resume
from ..kernel.operations import Operation, Settle
from ..kernel.rows import Claimed, NewExecution, RunEnd, WorkerRow
from . import migrate as migrations
from .batch import apply as batches
from .batch import doubt
from .batch.ways import leases_of, way_of
from .claim_cursor import ClaimCursor
from .driver import Line, SlotOffer, Slots, Trouble, Tx, Way, batch
from .reader import StoreReader, ends_of
from .verbs import claims, deadlines, graphs, retention
from .verbs.chain_verbs import ChainVerbs
from .verbs.deciders import DeciderVerbs
from .verbs.external_changes import perform
from .verbs.queue_verbs import QueueVerbs
from .verbs.run_stream_verbs import RunStreamVerbs
from .verbs.schedule_verbs import ScheduleVerbs
from .verbs.start_keys import StartKeyVerbs
from .verbs.version_verbs import VersionVerbs

T = TypeVar("T")


class PartlyApplied(Exception):
    """Some operations of a batch were committed, by statements of their own; the rest failed.

    `answers` has None for the rest.
    """

    def __init__(self, answers: list[Any], error: Exception) -> None:
        super().__init__(str(error))
        self.answers = answers
        self.error = error


class Store(
    StoreReader,
    ChainVerbs,
    DeciderVerbs,
    QueueVerbs,
    RunStreamVerbs,
    ScheduleVerbs,
    StartKeyVerbs,
    VersionVerbs,
):
    """The verbs of Detent on one database."""

    # Schema

    def migrate(self, *, now: int) -> list[str]:
        """Bring the schema up to date; twice does nothing."""
        done = self.write(lambda tx: migrations.migrate(tx, self.dialect, now=now))
        return [f"{migration.version:04d}_{migration.name}" for migration in done]

    def check_schema(self) -> None:
        """Raise unless the database has the schema of this version."""
        known = migrations.migrations(self.dialect)
        with self._pool.connection() as connection:
            try:
                with connection.transaction() as tx:
                    applied = migrations.applied(tx)
            except Exception as error:
                if isinstance(error, DatabaseUnavailable) or not self.driver.is_missing_table(error):
                    raise
                applied = []
        migrations.require(applied, known)

    # Batches

    def apply(
        self,
        operations: Sequence[Operation],
        *,
        helpers_wanted: bool = False,
        slots: Slots | None = None,
        line: Line | None = None,
    ) -> batches.Applied:
        """Apply all operations in one transaction, and answer each.

        Twice: settles and parks are stale, messages are dropped, records change nothing.
        """
        way = None
        if line in (None, Line.MAIN):
            way = way_of(self.driver, operations, helpers_wanted=helpers_wanted, slots=slots)
        answers = None if way is None else self._quickly(way)
        if way is None or answers is None:
            return self._slowly(operations, helpers_wanted, slots, line)
        left = [number for number, answer in enumerate(answers) if answer is None]
        leased = leases_of(way, left)
        if not left:
            return batches.Applied(answers, made_ready=way.made_ready, leased=leased)
        try:
            rest = self._slowly([operations[number] for number in left], helpers_wanted, slots, line)
        except BaseException as error:
            if way.slots is not None:
                way.slots.withdraw()  # what was leased is not delivered
            if len(left) == len(operations) or not isinstance(error, Exception):
                raise
            raise PartlyApplied(answers, error) from error
        for number, answer in zip(left, rest.answers, strict=True):
            answers[number] = answer
        rest.answers = answers
        rest.made_ready = rest.made_ready or way.made_ready
        rest.leased += leased
        return rest

    def _slowly(
        self,
        operations: Sequence[Operation],
        helpers_wanted: bool,
        slots: Slots | None,
        line: Line | None,
    ) -> batches.Applied:
        if slots is None:
            return self._write_batch(
                line, lambda tx: batches.apply(tx, operations, helpers_wanted=helpers_wanted)
            )
        settles = [op.ends if isinstance(op, Decide) else op for op in operations]
        ending = sum(isinstance(op, Settle) and op.worker == slots.id and op.hands_slot_on for op in settles)
        slot_offer = SlotOffer(slots, ending)
        try:
            return self._write_batch(
                line,
                lambda tx: batches.apply(
                    tx, operations, helpers_wanted=helpers_wanted, slots=slot_offer.renewed()
                ),
            )
        except BaseException:
            slot_offer.withdraw()
            raise

    def _quickly(self, way: Way) -> list[Any] | None:
        """The answers, None for what goes the long way; or None if all of it does."""
        try:
            self.refuse_inside("a write")
            return self._writer.perform(lambda tx: way.ask(tx)(), alone=way.alone)
        except BaseException as error:
            if way.slots is not None:
                way.slots.withdraw()
            if not isinstance(error, Exception) or self.driver.trouble(error) is not Trouble.RETRY:
                raise
            return None  # the long way tries again

    def explain_conflict(self, operation: Operation, *, within: Tx | None = None) -> Any:
        """What is in the way of an operation that hit a unique key; reads only.

        `within` is the transaction of a user, which may hold what is in the way.
        """
        found = None if within is None else doubt.explain_conflict(within, operation)
        if found is not None:
            return found
        # Under REPEATABLE READ a user's transaction does not see what others have committed since it began.
        # Not as a writer: on SQLite the caller may be holding the one lock that writers need.
        with self._reading() as tx:
            return doubt.explain_conflict(tx, operation)

    def already_applied(self, operation: Operation) -> Any:
        """The answer to an operation whose commit was cut off, if it went through; reads only."""
        return self._writer.perform(lambda tx: doubt.already_applied(tx, operation))

    # Claims and leases

    def claim(
        self,
        worker: str,
        *,
        queues: Sequence[str],
        jobs: Sequence[str],
        tokens: Sequence[str],
        now: int,
        version: str = "",
        claim_cursor: ClaimCursor | None = None,
        timers: bool = True,
    ) -> list[Claimed]:
        """Lease what is due, at most one per token; twice leases the next ones.

        Without `timers`, those that are due stay timers: that is quicker.
        """
        claim_cursor = claim_cursor or ClaimCursor()
        if not timers and self._claims_at_once and claim_cursor.wanted():
            return self._claim_at_once(
                queues, tokens, claim_cursor, worker=worker, jobs=jobs, now=now, version=version
            )
        claimed = self._again(
            self._claims,
            lambda tx: claims.claim(
                tx,
                worker,
                queues=queues,
                jobs=jobs,
                tokens=tokens,
                now=now,
                version=version,
                claim_cursor=claim_cursor,
                timers=timers,
            ),
        )
        claim_cursor.committed()
        return claimed()

    @property
    def _claims_at_once(self) -> bool:
        return self.driver.single and bool(self.driver.statements.claim_at_once)

    def _claim_at_once(
        self, queues: Sequence[str], tokens: Sequence[str], claim_cursor: ClaimCursor, **given: Any
    ) -> list[Claimed]:
        """Each queue by a statement of its own: a retry of one must not lease from the others again."""
        found: list[Claimed] = []
        seconds = 0.0
        for queue in queues:
            if left := tokens[len(found) :]:
                verb = partial(
                    claims.claim_at_once, queue=queue, tokens=left, claim_cursor=claim_cursor, **given
                )
                claimed, taken = self._again(self._claims, verb, alone=True)
                claim_cursor.committed()
                found += claimed
                seconds += taken
        claim_cursor.looked(seconds)
        return found

    def claim_overdue(
        self,
        worker: str,
        *,
        queues: Collection[str],
        jobs: Collection[str],
        token: Callable[[], str],
        now: int,
        version: str = "",
    ) -> list[Claimed]:
        """Lease an execution of each run whose deadline has passed while it waits; twice finds no more."""
        return self._again(
            self._claims,
            lambda tx: deadlines.claim_overdue(
                tx, worker, queues=queues, jobs=jobs, token=token, now=now, version=version
            ),
        )()

    def release(self, claimed: Sequence[Claimed]) -> None:
        """Hand executions back that were not begun; twice does nothing."""
        self._again(self._claims, lambda tx: claims.release(tx, claimed))

    def disclaim(self, worker: str, tokens: Collection[str]) -> int:
        """Hand back what was leased under tokens whose claim was cut off; twice does nothing."""
        return self._again(self._claims, lambda tx: claims.disclaim(tx, worker, tokens))

    def register(self, worker: WorkerRow) -> None:
        """Add a worker's row; twice is an error."""
        self._again(self._beats, lambda tx: claims.register(tx, worker))

    def renew(self, worker: str, *, lease: int, now: int) -> bool:
        """Extend a worker's lease; False when it is no longer alive.  Twice extends it again.

        Leases are kept by the database's clock where it has one: machines disagree.
        """
        # One statement is a transaction by itself; but those on SQLite are counted by their beginnings.
        return bool(
            self._again(
                self._beats,
                lambda tx: tx.run(tx.sql.renew_worker, id=worker, now=now, lease=lease),
                alone=self.dialect != "sqlite",
            )
        )

    def reap(
        self,
        worker: str,
        *,
        max_recoveries: int,
        now: int,
        counted: bool = True,
        unless_renewed: int | None = None,
    ) -> list[NewExecution] | None:
        """Take a worker declared dead and give its work back; twice: None.

        `unless_renewed`: only as long as its lease ends then, as when it was found dead.
        """
        return self._changing(
            lambda tx: claims.reap(
                tx,
                worker,
                counted=counted,
                max_recoveries=max_recoveries,
                now=now,
                unless_renewed=unless_renewed,
            ),
            self._beats,
        )

    # Changes from outside

    def change(self, change: Change[T], *, now: int, within: Tx | None = None) -> T:
        """Make a change that is requested from outside; `kernel/external_changes.py` has all of them.

        `within` is a transaction of the user, who commits it.
        """
        if within is not None:
            answer = self._changed(within, change, now)
            within.made_ready = within.made_ready or change.readies
            return answer
        try:
            return self._changing(lambda tx: self._changed(tx, change, now))
        except Exception as error:
            if not isinstance(change, Resume) or self.driver.trouble(error) is not Trouble.UNIQUE:
                raise
            taken = self.hero_taken(change.run_id)
            if taken is None:
                raise
            raise taken from error

    def _changed(self, tx: Tx, change: Change[T], now: int) -> T:
        answer: T = perform(tx, change, now)
        return self._told(tx, answer) if change.wakes else answer

    def hero_taken(self, run_id: str) -> AlreadyRunning | None:
        """The error for a run that cannot be active again because its hero has another active run.

        None if it has no hero, or its hero has no other active run: then another unique key was violated.
        """
        run = self.current(run_id)
        if run.hero_id is None:
            return None
        with self._reading() as tx:
            rows = tx.query(tx.sql.hero_run, type=run.type, hero_type=run.hero_type, hero_id=run.hero_id)
        others = [row[0] for row in rows if row[0] != run.id]
        return AlreadyRunning(others[0], run.type, f"{run.hero_type} {run.hero_id}") if others else None

    # Graphs

    def save_graphs(self, texts: Mapping[str, str]) -> None:
        """Keep the graphs of classes, under their signatures; twice does nothing."""
        self.write(lambda tx: graphs.save(tx, texts))

    def watch(self, runs: Sequence[str], among: Sequence[str]) -> list[tuple[str, RunEnd]] | None:
        """Have other processes notify this one when these runs end; return the ends `among` more runs.

        Watching comes first: what ends after it notifies, what ended before it is seen.  Twice changes
        nothing.  None if a transaction that has not ended has locked one of the runs.
        """

        def verb(tx: Tx) -> Callable[[], list[tuple[Any, ...]]]:
            tx.send(tx.sql.watch_runs, rows=batch([{"id": run} for run in sorted(set(runs))]))
            # Both go with the commit, in one round trip.
            return tx.ask(tx.sql.ends, rows=batch([{"id": run} for run in among]))

        try:
            return ends_of(self.write(verb, unless_blocked=True)())
        except Exception as error:
            if not self.driver.blocked(error):
                raise
            return None

    # Retention

    def remove(self, runs: Sequence[str], *, before: int) -> int:
        """Remove those of the runs that may be removed, with all their rows; twice does nothing."""
        return self.write(lambda tx: retention.remove(tx, runs, before=before))

    # Inside of a user's transaction

    def become_writer(self, tx: Tx) -> None:
        """Take SQLite's write lock for a user's transaction, before anything is read in it.

        A transaction that reads first cannot become a writer any more when another connection has
        committed since: it would fail at once, without waiting.
        """
        tx.run("DELETE FROM detent_waits WHERE 0")

    def apply_within(self, tx: Tx, operation: Operation) -> Any:
        """Apply an operation in the caller's transaction."""
        applied = batches.apply(tx, [operation], helpers_wanted=True)
        tx.made_ready = tx.made_ready or applied.made_ready
        [answer] = applied.answers
        if isinstance(answer, Exception):
            raise answer
        return answer
