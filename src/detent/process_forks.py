"""Forks: what a child process does with what it inherits.

A forked child has a copy of the parent's memory, shares its sockets and files, and has none of its
threads.  So nothing that was opened before the fork may be used after it, in the child:

    before the fork     SQLite connections are closed: SQLite keeps its locks per process and believes
                        in the child that it still holds those of the parent (`Pausing`)
    in the parent       whatever was paused continues, and opens what it needs
    in the child        sockets are cut off without a word to the server, locks are replaced, and what
                        the parent opened refuses to work (`Inherited`); apps open their own

Objects register here when they are made.  They are held weakly, and a fork costs nothing until there is one.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

from .errors import ForkedProcess

log = logging.getLogger("detent")


class Inherited(Protocol):
    """Something that belongs to one process."""

    def forked(self) -> None:
        """Called in the child, whose only thread this is."""
        ...


class Pausing(Protocol):
    """Something that must not be open while the process forks."""

    def before_fork(self) -> None:
        """Stop and close what can be closed, within a bounded time."""
        ...

    def after_fork(self) -> None:
        """Called in the parent: continue."""
        ...


class Lineage:
    """Counts the forks between the first process and this one: `count` differs in parent and child."""

    count = 0


class Refusal:
    """Takes the place of a lock in a child: other threads of the parent may have held that for ever."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __enter__(self) -> NoReturn:
        raise ForkedProcess(self._reason)

    def __exit__(self, *raised: object) -> None:
        """Never entered."""


class _Registry:
    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.inherited: WeakSet[Any] = WeakSet()
        self.pausing: WeakSet[Any] = WeakSet()
        self.paused: list[Pausing] = []

    def before(self) -> None:
        self.guard.acquire()  # nothing registers during a fork
        for thing in list(self.pausing):
            self.paused.append(thing)
            _safely(thing.before_fork)

    def in_parent(self) -> None:
        while self.paused:
            _safely(self.paused.pop().after_fork)
        self.guard.release()

    def in_child(self) -> None:
        self.guard = threading.RLock()
        self.paused = []
        Lineage.count += 1
        for thing in list(self.inherited):
            _safely(thing.forked)


_registry = _Registry()
os.register_at_fork(
    before=_registry.before, after_in_parent=_registry.in_parent, after_in_child=_registry.in_child
)


def watch_forks(thing: Inherited) -> None:
    """Call `thing.forked()` in forked children, as long as it exists."""
    with _registry.guard:
        _registry.inherited.add(thing)


def pause_at_forks(thing: Pausing) -> None:
    """Call `thing.before_fork()` and `thing.after_fork()` around forks, as long as it exists."""
    with _registry.guard:
        _registry.pausing.add(thing)


def _safely(action: Any) -> None:
    """What fails for one object must not keep the others from theirs, nor the fork from happening."""
    try:
        action()
    except Exception:
        log.exception("an action around a fork failed")


def cut_off(sockets: list[int]) -> None:
    """Replace these sockets of the parent by one whose other end is closed.

    The parent and the server notice nothing.  The descriptors stay taken, so that a library which
    still knows their numbers meets a closed connection, and not another file.
    """
    if not sockets:
        return
    here, there = socket.socketpair()
    there.close()
    with here:
        for number in sockets:
            os.dup2(here.fileno(), number, inheritable=False)


def keep_for_ever(thing: Any) -> None:
    """Never destroy it, not even when the interpreter ends: its destructor would touch the parent's files."""
    import ctypes  # loaded here: slow, and rarely needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class OneProcess:
    """Around user code inside an execution: the execution belongs to the process that began it.

    If the code forks, and returns or raises in the child, the child ends there, as a process ends whose only
    thread is over.
    """

    __slots__ = ("_began",)

    def __enter__(self) -> None:
        self._began = Lineage.count

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if Lineage.count != self._began:
            end_child(error)


def end_child(error: BaseException | None) -> NoReturn:
    """End the forked child in which user code has returned or raised (see `OneProcess`)."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or there is none
            continue
    os._exit(code & 0xFF)
