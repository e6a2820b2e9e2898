"""Graphs built at run time: `Graph`, its nodes, branches, spreads; `template`.

A builder only collects nodes.  `app.start(g)` freezes them as JSON.  Jobs are stored by
name and looked up in the app; they are never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ParamSpec, Unpack

from ..clock import span_micros
from ..digests import sha256
from ..errors import DefinitionError, InvalidOption
from ..kernel import graph as kernel
from ..kernel.expressions import Expression, outputs_in, recorded
from ..kernel.graph import JOB as JOB_KIND
from ..kernel.graph import NODE_ACTIONS, RESULT, RUN, SPREAD, VALUE, WHEN, Node, name_problem
from ..kernel.policies import Retry
from ..kernel.queues import check_queue_key
from ..kernel.retries import stored_retry
from ..keywords import shows
from .arrows import NodeGroup, NodeRef, refs, stand_ins
from .blueprint import Blueprint, blueprint
from .functions import Definition, FunctionWorkflow, Step
from .node_options import JOB_DEFAULTS, UNSET, JobKeywords, NodeAction, listed

__all__ = ["Graph", "NodeGroup", "NodeRef", "job_name", "plan_of"]

P = ParamSpec("P")
# What is written down of a node and stored in another form, or not at all.
_BUILDING = frozenset({"args", "value", "follows", "written_after", "depends_on"})


@dataclass(eq=False)
class _Block:
    """The block that gets new nodes: the top level, or one branch of a condition."""

    branch: tuple[str, bool] | None
    outer: tuple[str, bool] | None
    last: list[str]  # what the next node follows, if it does not say otherwise
    nodes: list[str] = field(default_factory=list)


class Graph:
    """A workflow whose structure is data: built at run time, frozen when it is started.

        g = detent.Graph("close-the-books")
        parts = g.fan_out(ids, name=lambda i: f"part_{i}", job=process, args=lambda i: {"id": i})
        g.node("total", job=aggregate, depends_on=parts)
        run = app.start(g)

    A node without `depends_on` follows the one before it; `depends_on=None` makes it begin at once.
    """

    def __init__(self, name: str) -> None:
        problem = name_problem(name)
        if problem is not None:
            raise DefinitionError(f"the name of graph {name!r} {problem}")
        self.name = name
        self.jobs: dict[str, Any] = {}  # the definitions that it names
        self._nodes: dict[str, dict[str, Any]] = {}
        self._ids: dict[str, str] = {}
        self._empty: dict[str, dict[str, Any]] = {}  # groups without nodes, which others may depend on
        self._joined: set[str] = set()  # nodes at either end of an arrow
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
        key: str | None = None,
        priority: int | None = None,
        on_exception: NodeAction | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        on_error: Any = None,
    ) -> NodeRef:
        """Call a step, or run a workflow, when all its dependencies are done.

        `on_error` names nodes that run if this one fails for good; see also `g.on_error`.
        """
        given = dict(args or {})
        self._check_job(name, job, given)
        handlers = self._handlers(name, on_error)
        fields = _options(name, job, wait, queue, key, priority, on_exception, retry, timeout)
        ref = self._add(name, depends_on, job=self._job(job), args=given, **fields)
        self._blocks[-1].last = [ref.id]
        if handlers:
            self._handle(ref.id)
            self.wire([ref], handlers)
            for handler in handlers:
                self._nodes[handler.id]["branch"] = (ref.id, False)
        return ref

    @shows(JobKeywords, defaults=JOB_DEFAULTS)
    def fan_out(
        self,
        items: Iterable[Any],
        *,
        name: Callable[[Any], str],
        job: Any,
        args: Callable[[Any], Mapping[str, Any]] | None = None,
        depends_on: Any = UNSET,
        **options: Unpack[JobKeywords],
    ) -> NodeGroup:
        """Add a node for each item; the next node waits for all of them.

        Without items the group is empty: the next node depends on what the group depends on.
        """
        block = self._blocks[-1]
        if "on_error" in options:
            raise DefinitionError(
                "fan_out takes no on_error; write `with g.on_error(node):` for each of its nodes"
            )
        before = block.last
        nodes = []
        for item in items:
            block.last = before
            given = args(item) if args is not None else {}
            nodes.append(self.node(name(item), job=job, args=given, depends_on=depends_on, **options))
        group = NodeGroup(self, nodes) if nodes else self._nobody(depends_on)
        block.last = [ref.id for ref in refs(group)]
        return group

    @shows(JobKeywords, defaults=JOB_DEFAULTS)
    def spread(
        self,
        name: str,
        *,
        over: Any,
        job: Any,
        arg: str,
        args: Mapping[str, Any] | None = None,
        depends_on: Any = UNSET,
        **options: Unpack[JobKeywords],
    ) -> NodeRef:
        """Add a node for each item of a list that is known only at run time.

        The output is the list of their results, in the order of the items.
        """
        given = dict(args or {})
        self._check_job(name, job, {**given, arg: None})
        if "on_error" in options:
            raise DefinitionError(
                f"spread {name!r} takes no on_error; on_exception='skip' gives None for an item"
            )
        fields = _options(name, job, **options) if options else {}
        ref = self._add(
            name, depends_on, kind=SPREAD, job=self._job(job), args=given, arg=arg, value=over, **fields
        )
        self._blocks[-1].last = [ref.id]
        return ref

    def value(self, name: str, value: Any, *, depends_on: Any = UNSET) -> NodeRef:
        """Compute a value from outputs, without a worker; it is the output of this node."""
        ref = self._add(name, depends_on, kind=VALUE, value=value)
        self._blocks[-1].last = [ref.id]
        return ref

    def result(self, value: Any = None, *, depends_on: Any = UNSET) -> NodeRef:
        """End the run with a value when everything before it in this block is done."""
        block = self._blocks[-1]
        if depends_on is UNSET:
            needed = {id for node in block.nodes for id in self._needs(node)}
            ends = [id for id in block.nodes if id not in needed and self._nodes[id]["kind"] != RESULT]
            depends_on = [self._ref(id) for id in ends or self._real(block.last)]
        number = sum(node["kind"] == RESULT for node in self._nodes.values()) + 1
        name = "result" if number == 1 else f"result_{number}"
        ref = self._add(name, depends_on, kind=RESULT, value=value)
        block.last = [ref.id]
        return ref

    @contextmanager
    def when(self, condition: Any, *, name: str | None = None) -> Iterator[NodeRef]:
        """Nodes in this block run only if the condition is true."""
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
        """Nodes in this block run if the condition of the preceding `when` is false."""
        condition = self._conditions.get(len(self._blocks))
        if condition is None or self._nodes[condition]["otherwise"]:
            raise DefinitionError("g.otherwise() follows a `with g.when(...):` block, once")
        self._nodes[condition]["otherwise"] = True
        with self._inside(condition, False, self._blocks[-1].last):
            yield

    @contextmanager
    def on_error(self, node: NodeRef) -> Iterator[NodeRef]:
        """Nodes in this block run if a node fails for good; the nodes after that node are skipped.

        charge = g.node("charge", job=charge_card, retry=Retry(attempts=3))
        g.node("ship", job=ship)                       # skipped if charge fails
        with g.on_error(charge):
            g.node("refund", job=refund, args={"why": charge.error["message"]})
        g.node("mail", job=mail)                       # after ship, or after refund
        """
        given: object = node
        if not isinstance(given, NodeRef) or given.graph is not self:
            raise DefinitionError(f"g.on_error({node!r}): give a node of this graph")
        if self._nodes[node.id]["branch"] != self._blocks[-1].branch:
            raise DefinitionError(f"g.on_error({node!r}) must be in the same block as the node")
        self._handle(node.id)
        with self._inside(node.id, False, self._blocks[-1].last) as block:
            yield node
        if not block.nodes:
            raise DefinitionError(
                f"the block of g.on_error({node!r}) is empty; add a node, such as g.value('failed', True)"
            )

    def _handle(self, id: str) -> None:
        """Note that a node has an error branch."""
        node = self._nodes[id]
        if node["kind"] != JOB_KIND:
            raise DefinitionError(f"node {node['name']!r} is a {node['kind']}; error branches are for jobs")
        if node.get("on_error"):
            raise DefinitionError(f"node {node['name']!r} already has an error branch")
        if node.get("on_exception") not in (None, "reattempt"):
            raise DefinitionError(
                f"node {node['name']!r} has on_exception={node['on_exception']!r} and an error branch; "
                f"remove on_exception, or write 'reattempt'"
            )
        node["on_error"] = True

    def _handlers(self, name: str, on_error: Any) -> list[NodeRef]:
        """The nodes that `on_error=` names."""
        handlers = [self._ref(id) for id in self._real(self._named_by(f"node {name!r}", on_error))]
        for handler in handlers:
            if self._nodes[handler.id]["branch"] != self._blocks[-1].branch:
                raise DefinitionError(f"node {name!r} has on_error={handler!r}, which is in another block")
        return handlers

    @contextmanager
    def _inside(self, condition: str, side: bool, before: list[str]) -> Iterator[_Block]:
        outer = self._blocks[-1]
        block = _Block((condition, side), outer.branch, [condition])
        self._blocks.append(block)
        depth = len(self._blocks)
        try:
            yield block
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
        needs = self._named_by(f"node {name!r}", depends_on)
        given = [fields.get("args"), fields.get("value")]
        for reference in outputs_in(recorded(given)):
            if reference not in self._nodes:
                raise DefinitionError(f"node {name!r} uses the output of a node of another graph")
            needs.append(reference)
        if self._empty:
            needs += [self._own(f"node {name!r}", ref) for ref in stand_ins(given)]
        if block.branch is not None:
            needs.append(block.branch[0])
        self._nodes[id] = {
            "name": name,
            "kind": JOB_KIND,
            "branch": block.branch,
            "otherwise": False,
            **fields,
            "follows": block.last if depends_on is UNSET else [],
            "written_after": block.last,
            "depends_on": needs,
        }
        self._ids[name] = id
        block.nodes.append(id)
        return NodeRef(self, id, name)

    def group(self, nodes: Sequence[NodeRef], depends_on: Sequence[str]) -> NodeGroup:
        """Nodes as a group; an empty one stands for what it depends on."""
        if nodes:
            return NodeGroup(self, nodes)
        return self._nobody([NodeRef(self, id, id) for id in depends_on])

    def _nobody(self, depends_on: Any) -> NodeGroup:
        """A group without nodes.  It is not stored: what depends on it is given what it depends on."""
        block = self._blocks[-1]
        id = f":empty {len(self._empty) + 1}"  # no node has a colon in its id
        needs = self._named_by("an empty fan_out", depends_on)
        if block.branch is not None:
            needs.append(block.branch[0])
        follows = block.last if depends_on is UNSET else []
        self._empty[id] = {"follows": follows, "written_after": block.last, "depends_on": needs}
        return NodeGroup(self, [], NodeRef(self, id, "of an empty group"))

    def _new_id(self, name: str) -> str:
        """Short, and the same for the same graph again: so a repeated start is recognised as one."""
        digest = sha256(f"{self.name}\n{name}".encode()).hexdigest()
        length = 8
        while f"n_{digest[:length]}" in self._nodes:
            length += 1
        return f"n_{digest[:length]}"

    def _ref(self, id: str) -> NodeRef:
        return NodeRef(self, id, self._nodes[id]["name"])

    def _named_by(self, what: str, depends_on: Any) -> list[str]:
        """The ids of all that `depends_on` names."""
        if depends_on is UNSET:
            return []
        if isinstance(depends_on, NodeGroup):
            return [self._own(what, ref) for ref in refs(depends_on)]
        return [id for one in listed(depends_on) for id in self._named(what, one)]

    def _named(self, what: str, given: Any) -> list[str]:
        """The ids of one thing that others depend on: a node, its name, a group, or another run."""
        if isinstance(given, NodeRef | NodeGroup):
            return [self._own(what, ref) for ref in refs(given)]
        if isinstance(given, str):
            if given not in self._ids:
                raise DefinitionError(
                    f"{what} depends on {given!r}; graph {self.name!r} has no such node yet"
                )
            return [self._ids[given]]
        if isinstance(getattr(given, "id", None), str) and hasattr(given, "state"):
            return [self._await(given.id)]
        raise DefinitionError(f"{what} depends on {given!r}: give nodes, their names, or runs")

    def _own(self, what: str, ref: NodeRef) -> str:
        if ref.graph is not self:
            raise DefinitionError(f"{what} depends on {ref!r}, which is in another graph")
        return ref.id

    def _await(self, run: str) -> str:
        """The node that waits for another run."""
        if run not in self._awaits:
            blocks, self._blocks = self._blocks, [_Block(None, None, [])]
            ref = self._add(f"run {len(self._awaits) + 1}", None, kind=RUN, run=run)
            self._blocks = blocks
            self._blocks[0].nodes.append(ref.id)
            self._awaits[run] = ref.id
        return self._awaits[run]

    def wire(self, before: Sequence[NodeRef], after: Sequence[NodeRef]) -> None:
        """Let `after` run after `before`, and no longer after what was written before it."""
        for ref in [*before, *after]:
            if ref.graph is not self:
                raise DefinitionError(f"{ref!r} is in another graph")
        if not before or not after:
            return
        self._joined.update(ref.id for ref in [*before, *after])
        for ref in after:
            entry = self._entry(ref.id)
            entry["follows"] = []
            entry["depends_on"] += [one.id for one in before]

    def _entry(self, id: str) -> dict[str, Any]:
        """What is written down of a node, or of an empty group."""
        return self._nodes[id] if id in self._nodes else self._empty[id]

    def _needs(self, id: str) -> list[str]:
        """What a node depends on, when all is written down."""
        entry = self._entry(id)
        follows = entry["follows"]
        if id in self._joined:
            follows = self._without_arrows(follows)
        return self._real([*follows, *entry["depends_on"]])

    def _without_arrows(self, ids: Sequence[str]) -> list[str]:
        """What was written before a node, past all nodes with arrows: arrows say how those are ordered."""
        found: dict[str, None] = {}
        todo, seen = list(ids), set(ids)
        while todo:
            id = todo.pop(0)
            if id not in self._joined:
                found[id] = None
                continue
            before = [one for one in self._entry(id)["written_after"] if one not in seen]
            todo += before
            seen.update(before)
        return list(found)

    def _real(self, ids: Iterable[str]) -> list[str]:
        """These nodes; for each empty group, what it depends on."""
        if not self._empty:
            return list(dict.fromkeys(ids))
        found: dict[str, None] = {}
        todo, seen = list(ids)[::-1], set[str]()
        while todo:
            id = todo.pop()
            if id in self._nodes:
                found[id] = None
            elif id not in seen:
                seen.add(id)
                entry = self._empty[id]
                follows = self._without_arrows(entry["follows"]) if id in self._joined else entry["follows"]
                todo += [*follows, *entry["depends_on"]][::-1]
        return list(found)

    def _job(self, job: Any) -> str:
        name = job_name(job)
        known = self.jobs.setdefault(name, job)
        if known is not job:
            raise DefinitionError(f"two definitions have the name {name!r}; give one of them another id")
        return name

    def _check_job(self, name: str, job: Any, given: Mapping[str, Any]) -> None:
        """Raise where the job could not be called with these arguments."""
        plan = plan_of(job)
        if plan is not None:
            plan.graph  # noqa: B018 - it says if there is none
            plan.checked_fields(given)
        elif isinstance(job, Definition) and job.kind == "template":
            job.check_arguments((), dict(given))
        elif isinstance(job, Step | FunctionWorkflow):
            if job.kind == "step" and job.is_method:  # type: ignore[union-attr]
                raise DefinitionError(f"node {name!r}: {job!r} is a method; a job must be a plain step")
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
            raise DefinitionError(f"graph {self.name!r} is started inside a `with g.when(...)` block")
        nodes = {}
        for id, node in self._nodes.items():
            fields = {key: value for key, value in node.items() if key not in _BUILDING}
            args = node.get("args")
            what = f"of node {node['name']!r}"
            nodes[id] = Node(
                depends_on=tuple(self._needs(id)),
                args=seal(recorded(args), f"args {what}") if args else None,
                value=plain(recorded(node.get("value")), f"the value {what}"),
                **fields,
            )
        return nodes

    def check(self) -> None:
        """Raise if this graph cannot be run."""
        kernel.validated(
            kernel.Document(
                version=kernel.VERSION,
                name=self.name,
                nodes={
                    id: Node(name=node["name"], depends_on=tuple(self._needs(id)))
                    for id, node in self._nodes.items()
                },
            ),
            f"graph {self.name!r}",
        )


def _options(
    name: str,
    job: Any,
    wait: timedelta | float | None = None,
    queue: str | None = None,
    key: str | None = None,
    priority: int | None = None,
    on_exception: str | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
) -> dict[str, Any]:
    if on_exception is not None and on_exception not in NODE_ACTIONS:
        raise DefinitionError(
            f"node {name!r} has on_exception={on_exception!r}; in a frozen graph it is one of "
            f"{', '.join(NODE_ACTIONS)}"
        )
    seconds = None if wait is None else span_micros(wait) / 1e6
    if seconds is not None and seconds < 0:
        raise DefinitionError(f"node {name!r} has wait={wait!r}; a wait cannot be negative")
    given: object = retry
    if given is not None and not isinstance(given, Retry):
        raise DefinitionError(f"node {name!r} has retry={retry!r}; write retry=detent.Retry(attempts=...)")
    return {
        "wait": seconds,
        "queue": queue,
        "key": None if key is None else check_queue_key(f"node {name!r}", key, error=InvalidOption),
        "priority": priority,
        "on_exception": on_exception,
        "retry": None if retry is None else stored_retry(retry),
        "timeout": None if timeout is None else _timeout(name, job, timeout),
    }


def _timeout(name: str, job: Any, timeout: Any) -> float:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e10:
        raise DefinitionError(
            f"node {name!r} has timeout={timeout!r}; write timedelta(minutes=5), or a number of seconds"
        )
    if not isinstance(job, Step):
        raise DefinitionError(
            f"node {name!r} has a timeout, and its job is a workflow, which has none; give its steps timeouts"
        )
    if job.transactional and not job.is_async:
        raise DefinitionError(
            f"node {name!r} has a timeout, which its job cannot have: it is transactional and a `def`"
        )
    return float(seconds)


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
