"""`Run`, which `app.start` returns, and `app.runs`, which finds runs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar, Unpack, cast

from ..arguments import check_flag, check_message, check_text, check_timeout
from ..clock import span_micros
from ..definitions.context import current_step
from ..definitions.durable import blocking_frame, now
from ..errors import ResultTimeout
from ..kernel.ancestry import Broken
from ..kernel.drawing import to_dot, to_mermaid
from ..kernel.rows import RunEnd, RunState
from . import bulk, graphs
from .bulk import Changed
from .engine import Engine
from .graphs import NodeState
from .listing import Filters, RunQueries, Walk, find_runs
from .outcomes import end_for_body, end_of
from .results import RESULTS, Crowd, checked_runs, ends_for_body, left_of, outcomes
from .run_streams import Reading, Stream, append_to, publish_for
from .views import Execution, HistoryEvent, RunFacts, executions_of, history_of, shown_state
from .waiters import found
from .waiting import WaitReason, waiting_for
from .watch import Watching

R = TypeVar("R")


class Run(RunFacts, Generic[R]):
    """One run of a workflow in the database.

        run = app.start(fulfil, 42)
        print(run.id, run.state)
        print(run.result(timeout=30))

    Its attributes are those of the last `refresh()`; waiting and control refresh it.
    """

    def refresh(self) -> Self:
        """Read the current state of the run from the database."""
        self._row = self._engine.row(self.id)
        return self

    def result(self, *, timeout: timedelta | float | None = None, wait_paused: bool = False) -> R:
        """Wait until the run ends, and return its result.

        Raises the run's own error, RunCanceled, or at once RunPaused with the error
        that paused it (`wait_paused=True` keeps waiting), or ResultTimeout.
        """
        engine = self._engine
        seconds = None if timeout is None else check_timeout("run.result()", timeout)
        frame = blocking_frame("run.result()", "await the result of a run of detent.AsyncApp")
        if frame is not None:
            # A workflow waits without its worker, and a replay sees the same end.
            end = frame.drive(frame.outcome_of(self.id, None if seconds is None else span_micros(seconds)))
        else:
            end = engine.waiters.recent(self.id) or self._wait(seconds, wait_paused=wait_paused)
        return cast(R, self._ended(end))

    def _wait(self, timeout: float | None, *, wait_paused: bool) -> RunEnd:
        engine = self._engine
        known = end_for_body(engine.store, self.id, wants_pauses=not wait_paused)
        if known is not None:
            return known
        answer: queue.SimpleQueue[RunEnd] = queue.SimpleQueue()
        waiter = engine.wait_for(
            self._row, lambda _, end: answer.put(end), wants_pauses=not wait_paused, fresh=self._fresh
        )
        self._fresh = False
        try:
            return found(self.id, answer.get(timeout=timeout))
        except queue.Empty:
            row = engine.store.current(self.id)
            if RunState(row.state).final:
                return end_of(row, self.id)
            raise ResultTimeout(row.id, shown_state(row), engine.waiters.why_unserved(waiter)) from None
        finally:
            engine.waiters.remove(waiter)

    def current(self) -> Self:
        """The current run of its chain (`detent.continue_as_new`); the run itself if it was not continued.

        print(run.current().waiting_for)
        """
        _ = self._engine.services
        return type(self)(self._engine, self._engine.store.current(self.id))

    def send(self, name: str, value: Any = None, *, id: str | None = None) -> None:
        """Send the run a message, for `detent.receive(name)`; the same `id` twice is one message."""
        check_message("run.send()", name, id)
        frame = blocking_frame("run.send()", "await detent.aio.send(run.id, ...)") if id is None else None
        if frame is not None:
            frame.drive(frame.send(self.id, name, value))
            return
        step = current_step()
        engine = self._engine
        message_id = id if id is not None or step is None else step.next_start_id()
        engine.services.committer.run(engine.message(self.id, name, value, message_id))

    def published(self, name: str, default: Any = None) -> Any:
        """The latest value that the run published under that name."""
        check_text("run.published()", "name", name, example="progress")
        frame = blocking_frame("run.published()", "await it, of a run of detent.AsyncApp")
        if frame is not None:
            values = frame.drive(frame.published_by(self.id, name))
            return values[0] if values else default
        text = self._engine.store.published(self.id, name)
        return default if text is None else self._engine.services.codec.decode(text)

    def watch(self, name: str) -> Iterator[Any]:
        """Follow what the run publishes under a name, live and from any process, until it is over.

            for done in run.watch("progress"): ...

        Starts with the latest value.  A value that is replaced within milliseconds may be skipped, and a
        repeated value is shown once; the last value is always delivered.
        """
        return self._values(Watching(self._engine, self.id, name))

    def _values(self, watching: Watching) -> Iterator[Any]:
        while True:
            yield from watching.look()
            if watching.over:
                return
            time.sleep(watching.wait)

    def publish(self, name: str, value: Any) -> None:
        """Publish a value of an active run from outside, for example from a script of a step."""
        publish_for(self._engine, self.id, name, value)

    def append(self, name: str, value: Any) -> None:
        """Append to a stream of an active run from outside."""
        append_to(self._engine, self.id, name, value)

    def stream(self, name: str, *, after: int = 0, follow: bool = True) -> Stream:
        """Read a stream of the run from its beginning, live and from any process, until the run is over.

            for token in run.stream("tokens"): ...

        `after` continues after a position (`Stream.entries()` has positions).  `follow=False` ends with
        the latest entry instead of waiting for more.
        """
        return Stream(Reading(self._engine, self.id, name, after=after, follow=follow))

    def streams(self) -> list[str]:
        """The names of the streams that the run has appended to."""
        return [name for name, _, _ in self._engine.store.streams(self.id)]

    @property
    def waiting_for(self) -> list[WaitReason]:
        """What the run waits for at this moment: a message, a time, children, another run, a worker.

        Empty if the run has ended or is executing.  Reads the database.
        """
        return waiting_for(self._engine, self.refresh().row)

    def pause(self, *, reason: str | None = None) -> None:
        """Start no more work of this run; steps that are executing end and are recorded."""
        self._row = self._engine.pause(self.id, reason)

    def resume(self, *, accept_drift: bool = False) -> None:
        """Continue a paused run, or a failed one from its failure.

        `accept_drift=True` continues the run although the code requests other steps or
        arguments than recorded: the recorded results stay, and a warning is logged for each.
        """
        self._row = self._engine.resume(self.id, accept_drift=accept_drift)

    def cancel(self, *, reason: str | None = None) -> None:
        """End the run and its children; compensations run."""
        self._row = self._engine.cancel(self.id, reason)

    def repin(self, version: str | None = None) -> None:
        """Let only workers of that version continue the run; the default is the version of this app.

            for run in app.runs.active(type=fulfil):
                if run.pinned_to == "2026-11-01":
                    run.repin()

        Nothing of the run may be executing.  See docs/deployment.md.
        """
        self._row = self._engine.repin(self.id, version)

    def delete(self) -> int:
        """Remove the run, which must have ended, and its children; return the number of removed runs."""
        return self._engine.delete(self.id)

    def set_attributes(self, attributes: Mapping[str, str | int | bool | None]) -> None:
        """Set attributes, in any state of the run; None removes one, and others stay."""
        self._row = self._engine.set_attributes(self.id, attributes)

    def skip(self, node: str) -> None:
        """Continue as if a waiting or failed node (or spawned step) were done."""
        self._row = self._engine.skip(self.id, node)

    def reattempt(self, node: str) -> None:
        """Start another attempt at a failed or canceled node, with a new retry budget."""
        self._row = self._engine.reattempt(self.id, node)

    def nodes(self) -> list[NodeState]:
        """The nodes of the run's graph with their states."""
        return graphs.nodes_of(self._engine, self.refresh().row)

    def to_mermaid(self, *, fold: bool = True) -> str:
        """The graph with the states of its nodes as a Mermaid chart; fan-outs are folded."""
        return to_mermaid(graphs.drawn_of(self._engine, self.refresh().row, fold=fold))

    def to_dot(self, *, fold: bool = True) -> str:
        """The graph with the states of its nodes, for Graphviz."""
        return to_dot(graphs.drawn_of(self._engine, self.refresh().row, fold=fold), self.type)

    def freeze(self) -> None:
        """Store the current graph of the class, so that later deploys do not change it."""
        graphs.freeze(self._engine, self._row)
        self.refresh()

    def export_graph(self) -> str:
        """The graph as JSON."""
        return graphs.export_graph(self._engine, self.refresh().row)

    def import_graph(self, text: str) -> None:
        """Replace the graph of a paused run; the last resort."""
        graphs.import_graph(self._engine, self.refresh().row, text)
        self.refresh()

    def verify(self) -> list[Broken]:
        """The nodes whose hash does not match their stored data; empty if nothing was changed."""
        return graphs.verify_run(self._engine, self.refresh().row)

    def executions(self) -> list[Execution]:
        """Every attempt at a node of this run, and every recorded step of a durable function."""
        return executions_of(self._engine, self.id)

    def history(self) -> list[HistoryEvent]:
        """The events of this run, in order."""
        return history_of(self._engine, self._row)


