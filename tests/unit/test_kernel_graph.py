"""Graphs as documents: what is refused, what is signed, and how people name nodes."""

import copy
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import GraphInvalid, GraphTampered
from detent.kernel.graph import (
    END,
    VERSION,
    Document,
    Graph,
    Node,
    class_graph,
    find_cycle,
    freeze,
    read_export,
    signature_of,
    split_item,
    structure_text,
    thaw,
)

Json = dict[str, Any]


def order() -> Json:
    """A graph with every kind of node, as JSON."""
    return {
        "version": 1,
        "name": "order",
        "nodes": {
            "a": {"name": "list", "job": "list_items"},
            "s": {
                "name": "ship",
                "kind": "spread",
                "job": "ship",
                "arg": "item",
                "value": {"$expr": ["output", "a"]},
                "depends_on": ["a"],
            },
            "v": {
                "name": "how many",
                "kind": "value",
                "value": {"$expr": ["len", ["output", "s"]]},
                "depends_on": ["s"],
            },
            "w": {
                "name": "many",
                "kind": "when",
                "value": {"$expr": ["gt", ["output", "v"], 3]},
                "depends_on": ["v"],
                "otherwise": True,
            },
            "b": {"name": "bulk", "job": "bulk", "depends_on": ["w"], "branch": ["w", True]},
            "r": {"name": "after", "kind": "run", "run": "another", "depends_on": ["b"]},
            "z": {"name": "end", "kind": "result", "value": 1, "depends_on": ["r"]},
        },
    }


def text_of(document: Json) -> str:
    return msgspec.json.encode(document).decode()


def changed(path: str, value: Any) -> str:
    """That graph, with one place of it changed: `b.depends_on`."""
    document = copy.deepcopy(order())
    *way, last = path.split(".")
    place: Any = document if way == [] else document["nodes"]
    for step in way:
        place = place.setdefault(step, {}) if isinstance(place, dict) else place[int(step)]
    place[last] = value
    return text_of(document)


def chain(*names: str) -> Graph:
    nodes = {
        name: Node(name=name, depends_on=(names[number - 1],) if number else ())
        for number, name in enumerate(names)
    }
    return class_graph("chain", nodes)


def test_a_good_document_is_read() -> None:
    document = read_export(text_of(order()), "the import")
    assert list(document.nodes) == ["a", "s", "v", "w", "b", "r", "z"]
    assert document.nodes["b"].branch == ("w", True)


# -- Hostile documents -----------------------------------------------------------------------------


