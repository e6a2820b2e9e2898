"""A connection whose batches are sent without waiting for the answer, for callers on an event loop.

Only batches that go one of the quicker ways can be sent so: several statements in one packet, which the
server commits together.  For any other batch `send` returns None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..kernel.operations import Operation
from .batch.apply import Applied
from .batch.ways import leases_of, way_of
from .connection import Connection
from .driver import Slots, Trouble, Tx, Way


class LoopWriter(Connection):
    """Opens in a thread that may wait, then is used by one leader of the committer at a time."""

    openings = 0  # how often it was opened: another connection has another socket

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self) -> None:
        """Connect, if there is no connection."""
        with self._lock:
            if self._connection is None:
                self._open()
                self.openings += 1

    def socket(self) -> int:
        """A descriptor of its socket.  It belongs to the caller, who closes it."""
        return os.dup(self._connection.fileno())

    def send(
        self, operations: Sequence[Operation], *, helpers_wanted: bool, slots: Slots | None
    ) -> Sent | None:
        """Send a batch, and return at once; None if it has to be applied in another way."""
        connection = self._connection
        if connection is None:
            return None
        way = way_of(self._driver, operations, helpers_wanted=helpers_wanted, slots=slots)
        if way is None:
            return None
        session: Any = self._driver.deferring(connection)
        try:
            session.together()
            answers = way.ask(Tx(self._driver, connection))
            return Sent(self, way, answers, session.launch())
        except BaseException as error:
            self.failed(way, error)
            raise

    def failed(self, way: Way, error: BaseException) -> None:
        """A batch was refused, or its answer was lost: look for what it has leased, and be ready again."""
        if way.slots is not None:
            way.slots.withdraw()
        connection = self._connection
        if connection is None:
            return
        # Nothing has to be rolled back: what was refused is not committed, and what was sent after it is
        # a transaction of its own.
        if (
            connection.closed
            or not isinstance(error, Exception)
            or self._driver.trouble(error) is Trouble.GONE
        ):
            self.drop()
        self._explain(connection, error)


class Sent:
    """A batch on its way."""

    def __init__(self, writer: LoopWriter, way: Way, answers: Callable[[], list[Any]], flight: Any) -> None:
        self._writer = writer
        self._way = way
        self._answers = answers
        self._flight = flight
        self._error: Exception | None = None
        self.begun = time.perf_counter()

    @property
    def flushed(self) -> bool:
        """Whether all of it is on its way; if not, `applied` sends the rest."""
        flushed: bool = self._flight.flushed
        return flushed

    def arrived(self) -> bool:
        """Take what has come of the answer, without waiting; whether `applied` has nothing to wait for."""
        try:
            arrived: bool = self._flight.arrived()
        except Exception as error:
            self._error = error
            return True
        return arrived

    def applied(self) -> Applied:
        """Wait for the answer; what has None as its answer was not applied, and goes the long way."""
        try:
            if self._error is not None:
                raise self._error
            self._flight.wait()
            self._flight.end()
            answers = self._answers()
        except BaseException as error:
            self._writer.failed(self._way, error)
            raise
        left = [number for number, answer in enumerate(answers) if answer is None]
        return Applied(answers, made_ready=self._way.made_ready, leased=leases_of(self._way, left))

    def give_up(self) -> None:
        """Its answer is not waited for: look for what it has leased."""
        if self._way.slots is not None:
            self._way.slots.withdraw()
