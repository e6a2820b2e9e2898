"""The committer: an answer reaches whoever waits for it, also while it is being cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from detent.commit.committer import Committer
from detent.kernel.operations import Note, Operation
from detent.stores.batch.apply import Applied

PATIENCE = 20.0


class Slow:
    """A store whose commits wait for the test."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()

    def apply(self, operations: Sequence[Operation], **options: object) -> Applied:
        self.begun.set()
        assert self.gate.wait(PATIENCE)
        return Applied(["done"] * len(operations))


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancellation_waits_for_the_answer_of_a_commit_under_way(times: int) -> None:
    async def main() -> None:
        store = Slow()
        task = asyncio.create_task(_commit(store))
        await asyncio.to_thread(store.begun.wait, PATIENCE)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        store.gate.set()
        assert await asyncio.wait_for(task, PATIENCE) == ("done", "cancelled at the next await")

    asyncio.run(main())


def test_an_answer_that_comes_together_with_a_cancellation_is_not_lost() -> None:
    async def main() -> None:
        store, loop = Slow(), asyncio.get_running_loop()
        task = asyncio.create_task(_commit(store))
        await asyncio.to_thread(store.begun.wait, PATIENCE)
        answered = _watched(loop)
        store.gate.set()
        assert answered.wait(PATIENCE)  # blocks the loop: the answer is on its way, and not yet there
        task.cancel()
        assert await asyncio.wait_for(task, PATIENCE) == ("done", "cancelled at the next await")

    asyncio.run(main())


async def _commit(store: Slow) -> tuple[str, str]:
    committer = Committer(cast(Any, store))
    answer = await committer.arun(Note(events=[]))
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return answer, "cancelled at the next await"
    finally:
        committer.close()
    return answer, "not cancelled"


def _watched(loop: asyncio.AbstractEventLoop) -> threading.Event:
    """Set when another thread has given the loop something to do."""
    given, call = threading.Event(), loop.call_soon_threadsafe

    def call_soon_threadsafe(callback: Callable[..., Any], *args: Any, **options: Any) -> asyncio.Handle:
        handle = call(callback, *args, **options)
        given.set()
        return handle

    loop.call_soon_threadsafe = call_soon_threadsafe  # type: ignore[method-assign, assignment]
    return given
