"""Appending to streams of a run, from steps, nodes and effects.

An entry does not wait for its commit.  It is committed before anything that its step commits later, so the
entries of a step are durable when the step is.  Now and then an append waits until it is durable: then all
entries before it are, too, and the memory that unwritten entries take stays bounded.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ..definitions.context import Context
from ..errors import BlockingCall
from ..ids import uuid7
from ..kernel.operations import Record
from ..kernel.rows import Claimed, NewEntry
from ..stores.batch.names import unfit_entry
from ..stores.driver import user_transaction
from .services import Services

LARGEST_BACKLOG = 256 * 1024  # characters that one step appends before an append waits
OVERHEAD = 1024  # characters that an entry counts beside its value


class Appending:
    """What a step's context asks of the work that executes it (context.StepBackend)."""

    services: Services
    claimed: Claimed

    def append_entry(self, step: Context, name: str, value: Any, keep: int | None) -> None:
        """Hand an entry to the committer; wait for it if the step is far ahead of the database."""
        if _on_loop():
            raise BlockingCall("detent.append()", "await detent.aio.append(...)")
        record = _record(self.services, self.claimed, step, name, value, keep)
        if _has_to_wait(step, record):
            self.services.committer.run(record, forever=True)
        else:
            self.services.committer.post(record, forever=True)

    async def aappend_entry(self, step: Context, name: str, value: Any, keep: int | None) -> None:
        """The same on an event loop."""
        record = _record(self.services, self.claimed, step, name, value, keep)
        if _has_to_wait(step, record):
            await self.services.committer.arun(record, forever=True)
        else:
            self.services.committer.post(record, forever=True)


def _record(
    services: Services, claimed: Claimed, step: Context, name: str, value: Any, keep: int | None
) -> Record:
    entry = NewEntry(
        run_id=claimed.run_id,
        name=name,
        entry_id=uuid7(),
        step=step.key,
        attempt=step.attempt,
        value=services.codec.encode(value, f"a value of the stream {name!r}"),
        appended_at=services.clock.now(),
        keep=keep,
    )
    problem = unfit_entry(entry)
    if problem is not None:
        raise problem
    return Record(worker=claimed.worker, run_id=claimed.run_id, appends=[entry])


def _has_to_wait(step: Context, record: Record) -> bool:
    """Whether the step has appended so much since it last waited."""
    step.unwritten += len(record.appends[0].value) + OVERHEAD
    # (The transaction of a transactional step may hold the locks that the commit needs.)
    if step.unwritten < LARGEST_BACKLOG or user_transaction.get() is not None:
        return False
    step.unwritten = 0
    return True


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