HOSTILE = {
    "another version": (changed("version", 2), "version is 2"),
    "no version": (text_of({"nodes": {"a": {"name": "a"}}}), "version"),
    "no nodes": (text_of({"version": 1, "nodes": {}}), "no nodes"),
    "a list for nodes": (text_of({"version": 1, "nodes": []}), "nodes"),
    "an unknown field": (changed("import", "os"), "import"),
    "an unknown field of a node": (changed("b.code", "print()"), "code"),
    "an unknown kind": (changed("b.kind", "python"), "unknown kind, 'python'"),
    "an unknown dependency": (changed("b.depends_on", ["w", "nobody"]), "'nobody'"),
    "a dependency twice": (changed("b.depends_on", ["w", "w"]), "twice"),
    "a dependency on itself": (changed("a.depends_on", ["a"]), "depend on each other: list -> list"),
    "a circle": (changed("a.depends_on", ["z"]), "depend on each other"),
    "two nodes of one name": (changed("b.name", "list"), "two nodes have the name 'list'"),
    "a name that is a number": (changed("b.name", 7), "name"),
    "an empty name": (changed("b.name", ""), "name"),
    "a name with a colon": (changed("b.name", "a:b"), "name"),
    "a name with a bracket": (changed("b.name", "ship[0]"), "name"),
    "a name with NUL": (changed("b.name", "a\x00b"), "name"),
    "a name too long": (changed("b.name", "x" * 201), "201"),
    "a run that is not said": (changed("r.run", None), "but does not name it"),
    "a spread without a job": (changed("s.job", None), "has no job or no arg"),
    "a spread without an arg": (changed("s.arg", None), "has no job or no arg"),
    "an unknown policy": (changed("b.on_exception", "explode"), "'explode'"),
    "a negative wait": (changed("b.wait", -1), "wait"),
    "an endless wait": (changed("b.wait", 1e300), "wait"),
    "a priority beyond any integer": (changed("b.priority", 10**30), "priority"),
    "a queue with NUL": (changed("b.queue", "a\x00b"), "queue"),
    "a queue without a name": (changed("b.queue", ""), "queue"),
    "a job too long": (changed("b.job", "x" * 256), "job"),
    "a run that no database can name": (changed("r.run", "x\x00"), "run"),
    "a branch of nothing": (changed("b.branch", ["nobody", True]), "'nobody'"),
    "a branch of a job": (changed("v.branch", ["s", True]), "but does not depend on such a condition"),
    "a branch of what is not depended on": (
        changed("z.branch", ["w", True]),
        "but does not depend on such a condition",
    ),
    "a branch of three": (changed("b.branch", ["w", True, 1]), "branch"),
    "an output of a stranger": (changed("b.args", {"x": {"$expr": ["output", "a"]}}), "output of 'list'"),
    "an output of nobody": (changed("v.value", {"$expr": ["output", "nobody"]}), "output of 'nobody'"),
    "an output without a node": (changed("v.value", {"$expr": ["output"]}), "names one node"),
    "an output of a number": (changed("v.value", {"$expr": ["output", 5]}), "names one node"),
    "an unknown operator": (changed("v.value", {"$expr": ["__import__", "os"]}), "no such operator"),
    "a method for an operator": (changed("v.value", {"$expr": ["call", "os", "x"]}), "no such operator"),
    "an operator that is a list": (changed("v.value", {"$expr": [["list"], 1, 2]}), "no such operator"),
    "an operator that is a dict": (changed("v.value", {"$expr": [{"a": 1}, 1]}), "no such operator"),
    "an operator too few": (changed("v.value", {"$expr": ["add", 1]}), "no such operator"),
    "an operand too many": (changed("v.value", {"$expr": ["neg", 1, 2]}), "no such operator"),
    "an empty expression": (changed("v.value", {"$expr": []}), "no such operator"),
    "a dict in an expression": (
        changed("v.value", {"$expr": ["add", {"a": 1}, 2]}),
        "it is not an expression",
    ),
    "an expression with company": (changed("v.value", {"$expr": 1, "x": 2}), "must be the only key"),
    "a literal that is none": (changed("v.value", {"$literal": 5}), "literal"),
    "a literal list": (changed("v.value", [{"$literal": [1]}]), "literal"),
    "a literal with company": (changed("v.value", {"$literal": {}, "x": 2}), "must be the only key"),
    "no JSON": ("{", "JSON"),
    "nothing": ("", "JSON"),
    "a number": ("1", ""),
    "NaN": (text_of(order()).replace('"value":1', '"value":NaN'), ""),
    "a lone surrogate": (text_of(order()).replace('"list"', '"\\ud800"'), "surrogate"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_document_is_refused_and_told_why(what: str) -> None:
    text, reason = HOSTILE[what]
    with pytest.raises(GraphInvalid) as caught:
        read_export(text, "the import")
    assert caught.value.what == "the import"
    assert reason in caught.value.problem


@pytest.mark.parametrize("id", ["", ":end", "a/b", "s[0]", "x" * 201, "a\nb", "a#b", "a "])
def test_an_id_that_could_be_taken_for_something_else_is_refused(id: str) -> None:
    document = order()
    document["nodes"][id] = {"name": "odd", "job": "odd"}
    with pytest.raises(GraphInvalid, match="is not a valid node id"):
        read_export(text_of(document), "the import")


def test_two_nodes_of_one_id_are_refused_though_json_would_take_the_last() -> None:
    text = '{"version":1,"nodes":{"a":{"name":"x","job":"x"},"a":{"name":"y","job":"y"}}}'
    with pytest.raises(GraphInvalid, match="'a' is there twice"):
        read_export(text, "the import")


def test_a_field_that_stands_twice_is_refused() -> None:
    with pytest.raises(GraphInvalid, match="'name' is there twice"):
        read_export('{"version":1,"nodes":{"a":{"name":"x","name":"y","job":"x"}}}', "the import")


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("[", "]"), ('{"x":', "}"), ('{"$expr":["neg",', "]}")],
    ids=["list", "dict", "expr"],
)
def test_a_million_levels_are_refused_and_harm_nobody(opening: str, closing: str) -> None:
    deep = opening * 1_000_000 + "1" + closing * 1_000_000
    text = f'{{"version":1,"nodes":{{"a":{{"name":"a","kind":"value","value":{deep}}}}}}}'
    for read in (read_export, lambda text, what: thaw(text, signature_of(text), what)):
        with pytest.raises(GraphInvalid, match="nested too deeply"):
            read(text, "the import")


