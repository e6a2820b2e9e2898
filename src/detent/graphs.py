"""Graphs built at run time: `Graph`, its nodes, branches, spreads; `template`.

A builder only writes down.  `app.start(g)` freezes what stands there as JSON; jobs are
kept by name and looked up among what the app includes, never imported.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec

from .blueprint import Blueprint, blueprint
from .clock import span_micros
from .declaring import UNSET, listed
from .errors import DefinitionError
from .functions import Definition, FunctionWorkflow, Step
from .kernel import graph as kernel
from .kernel.expressions import Expression, output_of, outputs_in, recorded
from .kernel.graph import JOB as JOB_KIND
from .kernel.graph import NODE_ACTIONS, RESULT, RUN, SPREAD, VALUE, WHEN, Node, name_problem

P = ParamSpec("P")


@dataclass(eq=False)
class _Block:
    """Where nodes are being added: the top level, or one side of a condition."""

    branch: tuple[str, bool] | None
    outer: tuple[str, bool] | None
    last: list[str]  # what the next node follows, if it does not say otherwise
    nodes: list[str] = field(default_factory=list)


class NodeRef:
    """A node of a graph that is being built."""

    def __init__(self, graph: Graph, id: str, name: str) -> None:
        self._graph = graph
        self.id = id
        self.name = name

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    @property
    def output(self) -> Expression:
        """What the node will return; index it, compare it, compute with it, give it to other nodes."""
        return output_of(self.id)

    def __rshift__(self, others: Any) -> Any:
        """`a >> b`: b runs after a, and no longer after what was written before it."""
        self._graph._wire([self], _refs(others))
        return others if isinstance(others, NodeRef | NodeGroup) else NodeGroup(_refs(others))

    def __rrshift__(self, others: Any) -> NodeRef:
        self._graph._wire(_refs(others), [self])
        return self


class NodeGroup(tuple[NodeRef, ...]):
    """Nodes that go together, as `fan_out` makes them."""

    __slots__ = ()

    def __new__(cls, nodes: Iterable[NodeRef]) -> NodeGroup:
        return super().__new__(cls, nodes)

    def __rshift__(self, others: Any) -> Any:
        for node in self[:1]:
            node._graph._wire(list(self), _refs(others))
        return others if isinstance(others, NodeRef | NodeGroup) else NodeGroup(_refs(others))

    def __rrshift__(self, others: Any) -> NodeGroup:
        for node in self[:1]:
            node._graph._wire(_refs(others), list(self))
        return self

    @property
    def outputs(self) -> list[Expression]:
        """What the nodes will return, as a list to give to another."""
        return [node.output for node in self]


def _refs(value: Any) -> list[NodeRef]:
    found = list(listed(value)) if not isinstance(value, NodeGroup) else list(value)
    strange = [item for item in found if not isinstance(item, NodeRef)]
    if strange:
        raise DefinitionError(f">> joins nodes of a graph, not {strange[0]!r}")
    return found


class Graph:
    """A workflow whose structure is data: built now, frozen when it is started.

        g = detent.Graph("close-the-books")
        parts = g.fan_out(ids, name=lambda i: f"part_{i}", job=process, args=lambda i: {"id": i})
        g.node("total", job=aggregate, depends_on=parts)
        run = app.start(g)

    A node without `depends_on` follows the one before it; `depends_on=None` makes it begin
    at once.
    """

    def __init__(self, name: str) -> None:
        problem = name_problem(name)
        if problem is not None:
            raise DefinitionError(f"the name of graph {name!r} {problem}")
        self.name = name
        self.jobs: dict[str, Any] = {}  # the definitions that it names
        self._nodes: dict[str, dict[str, Any]] = {}
        self._ids: dict[str, str] = {}
        self._implicit: set[str] = set()  # nodes that only follow what was written before them
        self._blocks = [_Block(None, None, [])]
        self._conditions: dict[int, str] = {}  # per depth: the latest condition, for otherwise()
        self._awaits: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<graph {self.name} of {len(self._nodes)} nodes>"

    # Adding nodes

    def node(
        self,
        name: str,
        *,
        job: Any,
        args: Mapping[str, Any] | None = None,
        depends_on: Any = UNSET,
        wait: timedelta | float | None = None,
        queue: str | None = None,
        priority: int | None = None,
        on_exception: str | None = None,
    ) -> NodeRef:
        """Call a step, or run a whole workflow, when all that it depends on is done."""
        given = dict(args or {})
        self._check_job(name, job, given)
        fields = _options(name, wait, queue, priority, on_exception)
        ref = self._add(name, depends_on, job=self._job(job), args=given, **fields)
        self._blocks[-1].last = [ref.id]
        return ref

    def fan_out(
        self,
        items: Iterable[Any],
        *,
        name: Callable[[Any], str],
        job: Any,
        args: Callable[[Any], Mapping[str, Any]] | None = None,
        depends_on: Any = UNSET,
        **options: Any,
    ) -> NodeGroup:
        """A node for each item, side by side; what follows waits for all of them."""
        block = self._blocks[-1]
        before = list(block.last)
        group = []
        for item in items:
            block.last = before
            given = args(item) if args is not None else {}
            group.append(self.node(name(item), job=job, args=given, depends_on=depends_on, **options))
        block.last = [ref.id for ref in group] or before
        return NodeGroup(group)

    def spread(
        self,
        name: str,
        *,
        over: Any,
        job: Any,
        arg: str,
        args: Mapping[str, Any] | None = None,
        depends_on: Any = UNSET,
        **options: Any,
    ) -> NodeRef:
        """A node for each item of a list that is known only when the run comes there.

        Its output is the list of their results, in the order of the items.
        """
        given = dict(args or {})
        self._check_job(name, job, {**given, arg: None})
        fields = _options(name, **options) if options else {}
        ref = self._add(
            name, depends_on, kind=SPREAD, job=self._job(job), args=given, arg=arg, value=over, **fields
        )
        self._blocks[-1].last = [ref.id]
        return ref

    def value(self, name: str, value: Any, *, depends_on: Any = UNSET) -> NodeRef:
        """Compute something from outputs, without a worker; its output is that value."""
        ref = self._add(name, depends_on, kind=VALUE, value=value)
        self._blocks[-1].last = [ref.id]
        return ref

    def result(self, value: Any = None, *, depends_on: Any = UNSET) -> NodeRef:
        """End the run with a value, when everything in this block so far is done."""
        block = self._blocks[-1]
        if depends_on is UNSET:
            needed = {id for node in block.nodes for id in self._nodes[node]["depends_on"]}
            ends = [id for id in block.nodes if id not in needed and self._nodes[id]["kind"] != RESULT]
            depends_on = [self._ref(id) for id in ends] or [self._ref(id) for id in block.last]
        number = sum(node["kind"] == RESULT for node in self._nodes.values()) + 1
        name = "result" if number == 1 else f"result_{number}"
        ref = self._add(name, depends_on, kind=RESULT, value=value)
        block.last = [ref.id]
        return ref

    @contextmanager
    def when(self, condition: Any, *, name: str | None = None) -> Iterator[NodeRef]:
        """Nodes in this block run only if the condition holds."""
        given: object = condition
        if not isinstance(given, Expression | bool):
            raise DefinitionError(
                f"g.when({condition!r}): give a condition on outputs, such as total.output > 100"
            )
        number = sum(node["kind"] == WHEN for node in self._nodes.values()) + 1
        ref = self._add(name or f"when_{number}", UNSET, kind=WHEN, value=condition)
        self._conditions[len(self._blocks)] = ref.id
        with self._inside(ref.id, True, []):
            yield ref

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Nodes in this block run if the condition of the `when` before it does not hold."""
        condition = self._conditions.get(len(self._blocks))
        if condition is None or self._nodes[condition]["otherwise"]:
            raise DefinitionError("g.otherwise() follows a `with g.when(...):` block, once")
        self._nodes[condition]["otherwise"] = True
        with self._inside(condition, False, self._blocks[-1].last):
            yield

    @contextmanager
    def _inside(self, condition: str, side: bool, before: list[str]) -> Iterator[None]:
        outer = self._blocks[-1]
        block = _Block((condition, side), outer.branch, [condition])
        self._blocks.append(block)
        depth = len(self._blocks)
        try:
            yield
        finally:
            self._blocks.pop()
            self._conditions.pop(depth, None)
        # What comes next follows both sides.
        outer.last = [*[id for id in before if id != condition], *block.last]
        outer.nodes += block.nodes

    def _add(self, name: str, depends_on: Any, **fields: Any) -> NodeRef:
        problem = name_problem(name)
        if problem is not None:
            raise DefinitionError(f"node {name!r} of graph {self.name!r}: its name {problem}")
        if name in self._ids:
            raise DefinitionError(f"graph {self.name!r} has two nodes called {name!r}; rename one of them")
        block = self._blocks[-1]
        id = self._new_id(name)
        implicit = depends_on is UNSET
        needs = list(block.last) if implicit else [self._named(name, one) for one in listed(depends_on)]
        values = recorded([fields.get("args"), fields.get("value")])
        for reference in outputs_in(values):
            if reference not in self._nodes:
                raise DefinitionError(f"node {name!r} uses the output of a node of another graph")
            needs.append(reference)
        if block.branch is not None:
            needs.append(block.branch[0])
        node = {
            "name": name,
            "kind": JOB_KIND,
            "branch": block.branch,
            "otherwise": False,
            **fields,
            "depends_on": list(dict.fromkeys(needs)),
        }
        self._nodes[id] = node
        self._ids[name] = id
        if implicit:
            self._implicit.add(id)
        block.nodes.append(id)
        return NodeRef(self, id, name)

    def _new_id(self, name: str) -> str:
        """Short, and the same for the same graph again: so a repeated start is recognised as one."""
        digest = hashlib.sha256(f"{self.name}\n{name}".encode()).hexdigest()
        length = 8
        while f"n_{digest[:length]}" in self._nodes:
            length += 1
        return f"n_{digest[:length]}"

    def _ref(self, id: str) -> NodeRef:
        return NodeRef(self, id, self._nodes[id]["name"])

    def _named(self, name: str, given: Any) -> str:
        """The id of what a node depends on: a node, its name, or another run."""
        if isinstance(given, NodeRef):
            if given._graph is not self:
                raise DefinitionError(f"node {name!r} depends on {given!r}, which is in another graph")
            return given.id
        if isinstance(given, str):
            if given not in self._ids:
                raise DefinitionError(
                    f"node {name!r} depends on {given!r}; graph {self.name!r} has no such node yet"
                )
            return self._ids[given]
        if isinstance(getattr(given, "id", None), str) and hasattr(given, "state"):
            return self._await(given.id)
        raise DefinitionError(f"node {name!r} depends on {given!r}: give nodes, their names, or runs")

    def _await(self, run: str) -> str:
        """The node that waits for another run."""
        if run not in self._awaits:
            blocks, self._blocks = self._blocks, [_Block(None, None, [])]
            ref = self._add(f"run {len(self._awaits) + 1}", None, kind=RUN, run=run)
            self._blocks = blocks
            self._blocks[0].nodes.append(ref.id)
            self._awaits[run] = ref.id
        return self._awaits[run]

    def _wire(self, before: Sequence[NodeRef], after: Sequence[NodeRef]) -> None:
        for ref in [*before, *after]:
            if ref._graph is not self:
                raise DefinitionError(f"{ref!r} is in another graph")
        for ref in after:
            node = self._nodes[ref.id]
            if ref.id in self._implicit:
                self._implicit.discard(ref.id)
                kept = set(outputs_in(recorded([node.get("args"), node.get("value")])))
                if node["branch"] is not None:
                    kept.add(node["branch"][0])
                node["depends_on"] = [id for id in node["depends_on"] if id in kept]
            node["depends_on"] = list(dict.fromkeys([*node["depends_on"], *(one.id for one in before)]))

    def _job(self, job: Any) -> str:
        name = job_name(job)
        known = self.jobs.setdefault(name, job)
        if known is not job:
            raise DefinitionError(f"two definitions are called {name!r}; give one of them another id")
        return name

    def _check_job(self, name: str, job: Any, given: Mapping[str, Any]) -> None:
        """Raise where the job could not be called with these arguments."""
        plan = plan_of(job)
        if plan is not None:
            plan.graph  # noqa: B018 - it says if there is none
            plan.checked_fields(given)
        elif isinstance(job, Template):
            job.check_arguments((), dict(given))
        elif isinstance(job, Step | FunctionWorkflow):
            if job.kind == "step" and job.is_method:  # type: ignore[union-attr]
                raise DefinitionError(f"node {name!r}: {job!r} is a method; a job is a step of its own")
            try:
                job.check_arguments((), dict(given))
            except TypeError as error:
                raise DefinitionError(f"node {name!r}: {error}") from None
        else:
            raise DefinitionError(
                f"node {name!r} has job={job!r}; a job is a step or a workflow that the app includes"
            )

    # Freezing

    def documented(
        self, seal: Callable[[Any, str], Any], plain: Callable[[Any, str], Any]
    ) -> dict[str, Node]:
        """The nodes as they are stored: arguments sealed, expressions plain."""
        if not self._nodes:
            raise DefinitionError(f"graph {self.name!r} has no nodes")
        if len(self._blocks) > 1:
            raise DefinitionError(f"graph {self.name!r} is started inside of a `with g.when(...)` block")
        nodes = {}
        for id, node in self._nodes.items():
            fields = {key: value for key, value in node.items() if key not in ("args", "value", "depends_on")}
            args = node.get("args")
            what = f"of node {node['name']!r}"
            nodes[id] = Node(
                depends_on=tuple(node["depends_on"]),
                args=seal(recorded(args), f"args {what}") if args else None,
                value=plain(recorded(node.get("value")), f"the value {what}"),
                **fields,
            )
        return nodes

    def check(self) -> None:
        """Raise where this is no graph that can be run."""
        kernel.validated(
            kernel.Document(
                version=kernel.VERSION,
                name=self.name,
                nodes={
                    id: Node(name=node["name"], depends_on=tuple(node["depends_on"]))
                    for id, node in self._nodes.items()
                },
            ),
            f"graph {self.name!r}",
        )


