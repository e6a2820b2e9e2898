"""The file of a SQLite database: which one it is, and whether the path still names it.

SQLite knows an open database by its descriptor, and its journal by its name.  After the file was deleted,
moved or replaced, it writes to a file that no path names, and a connection that is closed then may delete
the journal of another database.  So inodes are compared:

    before a connection is used     nothing is written to a file that is known to be another
    after each commit               what was committed is in the file that the path names
    ten times per second            the journal (`-wal`) and its index (`-shm`) are those that were opened

The same care is due after a fork.  SQLite keeps locks per process and per inode.  A child that inherits an
open connection believes that it has the locks of the parent, also for connections that it opens itself.
So Detent closes its connections before a fork, and where one is in use the child is refused.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from ...errors import DatabaseReplaced, ForkedProcess
from ...process_forks import keep_for_ever

log = logging.getLogger("detent")
SIDECARS_EVERY = 0.1  # seconds between two looks at the journal and its index
BUSY_TIMEOUT = 0.2  # seconds that a statement waits while another connection writes

Inode = tuple[int, int]
_inherited: set[Inode] = set()  # files that were open in this process when it was forked


class FileConnection(sqlite3.Connection):
    """A connection that can be left behind, neither used nor closed."""

    opened = True
    forsaken = False
    file: DatabaseFile | None = None
    inode: Inode | None = None

    def close(self) -> None:
        if self.forsaken:
            return
        if self.file is not None and not self.file.may_close(self):
            self.forsake()
            return
        self.opened = False
        super().close()

    def forsake(self) -> None:
        """Never close it: that would write to the file, or delete the journal of another one."""
        if self.opened and not self.forsaken:
            self.forsaken = True
            keep_for_ever(self)


class DatabaseFile:
    """Opens connections to one file, and notices when the path names another."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._sidecars = (f"{path}-wal", f"{path}-shm")
        self._inode: Inode | None = None  # of the file that was opened first
        self._beside: list[Inode | None] = []  # those of the sidecars, as long as there are connections
        self._look_at = 0.0  # when to look at the sidecars next
        self._lost: DatabaseReplaced | None = None  # a sidecar is gone: only closing helps
        self._connections: WeakSet[FileConnection] = WeakSet()
        self._reported = False
        self._gate = threading.Lock()  # held while a connection is opened
        self._suspended = False
        self._unsure = False  # a connection may have been opening when the process was forked

    def connect(self, prepare: Callable[[sqlite3.Connection], None]) -> FileConnection:
        """Open a connection; `prepare` makes settings, and opens the journal."""
        with self._gate:
            before = _inode_at(self.path)
            if before is not None and before in _inherited:
                raise ForkedProcess(
                    f"a transaction on {self.path} was open when this process was forked, and SQLite allows "
                    f"no other connection to that file here. Fork outside transactional steps, or use "
                    f"the start method 'spawn'"
                )
            if self._lost is not None:
                raise self._lost
            connection = sqlite3.connect(
                self.path,
                timeout=BUSY_TIMEOUT,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                factory=FileConnection,
            )
            alone = not self._open_connections()
            self._connections.add(connection)
            prepare(connection)
            connection.inode = _inode_at(self.path)
            connection.file = self
            if before not in (None, connection.inode) or self._inode not in (None, connection.inode):
                connection.forsake()
                raise self._replaced(self.path)
            self._inode = connection.inode
            if alone:  # the last one to close deletes them
                self._beside = [_inode_at(path) for path in self._sidecars]
            return connection

    def verify(self, connection: FileConnection | None) -> None:
        """Raise unless the path names the file that was opened.

        The connection, if there is one, is in use by the caller: as long as it is open, SQLite does not
        delete the sidecars.
        """
        if self._inode is None:
            return
        if self._lost is not None:
            raise self._lost
        if not self._is_there():
            raise self._replaced(self.path)
        now = time.monotonic()
        if connection is not None and now >= self._look_at:
            self._look_at = now + SIDECARS_EVERY
            for path, inode in zip(self._sidecars, self._beside, strict=False):
                if inode is not None and _inode_at(path) != inode:
                    raise self._without(path, inode)
        self._reported = False

    def _is_there(self) -> bool:
        return _inode_at(self.path) == self._inode

    def _without(self, sidecar: str, inode: Inode) -> DatabaseReplaced:
        """The error for a sidecar that is gone.

        A folder that is moved takes the file along, perhaps after we have seen the file: that is not final.
        """
        if self._is_there() and _inode_at(sidecar) != inode and self._is_there():
            self._lost = self._replaced(sidecar)
            return self._lost
        return self._replaced(self.path)

    def may_close(self, connection: FileConnection) -> bool:
        """Whether closing touches no other database.

        With a journal that was deleted it is even of use: it writes what that holds to the file.
        """
        if connection.inode is None:  # it was never ready
            return True
        beside = [_inode_at(path) for path in self._sidecars]
        return _inode_at(self.path) == connection.inode and all(
            found in (None, inode) for found, inode in zip(beside, self._beside, strict=False)
        )

    def forget(self) -> None:
        """The app is closed: whatever the path names when it opens again is its database."""
        self._inode = self._lost = None
        self._reported = False

    # Forks

    def suspend(self, deadline: float) -> None:
        """Before a fork: open nothing, until `resume`."""
        self._suspended = self._gate.acquire(timeout=max(0.0, deadline - time.monotonic()))
        self._unsure = not self._suspended

    def resume(self) -> None:
        if self._suspended:
            self._suspended = False
            self._gate.release()

    def forked(self) -> None:
        """In the child: connections that could not be closed before the fork stay as they are."""
        for connection in self._open_connections():
            if connection.inode is not None:
                _inherited.add(connection.inode)
            connection.forsake()
        if self._unsure and (inode := _inode_at(self.path)) is not None:
            _inherited.add(inode)

    def _open_connections(self) -> list[FileConnection]:
        return [one for one in self._connections if one.opened and not one.forsaken]

    def _replaced(self, path: str) -> DatabaseReplaced:
        """The error; it is logged once."""
        found = "another file is there now" if os.path.exists(path) else "there is no such file now"
        error = DatabaseReplaced("SQLite", found, path)
        if not self._reported:
            self._reported = True
            log.error("%s", error)
        return error


def _inode_at(path: str) -> Inode | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
