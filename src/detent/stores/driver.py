"""What a store is made of: a driver that talks to one database, and transactions on it.

A `Driver` knows a database's library and its quirks; `Tx` runs statements in one
transaction; the verbs (sql.py and its neighbours) are written once over both.
"""

from __future__ import annotations

import contextvars
import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec

from ..errors import PacketTooLarge, TransactionEnded
from ..kernel.operations import Operation, Recovered, RunChange
from ..kernel.rows import Claimed, Lease, WorkerRow
from .sql.queries import Queries
from .sql.statements import Statements

T = TypeVar("T")
log = logging.getLogger("detent")
_ENCODER = msgspec.json.Encoder()
LARGEST_BATCH = 3 * 1024 * 1024  # characters, of up to four bytes; MariaDB takes 16 MiB in one packet
STOPPED_AFTER = 5  # seconds without a statement after which the server ends a transaction of Detent
LOCK_WAIT = 5.0  # seconds that a statement of Detent waits for a lock before it is tried again
SHARED = ("detent_counters", "detent_workers")  # tables whose rows are locked by operations of many runs
RETRIED_FOR = 10.0  # seconds after which what is tried again and again counts as a database that is away
LONGEST_NEWS = 7900  # bytes; PostgreSQL takes less than 8000


class Trouble(Enum):
    """What an error of the database means to us."""

    UNIQUE = "unique"  # a row with that key is there already
    RETRY = "retry"  # deadlock, serialisation, busy: the same again may work
    GONE = "gone"  # the connection or the server is lost: unknown whether it committed
    OTHER = "other"


class Line(Enum):
    """Where a batch is committed, and so how long it waits for locks."""

    MAIN = "main"
    SPLIT = "split"  # parts of a batch that was blocked
    ASIDE = "aside"  # what is blocked: nothing else waits behind it


class Liveness(Protocol):
    """Which workers live.  A worker's sign of life dies with its process, without a clock."""

    def take(self, worker: WorkerRow) -> bool:
        """Show that this worker lives, for as long as this process does; whether that had to be renewed."""
        ...

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        """Those of whom it is known that their process is gone."""
        ...

    def seen(self) -> None:
        """The database has just seen our sign of life: there is no need to look after it."""
        ...

    def missed(self) -> None:
        """The database does not see our sign of life, though it could: give it anew when it is taken next."""
        ...

    def doubt(self) -> None:
        """The database was away: our sign of life may be lost, so look when it is taken next."""
        ...

    def rest(self, stopping: threading.Event, seconds: float) -> bool:
        """Wait until `stopping` is set, and say whether it is; return early if our sign of life is lost."""
        ...

    def leave(self) -> None: ...


class Slots(Protocol):
    """A worker that takes what becomes ready in a commit of its own process, already leased."""

    @property
    def id(self) -> str: ...

    def reserve(self, job: str, queue: str, *, handed_on: bool = False) -> Lease | None:
        """A free slot, or one that is about to be, as a lease that goes into the same commit.

        None: leave it to others.
        """
        ...

    def give_back(self, tokens: Iterable[str]) -> None:
        """The commit did not come to pass: the slots are free again."""
        ...

    def unconfirmed(self, tokens: Iterable[str]) -> None:
        """Whether these leases were committed is not known; their slots are free again."""
        ...


class SlotOffer:
    """The leases that a transaction hands out; they come back when it does not come to pass.

    So many executions of this worker end with this transaction (`ending`): their slots are handed on.
    """

    def __init__(self, slots: Slots, ending: int) -> None:
        self._slots = slots
        self._ending = ending
        self._taken: list[str] = []

    @property
    def id(self) -> str:
        return self._slots.id

    def reserve(self, job: str, queue: str) -> Lease | None:
        lease = self._slots.reserve(job, queue, handed_on=len(self._taken) < self._ending)
        if lease is not None:
            self._taken.append(lease.token)
        return lease

    def give_back(self, tokens: Collection[str]) -> None:
        """These leases were not written."""
        self._slots.give_back(tokens)
        self._taken = [token for token in self._taken if token not in tokens]

    def renewed(self) -> SlotOffer:
        """For another try: what the one before has taken is free again."""
        self._slots.give_back(self._taken)
        self._taken = []
        return self

    def withdraw(self) -> None:
        """It failed, perhaps after its commit: look for these leases soon."""
        taken, self._taken = self._taken, []
        if taken:
            self._slots.unconfirmed(taken)


