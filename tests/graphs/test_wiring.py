"""What nodes of a graph built at run time depend on: empty groups, arrows, and the order of writing."""

from typing import Any

import pytest

import detent
from detent import DefinitionError, step
from detent.errors import GraphInvalid
from detent.testing import TestingApp
from tests.functions.world import Apps, result

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@step
def give(value: Any) -> Any:
    ran.append(value)
    return value


@step
async def agive(value: Any) -> Any:
    ran.append(value)
    return value


@step
def summed(numbers: list[int]) -> int:
    ran.append("sum")
    return sum(numbers)


ALL = (give, agive, summed)


class Drawing(detent.Graph):
    """A graph whose nodes are named by one letter."""

    def __init__(self) -> None:
        super().__init__("wiring")

    def add(self, names: str, **options: Any) -> list[Any]:
        return [self.node(name, job=give, args={"value": name}, **options) for name in names]

    def one(self, name: str, **options: Any) -> Any:
        return self.add(name, **options)[0]

    def several(self, names: str, **options: Any) -> Any:
        return self.fan_out(names, name=str, job=give, args=lambda name: {"value": name}, **options)

    def needs(self) -> dict[str, set[str]]:
        nodes = self.documented(lambda value, what: value, lambda value, what: value)
        return {node.name: {nodes[needed].name for needed in node.depends_on} for node in nodes.values()}


def edges(text: str) -> dict[str, set[str]]:
    """`a b<a c<ab` as a mapping."""
    return {part[0]: set(part[2:]) for part in text.split()}


# -- Empty groups --------------------------------------------------------------------------------------


def test_what_follows_an_empty_fan_out_follows_what_was_before_it() -> None:
    g = Drawing()
    g.one("a")
    g.several("")
    g.one("b")
    assert g.needs() == edges("a b<a")


def test_what_depends_on_an_empty_fan_out_depends_on_what_that_depended_on() -> None:
    g = Drawing()
    a, b = g.add("ab", depends_on=None)
    g.one("c", depends_on=g.several("", depends_on=[a, b]))
    g.one("d", depends_on=g.several(""))  # it follows c
    assert g.needs() == edges("a b c<ab d<c")


def test_an_empty_fan_out_at_the_beginning_depends_on_nothing() -> None:
    g = Drawing()
    empty = g.several("")
    g.one("a")
    g.one("b", depends_on=empty)
    assert g.needs() == edges("a b")


def test_an_empty_fan_out_that_begins_at_once_holds_nothing_up() -> None:
    g = Drawing()
    g.one("a")
    g.one("b", depends_on=g.several("", depends_on=None))
    assert g.needs() == edges("a b")


def test_an_empty_fan_out_at_the_end_changes_nothing(apps: Apps) -> None:
    g = Drawing()
    g.one("a")
    g.several("")
    assert g.needs() == edges("a")
    assert result(apps(*ALL).start(g)) == "a"


def test_two_empty_groups_in_a_row_are_transparent() -> None:
    g = Drawing()
    g.one("a")
    g.several("", depends_on=g.several(""))
    g.several("")
    g.one("b")
    assert g.needs() == edges("a b<a")


def test_groups_may_stand_in_a_list_with_nodes() -> None:
    g = Drawing()
    a = g.one("a")
    parts, none = g.several("bc", depends_on=a), g.several("", depends_on=a)
    d = g.one("d", depends_on=None)
    g.one("e", depends_on=[parts, none, d, "a"])
    assert g.needs() == edges("a b<a c<a d e<abcd")


def test_an_empty_group_of_arrows_is_transparent() -> None:
    g = Drawing()
    a, b, c = g.add("abc")
    empty = g.several("")
    a >> empty >> b
    a >> [] >> c
    assert g.needs() == edges("a b<a c<a")