@pytest.mark.parametrize("levels", [60, 150, 400])
def test_an_expression_that_is_nested_too_deeply_is_refused(levels: int) -> None:
    expression: Any = 1
    for _ in range(levels):
        expression = ["neg", expression]
    with pytest.raises(GraphInvalid, match="nested too deeply"):
        read_export(changed("v.value", {"$expr": expression}), "the import")


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: Any = 1
    for _ in range(300):
        value = [value]
    with pytest.raises(GraphInvalid, match="nested too deeply"):
        read_export(changed("b.args", {"x": value}), "the import")


def test_a_large_graph_is_read_in_linear_time() -> None:
    nodes = {f"n{number}": {"name": f"node {number}", "job": "x"} for number in range(20_000)}
    for number in range(1, 20_000):
        nodes[f"n{number}"]["depends_on"] = [f"n{number - 1}"]  # type: ignore[assignment]
    assert len(read_export(text_of({"version": 1, "nodes": nodes}), "the import").nodes) == 20_000


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["$expr", "$literal", "nodes", "name", "a", "output", "add"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.data())
def test_whatever_stands_in_a_document_is_read_or_refused_never_more(data: st.DataObject) -> None:
    document = copy.deepcopy(order())
    node = data.draw(st.sampled_from(sorted(document["nodes"])))
    field = data.draw(st.sampled_from(sorted(Node.__struct_fields__)))
    document["nodes"][node][field] = data.draw(junk)
    try:
        text = text_of(document)
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
        return
    try:
        read = read_export(text, "the import")
    except GraphInvalid:
        return
    again, signature = freeze(read)
    graph = thaw(again, signature, "the import")
    for id in graph.nodes:  # nothing that it was not asked before can go wrong on the way
        graph.reach(id), graph.references(id), graph.descendants(id), graph.shown(id)


# -- Circles ---------------------------------------------------------------------------------------


def test_a_circle_is_named_in_its_order() -> None:
    assert find_cycle({"a": [], "b": ["a", "d"], "c": ["b"], "d": ["c"]}) in (
        ["b", "c", "d", "b"],
        ["c", "d", "b", "c"],
        ["d", "b", "c", "d"],
    )


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    )
)
def test_a_circle_is_found_exactly_where_there_is_one(drawn: tuple[int, set[tuple[int, int]]]) -> None:
    number, edges = drawn
    needs = {str(node): [str(a) for a, b in sorted(edges) if b == node] for node in range(number)}
    found = find_cycle(needs)
    if found:
        assert found[0] == found[-1]
        assert all(before in needs[after] for before, after in itertools.pairwise(found))
    else:
        left = dict(needs)
        while left:  # it can be taken apart from its roots
            roots = [node for node, before in left.items() if not set(before) & set(left)]
            assert roots
            left = {node: before for node, before in left.items() if node not in roots}


# -- Signatures ------------------------------------------------------------------------------------


def test_what_was_frozen_is_read_back_alike() -> None:
    document = read_export(text_of(order()), "the import")
    text, signature = freeze(document)
    graph = thaw(text, signature, "the graph")
    assert (graph.document, graph.signature) == (document, signature)
    assert freeze(graph.document) == (text, signature)


@given(st.data())
def test_every_byte_counts(data: st.DataObject) -> None:
    text, signature = freeze(read_export(text_of(order()), "the import"))
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda sign: sign != text[place]))
    with pytest.raises(GraphTampered) as caught:
        thaw(text[:place] + other + text[place + 1 :], signature, "the stored graph of run 1")
    assert caught.value.signature == signature
    assert "the stored graph of run 1" in str(caught.value)


