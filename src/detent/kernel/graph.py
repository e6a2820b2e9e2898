"""Graphs: which node needs which, as data; validation, signature, JSON form.

A graph comes from a Workflow class (its nodes are methods, ids are names) or was
built at run time and frozen: then it is stored as JSON,

    {"version": 1, "name": ..., "frozen_at": ..., "nodes": {"n_8f3a2b1c": {"name": "validate", "job": ...}}}

and its signature is the SHA-256 of exactly that text.  Nothing in it is code: a job
is a name that the app looks up among what it includes.

Kinds of nodes.  `job` and `run` are the frontier: a worker has to execute or to end
something.  The others are inline: evaluated while the nodes before them settle.

    job      calls a step, a workflow or a method
    run      waits for another run
    value    computes an expression
    when     chooses a branch; nodes name it in `branch`
    spread   makes `name[0]`…`name[N-1]` of a list, then collects their results
    result   ends the run with a value
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any

import msgspec

from ..digests import sha256
from ..errors import ExpressionError, GraphInvalid, GraphTampered
from ..serialization.decoders import decode
from .expressions import errors_in, outputs_in
from .retries import StoredRetry

VERSION = 1
JOB, RUN, VALUE, WHEN, SPREAD, RESULT = "job", "run", "value", "when", "spread", "result"
KINDS = frozenset({JOB, RUN, VALUE, WHEN, SPREAD, RESULT})
INLINE = frozenset({VALUE, WHEN, RESULT, SPREAD})
NODE_ACTIONS = ("pause", "cancel", "skip", "reattempt")
END = ":end"  # the invisible node that needs every sink; no user's name has a colon
AWAIT_JOB = ":run"  # the job of nodes that wait for other runs: every worker knows it
LONGEST_ID = 64
LONGEST_NODE_NAME = 200
LONGEST_NAME = 255  # of jobs, queues, runs
HIGHEST_PRIORITY = 999_999_999
_ITEM = re.compile(r"^(.+)\[(\d+)\]$")


class Node(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A vertex, as it is stored."""

    name: str
    kind: str = JOB
    job: str | None = None  # none in a class: the method of that name
    args: dict[str, Any] | str | None = None  # a text where payloads are transformed (encrypted)
    depends_on: tuple[str, ...] = ()
    value: Any = None  # of inline nodes: what they compute
    branch: tuple[str, bool] | None = None  # the condition, or the failed node, and the side of this node
    otherwise: bool = False  # of a condition: the graph says what happens if it is false
    arg: str | None = None  # of a spread: the parameter that receives the item
    run: str | None = None
    wait: float | None = None  # seconds, from ready to due
    queue: str | None = None
    key: str | None = None  # whose limits on the queue it counts against
    priority: int | None = None
    on_exception: str | None = None
    retry: StoredRetry | None = None
    timeout: float | None = None  # seconds
    on_error: bool = False  # when it fails for good, the run continues with the nodes of branch (this, false)
    body: str | None = None  # of an anonymous step of a class: a fingerprint of its code

    @property
    def inline(self) -> bool:
        return self.kind in INLINE