def test_arrows_of_an_empty_group_may_be_drawn_in_any_order() -> None:
    g = Drawing()
    empty = g.several("", depends_on=None)
    a, b, c = g.add("abc", depends_on=None)
    empty >> c
    [a, b] >> empty
    assert g.needs() == edges("a b c<ab")
    g = Drawing()
    empty = g.several("", depends_on=None)
    a, b, c = g.add("abc", depends_on=None)
    c << empty << [a, b]
    assert g.needs() == edges("a b c<ab")


def test_an_empty_list_before_an_arrow_changes_nothing() -> None:
    g = Drawing()
    _, b = g.add("ab")
    nothing: list[Any] = []
    nothing >> b
    assert g.needs() == edges("a b<a")


def test_the_outputs_of_an_empty_group_are_an_empty_list_and_keep_the_order(apps: Apps) -> None:
    g = Drawing()
    g.one("a")
    empty = g.several("")
    g.one("b", depends_on=None)
    g.node("s", job=summed, args={"numbers": empty.outputs}, depends_on="b")
    assert g.needs() == edges("a b s<ab")
    run = apps(*ALL).start(g)
    assert result(run) == 0


def test_an_empty_group_in_a_branch_keeps_what_follows_it_there(testing: TestingApp) -> None:
    testing.include(*ALL)
    g = Drawing()
    a = g.one("a")
    with g.when(a.output == "b"):
        empty = g.several("")
        g.one("b")
        g.one("c", depends_on=empty)
    with g.otherwise():
        g.several("")
    g.one("d")
    run = testing.speedrun(testing.start(g))
    assert {node.name: node.state for node in run.nodes()} == {
        "a": "completed",
        "when_1": "completed",
        "b": "skipped",
        "c": "skipped",
        "d": "completed",
    }


def test_a_result_after_an_empty_group_waits_for_what_was_before_it(testing: TestingApp) -> None:
    testing.include(*ALL)
    g = Drawing()
    a = g.one("a")
    g.several("")
    g.result([a.output, g.several("").outputs])
    assert testing.speedrun(testing.start(g)).result() == ["a", []]


def test_a_graph_of_nothing_but_empty_groups_has_no_nodes(testing: TestingApp) -> None:
    g = Drawing()
    g.several("")
    with pytest.raises(DefinitionError, match="has no nodes"):
        testing.start(g)


def test_a_group_of_another_graph_is_refused_even_if_it_is_empty() -> None:
    other, g = Drawing().several(""), Drawing()
    with pytest.raises(DefinitionError, match="another graph"):
        g.one("a", depends_on=other)
    with pytest.raises(DefinitionError, match="another graph"):
        g.one("b") << other
    g.several("")
    with pytest.raises(DefinitionError, match="another graph"):
        g.node("c", job=summed, args={"numbers": other.outputs})


@pytest.mark.parametrize("items", [[], [1, 2]])
def test_what_follows_a_fan_out_never_begins_beside_what_precedes_it(apps: Apps, items: list[int]) -> None:
    g = Drawing()
    g.one("a")
    parts = g.fan_out(items, name=lambda i: f"p{i}", job=agive, args=lambda i: {"value": i})
    g.node("s", job=summed, args={"numbers": parts.outputs}, depends_on=parts)
    assert result(apps(*ALL).start(g)) == sum(items)
    assert (ran[0], sorted(ran[1:-1]), ran[-1]) == ("a", items, "sum")


def test_what_follows_a_spread_over_nothing_comes_after_what_precedes_it(apps: Apps) -> None:
    g = Drawing()
    a = g.node("a", job=give, args={"value": []})
    parts = g.spread("parts", over=a.output, job=agive, arg="value")
    g.node("s", job=summed, args={"numbers": parts.output})
    again = g.spread("again", over=[], job=agive, arg="value", depends_on=parts)
    b = g.one("b")
    again >> b
    assert result(apps(*ALL).start(g)) is None  # two sinks
    assert ran[0] == []
    assert sorted(ran[1:], key=str) == ["b", "sum"]


