"""Runs, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar, Unpack, cast

from ..app import bulk, graphs
from ..app.bulk import Changed
from ..app.engine import Engine
from ..app.graphs import NodeState
from ..app.listing import Filters, RunQueries, Walk, find_runs
from ..app.outcomes import end_for_body, end_of
from ..app.results import RESULTS, Crowd, checked_runs, ends_for_body, left_of, outcomes
from ..app.run_streams import Reading, append_to, publish_for
from ..app.views import Execution, HistoryEvent, RunFacts, executions_of, history_of, shown_state
from ..app.waiters import found
from ..app.waiting import WaitReason, waiting_for
from ..app.watch import Watching
from ..arguments import check_flag, check_message, check_text, check_timeout
from ..clock import span_micros
from ..definitions.context import current_frame, current_step
from ..errors import ResultTimeout
from ..kernel.ancestry import Broken
from ..kernel.drawing import to_dot, to_mermaid
from ..kernel.rows import RunEnd, RunState
from .run_streams import AsyncStream
from .threads import in_thread
from .waits import now

R = TypeVar("R")
T = TypeVar("T")


class AsyncRun(RunFacts, Generic[R]):
    """One run of a workflow in the database, for asyncio; see `detent.Run`.

    run = await app.start(fulfil, 42)
    print(await run.result(timeout=30))
    """

    async def refresh(self) -> Self:
        """Read it again; see `Run.refresh`."""
        self._row = await in_thread(lambda: self._engine.row(self.id))
        return self

    async def result(self, *, timeout: timedelta | float | None = None, wait_paused: bool = False) -> R:
        """Wait until the run ends, and return its result; see `Run.result`."""
        engine = self._engine
        seconds = check_timeout("run.result()", timeout)
        frame = current_frame("result")
        if frame is not None:
            span = None if seconds is None else span_micros(seconds)
            end = await frame.adrive(frame.outcome_of(self.id, span))
        else:
            end = engine.waiters.recent(self.id) or await self._wait(seconds, wait_paused=wait_paused)
        return cast(R, self._ended(end))

    async def _wait(self, timeout: float | None, *, wait_paused: bool) -> RunEnd:
        engine = self._engine
        if engine.store.inside() is not None:
            known = await in_thread(lambda: end_for_body(engine.store, self.id, wants_pauses=not wait_paused))
            if known is not None:
                return known
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RunEnd] = loop.create_future()
        waiter = engine.wait_for(
            self._row,
            lambda _, end: None if answer.done() else answer.set_result(end),
            wants_pauses=not wait_paused,
            fresh=self._fresh,
            loop=loop,
        )
        self._fresh = False
        try:
            async with asyncio.timeout(timeout):
                return found(self.id, await answer)
        except TimeoutError:
            row = await in_thread(lambda: engine.store.current(self.id))
            if RunState(row.state).final:
                return end_of(row, self.id)
            why = await in_thread(lambda: engine.waiters.why_unserved(waiter))
            raise ResultTimeout(row.id, shown_state(row), why) from None
        finally:
            engine.waiters.remove(waiter)

    async def current(self) -> Self:
        """The current run of its chain; see `Run.current`."""
        row = await in_thread(lambda: self._engine.store.current(self.id))
        return type(self)(self._engine, row)

    async def send(self, name: str, value: Any = None, *, id: str | None = None) -> None:
        """Send the run a message; see `Run.send`."""
        check_message("run.send()", name, id)
        frame = current_frame("send")
        if frame is not None and id is None:
            await frame.adrive(frame.send(self.id, name, value))
            return
        step = current_step()
        engine = self._engine
        message_id = id if id is not None or step is None else step.next_start_id()
        await engine.services.committer.arun(engine.message(self.id, name, value, message_id))

    async def published(self, name: str, default: Any = None) -> Any:
        """The latest value that the run published; see `Run.published`."""
        check_text("run.published()", "name", name, example="progress")
        frame = current_frame("published")
        if frame is not None:
            values = await frame.adrive(frame.published_by(self.id, name))
            return values[0] if values else default
        engine = self._engine
        text = await in_thread(lambda: engine.store.published(self.id, name))
        return default if text is None else engine.services.codec.decode(text)

    async def pause(self, *, reason: str | None = None) -> None:
        """Stop new work of this run; see `Run.pause`."""
        self._row = await in_thread(lambda: self._engine.pause(self.id, reason))

    async def resume(self, *, accept_drift: bool = False) -> None:
        """Continue a paused or failed run; see `Run.resume`."""
        self._row = await in_thread(lambda: self._engine.resume(self.id, accept_drift=accept_drift))

    async def cancel(self, *, reason: str | None = None) -> None:
        """End the run and its children; see `Run.cancel`."""
        self._row = await in_thread(lambda: self._engine.cancel(self.id, reason))

    async def delete(self) -> int:
        """Remove the run, which must be over; see `Run.delete`."""
        return await in_thread(lambda: self._engine.delete(self.id))

    async def repin(self, version: str | None = None) -> None:
        """Let only workers of that version continue the run; see `Run.repin`."""
        self._row = await in_thread(lambda: self._engine.repin(self.id, version))

    async def set_attributes(self, attributes: Mapping[str, str | int | bool | None]) -> None:
        """Set or remove attributes; see `Run.set_attributes`."""
        self._row = await in_thread(lambda: self._engine.set_attributes(self.id, attributes))

    async def skip(self, node: str) -> None:
        """Continue as if a node were done; see `Run.skip`."""
        self._row = await in_thread(lambda: self._engine.skip(self.id, node))

    async def reattempt(self, node: str) -> None:
        """Try a node again; see `Run.reattempt`."""
        self._row = await in_thread(lambda: self._engine.reattempt(self.id, node))

    async def nodes(self) -> list[NodeState]:
        """The graph of the run, and the state of each node; see `Run.nodes`."""
        return await self._seen(graphs.nodes_of)

    async def to_mermaid(self, *, fold: bool = True) -> str:
        """The graph, for Markdown; see `Run.to_mermaid`."""
        return to_mermaid(await self._seen(graphs.drawn_of, fold=fold))

    async def to_dot(self, *, fold: bool = True) -> str:
        """The graph, for Graphviz; see `Run.to_dot`."""
        return to_dot(await self._seen(graphs.drawn_of, fold=fold), self.type)

    async def freeze(self) -> None:
        """Keep the graph that the class has today; see `Run.freeze`."""
        await self._seen(graphs.freeze)
        await self.refresh()

    async def export_graph(self) -> str:
        """The graph as JSON; see `Run.export_graph`."""
        return await self._seen(graphs.export_graph)

    async def import_graph(self, text: str) -> None:
        """Give a paused run another graph; see `Run.import_graph`."""
        await self._seen(graphs.import_graph, text)
        await self.refresh()

    async def verify(self) -> list[Broken]:
        """Where the chain of ancestry hashes is broken; see `Run.verify`."""
        return await self._seen(graphs.verify_run)

    async def _seen(self, look: Callable[..., T], *args: Any, **options: Any) -> T:
        """Look at the run as it is now, in a thread."""
        engine = self._engine
        row = (await self.refresh()).row
        return await in_thread(lambda: look(engine, row, *args, **options))

    def watch(self, name: str) -> AsyncIterator[Any]:
        """Follow what the run publishes: `async for done in run.watch("progress")`; see `Run.watch`."""
        return self._values(Watching(self._engine, self.id, name))

    async def _values(self, watching: Watching) -> AsyncIterator[Any]:
        while True:
            for value in await in_thread(watching.look):
                yield value
            if watching.over:
                return
            await asyncio.sleep(watching.wait)

    async def publish(self, name: str, value: Any) -> None:
        """Publish a value of an active run from outside; see `Run.publish`."""
        await self._from_outside(publish_for, name, value)

    async def append(self, name: str, value: Any) -> None:
        """Append to a stream of an active run from outside; see `Run.append`."""
        await self._from_outside(append_to, name, value)

    async def _from_outside(self, write: Callable[[Engine, str, str, Any], None], *args: Any) -> None:
        await in_thread(lambda: write(self._engine, self.id, *args))

    def stream(self, name: str, *, after: int = 0, follow: bool = True) -> AsyncStream:
        """Read a stream of the run: `async for token in run.stream("tokens")`; see `Run.stream`."""
        return AsyncStream(Reading(self._engine, self.id, name, after=after, follow=follow))

    async def streams(self) -> list[str]:
        """The names of the run's streams; see `Run.streams`."""
        found = await in_thread(lambda: self._engine.store.streams(self.id))
        return [name for name, _, _ in found]

    async def waiting_for(self) -> list[WaitReason]:
        """What the run waits for at this moment; see `Run.waiting_for`."""
        return await self._seen(waiting_for)

    async def executions(self) -> list[Execution]:
        """Every attempt at a node, and every step; see `Run.executions`."""
        return await in_thread(lambda: executions_of(self._engine, self.id))

    async def history(self) -> list[HistoryEvent]:
        """What happened to this run, in order; see `Run.history`."""
        return await in_thread(lambda: history_of(self._engine, self._row))


