"""Anonymous steps: which of them have moved."""

from hypothesis import given
from hypothesis import strategies as st

from detent.kernel.anonymous import moved, places_moved
from detent.kernel.graph import Graph, Node, class_graph
from detent.kernel.heal import Past


def flow(*bodies: str) -> Graph:
    """A chain of anonymous steps; a body with a name before it is a named step."""
    nodes: dict[str, Node] = {}
    for body in bodies:
        name, _, text = body.rpartition("=")
        before = tuple(nodes)[-1:]
        id = name or f"step_{sum(key.startswith('step_') for key in nodes) + 1}"
        nodes[id] = Node(name=id, depends_on=before, body=None if name else text)
    return class_graph("Flow", nodes)


def done(*names: str) -> dict[str, Past]:
    return {name: Past(name, 1, "completed", "success") for name in names}


def test_one_that_was_inserted_before_moves_what_is_done() -> None:
    assert moved(flow("a"), flow("n", "a"), done("step_1")) == {"step_1": "step_2"}


def test_one_that_was_removed_before_moves_what_is_done() -> None:
    assert moved(flow("a", "b"), flow("b"), done("step_1")) == {"step_1": "step_2"}


def test_one_that_was_inserted_behind_moves_nothing() -> None:
    assert moved(flow("a"), flow("a", "n"), done("step_1")) == {}


def test_two_that_changed_places_have_moved() -> None:
    old, new = flow("a", "b"), flow("b", "a")
    assert old.signature != new.signature
    assert moved(old, new, done("step_1")) == {"step_1": "step_2"}


def test_an_edited_body_has_not_moved() -> None:
    assert moved(flow("a", "b"), flow("edited", "b"), done("step_1", "step_2")) == {}


def test_what_is_not_done_may_move() -> None:
    scheduled = {"step_1": Past("step_1", 1, "ready", None)}
    assert moved(flow("a"), flow("n", "a"), scheduled) == {}
    executing = {"step_1": Past("step_1", 1, "executing", None)}
    assert moved(flow("a"), flow("n", "a"), executing, mine="step_1") == {}
    assert moved(flow("a"), flow("n", "a"), executing) == {"step_1": "step_2"}


def test_bodies_that_are_alike_cannot_be_told_apart_and_need_not_be() -> None:
    assert moved(flow("a", "a"), flow("a", "a", "a"), done("step_1", "step_2")) == {}


def test_the_signature_of_a_class_without_anonymous_steps_has_no_bodies() -> None:
    assert not flow("x=a", "y=b").anonymous
    assert flow("x=a").signature == class_graph("Flow", {"x": Node(name="x")}).signature


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdef"), unique=True))
def test_a_name_that_keeps_its_body_has_not_moved(old: list[str], new: list[str]) -> None:
    found = places_moved(flow(*old), flow(*new))
    for number, (before, now) in enumerate(zip(old, new, strict=False), start=1):
        assert (f"step_{number}" in found) == (before != now and (before in new or now in old))
