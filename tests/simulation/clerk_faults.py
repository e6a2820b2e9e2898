"""A store whose transactions fail when a test says so: before their commit, or just after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from detent.errors import DatabaseUnavailable
from detent.stores.connection import Connection
from detent.stores.driver import Tx
from detent.stores.store import Store

T = TypeVar("T")


class Fault(NamedTuple):
    """What befalls the next commit."""

    kind: str
    statement: int = 0  # before which it happens


BUSY = "busy"  # a deadlock: the store tries again
GONE = "gone"  # the connection is lost, and nothing was committed
BROKEN = "broken"  # an error that nobody expects
CUT = "cut"  # the connection is lost just after the commit: nobody hears the answer


class Deadlock(Exception):
    pass


class Broken(Exception):
    pass


class FaultyStore(Store):
    """The same database as another store's."""

    fault: Fault | None = None

    def __init__(self, of: Store) -> None:
        super().__init__(of.driver, dialect=of.dialect)

    def close(self) -> None:
        """The driver is the other's; ours are the connections."""
        self._close_connections()

    def _again(
        self,
        connection: Connection,
        verb: Callable[[Tx], T],
        *,
        alone: bool = False,
        unless_blocked: bool = False,
    ) -> T:
        fault, self.fault = self.fault, None
        if fault is None:
            return super()._again(connection, verb, alone=alone, unless_blocked=unless_blocked)
        if fault.kind == CUT:
            super()._again(connection, verb, alone=alone, unless_blocked=unless_blocked)
            raise DatabaseUnavailable(self.driver.name, "cut off")
        try:
            return super()._again(connection, lambda tx: verb(_FaultyTx(tx, fault)), alone=alone)
        except Deadlock:
            return super()._again(connection, verb, alone=alone)


class _FaultyTx(Tx):
    """Raises before one of its statements."""

    def __init__(self, tx: Tx, fault: Fault) -> None:
        super().__init__(tx.driver, tx.connection)
        self.news = tx.news
        self.fault = fault
        self.left = fault.statement

    def query(self, statement: str, **params: Any) -> list[tuple[Any, ...]]:
        self._count()
        return super().query(statement, **params)

    def run(self, statement: str, **params: Any) -> int:
        self._count()
        return super().run(statement, **params)

    def _count(self) -> None:
        self.left -= 1
        if self.left:
            return
        if self.fault.kind == BUSY:
            raise Deadlock
        if self.fault.kind == GONE:
            raise DatabaseUnavailable(self.driver.name, "gone")
        raise Broken
