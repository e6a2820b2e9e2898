"""Connections around a fork: closed before it where they must be, and refused in the child."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakSet

from ..process_forks import Refusal

INHERITED = "this was opened by the parent of this forked process"
FORK_WAIT = 2.0  # seconds that a fork waits for transactions under way, where connections must be closed


class SuspendedConnection:
    """What a connection does around a fork."""

    _driver: Any
    _lock: Any
    _connection: Any
    _suspended = False

    def suspend(self, deadline: float) -> None:
        """Before a fork: close the connection and keep others from opening it, until `resume`.

        A connection that is in use until the deadline stays open.
        """
        if self._lock._is_owned():  # it is in use by the thread that forks
            return
        if self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._suspended = True
            self.drop()

    def resume(self) -> None:
        """In the parent, after the fork."""
        if self._suspended:
            self._suspended = False
            self._lock.release()

    def forsake(self) -> None:
        """In the child: the connection and the lock are the parent's."""
        if self._connection is not None and self._lock.acquire(blocking=False):
            self._driver.forsake(self._connection)  # it is not in use, or in use by this thread
        self._lock = Refusal(self._driver.inherited)

    def drop(self) -> None:
        raise NotImplementedError


class SuspendedPool:
    """The same for a pool."""

    _driver: Any
    _guard: Any
    _slots: Any
    _connections: WeakSet[SuspendedConnection]
    _suspended = False

    def suspend(self, deadline: float) -> None:
        if self._guard.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._suspended = True
            for connection in self._connections:
                connection.suspend(deadline)

    def resume(self) -> None:
        if self._suspended:
            self._suspended = False
            for connection in self._connections:
                connection.resume()
            self._guard.release()

    def forsake(self) -> None:
        self._slots = self._guard = Refusal(self._driver.inherited)
        for connection in self._connections:
            connection.forsake()