class Document(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A graph, as it is stored and exported."""

    version: int
    nodes: dict[str, Node]
    name: str = ""
    frozen_at: datetime | None = None
    signature: str | None = None  # in exports only: the stored text cannot hold its own hash


class Graph:
    """A compiled graph: immutable, shared by all who work on its runs."""

    __slots__ = (
        "_closures",
        "_names",
        "_places",
        "_plain",
        "_refs",
        "_unless",
        "anonymous",
        "document",
        "followers",
        "handled",
        "needs",
        "nodes",
        "roots",
        "signature",
        "sinks",
    )

    def __init__(self, document: Document, signature: str) -> None:
        self.document = document
        self.signature = signature
        self.nodes: Mapping[str, Node] = document.nodes
        self.needs: Mapping[str, tuple[str, ...]] = {id: node.depends_on for id, node in self.nodes.items()}
        followers: dict[str, list[str]] = {id: [] for id in self.nodes}
        for id, needs in self.needs.items():
            for needed in needs:
                followers[needed].append(id)
        self.followers: Mapping[str, tuple[str, ...]] = {id: tuple(them) for id, them in followers.items()}
        self.roots = tuple(id for id, needs in self.needs.items() if not needs)
        self.sinks = tuple(id for id, them in self.followers.items() if not them)
        self.anonymous = any(node.body is not None for node in self.nodes.values())
        self.handled = any(node.on_error for node in self.nodes.values())
        self._unless: dict[str, frozenset[str]] | None = None
        self._names: dict[str, str] | None = None
        self._closures: dict[str, tuple[str, ...]] = {}
        self._refs: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, int] = {}
        self._plain: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<graph {self.document.name} of {len(self.nodes)} nodes, {self.signature[:8]}>"

    def required(self, id: str) -> int:
        """How many predecessors a node needs."""
        return len(self.sinks) if id == END else len(self.needs[id])

    def find(self, text: str) -> str | None:
        """The id of a node (or of an item of a spread) that is given by id or by name."""
        if self._names is None:
            self._names = {node.name: id for id, node in self.nodes.items()}
        for known in (text if text in self.nodes else None, self._names.get(text)):
            if known is not None:
                return known
        item = _ITEM.match(text)
        if item is not None:
            base = self.find(item[1])
            if base is not None and self.nodes[base].kind == SPREAD:
                return f"{base}[{item[2]}]"
        return None

    def shown(self, id: str) -> str:
        """The name that people know a node by."""
        if id in self.nodes:
            return self.nodes[id].name
        base, bracket, index = id.rpartition("[")
        return f"{self.nodes[base].name}[{index}" if bracket and base in self.nodes else id

    def spread_of(self, id: str) -> str | None:
        """The spread whose item this is."""
        if id in self.nodes:
            return None
        base, index = split_item(id)
        return base if index is not None and base in self.nodes and self.nodes[base].kind == SPREAD else None

    def knows(self, id: str) -> bool:
        return id in self.nodes or self.spread_of(id) is not None

    def reach(self, id: str) -> tuple[str, ...]:
        """All that the settling of a node may touch: through inline nodes, up to the frontier."""
        found = self._closures.get(id)
        if found is None:
            base = self.spread_of(id) or id
            seen: dict[str, None] = {}
            todo = [base]
            if base != id:
                seen[base] = None
            while todo:
                followers = self.followers.get(todo.pop(), ())
                fresh = [follower for follower in followers if follower not in seen]
                seen.update(dict.fromkeys(fresh))
                todo += [follower for follower in fresh if self.passes(follower)]
            found = self._closures[id] = tuple(seen)
        return found

    def leads_on(self, id: str) -> bool:
        """Whether the end of a node alone makes all of its followers ready.

        Nothing is counted or evaluated then, and no value of another node is needed.
        """
        known = self._plain.get(id)
        if known is None:
            followers = self.followers.get(id, ())
            known = bool(followers) and all(
                self.needs[follower] == (id,) and not self.passes(follower) for follower in followers
            )
            self._plain[id] = known
        return known

    def passes(self, id: str) -> bool:
        """Whether a node may settle without being executed."""
        node = self.nodes[id]
        return node.inline or node.branch is not None or bool(self.unless(id))

    def unless(self, id: str) -> frozenset[str]:
        """The nodes with an error branch on whose success a node depends: it is skipped if one of them fails.

        That is all that comes after such a node, except its error branch and what comes after that.
        """
        if not self.handled:
            return frozenset()
        if self._unless is None:
            self._unless = self._after_success()
        return self._unless[id]

    def _after_success(self) -> dict[str, frozenset[str]]:
        unless: dict[str, frozenset[str]] = {}
        past: dict[str, frozenset[str]] = {}  # whose error branch a node is in, or comes after
        for id in TopologicalSorter(self.needs).static_order():
            node = self.nodes[id]
            needs = self.needs[id]
            own = {node.branch[0]} if node.branch is not None else set()
            joined = [past[needed] for needed in needs if past[needed]]
            past[id] = frozenset().union(*joined, {one for one in own if self.nodes[one].on_error})
            failing = {needed for needed in needs if self.nodes[needed].on_error}
            wanted = frozenset().union(*(unless[needed] for needed in needs), failing) - past[id]
            # Nodes in a row share one set.
            unless[id] = next((unless[needed] for needed in needs if unless[needed] == wanted), wanted)
        return unless

    def references(self, id: str) -> tuple[str, ...]:
        """The nodes whose outputs a node wants."""
        found = self._refs.get(id)
        if found is None:
            node = self.nodes[id]
            given = node.args if isinstance(node.args, dict) else None
            branch = [node.branch[0]] if node.branch is not None else []
            found = tuple(
                dict.fromkeys([*outputs_in([given, node.value]), *branch, *sorted(self.unless(id))])
            )
            # (Sealed arguments cannot be looked into: their outputs are among what the node depends on.)
            if isinstance(node.args, str):
                found = tuple(dict.fromkeys([*found, *node.depends_on]))
            self._refs[id] = found
        return found

    def descendants(self, id: str) -> set[str]:
        base = self.spread_of(id) or id
        seen: set[str] = {base} if base != id else set()
        todo = [base]
        while todo:
            for follower in self.followers.get(todo.pop(), ()):
                if follower not in seen:
                    seen.add(follower)
                    todo.append(follower)
        return seen

    def place(self, id: str) -> tuple[int, int]:
        """Where a node stands when all are put in a row: behind what it needs, items before their spread."""
        if not self._places:
            order = TopologicalSorter(self.needs).static_order()
            self._places = {node: number for number, node in enumerate(order)}
        spread = self.spread_of(id)
        if spread is None:
            return self._places.get(id, len(self._places)), sys.maxsize
        return self._places[spread], split_item(id)[1] or 0

    def parents(self, id: str) -> tuple[str, ...]:
        """What came before a node: those that it needs; for an item what its spread needs."""
        return self.needs.get(self.spread_of(id) or id, ())


def split_item(id: str) -> tuple[str, int | None]:
    """`n_1[3]` -> (`n_1`, 3)."""
    if not id.endswith("]"):
        return id, None
    found = _ITEM.match(id)
    return (found[1], int(found[2])) if found is not None else (id, None)


# Signing and reading


def freeze(document: Document) -> tuple[str, str]:
    """The text that is stored of a graph, and its signature."""
    text = json_text(document)
    return text, signature_of(text)


def json_text(value: Any) -> str:
    """Compact JSON; nodes stay in the order in which they were added, so that people find them again."""
    return msgspec.json.encode(value).decode()


def signature_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def thaw(text: str, signature: str | None, what: str) -> Graph:
    """The graph of a stored text, if that is what was signed."""
    actual = signature_of(text)
    if signature is not None and actual != signature:
        raise GraphTampered(what, signature, actual)
    return Graph(validated(_decode(text, what), what), actual)


def read_export(text: str, what: str) -> Document:
    """A graph from JSON text: checked completely, whatever it claims."""
    _refuse_duplicates(text, what)
    return validated(_decode(text, what), what)


def _decode(text: str, what: str) -> Document:
    try:
        return decode(text, Document)
    except RecursionError:
        raise GraphInvalid(what, "it is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise GraphInvalid(what, str(error)) from None


def _refuse_duplicates(text: str, what: str) -> None:
    """JSON decoders take the last of two equal keys; here the first would be lost without a word."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            twice = next(key for key, _ in items if sum(other == key for other, _ in items) > 1)
            raise GraphInvalid(what, f"the key {twice!r} is there twice")
        return found

    try:
        json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise GraphInvalid(what, "it is nested too deeply") from None
    except ValueError as error:
        raise GraphInvalid(what, f"it is not JSON: {error}") from None


# Validation


def validated(document: Document, what: str) -> Document:
    """The document, if it is a graph that can be run."""
    for problem in _problems(document):
        raise GraphInvalid(what, problem)
    return document


def _problems(document: Document) -> Iterator[str]:
    if document.version != VERSION:
        yield f"its version is {document.version}, this package reads {VERSION}"
        return
    if not document.nodes:
        yield "it has no nodes"
        return
    names: dict[str, str] = {}
    for id, node in document.nodes.items():
        yield from _node_problems(id, node, document.nodes)
        if node.name in names:
            yield f"two nodes have the name {node.name!r}: {names[node.name]} and {id}"
        names[node.name] = id
    handlers = {node.branch[0] for node in document.nodes.values() if node.branch is not None}
    for id, node in document.nodes.items():
        if node.on_error and id not in handlers:
            yield f"node {node.name!r} ({id}) has on_error, but no node belongs to its error branch"
    circle = find_cycle({id: node.depends_on for id, node in document.nodes.items()})
    if circle:
        yield "these nodes depend on each other: " + " -> ".join(document.nodes[id].name for id in circle)


def _node_problems(id: str, node: Node, nodes: Mapping[str, Node]) -> Iterator[str]:
    where = f"node {node.name!r} ({id})"
    if name_problem(id):
        yield f"{id!r} is not a valid node id"
    problem = name_problem(node.name)
    if problem:
        yield f"{where}: its name {problem}"
    if node.kind not in KINDS:
        yield f"{where} has an unknown kind, {node.kind!r}"
    unknown = [needed for needed in node.depends_on if needed not in nodes]
    if unknown:
        yield f"{where} depends on {unknown[0]!r}, which is not a node of this graph"
    if len(set(node.depends_on)) != len(node.depends_on):
        yield f"{where} names a node twice in depends_on"
    if node.kind == RUN and not node.run:
        yield f"{where} waits for a run, but does not name it"
    if node.kind == SPREAD and not (node.job and node.arg):
        yield f"{where} is a spread, but has no job or no arg"
    for option in _option_problems(node):
        yield f"{where} {option}"
    if node.branch is not None and not _branches(node, nodes):
        yield f"{where} belongs to a branch of {node.branch[0]!r}, but does not depend on such a condition"
    try:
        given = node.args if isinstance(node.args, dict) else None
        strangers = [ref for ref in outputs_in([given, node.value]) if ref not in node.depends_on]
        failures = [ref for ref in errors_in([given, node.value]) if ref in nodes and not nodes[ref].on_error]
    except ExpressionError as error:
        yield f"{where}: {error}"
        return
    if strangers:
        name = nodes[strangers[0]].name if strangers[0] in nodes else strangers[0]
        yield f"{where} uses the output of {name!r} without depending on it"
    for ref in failures[:1]:
        yield f"{where} uses the error of {nodes[ref].name!r}, which has no error branch"


def _branches(node: Node, nodes: Mapping[str, Node]) -> bool:
    """Whether a node depends on the condition, or the node with an error branch, that it names."""
    assert node.branch is not None
    chosen, side = node.branch
    if chosen not in node.depends_on or chosen not in nodes:
        return False
    return nodes[chosen].kind == WHEN or (nodes[chosen].on_error and not side)


def _option_problems(node: Node) -> Iterator[str]:
    if node.on_error and (node.kind != JOB or node.on_exception not in (None, "reattempt")):
        yield "has on_error, which is for jobs, without on_exception or with 'reattempt'"
    if (node.retry is not None or node.timeout is not None) and node.kind not in (JOB, SPREAD):
        yield "has retry or timeout, which are for jobs and spreads"
    if node.timeout is not None and not 0 < node.timeout < 1e10:
        yield f"has timeout={node.timeout!r}; it is a number of seconds, more than 0"
    if node.retry is not None and node.retry.problem is not None:
        yield f"has an invalid retry: {node.retry.problem}"
    if node.on_exception is not None and node.on_exception not in NODE_ACTIONS:
        yield f"has on_exception={node.on_exception!r}; it is one of {', '.join(NODE_ACTIONS)}"
    if node.wait is not None and not 0 <= node.wait < 1e10:
        yield f"has wait={node.wait!r}; it is a number of seconds"
    if node.priority is not None and not -HIGHEST_PRIORITY <= node.priority <= HIGHEST_PRIORITY:
        yield f"has priority={node.priority!r}; it is a number of at most 9 digits"
    for what, text in (("job", node.job), ("queue", node.queue), ("run", node.run), ("arg", node.arg)):
        if text is not None and not _fits(text):
            yield f"has {what}={text[:60]!r}; that is not a valid name"


def name_problem(name: str) -> str | None:
    """What is wrong with a node's name."""
    if not name or len(name) > LONGEST_NODE_NAME:
        return f"has {len(name)} characters; 1 to {LONGEST_NODE_NAME} are allowed"
    if not name.isprintable() or any(sign in name for sign in ":/#[]") or name != name.strip():
        return "may not have control characters, spaces at its ends, or any of : / # [ ]"
    return None


def _fits(name: str) -> bool:
    """Whether every database can store it: one that cannot would find out in the midst of a settle."""
    return 0 < len(name) <= LONGEST_NAME and "\x00" not in name and not name.endswith(" ")


def find_cycle(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """Nodes that need each other in a circle, in that order; empty if there is none."""
    left = {id: len(set(them)) for id, them in needs.items()}
    followers: dict[str, list[str]] = {id: [] for id in needs}
    for id, them in needs.items():
        for needed in set(them):
            if needed in followers:
                followers[needed].append(id)
            else:
                left[id] -= 1
    free = [id for id, count in left.items() if count == 0]
    while free:
        for follower in followers[free.pop()]:
            left[follower] -= 1
            if left[follower] == 0:
                free.append(follower)
    stuck = {id for id, count in left.items() if count > 0}
    if not stuck:
        return []
    # Each stuck node depends on another one: follow them until a node repeats.
    path = [next(iter(sorted(stuck)))]
    while True:
        before = next(needed for needed in needs[path[-1]] if needed in stuck)
        if before in path:
            return [*reversed(path[path.index(before) :]), path[-1]]
        path.append(before)


def class_graph(name: str, nodes: Mapping[str, Node]) -> Graph:
    """The graph of a Workflow class; only its structure is signed, so other changes heal by themselves."""
    document = Document(version=VERSION, name=name, nodes=dict(nodes))
    return Graph(document, signature_of(structure_text(document)))


def structure_text(document: Document) -> str:
    """Names and edges alone, in an order of their own: moving a method changes nothing.

    The names of anonymous steps say nothing about them; their bodies do.
    """
    nodes = {
        id: Node(name=node.name, depends_on=tuple(sorted(node.depends_on)), body=node.body)
        for id, node in sorted(document.nodes.items())
    }
    return json_text(Document(version=document.version, name=document.name, nodes=nodes))
