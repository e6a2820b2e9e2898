"""Turns of an event loop: it sends a batch, continues with its tasks, and takes the answer when it comes.

A commit of an asyncio caller would otherwise go through the committer's thread, and its answer would wait for
Python's lock each time.  That took as long as the commit itself.

The loop leads like any other leader: nothing else commits meanwhile.  Two batches may be on their way, on
one connection; the second has nothing of a run that is in the first.  So operations keep their order.  The
loop does only what needs no waiting.  It leaves the rest to the committer's thread:

    a batch that cannot be sent so      the thread commits it
    an error, a lost connection         the thread looks up what was committed, and tries again
    another thread has an operation     the thread takes over, and waits for the answer itself
    the loop is blocked, or has ended   the same, after a moment

`LoopTurns` needs the committer's lock for its state (`_flying`, `_busy`, `_wanted`).  What belongs to the
loop (`_wire`, `_listening`) is used only there.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol

from ..stores.loop_writer import LoopWriter, Sent
from .entries import Entry

log = logging.getLogger("detent")
CHUNK = 40  # operations that are sent at once; fewer wait for the other callbacks that are ready
MOST_FLYING = 2  # batches on their way at a time: the server works on one while the loop fills the next
LOOK = 1.0  # seconds between two looks whether the loop still takes its turns


class Flying(NamedTuple):
    """A batch on its way, and its entries."""

    sent: Sent
    entries: list[Entry]


class Leading(Protocol):
    """What a loop needs of the committer."""

    _mutex: Any

    def loop_leads(self) -> bool: ...

    def take_beside(self, busy: Collection[str]) -> list[Entry]: ...

    def send_on_loop(self, writer: LoopWriter, batch: list[Entry]) -> Flying | None: ...

    def answer_sent(self, flying: Flying) -> bool: ...

    def end_turn(self, *, to_thread: bool) -> None: ...

    def break_turn(self, error: BaseException) -> None: ...

    def wake_thread(self) -> None: ...


class LoopTurns:
    """The turns of one loop."""

    def __init__(self, committer: Leading, writer: LoopWriter, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.writer = writer
        self._committer = committer
        self._context = contextvars.Context()  # a batch has operations of many tasks: it gets none of theirs
        self._thread: int | None = None  # the thread that the loop runs in
        self._used = False  # its tasks have operations to commit
        self._scheduled = False
        self._flying: deque[Flying] = deque()  # in the order in which they were sent
        self._to_thread = False  # the thread has to continue, once nothing is on its way any more
        self._busy = False  # the loop takes or sends a batch at this moment
        self._wanted = False  # the thread came meanwhile: it has to be called
        self._since = 0.0  # when the loop did something for its turn last
        self._wire = -1  # our own descriptor of the writer's socket
        self._opening = 0  # the connection that it belongs to
        self._listening = False
        self._closed = False

    def begin(self) -> None:
        """On the loop, once."""
        self._thread = threading.get_ident()

    @property
    def usable(self) -> bool:
        return self.writer.is_open and not self._closed

    def here(self) -> bool:
        """Whether the caller is on the loop, and the loop may lead."""
        if self._thread != threading.get_ident():
            return False
        self._used = True
        return self.writer.is_open and not self._closed  # (`usable`: without a call for each commit)

    def open(self) -> None:
        """In the committer's thread, which may wait: connect, if the loop commits and has no connection."""
        if self.usable or self._closed or not self._used:
            return
        try:
            self.writer.open()
        except Exception as error:  # until it can be opened, the thread commits
            log.debug("the connection for an event loop could not be opened: %s", error)

    # On the loop

    def schedule(self) -> None:
        """Lead after the callbacks that are ready now: they may have more for the batch."""
        self._since = time.monotonic()
        try:
            if self._thread == threading.get_ident():
                self._soon()
            else:
                self.loop.call_soon_threadsafe(self._soon, context=self._context)
        except RuntimeError:  # it is closed
            self._committer.wake_thread()

    def more(self, queued: Collection[Entry]) -> None:
        """On the loop, which leads: there are these operations for the next batch."""
        if len(self._flying) == MOST_FLYING or self._to_thread or self._busy:
            return
        if len(queued) >= CHUNK:
            self._context.run(self._guarded, self._lead)  # the server begins while other tasks continue
        elif not self._scheduled:
            self._soon()

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._guarded, self._scheduled_lead, context=self._context)

    def _scheduled_lead(self) -> None:
        self._scheduled = False
        self._lead()

    def _guarded(self, part: Callable[[], None]) -> None:
        """A signal handler may raise in any line of the main thread: then the thread continues."""
        try:
            part()
        except BaseException as error:
            self._break(error)
            if not isinstance(error, Exception):
                raise
            log.exception("an event loop could not commit; the committer's thread does")

    def _break(self, error: BaseException) -> None:
        """Leave all to the thread, also where a further exception interrupts that."""
        for _ in range(100):
            try:
                for flying in self._flying:
                    flying.sent.give_up()
                self.writer.drop()
                self._flying.clear()
                self._committer.break_turn(error)
                self._busy = self._wanted = self._to_thread = self._scheduled = False
                return
            except BaseException as again:
                error = again

    def _lead(self) -> None:
        """Send a batch, if the loop leads and has not sent enough."""
        with self._committer._mutex:
            if not self._committer.loop_leads() or self._busy or self._to_thread:
                return
            if len(self._flying) == MOST_FLYING:
                return
            self._busy = True
        busy = {entry.run for flying in self._flying for entry in flying.entries if entry.run is not None}
        batch = self._committer.take_beside(busy)
        flying = self._committer.send_on_loop(self.writer, batch) if batch else None
        if flying is not None:
            self._flying.append(flying)
            self._since = time.monotonic()
            self._listen()
        elif batch:
            self._to_thread = True
        self._free(call=flying is not None and not flying.sent.flushed)

    def _arrived(self) -> None:
        with self._committer._mutex:
            if not self._flying:
                self._stop_listening()  # the thread has taken over, or the server has ended the session
                return
            self._busy = True
        while self._flying and self._flying[0].sent.arrived():
            flying = self._flying.popleft()
            self._since = time.monotonic()
            self._to_thread = not self._committer.answer_sent(flying) or self._to_thread
        self._free()
        self._lead()

    def _free(self, *, call: bool = False) -> None:
        """End the turn if there is nothing on its way; else the thread may take over from here."""
        if not self._flying:
            to_thread, self._to_thread = self._to_thread, False
            self._committer.end_turn(to_thread=to_thread)
        with self._committer._mutex:
            call = call or (self._wanted and self._committer.loop_leads())
            self._busy = self._wanted = False
        if call:
            self._committer.wake_thread()

    def _listen(self) -> None:
        if self._opening != self.writer.openings:
            self._hang_up()
            self._wire, self._opening = self.writer.socket(), self.writer.openings
        if not self._listening:
            self.loop.add_reader(self._wire, self._guarded, self._arrived)
            self._listening = True

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            self.loop.remove_reader(self._wire)

    def _hang_up(self) -> None:
        self._stop_listening()
        if self._wire >= 0:
            wire, self._wire = self._wire, -1
            os.close(wire)

    # In the committer's thread

    def take_over(self, lead: Callable[[], None], *, late: bool) -> list[Flying] | None:
        """Call `lead` if the loop leads and can be interrupted; return what it has sent.

        `late`: only if it has not continued for long.
        """
        with self._committer._mutex:
            if not self._committer.loop_leads() or (late and time.monotonic() - self._since < LOOK):
                return None
            if self._busy:
                self._wanted = True
                return None
            sent = list(self._flying)
            self._flying.clear()
            self._to_thread = False
            self._scheduled = False  # an exception may have come between the loop and its callback
            lead()
            return sent

    def close(self) -> None:
        """When the committer closes: let go of the socket, on the loop."""
        self._closed = True
        if self._thread == threading.get_ident():
            self._hang_up()
            return
        try:
            self.loop.call_soon_threadsafe(self._hang_up)
        except RuntimeError:  # the loop is closed, and so is what it listened with
            if self._wire >= 0:
                os.close(self._wire)
                self._wire = -1
