"""Layouts: nodes never overlap, edges go down, folding keeps everything; timelines stay on their scale."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.dashboard.drawing.folding import MOST, fold
from detent.dashboard.drawing.layout import GAP_X, Box, CyclicGraph, Layout, place
from detent.dashboard.drawing.timeline import WIDTH, Span, timeline
from detent.kernel.drawing import Drawn, Seen, folded


@st.composite
def graphs(draw: st.DrawFn) -> list[Box]:
    size = draw(st.integers(0, 24))
    boxes = []
    for n in range(size):
        needs = draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set()
        width = float(draw(st.integers(20, 200)))
        boxes.append(Box(str(n), width, 40.0, tuple(map(str, sorted(needs)))))
    return draw(st.permutations(boxes))


def overlaps(layout: Layout) -> list[tuple[str, str]]:
    rows: dict[int, list[tuple[float, float, str]]] = {}
    for node in layout.nodes:
        rows.setdefault(node.layer, []).append((node.x, node.x + node.width, node.id))
    found = []
    for row in rows.values():
        row.sort()
        found += [(a[2], b[2]) for a, b in itertools.pairwise(row) if b[0] < a[1] + GAP_X - 0.2]
    return found


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_nodes_do_not_overlap_and_edges_go_down(boxes: list[Box]) -> None:
    layout = place(boxes)
    assert {node.id for node in layout.nodes} == {box.id for box in boxes}
    assert overlaps(layout) == []
    spots = {node.id: node for node in layout.nodes}
    assert len(layout.edges) == sum(len(box.needs) for box in boxes)
    for edge in layout.edges:
        assert spots[edge.source].layer < spots[edge.target].layer
        heights = [y for _, y in edge.points]
        assert heights == sorted(heights)
        assert heights[0] == spots[edge.source].y + 40
        assert heights[-1] == spots[edge.target].y
    for node in layout.nodes:
        assert node.x >= 0
        assert node.x + node.width <= layout.width + 0.2
        assert node.y + node.height <= layout.height + 0.2


@given(graphs())
@settings(max_examples=30, deadline=None)
def test_the_same_graph_has_the_same_layout(boxes: list[Box]) -> None:
    assert place(boxes) == place(list(boxes))


def test_two_chains_that_are_given_crosswise_do_not_cross() -> None:
    boxes = [Box("a", 50, 40), Box("b", 50, 40), Box("b2", 50, 40, ("b",)), Box("a2", 50, 40, ("a",))]
    spots = {node.id: node.x for node in place(boxes).nodes}
    assert (spots["a"] < spots["b"]) == (spots["a2"] < spots["b2"])


def test_a_cycle_is_an_error() -> None:
    with pytest.raises(CyclicGraph):
        place([Box("a", 10, 10, ("b",)), Box("b", 10, 10, ("a",))])


def test_a_join_lies_below_the_middle_of_what_it_needs() -> None:
    boxes = [Box("top", 60, 40), *(Box(f"m{n}", 60, 40, ("top",)) for n in range(3))]
    boxes.append(Box("join", 60, 40, ("m0", "m1", "m2")))
    spots = {node.id: node.x for node in place(boxes).nodes}
    assert abs(spots["join"] - spots["m1"]) < 1
    assert abs(spots["top"] - spots["m1"]) < 1


def test_a_thousand_nodes_are_placed() -> None:
    boxes = [
        Box(f"{layer}-{n}", 120, 40, (f"{layer - 1}-{n}", f"{layer - 1}-{(n + 1) % 25}") if layer else ())
        for layer in range(40)
        for n in range(25)
    ]
    layout = place(boxes)
    assert len(layout.nodes) == 1000
    assert overlaps(layout) == []


def test_a_fan_out_of_ten_thousand_is_one_node_with_its_progress() -> None:
    seen = [Seen("start", "start", "job", "completed", ())]
    seen += [
        Seen(f"i{n}", f"item_{n}", "job", "completed" if n % 2 else "executing", ("start",))
        for n in range(10_000)
    ]
    seen.append(Seen("end", "end", "job", "pending", tuple(f"i{n}" for n in range(10_000))))
    found = fold(folded(seen))
    assert len(found) == 3
    [many] = [node for node in found if node.states]
    assert many.states == {"completed": 5000, "executing": 5000}


@pytest.mark.parametrize("shape", ["chain", "grid"])
def test_ten_thousand_nodes_are_folded_to_what_a_browser_can_draw(shape: str) -> None:
    if shape == "chain":
        drawn = [Drawn(str(n), f"s{n}", "completed", (str(n - 1),) if n else ()) for n in range(10_000)]
    else:
        drawn = [
            Drawn(f"{y}-{x}", "s", "completed", (f"{y - 1}-{x}", f"{y - 1}-{(x + 1) % 100}") if y else ())
            for y in range(100)
            for x in range(100)
        ]
    found = fold(drawn)
    assert len(found) <= MOST
    assert sum(sum(node.states.values()) if node.states else 1 for node in found) == 10_000
    layout = place([Box(node.id, 100, 40, node.needs) for node in found])
    assert overlaps(layout) == []


# -- Timelines -----------------------------------------------------------------------------------------

moments = st.floats(0, 100_000, allow_nan=False)


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    found = []
    for n in range(draw(st.integers(0, 12))):
        a, b, c = sorted(draw(st.tuples(moments, moments, moments)))
        ended = draw(st.sampled_from([c, None]))
        found.append(Span(f"r{n % 5}", "x", "completed", 1, a, b, ended, waits=draw(st.booleans())))
    return found


@given(spans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_bar_lies_on_the_scale(given_spans: list[Span], fold_idle: bool) -> None:
    drawn = timeline(given_spans, begin=0.0, end=100_000.0, fold=fold_idle)
    for row in drawn.rows:
        for bar in row.bars:
            assert -0.01 <= bar.x <= bar.x + bar.width <= WIDTH + 0.5
            assert bar.seconds >= 0
    places = [tick.x for tick in drawn.ticks]
    assert places == sorted(places)
    assert len(places) < 20


def test_an_idle_night_is_folded_and_its_length_is_told() -> None:
    night = 8 * 3600.0
    work = [
        Span("a", "a", "completed", 1, None, 0.0, 10.0),
        Span("b", "b", "completed", 1, None, night, night + 10),
    ]
    drawn = timeline(work, begin=0.0, end=night + 10)
    [fold_] = drawn.folds
    assert fold_.seconds == pytest.approx(night - 10)
    assert drawn.rows[0].bars[0].width > 300
    unfolded = timeline(work, begin=0.0, end=night + 10, fold=False)
    assert unfolded.folds == ()
    assert unfolded.rows[0].bars[0].width < 5


def test_waiting_in_the_queue_is_a_bar_of_its_own() -> None:
    drawn = timeline([Span("a", "a", "completed", 1, 0.0, 4.0, 10.0)], begin=0.0, end=10.0)
    assert [(bar.kind, bar.seconds) for bar in drawn.rows[0].bars] == [("queue", 4.0), ("run", 6.0)]