class Listener(Protocol):
    """Notifications from other processes."""

    longest: float  # seconds that are good for one wait: each costs a wake-up, on MySQL a query

    def wait(self, seconds: float) -> list[str]:
        """Payloads that came, waiting at most so long.  An empty payload: something changed."""
        ...

    def interrupt(self) -> None:
        """From another thread: end a wait that would take long."""
        ...

    def close(self) -> None: ...


class Deferring(Protocol):
    """Keeps statements until an answer is needed; inside a transaction only."""

    def defer(self, statement: str, params: Mapping[str, Any]) -> None: ...

    def ask(self, statement: str, params: Mapping[str, Any]) -> Any: ...

    def answer(self, asked: Any) -> list[tuple[Any, ...]]: ...


class Way(msgspec.Struct):
    """How a batch is applied by statements of its own (fast_paths.py, next_nodes.py)."""

    # Asks the database; what is returned gives the answers, None for each operation that goes the long way.
    ask: Callable[[Tx], Callable[[], list[Any]]]
    alone: bool = True  # it needs no transaction around it: a single statement, or several sent as one
    made_ready: bool = False  # something that it starts waits for a worker
    slots: SlotOffer | None = None  # whose leases it hands out ...
    leased: list[list[Any]] = []  # ... and to what: for each operation, executions with their runs


class FoundWork(msgspec.Struct):
    """What a quick claim has leased, and what its searches tell the claim cursor."""

    claimed: list[Claimed] = msgspec.field(default_factory=list)
    places: list[tuple[str, int, int]] = msgspec.field(default_factory=list)  # queue, precedence, due
    searches: int = 0
    seconds: float = 0.0  # that all searches took


class QuickClaim(Protocol):
    def __call__(
        self,
        tx: Tx,
        worker: str,
        *,
        queues: Sequence[str],
        jobs: Sequence[str],
        tokens: Sequence[str],
        now: int,
        version: str,
    ) -> FoundWork | None:
        """Lease what is ready, in the order of every claim; None, and nothing is leased, if it cannot."""
        ...


class NodeSettler(Protocol):
    def __call__(
        self, tx: Tx, worker: str, nodes: Sequence[Any], payload: str
    ) -> Callable[[], list[tuple[Any, ...]]]:
        """Settle nodes (`SettledNode`); what is returned gives the run and the node of those that it has.

        The payload, unless it is empty, is for other processes.
        """
        ...