def test_a_byte_more_or_less_counts() -> None:
    text, signature = freeze(read_export(text_of(order()), "the import"))
    for other in (text[:-1], text + " ", "", text.replace("order", "odder")):
        with pytest.raises(GraphTampered):
            thaw(other, signature, "it")


def test_a_signed_text_that_is_no_graph_is_refused_all_the_same() -> None:
    for text in ("{}", '{"version":1,"nodes":{}}', "[]", "x"):
        with pytest.raises(GraphInvalid):
            thaw(text, signature_of(text), "it")


def test_the_signature_of_a_class_is_about_names_and_edges_alone() -> None:
    plain = {"a": Node(name="a"), "b": Node(name="b", depends_on=("a",))}
    tuned = {"a": Node(name="a", queue="slow", wait=5.0), "b": Node(name="b", depends_on=("a",), priority=3)}
    moved = {"b": Node(name="b", depends_on=("a",)), "a": Node(name="a")}
    other = {"a": Node(name="a"), "b": Node(name="b")}
    signature = class_graph("flow", plain).signature
    assert class_graph("flow", tuned).signature == signature
    assert class_graph("flow", moved).signature == signature
    assert class_graph("flow", other).signature != signature
    assert class_graph("other", plain).signature != signature


def test_the_order_of_dependencies_does_not_change_the_signature_of_a_class() -> None:
    def joined(*needs: str) -> dict[str, Node]:
        return {"a": Node(name="a"), "b": Node(name="b"), "c": Node(name="c", depends_on=needs)}

    assert class_graph("flow", joined("a", "b")).signature == class_graph("flow", joined("b", "a")).signature


def test_the_structure_of_a_class_can_be_thawed() -> None:
    graph = chain("a", "b", "c")
    assert thaw(structure_text(graph.document), graph.signature, "it").needs == graph.needs


# -- Finding nodes ---------------------------------------------------------------------------------


@pytest.fixture
def graph() -> Graph:
    return Graph(read_export(text_of(order()), "it"), "signature")


def test_a_node_is_found_by_its_id_by_its_name_and_by_its_index(graph: Graph) -> None:
    assert [graph.find(text) for text in ("a", "list", "ship[3]", "s[3]")] == ["a", "a", "s[3]", "s[3]"]
    assert [graph.find(text) for text in ("nobody", "list[3]", "ship[]", "ship[-1]", "")] == [None] * 5


def test_a_node_is_shown_by_its_name(graph: Graph) -> None:
    assert [graph.shown(id) for id in ("a", "s[3]", "gone", "gone[3]")] == [
        "list",
        "ship[3]",
        "gone",
        "gone[3]",
    ]


def test_an_item_is_one_of_its_spread_only(graph: Graph) -> None:
    assert [graph.spread_of(id) for id in ("s[0]", "s[12]", "a[0]", "s", "gone[0]")] == ["s", "s"] + [
        None
    ] * 3
    assert [graph.knows(id) for id in ("s", "s[7]", "a[0]", "gone")] == [True, True, False, False]
    assert (split_item("s[12]"), split_item("s"), split_item("s[x]")) == (
        ("s", 12),
        ("s", None),
        ("s[x]", None),
    )


def test_the_end_needs_every_sink() -> None:
    nodes = {
        "a": Node(name="a"),
        "b": Node(name="b", depends_on=("a",)),
        "c": Node(name="c", depends_on=("a",)),
    }
    graph = class_graph("flow", nodes)
    assert (graph.roots, set(graph.sinks), graph.required(END)) == (("a",), {"b", "c"}, 2)


def test_settling_reaches_through_what_is_inline_up_to_the_frontier(graph: Graph) -> None:
    assert set(graph.reach("a")) == {"s", "v", "w", "b", "r"}  # `b` may be skipped, so also what is behind it
    assert set(graph.reach("s[0]")) == {"s", "v", "w", "b", "r"}
    assert set(graph.reach("r")) == {"z"}


def test_descendants_of_an_item_include_its_spread(graph: Graph) -> None:
    assert graph.descendants("s[0]") == {"s", "v", "w", "b", "r", "z"}
    assert graph.descendants("b") == {"r", "z"}
    assert graph.parents("s[0]") == ("a",)


def test_a_document_of_this_version_says_so() -> None:
    assert Document(version=VERSION, nodes={"a": Node(name="a")}).version == 1