def results_of(
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
    given = checked_runs(engine, runs, Run)
    if blocking_frame(RESULTS, "await the results of runs of detent.AsyncApp") is not None:
        return _one_by_one(engine, given, seconds, keep=keep)
    if not given:
        return []
    if engine.store.inside() is not None:
        return outcomes(given, ends_for_body(engine, given, wait_paused=wait_paused), return_exceptions=keep)
    over = threading.Event()
    crowd = Crowd(engine, given, over.set, wait_paused=wait_paused, keep_errors=keep)
    try:
        if not over.wait(seconds):
            crowd.give_up()
    finally:
        crowd.close()
    return outcomes(given, crowd.ends, return_exceptions=keep)


def _one_by_one(engine: Engine, runs: list[Run[Any]], seconds: float | None, *, keep: bool) -> list[Any]:
    """In a workflow each result is a durable call, and the moment from which the timeout counts too."""
    begun = None if seconds is None else now()
    values: list[Any] = []
    for run in runs:
        try:
            values.append(run.result(timeout=left_of(engine, seconds, begun)))
        except Exception as error:
            if not keep:
                raise
            values.append(error)
    return values


class Found(list[Run[Any]]):
    """The runs of a page; its methods apply to all runs that match the query, not only to this page.

    app.runs.failed(type=fulfil, since=yesterday).resume()
    """

    def __init__(self, engine: Engine, state: str | None, filters: Filters) -> None:
        super().__init__(Run(engine, row) for row in find_runs(engine, state, filters))
        self._engine = engine
        self._state = state
        self._filters = filters

    def total(self) -> int:
        """The number of matching runs; reads them page by page, and changes nothing."""
        return bulk.count(Walk(self._engine, self._state, self._filters))

    def resume(self) -> Changed:
        """Resume all matching runs, which are paused or failed; return the count and the refusals.

        Each run has its own transaction: after an interruption, the same call continues.
        """
        return bulk.resume_all(self._engine, self._state, self._filters)

    def cancel(self, *, reason: str | None = None) -> Changed:
        """Cancel all matching runs, which must be active; return the count and the refusals."""
        return bulk.cancel_all(self._engine, self._state, self._filters, reason)


class Runs(RunQueries[Found]):
    """`app.runs`: finds runs by state, type, hero, queue, parent, time and attributes.

    for run in app.runs.failed(type=fulfil, limit=10):
        run.resume()
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _answer(self, state: str | None, filters: Filters) -> Found:
        return Found(self._engine, state, filters)

    def each(self, *, state: str | None = None, **filters: Unpack[Filters]) -> Iterator[Run[Any]]:
        """All matching runs (at most `limit`, if given), read page by page."""
        return self._pages(Walk(self._engine, state, filters))

    def resume(self, *, state: str, **filters: Unpack[Filters]) -> Changed:
        """Resume all matching runs (`state="paused"` or `"failed"`); return the count and the refusals."""
        return bulk.resume_all(self._engine, state, filters)

    def cancel(
        self, *, state: str | None = None, reason: str | None = None, **filters: Unpack[Filters]
    ) -> Changed:
        """Cancel all matching active runs; return the count and the refusals."""
        return bulk.cancel_all(self._engine, state, filters, reason)

    def _pages(self, walk: Walk) -> Iterator[Run[Any]]:
        while not walk.over:
            for row in walk.next_page():
                yield Run(self._engine, row)