class Driver(Protocol):
    """One database: its library, its dialect, its errors."""

    name: str
    statements: Statements
    queries: Queries  # their parameters are `:name`: `adapt` what is made of them
    lock_waits: Mapping[Line, float]  # seconds that a batch waits for a lock
    writing: Any  # the lock that all connections share where only one may write; else None
    reading: Any  # the same for reads
    largest: int  # bytes in one parameter; on MySQL in one statement, the server's packet limit
    ddl_commits: bool  # whether CREATE TABLE ends the transaction
    patience: float  # seconds after which a server that does not answer counts as away
    inherited: str  # why a forked child cannot use what the parent opened
    closed_at_fork: bool  # whether connections must be closed before the process forks
    keyed: frozenset[str]  # queues where executions without a key take turns with the keys
    settle_nodes: NodeSettler | None  # settles nodes and begins their followers; None: the long way does
    quick_claim: QuickClaim | None  # a quicker claim inside a transaction, which leaves timers alone
    launches: bool  # whether what is deferred can be sent without waiting for the answer (loop_writer.py)
    single: bool  # whether a statement by itself waits for locks no longer than one in a transaction

    @property
    def heritable(self) -> bool:
        """Whether a forked child can open the same database."""
        ...

    def shares(self, other: Driver) -> bool:
        """Whether a write through this driver may wait for a transaction of the other."""
        ...

    def connect(self) -> Any:
        """Open a connection in autocommit mode."""
        ...

    def verify(self, connection: Any) -> None:
        """Raise DatabaseReplaced if this is no longer the database that was opened; asks no server.

        The connection is the caller's; None if it has none yet.
        """
        ...

    def suspend(self, deadline: float) -> None:
        """Before a fork that needs closed connections: close the unused ones, and open no more."""
        ...

    def resume(self) -> None:
        """In the parent, after the fork."""
        ...

    def forsake(self, connection: Any) -> None:
        """In a forked child: keep this connection, which no other thread uses, from writing anything."""
        ...

    def tune(self, connection: Any, lock_wait: float = LOCK_WAIT) -> None:
        """Settings for a connection that only ever runs our own statements."""
        ...

    def tune_for_users(self, connection: Any) -> None:
        """Settings for a connection that runs users' statements: those of the server or the role."""
        ...

    def begin(self, connection: Any, *, patient: bool = True) -> None:
        """Begin a transaction.  `patient`: wait for long where only one may write."""
        ...

    def begin_for_user(self, connection: Any, owner: str, isolation: str | None) -> None:
        """Begin a transaction for a user's code, and mark it.

        Autocommit is off: what the user writes after ending it can still be rolled back.
        """
        ...

    def is_open(self, connection: Any, *, surely: bool) -> bool:
        """Whether the marked transaction is still open; asked once.

        `surely`: it will not be committed, so that the commit cannot find out.
        """
        ...

    def commit_for_user(self, connection: Any) -> bool:
        """Commit the marked transaction.  False: another one was open; it is not committed."""
        ...

    def commit(self, connection: Any) -> None: ...

    def rollback(self, connection: Any) -> None: ...

    def deferring(self, connection: Any) -> Deferring | None:
        """What sends several statements at once on this connection, where that is quicker."""
        ...

    def in_transaction(self, connection: Any) -> bool:
        """Whether a transaction is open; does not ask the server."""
        ...

    def cursor(self, connection: Any) -> Any:
        """A cursor that returns tuples, whatever the connection's own habits."""
        ...

    def packet_size(self, connection: Any, text: str) -> int:
        """How many bytes a parameter takes on its way to the server."""
        ...

    def adapt(self, fragment: str) -> str:
        """Write `:name` as this driver wants it."""
        ...

    def trouble(self, error: BaseException) -> Trouble: ...

    def blocked(self, error: BaseException) -> bool:
        """Whether a statement has waited too long for what another transaction has locked of a run.

        That includes an id or a hero that a transaction has taken and not committed yet.
        """
        ...

    def refused(self, error: BaseException) -> bool:
        """Whether the database itself has said no: then it is certain that nothing was committed."""
        ...

    def broke(self, connection: Any, error: BaseException) -> bool:
        """Whether an error has ended the transaction on this connection, or may have.

        If not, it belongs to another database, or the user has created it.
        """
        ...

    def between_statements(self, connection: Any) -> bool:
        """Whether no statement was cut off on this connection, so that it may be used again."""
        ...

    def is_missing_table(self, error: BaseException) -> bool: ...

    def quick(self, operations: Sequence[Operation], *, helpers_wanted: bool) -> Way | None:
        """A quicker way to apply this batch, where there is one (fast_paths.py).

        `helpers_wanted`: notify other processes of what it makes ready.
        """
        ...

    def notify(self, tx: Tx, payload: str) -> None:
        """Wake other processes when `tx` commits."""
        ...

    def committed(self, tx: Tx) -> None:
        """Called when `tx` is durable, and its connection still ours alone."""
        ...

    def listener(self) -> Listener: ...

    def liveness(self) -> Liveness: ...

    def migration_lock(self, tx: Tx) -> AbstractContextManager[None]:
        """One migrator at a time."""
        ...

    def script(self, connection: Any, text: str) -> None:
        """Run a migration's statements."""
        ...

    def close(self) -> None: ...