# -- Arrows --------------------------------------------------------------------------------------------


def test_arrows_point_both_ways() -> None:
    expected = edges("a b c<ab d<c")
    for draw in (
        lambda a, b, c, d: [a, b] >> c >> d,
        lambda a, b, c, d: d << c << [a, b],
        lambda a, b, c, d: (c << a, c << b, d << c),
        lambda a, b, c, d: ([c] << a, b >> [c], c >> d),
    ):
        g = Drawing()
        draw(*g.add("abcd"))
        assert g.needs() == expected


def test_it_does_not_matter_in_which_order_nodes_with_arrows_were_written() -> None:
    g = Drawing()
    d, c, b, a = g.add("dcba")
    a >> [b, c] >> d
    assert g.needs() == edges("a b<a c<a d<bc")


def test_two_chains_of_arrows_run_side_by_side() -> None:
    g = Drawing()
    a, b, c, d = g.add("abcd")
    a >> c
    b >> d
    assert g.needs() == edges("a b c<a d<b")


def test_groups_take_part_in_arrows() -> None:
    g = Drawing()
    a = g.one("a")
    parts = g.several("bc")
    d, e, f = g.add("def")
    a >> parts >> [d, e] >> f
    assert g.needs() == edges("a b<a c<a d<bc e<bc f<de")
    g = Drawing()
    parts, more = g.several("ab"), g.several("cd")
    parts >> more
    assert g.needs() == edges("a b c<ab d<ab")
    g = Drawing()
    parts = g.several("ab")
    c, d = g.add("cd")
    [parts, c] >> d
    assert g.needs() == edges("a b c d<abc")


def test_the_order_of_writing_holds_for_nodes_without_arrows() -> None:
    g = Drawing()
    _, b, c, d, _ = g.add("abcde")
    [b, c] >> d
    # b and c follow a, which no arrow touches; e follows d, which was written before it.
    assert g.needs() == edges("a b<a c<a d<bc e<d")


def test_arrows_add_to_depends_on_and_to_data() -> None:
    g = Drawing()
    a, b, c = g.add("abc")
    d = g.node("d", job=give, args={"value": a.output})
    e = g.one("e", depends_on=b)
    c >> [d, e]
    assert g.needs() == edges("a b<a c<b d<ac e<bc")


def test_arrows_stay_within_a_branch(testing: TestingApp) -> None:
    testing.include(*ALL)
    g = Drawing()
    a = g.one("a")
    with g.when(a.output == "b"):
        b, c = g.add("bc")
        c >> b
    with g.otherwise():
        pass
    assert g.needs()["b"] == {"when_1", "c"}
    run = testing.speedrun(testing.start(g))
    assert {node.name: node.state for node in run.nodes()}["b"] == "skipped"


def test_arrows_in_a_circle_are_refused_when_the_graph_is_started(testing: TestingApp) -> None:
    testing.include(*ALL)
    g = Drawing()
    a, b = g.add("ab")
    a >> b >> a
    with pytest.raises(GraphInvalid, match="depend on each other: b -> a -> b"):
        testing.start(g)


@pytest.mark.parametrize("wrong", ["b", 5, [5]])
def test_an_arrow_joins_nodes_and_nothing_else(wrong: Any) -> None:
    a = Drawing().one("a")
    with pytest.raises(DefinitionError, match="connect nodes of a graph"):
        a >> wrong
    with pytest.raises(DefinitionError, match="connect nodes of a graph"):
        a << wrong
    with pytest.raises(DefinitionError, match="connect nodes of a graph"):
        wrong >> a
    with pytest.raises(DefinitionError, match="connect nodes of a graph"):
        wrong << a


def test_an_arrow_does_not_lead_to_another_graph() -> None:
    a, b = Drawing().one("a"), Drawing().one("b")
    with pytest.raises(DefinitionError, match="another graph"):
        a >> b
    with pytest.raises(DefinitionError, match="another graph"):
        [a] << b