def _options(
    name: str,
    wait: timedelta | float | None = None,
    queue: str | None = None,
    priority: int | None = None,
    on_exception: str | None = None,
) -> dict[str, Any]:
    if on_exception is not None and on_exception not in NODE_ACTIONS:
        raise DefinitionError(
            f"node {name!r} has on_exception={on_exception!r}; in a frozen graph it is one of "
            f"{', '.join(NODE_ACTIONS)}"
        )
    seconds = None if wait is None else span_micros(wait) / 1e6
    if seconds is not None and seconds < 0:
        raise DefinitionError(f"node {name!r} has wait={wait!r}; a wait cannot be negative")
    return {"wait": seconds, "queue": queue, "priority": priority, "on_exception": on_exception}


def plan_of(definition: Any) -> Blueprint | None:
    """The blueprint, where the definition is a workflow class."""
    return (
        blueprint(definition)
        if isinstance(definition, type) and hasattr(definition, "__blueprint__")
        else None
    )


def job_name(job: Any) -> str:
    plan = plan_of(job)
    return plan.name if plan is not None else str(job.name)


class Template(Definition[P, None], Generic[P]):
    """A graph with parameters: `app.start(month_end, user_id=7)` builds and freezes it."""

    kind = "template"

    def __init__(self, function: Callable[Concatenate[Graph, P], None], name: str | None = None) -> None:
        super().__init__(function, name)  # type: ignore[arg-type]
        if self.is_async:
            raise self._error("is async; a template only writes down, so it needs no await")
        if not self._parameters:
            raise self._error("needs a first parameter, the graph")
        self.queue: str | None = None
        self.priority: int | None = None
        self._parameters_checked = True  # they are used at once; what is stored of them is only shown

    @property
    def _stored(self) -> list[str]:
        return []

    @property
    def given_by_engine(self) -> int:
        return 1

    @property
    def wants_context(self) -> bool:
        return False

    def build(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
        """The graph for these arguments."""
        g = Graph(self.name)
        function: Callable[..., Any] = self.function
        made = function(g, *args, **kwargs)
        if inspect.isawaitable(made) or made is not None:
            raise self._error("returned something; it adds nodes to the graph that it is given")
        return g


def template(function: Callable[Concatenate[Graph, P], None]) -> Template[P]:
    """Make a function a parameterised graph.

    @detent.template
    def month_end(g, user_id: int) -> None:
        g.node("close", job=close_books, args={"user_id": user_id})
    """
    return Template(function)
