"""Notices a server that has stopped answering, and cuts the connections that wait for it.

A statement may wait for its answer for good reasons: it is long, or a lock is held.  A frozen server, or a
network that drops packets, looks the same from here.  So the watch does not limit statements.  When one has
waited for a while, it opens another connection: if that is not answered either, the server is away, and the
connections that wait are shut down.  Those who use them get the error of a lost connection.

The path of the work pays nothing for this: a connection counts its statements, and a thread that belongs to
the watch looks at the counts every few seconds.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any, Protocol
from weakref import WeakSet

log = logging.getLogger("detent")
PATIENCE = 30.0  # seconds, until the app has said how long it waits
SHORTEST_LOOK, LONGEST_LOOK = 0.25, 5.0  # seconds between two looks
SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 2, 5  # seconds that a connection may take to open


class Watched(Protocol):
    """What the watch has to know of a driver."""

    name: str
    patience: float  # seconds

    def waiting(self, connection: Any) -> int | None:
        """The number of the statement that a connection waits for; None when it waits for none."""
        ...

    def descriptor(self, connection: Any) -> int:
        """The file descriptor of its socket."""
        ...

    def place(self, connection: Any) -> Any:
        """Which server it is connected to; an address may name several."""
        ...

    def is_silent(self, connection: Any) -> bool:
        """Whether the server of a connection does not answer a new one; a refusal is an answer."""
        ...


class Watch:
    """The connections of one driver, and a thread that looks after them while there are any."""

    def __init__(self, driver: Watched) -> None:
        self._driver = driver
        self._guard = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._connections: WeakSet[Any] = WeakSet()
        self._seen: dict[int, int] = {}  # by connection: the statement that it waited for at the last look
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def add(self, connection: Any) -> None:
        """Look after a connection, from now until it is closed."""
        if self._process != os.getpid():  # after a fork: connections and thread are the parent's
            self._guard = threading.Lock()
            self._forget()
        with self._guard:
            self._connections.add(connection)
            if self._thread is None:
                thread = threading.Thread(
                    target=self._look, args=[self._stopping], name="detent-watch", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # no more threads; the next connection tries again
                    log.exception("could not start the thread that detects a frozen server")
                    return
                self._thread = thread

    def close(self) -> None:
        """Stop looking; the next connection begins again."""
        with self._guard:
            self._stopping.set()
            self._forget()

    def _look(self, stopping: threading.Event) -> None:
        while not stopping.wait(min(max(self._driver.patience / 4, SHORTEST_LOOK), LONGEST_LOOK)):
            try:
                self.look()
            except Exception:
                log.exception("checking for connections without an answer failed")
            with self._guard:
                if not self._connections and stopping is self._stopping:  # the store was not closed meanwhile
                    self._thread = None
                    return

    def look(self) -> None:
        """Cut the connections that have waited since the last look, if the server does not answer."""
        with self._guard:
            connections = list(self._connections)
        now = {id(one): number for one in connections if (number := self._driver.waiting(one)) is not None}
        stuck = [one for one in connections if id(one) in now and now[id(one)] == self._seen.get(id(one))]
        self._seen = now
        by_server: dict[Any, list[Any]] = {}
        for one in stuck:
            by_server.setdefault(self._driver.place(one), []).append(one)
        for group in by_server.values():
            if self._driver.is_silent(group[0]):
                cut = sum(self._cut(one, now[id(one)]) for one in group)
                log.warning("%s does not answer; closed connections: %d", self._driver.name, cut)

    def _cut(self, connection: Any, number: int) -> bool:
        """Shut down the socket of a connection that still waits for this statement."""
        try:
            held = os.dup(self._driver.descriptor(connection))
        except (OSError, ValueError):
            return False
        with socket.socket(fileno=held) as wire:
            # Its descriptor may have been closed, and used again, before it was copied.
            if self._driver.waiting(connection) != number:
                return False
            connection.unanswered = True
            try:
                wire.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end was quicker
                return False
        return True
