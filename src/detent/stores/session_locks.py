"""A lock that a database session holds shows that its worker is alive.

The server releases the lock when the process dies.  It also releases it when only
the session ends: an administrator ends it, a proxy cuts it, the server restarts.
Then the worker takes the lock again, before another worker declares it dead.
"""

from __future__ import annotations

import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..kernel.rows import WorkerRow

LOOK = 0.2  # seconds between two looks at the socket
CHECK_AFTER = 5.0  # seconds after which we ask our own session, if the database did not show it to us
KEEP_BUSY = 30.0  # seconds after which the session is used again: servers end idle sessions


class SessionLock(ABC):
    """The lock of one worker, and a view of the locks of others."""

    errors: type[Exception]  # what the driver raises

    def __init__(self) -> None:
        self._connection: Any = None
        self._mine: int | None = None
        self._sure_until = 0.0
        self._used_at = 0.0

    def take(self, worker: WorkerRow) -> bool:
        now = time.monotonic()
        sure = now < self._sure_until and now - self._used_at < KEEP_BUSY and not self._ended()
        if self._mine == worker.lock_no and (sure or self._alive()):
            return False
        self.leave()
        # This does not block: an earlier session that was cut off may still hold the lock.  Then we
        # count as alive, and the next heartbeat asks again.
        if self._try_lock(self._open(), worker.lock_no):
            self._mine = worker.lock_no
            self._used()
        return True

    @abstractmethod
    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]: ...

    def rest(self, stopping: threading.Event, seconds: float) -> bool:
        """Wait for `stopping`; return early if the server ends our session, to take the lock again."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if stopping.wait(min(left, LOOK)):
                return True
            if self._mine is not None and self._ended():
                return False
        return stopping.is_set()

    def seen(self) -> None:
        self._sure_until = time.monotonic() + CHECK_AFTER

    def missed(self) -> None:
        self.leave()

    def doubt(self) -> None:
        self._sure_until = 0.0

    def leave(self) -> None:
        if self._connection is not None:
            if not self._closed(self._connection):
                self._connection.close()
            self._connection = None
            self._mine = None

    def _open(self) -> Any:
        if self._connection is None or self._closed(self._connection):
            self._connection = self._connect()
            self._mine = None
        return self._connection

    def _alive(self) -> bool:
        try:
            self._ping(self._connection)
        except self.errors:
            return False
        self._used()
        return True

    def _used(self) -> None:
        self._used_at = time.monotonic()
        self._sure_until = self._used_at + CHECK_AFTER

    def _ended(self) -> bool:
        """Whether the socket of the idle session has something to read: nearly always its end."""
        if self._connection is None or self._closed(self._connection):
            return True
        poll = select.poll()
        poll.register(self._socket(self._connection), select.POLLIN)
        return bool(poll.poll(0))

    @abstractmethod
    def _connect(self) -> Any: ...

    @abstractmethod
    def _closed(self, connection: Any) -> bool: ...

    @abstractmethod
    def _socket(self, connection: Any) -> Any:
        """The socket or its number."""

    @abstractmethod
    def _ping(self, connection: Any) -> None: ...

    @abstractmethod
    def _try_lock(self, connection: Any, lock_no: int) -> bool: ...


class NoLock:
    """No lock shows who is alive.

    Behind PgBouncer a session proves nothing, so a dead worker is known by its lease.  On a database in
    memory all workers live in this process.
    """

    def take(self, worker: WorkerRow) -> bool:
        return False

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        return set()

    def rest(self, stopping: threading.Event, seconds: float) -> bool:
        return stopping.wait(seconds)

    def seen(self) -> None:
        pass

    def missed(self) -> None:
        pass

    def doubt(self) -> None:
        pass

    def leave(self) -> None:
        pass
