"""Other processes on the same SQLite file: who lives, and how to wake them.

Beside `shop.db` lies a folder `shop.db-detent` with a lock file for each worker
(the kernel drops the lock when its process dies, however it dies) and a socket
for each process that listens.  A commit that leaves work for others sends a
datagram to each; what writes to the file by other ways, or cannot reach a socket,
is noticed by `PRAGMA data_version` a little later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ...errors import DatabaseUnavailable
from ...ids import uuid7
from ...kernel.rows import WorkerRow
from ...process_forks import watch_forks

_POLL = 0.05  # seconds between two looks at data_version
_IDLE_POLL = 0.2  # the same, when nothing was heard for a while: a look is most of what an idle worker costs
_LATELY = 5.0  # seconds
_LONGEST_SOCKET_PATH = 100
_LONGEST_PAYLOAD = 32_000


class Neighbours:
    """The folder beside the database."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.own: str | None = None  # our own socket's name: we do not wake ourselves
        self._opened: int | None = None

    def tell(self, payloads: Sequence[str]) -> None:
        """Send each payload to every other process that listens."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                if entry.name.endswith(".sock") and entry.name != self.own:
                    self._send(entry.name, payloads)

    def address(self, name: str) -> str | None:
        """The path of a socket in the folder; None if it is too long for one.

        A socket's path has about a hundred characters at most; Linux lets us say "that name in
        the folder that we have open" instead.
        """
        path = str(self.folder / name)
        if len(path) < _LONGEST_SOCKET_PATH:
            return path
        if not os.path.isdir("/proc/self/fd"):
            return None
        if self._opened is None:
            self._opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._opened}/{name}"

    def close(self) -> None:
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def _send(self, name: str, payloads: Sequence[str]) -> None:
        path = self.address(name)
        if path is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                for payload in payloads:
                    sender.sendto(payload.encode()[:_LONGEST_PAYLOAD], path)
            except (ConnectionRefusedError, FileNotFoundError):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.folder / name)  # its process is gone
            except OSError:
                pass  # its buffer is full, so it is awake; data_version covers the rest


class _Database(Protocol):
    path: str
    neighbours: Neighbours
    writes: int  # how many transactions this process has begun

    def connect(self) -> sqlite3.Connection: ...

    def hears(self, ear: Ear) -> None: ...


class Ear:
    """Listens on a socket of our own, and looks at the file's version now and then."""

    longest = 1.5

    def __init__(self, database: _Database) -> None:
        self._database = database
        self._neighbours = database.neighbours
        self._guard = threading.Lock()  # of the connection
        self._connection: sqlite3.Connection | None = None
        self._suspended = self._ended = False
        database.hears(self)  # before it connects: a fork closes the connection
        with self._guard:
            self._connection = database.connect()
            self._version = self._data_version()
        self._writes = database.writes
        self._socket: socket.socket | None = None
        self._unsure = False
        self._active = time.monotonic()  # when another process was last seen
        self._name = f"{os.getpid()}-{uuid7()[-12:]}.sock"
        self._bind()
        watch_forks(self)

    def _bind(self) -> None:
        """Make our socket, where there is none: the folder may have been deleted."""
        if self._socket is not None:
            if os.path.exists(self._neighbours.folder / self._name):
                return
            self._socket.close()
            self._socket = None
            self._neighbours.close()
        self._neighbours.folder.mkdir(exist_ok=True)
        address = self._neighbours.address(self._name)
        if address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(address)
            self._neighbours.own = self._name

    def wait(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        self._bind()
        while True:
            now = time.monotonic()
            heard = self._hear(max(0.0, min(self._pace(now), deadline - now)))
            if heard:
                self._active = time.monotonic()
            if heard or self._changed():
                return heard or [""]
            if time.monotonic() >= deadline:
                return []

    def interrupt(self) -> None:
        """It waits for so short a time that it ends by itself."""

    def _pace(self, now: float) -> float:
        """How long to listen before the next look; who cannot be called looks often, however quiet it is."""
        idle = now - self._active > _LATELY and self._socket is not None
        return _IDLE_POLL if idle else _POLL

    def _changed(self) -> bool:
        """Whether others have written to the file.

        What we write ourselves changes its version too.  Where both may have happened, it counts
        as soon as we are quiet: looking for nothing costs less than missing something.
        """
        with self._guard:
            if self._ended:
                return False
            if self._connection is None:  # it was closed for a fork
                self._connection = self._database.connect()
                self._version = -1
            version, writes = self._data_version(), self._database.writes
        changed, wrote = version != self._version, writes != self._writes
        self._version, self._writes = version, writes
        if wrote:
            self._unsure = self._unsure or changed
            return False
        if changed:
            self._active = time.monotonic()
        unsure, self._unsure = self._unsure, False
        return changed or unsure

    def _hear(self, seconds: float) -> list[str]:
        if self._socket is None:
            time.sleep(seconds)
            return []
        payloads: list[str] = []
        while select.select([self._socket], [], [], 0 if payloads else seconds)[0]:
            payloads.append(self._socket.recv(_LONGEST_PAYLOAD + 1).decode(errors="replace"))
        return payloads

    def _data_version(self) -> int:
        assert self._connection is not None
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self.disconnect()
        if self._socket is not None:
            self._socket.close()
            (self._neighbours.folder / self._name).unlink(missing_ok=True)

    def disconnect(self) -> None:
        """Close the connection, from any thread: the app is closed before the thread that listens ends."""
        with self._guard:
            self._ended = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def suspend(self, deadline: float) -> None:
        """Before a fork: close the connection until `resume`."""
        if self._guard.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._suspended = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def resume(self) -> None:
        if self._suspended:
            self._suspended = False
            self._guard.release()

    def forked(self) -> None:
        """In the child: the socket is the parent's, and so is its name in the folder."""
        if self._socket is not None:
            self._socket.close()


class Silence:
    """A database in memory has no other processes."""

    longest = 1.5

    def __init__(self) -> None:
        self._hushed = threading.Event()

    def wait(self, seconds: float) -> list[str]:
        self._hushed.wait(seconds)
        return []

    def interrupt(self) -> None:
        self._hushed.set()

    def close(self) -> None:
        pass


class LockFiles:
    """A worker lives as long as its lock file is locked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mine: tuple[Path, int] | None = None
        watch_forks(self)

    def forked(self) -> None:
        """In the child: do not keep the parent's lock when the parent dies."""
        if self._mine is not None:
            os.close(self._mine[1])
            self._mine = None

    def take(self, worker: WorkerRow) -> bool:
        path = self._path(worker.id)
        if self._mine is not None and self._mine[0] == path and path.exists():
            return False
        self.leave()
        try:
            self._folder.mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise DatabaseUnavailable("SQLite", f"the folder {self._folder.parent} does not exist") from error
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(file, fcntl.LOCK_EX)
            # Who looked for us between the two found it unlocked, and removed it: then it proves nothing.
            if _lies_at(file, path):
                break
            os.close(file)
        self._mine = (path, file)
        return True

    def vacant(self, workers: Sequence[WorkerRow]) -> set[str]:
        return {worker.id for worker in workers if not self._locked(self._path(worker.id))}

    def rest(self, stopping: threading.Event, seconds: float) -> bool:
        return stopping.wait(seconds)

    def seen(self) -> None:
        pass

    def missed(self) -> None:
        """The database cannot see a lock on a file."""

    def doubt(self) -> None:
        """The kernel holds our lock as long as we live, whatever became of the database."""

    def leave(self) -> None:
        if self._mine is not None:
            path, file = self._mine
            self._mine = None
            path.unlink(missing_ok=True)
            os.close(file)

    def _path(self, worker: str) -> Path:
        return self._folder / f"{worker}.lock"

    def _locked(self, path: Path) -> bool:
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(file)


def _lies_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
