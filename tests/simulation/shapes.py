"""Random graphs, and what they come to when one plain Python function evaluates them.

Outputs are small: numbers, lists of numbers, booleans, None where something was skipped.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from detent.kernel.graph import (
    JOB,
    RESULT,
    SPREAD,
    VALUE,
    VERSION,
    WHEN,
    Document,
    Graph,
    Node,
    class_graph,
    freeze,
)

NAMES = "abcdefgh"
COUNT, LIST = "count", "listing"  # jobs: one returns a number, one a list

# -- Dynamic graphs --------------------------------------------------------------------------------


@st.composite
def documents(draw: st.DrawFn, largest: int = 8) -> Document:
    """A graph of jobs, values, conditions, branches and spreads; perhaps with a result."""
    nodes: dict[str, Node] = {}
    for id in NAMES[: draw(st.integers(1, largest))]:
        nodes[id] = draw(_node(id, nodes))
    if draw(st.integers(0, 4)) == 0:
        needs = tuple(draw(_some(list(nodes))))
        nodes["z"] = Node(name="the end", kind=RESULT, depends_on=needs, value=_stored(draw(_value(needs))))
    return Document(version=VERSION, name="flow", nodes=nodes)


@st.composite
def _node(draw: st.DrawFn, id: str, before: Mapping[str, Node]) -> Node:
    needs: list[str] = draw(_some(list(before))) if before else []
    kind = draw(st.sampled_from([JOB, JOB, JOB, VALUE, WHEN, SPREAD]))
    branch = None
    conditions = [need for need in needs if before[need].kind == WHEN]
    flag = st.booleans()
    if draw(flag) and conditions:
        branch = (draw(st.sampled_from(conditions)), draw(flag))
    common: dict[str, Any] = {
        "name": f"node {id}",
        "kind": kind,
        "depends_on": tuple(needs),
        "branch": branch,
    }
    if kind == JOB:
        args = {"x": _stored(draw(_value(needs)))}
        wait = draw(st.sampled_from([None, None, None, 5.0]))
        return Node(**common, job=draw(st.sampled_from([COUNT, LIST])), args=args, wait=wait)
    if kind == SPREAD:
        lists = [need for need in needs if before[need].job == LIST or before[need].kind == SPREAD]
        over: Any = ("list", *range(draw(st.integers(0, 3))))
        if draw(flag) and lists:
            over = ("output", draw(st.sampled_from(lists)))
        return Node(**common, job=COUNT, arg="item", args={"x": 1}, value=_stored(over))
    if kind == WHEN:
        value = ("gt", draw(_number(needs)), draw(st.integers(0, 3)))
        return Node(**common, value=_stored(value), otherwise=draw(st.integers(0, 5)) > 0)
    return Node(**common, value=_stored(draw(_value(needs))))


def _some(names: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), max_size=3, unique=True)


def _number(needs: Any) -> st.SearchStrategy[Any]:
    if not needs:
        return st.integers(0, 5)
    output = st.tuples(st.just("output"), st.sampled_from(list(needs)))
    # A number of whatever it is; a bare output may be a list or None, and then the node cannot be evaluated.
    size = output.map(lambda it: ("len", ("list", it, 1)))
    return size | output | st.tuples(st.just("add"), size, st.integers(0, 5))


def _value(needs: Any) -> st.SearchStrategy[Any]:
    if not needs:
        return st.integers(0, 5)
    output = st.tuples(st.just("output"), st.sampled_from(list(needs)))
    return output | st.tuples(st.just("list"), output, st.integers(0, 5)) | _number(needs)


def _stored(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"$expr": _data(value)}
    return value


def _data(value: Any) -> Any:
    return [value[0], *map(_data, value[1:])] if isinstance(value, tuple) else value


def compiled(document: Document) -> tuple[Graph, str]:
    text, signature = freeze(document)
    return Graph(document, signature), text


# -- Class-like graphs -----------------------------------------------------------------------------


@st.composite
def classes(draw: st.DrawFn, largest: int = 7) -> Graph:
    """A workflow class: methods alone, of a few names that other versions of it have too."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=largest, unique=True))
    nodes: dict[str, Node] = {}
    for name in names:
        needs = draw(_some(list(nodes))) if nodes else []
        nodes[name] = Node(name=name, depends_on=tuple(needs))
    return class_graph("Flow", nodes)


# -- What jobs return ------------------------------------------------------------------------------


def perform(job: str, kwargs: Mapping[str, Any]) -> Any:
    """The work itself: the same for the same arguments."""
    number = _weight(kwargs)
    return list(range(number % 4)) if job == LIST else number % 5


def _weight(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(_weight(item) + len(key) for key, item in value.items())
    if isinstance(value, list):
        return 1 + sum(map(_weight, value))
    return int(value or 0) + 1


# -- The plain evaluation --------------------------------------------------------------------------


class Impossible(Exception):
    """A value that cannot be computed."""


def plainly(value: Any, outputs: Mapping[str, Any]) -> Any:
    """Evaluate a stored value with nothing of Detent."""
    if isinstance(value, dict) and "$expr" in value:
        return _plain(value["$expr"], outputs)
    if isinstance(value, dict):
        return {key: plainly(item, outputs) for key, item in value.items()}
    return value


_MEANING: dict[str, Callable[..., Any]] = {
    "list": lambda *items: list(items),
    "len": len,
    "add": lambda left, right: left + right,
    "gt": lambda left, right: left > right,
}


def _plain(data: Any, outputs: Mapping[str, Any]) -> Any:
    if not isinstance(data, list):
        return data
    if data[0] == "output":
        return outputs[data[1]]
    try:
        return _MEANING[data[0]](*[_plain(item, outputs) for item in data[1:]])
    except TypeError:
        raise Impossible from None


def expected(graph: Graph, skipped: Mapping[str, str]) -> dict[str, Any]:
    """The outputs of all nodes, where these were skipped, by somebody, and all others succeeded.

    Items of spreads are among them.  None is the output of what was skipped.  What cannot be evaluated
    has none, and nothing behind it is reached.
    """
    outputs: dict[str, Any] = {}
    for id, node in graph.nodes.items():  # in the order of adding: what a node needs comes before it
        if any(need not in outputs for need in node.depends_on):
            continue
        if id in skipped or (node.branch is not None and outputs[node.branch[0]] is not node.branch[1]):
            outputs[id] = None
            continue
        with contextlib.suppress(Impossible):
            outputs[id] = _output(id, node, outputs, skipped)
    return outputs


def _output(id: str, node: Node, outputs: dict[str, Any], skipped: Mapping[str, str]) -> Any:
    if node.kind == JOB:
        return perform(node.job or "", plainly(node.args, outputs))
    if node.kind != SPREAD:
        value = plainly(node.value, outputs)
        if node.kind == WHEN:
            value = bool(value)
            if not value and not node.otherwise:
                raise Impossible
        return value
    items = plainly(node.value, outputs)
    if not isinstance(items, list):
        raise Impossible
    for index, item in enumerate(items):
        name = f"{id}[{index}]"
        given = {**plainly(node.args, outputs), node.arg: item}
        outputs[name] = None if name in skipped else perform(node.job or "", given)
    return [outputs[f"{id}[{index}]"] for index in range(len(items))]