class Tx:
    """Statements in one transaction."""

    __slots__ = ("_deferring", "changed", "connection", "driver", "made_ready", "news", "refusal", "sql")

    def __init__(self, driver: Driver, connection: Any) -> None:
        self.driver = driver
        self.connection = connection
        self.sql = driver.statements
        self.news: list[str] = []  # payloads for other processes, where a commit does not carry them
        self._deferring = driver.deferring(connection)
        self.made_ready = False  # whether there is work in it, for our own worker too
        self.changed: list[RunChange | Recovered] = []  # to be reported once it is committed
        self.refusal: Exception | None = None  # what a statement of the user's met here

    def cursor(self) -> Any:
        """A cursor that returns tuples."""
        return self.driver.cursor(self.connection)

    def query(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:
        cursor = self.cursor()
        try:
            cursor.execute(statement, params)
            return list(cursor.fetchall())
        finally:
            cursor.close()

    def run(self, statement: str, **params: Any) -> int:
        """Execute, and return how many rows were changed."""
        cursor = self.cursor()
        try:
            cursor.execute(statement, params)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def send(self, statement: str, **params: Any) -> None:
        """Execute before the next statement or the commit; the result is not read."""
        if self._deferring is None:
            self.run(statement, **params)
        else:
            self._deferring.defer(statement, params)

    def ask(self, statement: str, **params: Any) -> Callable[[], list[tuple[Any, ...]]]:
        """A query whose rows are wanted later; what was asked in a row is asked at once."""
        if self._deferring is None:
            rows = self.query(statement, **params)
            return lambda: rows
        deferring, asked = self._deferring, self._deferring.ask(statement, params)
        return lambda: deferring.answer(asked)


class UserTx(Tx):
    """A transaction in which a user's code runs.  That code may end it, by mistake or by DDL."""

    __slots__ = ("ended", "may_end", "over", "owner")

    def __init__(self, driver: Driver, connection: Any, owner: str) -> None:
        super().__init__(driver, connection)
        self.owner = owner  # "step 'debit'"
        self.ended = False  # the user's code has ended it ...
        self.may_end = False  # ... and may do so: it defines tables, where that commits
        self.over = False  # we have ended it

    def check(self, *, surely: bool = False) -> None:
        """Raise TransactionEnded if the user's code has ended it; call this once, after that code."""
        if self.ended or not self.driver.is_open(self.connection, surely=surely):
            self.ended = True
            raise TransactionEnded(self.owner)


# The transaction that the current code runs in, if it is the body of a transactional step or a projection.
user_transaction: contextvars.ContextVar[UserTx | None] = contextvars.ContextVar(
    "detent_user_transaction", default=None
)
os.register_at_fork(after_in_child=lambda: user_transaction.set(None))  # the parent is in it


def batch(rows: Any) -> str:
    """Return the one JSON parameter that carries `rows`."""
    return _ENCODER.encode(rows).decode()


def write(tx: Tx, statement: str, rows: Sequence[Any]) -> int:
    """Run a statement over all rows, in as few pieces as the server takes; return how many it changed."""
    if not rows:
        return 0
    text = batch(rows)
    if len(text) > largest_batch(tx.driver):
        if len(rows) > 1:
            half = len(rows) // 2
            return write(tx, statement, rows[:half]) + write(tx, statement, rows[half:])
        size = tx.driver.packet_size(tx.connection, text)
        if size > tx.driver.largest:
            raise PacketTooLarge(_largest_part(text), size, tx.driver.largest, tx.driver.name)
    return tx.run(statement, rows=text)


def largest_batch(driver: Driver) -> int:
    """The characters that surely fit into one statement; more are counted, or sent in several."""
    return min(LARGEST_BATCH, driver.largest // 8)  # four bytes each, and each of them doubled


def _largest_part(text: str) -> str:
    """The value that makes a row too large, as people know it."""
    [row] = msgspec.json.decode(text)
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    column = max(texts, key=lambda name: len(texts[name]))
    run = row.get("run_id") or row.get("id")
    if "step_key" in row:
        return f"the {column} of step {row['step_key']!r} of run {run}"
    if "node" in row:
        return f"the {column} of node {row['node']!r} of run {run}"
    if "message_id" in row:
        return f"the {column} of message {row.get('name')!r} to run {run}"
    kind = f" of {row['type']!r}" if "type" in row else ""
    return f"the {column} of run {run}{kind}" if run else f"the {column}"


def send(tx: Tx, statement: str, rows: Sequence[Any]) -> None:
    """The same without the number of rows, and not at once."""
    if not rows:
        return
    text = batch(rows)
    if len(text) > largest_batch(tx.driver):
        write(tx, statement, rows)
    else:
        tx.send(statement, rows=text)


def news(*, work: bool, runs: Sequence[str] = ()) -> str:
    """The payload that tells other processes: there is work, these runs have ended."""
    text = batch({"work": work, "runs": runs[:100]})
    # What is too long for a notification becomes the empty one: something changed, look for yourselves.
    return text if len(text.encode()) <= LONGEST_NEWS else ""


def rows_to(struct: Any, rows: list[tuple[Any, ...]]) -> list[Any]:
    """Return rows whose columns are in the order of the struct's fields, as structs."""
    names = struct.__struct_fields__
    if len(struct.__match_args__) == len(names):  # made by place, in a tenth of the time
        return [struct(*row) for row in rows]
    return [struct(**dict(zip(names, row, strict=True))) for row in rows]


def pyformat(statements: Any) -> Any:
    """All statements, for drivers that write parameters as `%(name)s`."""
    changed = {}
    for name in statements.__struct_fields__:
        value = getattr(statements, name)
        if not isinstance(value, int):  # a limit that goes with a statement
            changed[name] = named_to_pyformat(value) if isinstance(value, str) else pyformat(value)
    return msgspec.structs.replace(statements, **changed)


@lru_cache(maxsize=1024)  # some statements are put together anew each time they are asked
def named_to_pyformat(statement: str) -> str:
    """`:name` to `%(name)s`, for drivers that write parameters so."""
    return re.sub(r"(?<![:\w]):([a-z_][a-z_0-9]*)", r"%(\1)s", statement.replace("%", "%%"))
