"""Run graphs: by which graph the runs of this process continue, and how their values are read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from msgspec.structs import replace

from ..definitions.blueprint import Blueprint
from ..errors import AnonymousStepMoved, GraphTampered
from ..kernel.advance import RunGraph
from ..kernel.anonymous import places_moved
from ..kernel.graph import Document, Graph, thaw
from ..kernel.rows import Claimed, RunRow
from ..serialization.codec import Codec
from ..stores.store import Store
from .fields import node_keys
from .registry import Registry
from .rows import claimed_of_run

MOST_NODES = 300_000  # of stored graphs kept in memory; beyond that the longest unused go


class Values:
    """Payloads as values, for the kernel."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def read(self, text: str) -> Any:
        return self._codec.decode(text)

    def write(self, value: Any, what: str) -> str:
        return self._codec.encode(value, what)


class RunGraphs:
    """Finds the graph of a run: the stored one if there is one, else that of its class."""

    def __init__(self, store: Store, codec: Codec, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._codec = codec
        self._kept: OrderedDict[tuple[str, str], Graph] = OrderedDict()
        self._guard = threading.Lock()
        self._loading = threading.Lock()  # a hundred nodes of one run that begin together load it once
        self.values = Values(codec)

    def of(self, claimed: Claimed) -> RunGraph:
        """The run_graph of a run; raises where its graph is not known, or not what was signed."""
        graph = self.known(claimed)
        if graph is None:
            with self._loading:
                graph = self.known(claimed) or self._load(claimed)
        return self._run_graph(graph, claimed)

    def of_row(self, row: RunRow) -> RunGraph:
        return self.of(claimed_of_run(row))

    def by(self, graph: Graph, row: RunRow) -> RunGraph:
        """The run_graph of a run that is to continue by that graph."""
        methods = row.kind == "class"
        if methods:
            graph = self._with_options(graph, row.type, row.id)
        return self._run_graph(graph, claimed_of_run(row))

    def _run_graph(self, graph: Graph, claimed: Claimed) -> RunGraph:
        methods = claimed.run_kind == "class"
        keys: dict[str, str] = {}
        plan = self._registry.find(claimed.type) if methods else None
        if isinstance(plan, Blueprint):  # or the class is gone, and the run has a graph of its own
            keys = node_keys(self._codec, plan, claimed.run_input)
        return RunGraph(graph=graph, values=self.values, claimed=claimed, methods=methods, keys=keys)

    def known(self, claimed: Claimed) -> Graph | None:
        """The graph, if that needs no look into the database."""
        if claimed.frozen_at is None:
            return self._registry.plan(claimed.type).graph
        with self._guard:
            key = (claimed.run_id, claimed.signature or "")
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _load(self, claimed: Claimed) -> Graph:
        text = self._store.graph(claimed.run_id)
        what = f"the stored graph of run {claimed.run_id}"
        if text is None:
            raise GraphTampered(what, claimed.signature or "", "missing")
        graph = thaw(text, claimed.signature or "", what)
        if claimed.run_kind == "class":
            graph = self._with_options(graph, claimed.type, claimed.run_id)
        self.keep(claimed.run_id, graph)
        return graph

    def keep(self, run_id: str, graph: Graph) -> None:
        """Remember the graph of a run that was just started or loaded here."""
        with self._guard:
            self._kept[run_id, graph.signature] = graph
            while len(self._kept) > 1 and sum(len(each.nodes) for each in self._kept.values()) > MOST_NODES:
                self._kept.popitem(last=False)

    def _with_options(self, graph: Graph, type: str, run_id: str) -> Graph:
        """A frozen structure says nothing of waits and queues: those are the code's."""
        current = self._registry.plan(type).graph
        nodes = current.nodes
        places = places_moved(graph, current)
        if places:
            raise AnonymousStepMoved(run_id, type, *next(iter(places.items())))
        merged = {
            id: replace(nodes[id], depends_on=node.depends_on, body=node.body) if id in nodes else node
            for id, node in graph.nodes.items()
        }
        document = Document(version=graph.document.version, name=graph.document.name, nodes=merged)
        return Graph(document, graph.signature)
