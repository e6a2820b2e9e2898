"""Ancestry: a chain of hashes that shows what came before what, and where somebody has meddled."""

import hashlib
from base64 import urlsafe_b64encode
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from detent.kernel.ancestry import ancestry_hash, verify
from detent.kernel.graph import SPREAD, VERSION, Document, Graph, Node, class_graph
from detent.kernel.rows import ExecutionRow

RUN = "run"
DIAMOND = class_graph(
    "flow",
    {
        "a": Node(name="a"),
        "b": Node(name="b", depends_on=("a",)),
        "c": Node(name="c", depends_on=("a",)),
        "d": Node(name="d", depends_on=("b", "c")),
    },
)


def row(node: str, attempt: int = 1, *parents: str, at: int = 0, **given: Any) -> ExecutionRow:
    """A settled execution, with the hash that it should have."""
    fields: dict[str, Any] = {
        "run_id": RUN,
        "node": node,
        "attempt": attempt,
        "kind": "node",
        "job": "x",
        "queue": "default",
        "state": "completed",
        "outcome": "success",
        "scheduled_for": 0,
        "worker": None,
        "recoveries": 0,
        "failures": 0,
        "result": None,
        "error": None,
        "created_at": 0,
        "started_at": 0,
        "finished_at": at,
    }
    fields |= given
    if "ancestry_hash" not in fields:
        facts = {name: fields[name] for name in ("job", "outcome", "result", "error")}
        fields["ancestry_hash"] = ancestry_hash(RUN, node, attempt, parents, **facts)
    return ExecutionRow(**fields)


def digest(
    run_id: str,
    node: str,
    attempt: int,
    parents: list[str],
    *,
    job: str = "x",
    outcome: str = "success",
    result: str | None = None,
    error: str | None = None,
) -> str:
    return ancestry_hash(run_id, node, attempt, parents, job=job, outcome=outcome, result=result, error=error)


def failed(node: str, attempt: int = 1) -> ExecutionRow:
    return row(node, attempt, state="failed", outcome="reattempted_by_exception", ancestry_hash=None)


def hash_of(row: ExecutionRow) -> str:
    assert row.ancestry_hash is not None
    return row.ancestry_hash


def story() -> list[ExecutionRow]:
    """The diamond, where `c` took two attempts."""
    a = row("a", at=1)
    b = row("b", 1, hash_of(a), at=2)
    c = row("c", 2, hash_of(a), at=3)
    d = row("d", 1, hash_of(b), hash_of(c), at=4)
    return [a, b, failed("c"), c, d]


def broken(rows: list[ExecutionRow], *graphs: Graph) -> list[str]:
    return [one.node for one in verify(RUN, graphs or (DIAMOND,), rows)]


def test_a_hash_is_stable() -> None:
    """It is stored for ever: another way to compute it would call every old run tampered with."""
    text = '["run","a",1,"x","success","7",null,["x","y"]]'
    hashed = urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().removesuffix("=")
    assert digest("run", "a", 1, ["y", "x"], result="7") == f"2:{hashed}"
    assert digest("run", "a", 1, ["y", "x"], result="7").startswith("2:YMKtmDhy")
    assert len(hashed) == 43  # the column of MySQL holds 64 characters


def test_every_part_of_it_counts() -> None:
    hashes = [
        digest("run", "a", 1, []),
        digest("other", "a", 1, []),
        digest("run", "b", 1, []),
        digest("run", "a", 2, []),
        digest("run", "a", 1, ["x"]),
        digest("run", "a", 1, ["x", "y"]),
        digest("run", "a", 1, [], job="y"),
        digest("run", "a", 1, [], outcome="skipped_by_exception"),
        digest("run", "a", 1, [], result="null"),
        digest("run", "a", 1, [], error="null"),
    ]
    assert len(set(hashes)) == len(hashes)


def test_the_order_of_parents_does_not_count() -> None:
    assert digest("run", "a", 1, ["x", "y"]) == digest("run", "a", 1, ["y", "x"])


def test_no_two_stories_look_alike() -> None:
    assert digest("run", 'a",1,["x"', 1, []) != digest("run", "a", 1, ["x"])