async def results_of(
    engine: Engine,
    runs: Any,
    *,
    timeout: timedelta | float | None,
    return_exceptions: bool,
    wait_paused: bool,
) -> list[Any]:
    """Wait for many runs; see `App.results`."""
    seconds = check_timeout(RESULTS, timeout)
    keep = check_flag(RESULTS, "return_exceptions", return_exceptions)
    given = checked_runs(engine, runs, AsyncRun)
    if current_frame("results") is not None:
        return await _one_by_one(engine, given, seconds, keep=keep)
    if not given:
        return []
    if engine.store.inside() is not None:
        ends = await in_thread(lambda: ends_for_body(engine, given, wait_paused=wait_paused))
        return outcomes(given, ends, return_exceptions=keep)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    crowd = Crowd(engine, given, over.set, wait_paused=wait_paused, keep_errors=keep, loop=loop)
    try:
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        await in_thread(crowd.give_up)
    finally:
        crowd.close()
    return outcomes(given, crowd.ends, return_exceptions=keep)


async def _one_by_one(
    engine: Engine, runs: list[AsyncRun[Any]], seconds: float | None, *, keep: bool
) -> list[Any]:
    """In a workflow each result is a durable call, and the moment from which the timeout counts too."""
    begun = None if seconds is None else await now()
    values: list[Any] = []
    for run in runs:
        try:
            values.append(await run.result(timeout=left_of(engine, seconds, begun)))
        except Exception as error:
            if not keep:
                raise
            values.append(error)
    return values


