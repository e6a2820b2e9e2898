"""Messages to runs, and what operators do with them: pause, resume, cancel, skip, reattempt, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..arguments import check_message, check_node, check_reason
from ..clock import Clock
from ..errors import InvalidState
from ..execution.services import Services
from ..ids import uuid7
from ..kernel.advance import RunGraph
from ..kernel.decide import DECIDER
from ..kernel.external_changes import (
    Cancel,
    Change,
    Delete,
    DiscardLetter,
    Pause,
    Reattempt,
    Reconcile,
    Repin,
    ReplayLetter,
    Resume,
    SetAttributes,
    Skip,
)
from ..kernel.operations import Send
from ..kernel.rows import RunEnd, RunRow, RunState
from ..kernel.versions import check_version
from ..observe import Observer
from ..stores.store import Store
from ..worker.worker import Worker
from .attributes import checked_changes
from .reports import Reporter
from .waiters import Waiters

T = TypeVar("T")


class Control:
    """The part of the engine that controls runs."""

    store: Store
    clock: Clock
    worker: Worker | None
    waiters: Waiters
    observer: Observer
    _reporter: Reporter

    @property
    def services(self) -> Services:
        """What executing needs.  Opens the app if it is not open yet."""
        raise NotImplementedError

    def row(self, run_id: str) -> RunRow:
        raise NotImplementedError

    def _patiently(self, action: Callable[[], Any]) -> Any:
        """Do it, waiting for a database that is away."""
        raise NotImplementedError

    def message(self, run_id: str, name: str, value: Any, message_id: str | None) -> Send:
        self.store.refuse_inside("run.send()")
        check_message("run.send()", name, message_id)
        return Send(
            run_id=run_id,
            message_id=message_id or uuid7(),
            name=name,
            value=self.services.codec.encode(value, f"the message {name!r}"),
            sent_at=self.clock.now(),
        )

    def pause(self, run_id: str, reason: str | None = None) -> RunRow:
        self.store.refuse_inside("run.pause()")
        check_reason("run.pause()", reason)
        for run in self._change(Pause(run_id, reason)):
            self._tell(run, "paused")
        return self.store.run(run_id)

    def resume(self, run_id: str, *, accept_drift: bool = False) -> RunRow:
        self.store.refuse_inside("run.resume()")
        run_graph = self.run_graph(run_id)
        self._change(Resume(run_id, run_graph, accept_drift))
        self._poke()
        row = self.store.run(run_id)
        if accept_drift and run_graph is None and self.observer.active:
            self._reporter.accepted(run_id, row.type, row.queue)
        return row

    def cancel(self, run_id: str, reason: str | None = None) -> RunRow:
        self.store.refuse_inside("run.cancel()")
        check_reason("run.cancel()", reason)
        canceled = self._change(Cancel(run_id, reason))
        for run in canceled:
            self._tell(run, "canceled")
        self.waiters.ended([(run, RunEnd(state=RunState.CANCELED)) for run in canceled])
        self._poke()
        return self.store.run(run_id)

    def skip(self, run_id: str, node: str) -> RunRow:
        return self._change_node("run.skip()", run_id, node, DiscardLetter, Skip)

    def reattempt(self, run_id: str, node: str) -> RunRow:
        return self._change_node("run.reattempt()", run_id, node, ReplayLetter, Reattempt)

    def _change_node(
        self,
        where: str,
        run_id: str,
        node: str,
        of_letter: type[DiscardLetter | ReplayLetter],
        of_node: type[Skip | Reattempt],
    ) -> RunRow:
        """Change the dead letter of a decider, or a node of a graph."""
        self.store.refuse_inside(where)
        check_node(where, "node", node)
        if self.row(run_id).kind == DECIDER:
            self.change(of_letter(run_id, node))
            return self.row(run_id)
        run_graph = self.run_graph(run_id)
        self.change(of_node(run_id, _node_id(run_graph, node), run_graph))
        return self.store.run(run_id)

    def run_graph(self, run_id: str) -> RunGraph | None:
        """The graph by which a run continues; None for a durable function."""
        row = self.row(run_id)
        if row.kind in ("function", DECIDER):
            return None
        run_graph = self.services.run_graphs.of_row(row)
        ours = row.pin is None or row.pin == self.services.version
        if not ours and run_graph.graph.signature != row.signature:
            raise InvalidState(
                "change",
                run_id,
                f"pinned to version {row.pin}, whose graph is another one",
                "use an app of that version, or run.repin()",
            )
        return run_graph

    def repin(self, run_id: str, version: str | None = None) -> RunRow:
        """Let only workers of that version continue a run; None is the version of this app."""
        self.store.refuse_inside("run.repin()")
        ours = self.services.version
        wanted = ours if version is None else check_version("run.repin()", "version", version)
        self._change(Repin(run_id, wanted))
        row = self.row(run_id)
        if row.kind == "class" and wanted == ours:  # by our graph from here on
            self._change(Reconcile(run_id, self.services.run_graphs.of_row(row)))
        self._poke()
        return self.store.run(run_id)

    def control(self, verb: Callable[[int], Any]) -> Any:
        """Do it, patiently, and let our worker look for what it may have made ready."""
        answer = self._control(verb)
        self._poke()
        return answer

    def change(self, change: Change[T]) -> T:
        """Make a change, patiently, and let our worker look for what it may have made ready."""
        answer = self._change(change)
        self._poke()
        return answer

    def _change(self, change: Change[T]) -> T:
        answer: T = self._control(lambda now: self.store.change(change, now=now))
        return answer

    def _control(self, verb: Callable[[int], Any]) -> Any:
        _ = self.services
        return self._patiently(lambda: verb(self.clock.now()))

    def _tell(self, run_id: str, state: str) -> None:
        if self.worker is not None:
            self.worker.tell({run_id: state})

    def _poke(self) -> None:
        if self.worker is not None:
            self.worker.poke()

    def delete(self, run_id: str) -> int:
        """Remove a run that is over, with its children; return how many runs."""
        self.store.refuse_inside("run.delete()")
        return self._change(Delete(run_id))

    def set_attributes(self, run_id: str, attributes: Any) -> RunRow:
        self._change(SetAttributes(run_id, checked_changes(attributes)))
        return self.store.run(run_id)


def _node_id(run_graph: RunGraph | None, node: str) -> str:
    """The id of a node that is given by id or by name; the text itself if there is no such node."""
    return node if run_graph is None else run_graph.graph.find(node) or node