def test_hashes_of_the_first_version_stay_verifiable() -> None:
    """[run, node, attempt, parents] in hex, without a prefix; what settles later continues the chain."""

    def first(node: str, attempt: int, *parents: str) -> str:
        text = msgspec.json.encode([RUN, node, attempt, sorted(parents)])
        return hashlib.sha256(text).hexdigest()

    a = row("a", at=1, ancestry_hash=first("a", 1))
    b = row("b", 1, at=2, ancestry_hash=first("b", 1, hash_of(a)))
    c = row("c", 1, hash_of(a), at=3)
    d = row("d", 1, hash_of(b), hash_of(c), at=4)
    assert broken([a, b, c, d]) == []
    assert broken([replace(a, result="2"), b, c, d]) == []  # not covered by that version
    assert broken([a, replace(b, attempt=2), c, d]) == ["b"]
    assert broken([a, b, replace(c, result="2"), d]) == ["c"]


@pytest.mark.parametrize(
    "change",
    [
        {"result": '"more"'},
        {"outcome": "skipped_by_exception"},
        {"error": '{"type": "E"}'},
        {"job": "another"},
    ],
    ids=["result", "outcome", "error", "job"],
)
def test_whoever_changes_what_an_execution_did_is_found(change: dict[str, Any]) -> None:
    rows = story()
    rows[1] = replace(rows[1], **change)
    assert broken(rows) == ["b"]


def test_a_run_that_nobody_has_touched_holds() -> None:
    assert broken(story()) == []
    assert broken(story()[:2]) == []
    assert broken([]) == []


@pytest.mark.parametrize(
    ("place", "change", "expected"),
    [
        (0, {"attempt": 2}, ["a"]),
        (0, {"ancestry_hash": "0" * 64}, ["a", "b", "c"]),
        (1, {"ancestry_hash": None}, ["b", "d"]),
        (3, {"attempt": 1}, ["c"]),
        (3, {"ancestry_hash": "0" * 64}, ["c", "d"]),
        (4, {"node": "b2"}, ["b2"]),
        (4, {"ancestry_hash": ""}, ["d"]),
    ],
)
def test_whoever_changes_a_row_breaks_the_chain_there(
    place: int, change: dict[str, Any], expected: list[str]
) -> None:
    rows = story()
    rows[place] = replace(rows[place], **change)
    assert broken(rows) == expected


@pytest.mark.parametrize(("place", "expected"), [(0, ["b", "c"]), (1, ["d"]), (3, ["d"])])
def test_whoever_takes_a_row_away_breaks_the_chain_behind_it(place: int, expected: list[str]) -> None:
    rows = story()
    del rows[place]
    assert broken(rows) == expected


def test_whoever_says_that_a_failed_attempt_had_completed_is_found() -> None:
    rows = story()
    rows[2] = replace(rows[2], state="completed", outcome="success")
    assert "c" in broken(rows)


def test_a_break_tells_both_hashes() -> None:
    rows = story()
    rows[4] = replace(rows[4], ancestry_hash="2:0")
    [one] = verify(RUN, (DIAMOND,), rows)
    assert (one.node, one.attempt, one.stored, one.expected) == ("d", 1, "2:0", hash_of(story()[4]))


def spread(*needs: str) -> Graph:
    before = {need: Node(name=need, job="x") for need in needs}
    return Graph(
        Document(
            version=VERSION,
            nodes={**before, "s": Node(name="s", kind=SPREAD, job="x", arg="i", depends_on=needs)},
        ),
        "signature",
    )


def test_a_spread_is_the_child_of_its_items_and_they_of_what_it_needs() -> None:
    a = row("a", at=1)
    items = [row(f"s[{index}]", 1, hash_of(a), at=2 + index) for index in range(3)]
    whole = row("s", 1, *map(hash_of, items), at=9, kind="inline")
    assert broken([a, *items, whole], spread("a")) == []
    assert broken([a, *items[1:], whole], spread("a")) == ["s"]


def test_a_spread_of_nothing_is_the_child_of_what_it_needs() -> None:
    a = row("a", at=1)
    assert broken([a, row("s", 1, hash_of(a), at=2, kind="inline")], spread("a")) == []
    assert broken([a, row("s", 1, at=2, kind="inline")], spread("a")) == ["s"]


def test_a_run_that_was_healed_holds_under_the_graphs_it_had() -> None:
    other = class_graph("flow", {"a": Node(name="a"), "d": Node(name="d", depends_on=("a",))})
    a = row("a", at=1)
    rows = [a, row("d", 1, hash_of(a), at=2)]
    assert broken(rows, DIAMOND, other) == []
    assert broken([*rows, row("b", 1, hash_of(a), at=3)], DIAMOND) == ["d"]


def test_a_node_that_was_skipped_because_it_is_gone_holds() -> None:
    rest = class_graph("flow", {"a": Node(name="a")})
    a = row("a", at=1)
    assert broken([a, row("b", 2, at=2, state="skipped", outcome="skipped_by_operator")], DIAMOND, rest) == []