class AsyncFound(Awaitable[list[AsyncRun[Any]]]):
    """A question about runs: awaited, the runs of a page; its verbs are for all runs that fit.

    await app.runs.failed(type=fulfil, since=yesterday).resume()
    """

    def __init__(self, engine: Engine, state: str | None, filters: Filters) -> None:
        self._engine = engine
        self._state = state
        self._filters = filters

    def __await__(self) -> Generator[Any, None, list[AsyncRun[Any]]]:
        return self._page().__await__()

    async def _page(self) -> list[AsyncRun[Any]]:
        rows = await in_thread(lambda: find_runs(self._engine, self._state, self._filters))
        return [AsyncRun(self._engine, row) for row in rows]

    async def total(self) -> int:
        """How many runs fit; see `Found.total`."""
        return await in_thread(lambda: bulk.count(Walk(self._engine, self._state, self._filters)))

    async def resume(self) -> Changed:
        """Resume all runs that fit; see `Found.resume`."""
        return await in_thread(lambda: bulk.resume_all(self._engine, self._state, self._filters))

    async def cancel(self, *, reason: str | None = None) -> Changed:
        """Cancel all runs that fit; see `Found.cancel`."""
        return await in_thread(lambda: bulk.cancel_all(self._engine, self._state, self._filters, reason))


class AsyncRuns(RunQueries[AsyncFound]):
    """`app.runs` for asyncio: finds runs; see `App.runs`.

    for run in await app.runs.failed(limit=10):
        await run.resume()
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _answer(self, state: str | None, filters: Filters) -> AsyncFound:
        return AsyncFound(self._engine, state, filters)

    def each(self, *, state: str | None = None, **filters: Unpack[Filters]) -> AsyncIterator[AsyncRun[Any]]:
        """All matching runs (at most `limit`, if given), read page by page."""
        return self._pages(Walk(self._engine, state, filters))

    async def resume(self, *, state: str, **filters: Unpack[Filters]) -> Changed:
        """Resume all matching runs; see `Runs.resume`."""
        return await in_thread(lambda: bulk.resume_all(self._engine, state, filters))

    async def cancel(
        self, *, state: str | None = None, reason: str | None = None, **filters: Unpack[Filters]
    ) -> Changed:
        """Cancel all matching active runs; see `Runs.cancel`."""
        return await in_thread(lambda: bulk.cancel_all(self._engine, state, filters, reason))

    async def _pages(self, walk: Walk) -> AsyncIterator[AsyncRun[Any]]:
        while not walk.over:
            for row in await in_thread(walk.next_page):
                yield AsyncRun(self._engine, row)
