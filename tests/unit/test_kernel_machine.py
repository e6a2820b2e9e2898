"""The state machine of a decider: what is declared, what was seen, the difference, the drawings."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from detent.definitions.deciders import plan_decider
from detent.execution.bound_decider import LoadedDecider
from detent.kernel.decide import EventRow
from detent.kernel.machine import HistoryStep, Sightings, StateMachineView, Trace, TransitionInfo, compare
from detent.serialization.codec import Codec
from tests.deciders.declared import Order

CREATE = TransitionInfo("new", "Create", "created", effects=("SendEmail",), timers=("PaymentTimeout",))
PAY = TransitionInfo("created", "Pay", "paid")


def view(*declared: TransitionInfo, seen: Sightings | None = None, initial: str = "new") -> StateMachineView:
    return compare("order", initial=initial, declared=declared, seen=seen or Sightings())


def sightings(*steps: tuple[str, str, str], terminal: str = "") -> Sightings:
    seen = Sightings()
    for step in steps:
        seen.add(*step, terminal=step[2] == terminal)
    return seen


def test_what_is_seen_is_counted_on_what_is_declared() -> None:
    create = ("new", "Create", "created")
    [edge] = view(CREATE, seen=sightings(create, create)).declared
    assert (edge.count, edge.declared, edge.effects, edge.timers) == (
        2,
        True,
        ("SendEmail",),
        ("PaymentTimeout",),
    )


def test_what_happened_and_is_not_declared_is_the_one_difference() -> None:
    seen = sightings(("new", "Create", "created"), ("created", "Pay", "created"))
    assert [edge.key for edge in view(CREATE, PAY, seen=seen).undeclared] == [("created", "Pay", "created")]


def test_what_is_declared_and_never_happened_is_the_other_difference() -> None:
    seen = sightings(("new", "Create", "created"))
    assert [edge.key for edge in view(CREATE, PAY, seen=seen).unseen] == [PAY.key]


def test_a_decider_that_declares_nothing_contradicts_nothing() -> None:
    found = view(seen=sightings(("new", "Create", "created")))
    assert (found.declared, found.undeclared) == ((), ())
    assert [edge.key for edge in found.observed] == [("new", "Create", "created")]
    assert "#d64545" not in found.to_dot()


def test_one_transition_that_is_declared_twice_is_one() -> None:
    again = TransitionInfo("new", "Create", "created", effects=("Log",))
    [edge] = view(CREATE, again).declared
    assert edge.effects == ("SendEmail", "Log")


def test_the_end_is_where_instances_ended_or_where_a_declaration_ends() -> None:
    seen = sightings(("new", "Create", "created"), ("created", "Fail", "broken"), terminal="broken")
    ends = {state.status: state.terminal for state in view(CREATE, PAY, seen=seen).states}
    assert ends == {"new": False, "created": False, "paid": True, "broken": True}


def test_a_status_that_instances_were_in_and_stayed_is_no_end() -> None:
    seen = sightings(("new", "Create", "created"))
    assert not any(state.terminal for state in view(CREATE, seen=seen).states)


def test_the_initial_status_is_known_even_if_nothing_is() -> None:
    [state] = view().states
    assert (state.status, state.initial, state.seen) == ("new", True, False)


# -- Following the events of an instance --------------------------------------------------------------


def event(number: int, type: str, cause: str, turn: str, data: str = "{}") -> EventRow:
    return EventRow(
        run_id="order:o-1",
        sequence=number,
        position=number,
        decider="order",
        type=type,
        version=1,
        data=data,
        cause=cause,
        turn=turn,
        happened_at=number,
    )


ROWS = [
    event(1, "Created", "Create", "a", '{"email":"a@b"}'),
    event(2, "Paid", "Pay", "b", '{"amount":5}'),
    event(3, "detent.TimerCancelled", "Pay", "b", '{"key":"payment"}'),
    event(4, "Packed", "Ship", "c"),
    event(5, "Shipped", "Ship", "c"),
]


def trace() -> Trace:
    plan = plan_decider(Order)
    assert plan is not None
    return Trace(LoadedDecider(plan, Codec(), "default"))


def followed(*pages: list[EventRow]) -> Iterator[HistoryStep]:
    following = trace()
    for page in pages:
        yield from following.feed(page)
    yield from following.end()


def test_the_events_of_one_decision_are_one_step() -> None:
    steps = [(step.source, step.cause, step.target) for step in followed(ROWS)]
    assert steps == [("new", "Create", "created"), ("created", "Pay", "paid"), ("paid", "Ship", "shipped")]
    assert [step.terminal for step in followed(ROWS)] == [False, False, True]


def test_a_cancelled_timer_stands_in_its_step_and_changes_no_status() -> None:
    [_, paid, _] = followed(ROWS)
    assert (paid.sequence, paid.events) == (2, ("Paid", "detent.TimerCancelled"))


@pytest.mark.parametrize("cut", range(len(ROWS) + 1))
def test_a_decision_that_two_pages_share_is_one_step(cut: int) -> None:
    assert list(followed(ROWS[:cut], ROWS[cut:])) == list(followed(ROWS))


def test_two_decisions_of_one_input_are_two_steps() -> None:
    rows = [ROWS[0], event(2, "Mailed", "MailSent", "b"), event(3, "Mailed", "MailSent", "c")]
    assert [step.sequence for step in followed(rows)] == [1, 2, 3]


# -- Drawing ------------------------------------------------------------------------------------------


def test_mermaid_draws_beginning_end_and_counts() -> None:
    seen = sightings(("new", "Create", "created"), ("created", "Pay", "paid"), terminal="paid")
    assert view(CREATE, PAY, seen=seen).to_mermaid().splitlines() == [
        "stateDiagram-v2",
        '    state "new" as s0',
        '    state "created" as s1',
        '    state "paid" as s2',
        "    [*] --> s0",
        "    s0 --> s1 : Create × 1<br/>effect SendEmail<br/>timer PaymentTimeout",
        "    s1 --> s2 : Pay × 1",
        "    s2 --> [*]",
    ]


def test_mermaid_says_what_was_never_seen_and_what_is_not_declared() -> None:
    seen = sightings(("new", "Create", "created"), ("created", "Fail", "broken"))
    text = view(CREATE, PAY, seen=seen).to_mermaid()
    assert "    s1 --> s2 : Pay<br/>(never seen)" in text
    assert "    s1 --> s3 : Fail × 1<br/>! not declared" in text
    assert re.search(r"class s2 unseen\n.*class s3 undeclared\n", text, re.DOTALL)


def test_dot_dashes_what_was_never_seen_and_reddens_what_is_not_declared() -> None:
    seen = sightings(("new", "Create", "created"), ("created", "Fail", "broken"), terminal="broken")
    lines = view(CREATE, PAY, seen=seen).to_dot().splitlines()
    [create, pay, fail] = [line for line in lines if "-> s" in line and "begin" not in line]
    assert "dashed" not in create
    assert "Create × 1\\neffect SendEmail" in create
    assert "style=dashed" in pay
    assert 'color="#d64545"' in fail
    assert "    begin -> s0;" in lines
    assert any('"broken"' in line and "peripheries=2" in line for line in lines)


ODD = [
    "end",
    "state",
    "[*]",
    'say "hi"',
    "a: b; c",
    "two\nlines",
    "a --> b",
    "naïve 状態",
    "%% {x}",
    "#quot;",
    "\\",
    "Direction  LR",
    "<<fork>>",
]


@pytest.mark.parametrize("status", ODD)
def test_a_status_may_be_any_text_in_mermaid(status: str) -> None:
    text = view(TransitionInfo(status, status, "done"), initial=status).to_mermaid()
    [_, odd, _, _, arrow, *_] = text.splitlines()
    shown = re.fullmatch(r'    state "(.*)" as s0', odd)
    assert shown is not None
    assert unmermaid(shown[1]) == status
    label = re.fullmatch(r"    s0 --> s1 : ([^:;]*(?:#\d+;[^:;]*)*)", arrow)
    assert label is not None
    assert unmermaid(label[1].removesuffix("<br/>(never seen)")) == status


def test_a_status_may_be_empty() -> None:
    assert 'state "(empty)" as s0' in view(initial="").to_mermaid()


def unmermaid(text: str) -> str:
    """What Mermaid shows for it: entities by number, a break for <br/>; nothing else is special."""
    assert not set(re.sub(r"#\d+;|<br/>", "", text)) & set('"#;:<>{}[]%\\')
    assert re.search(r"direction\s", text, re.IGNORECASE) is None
    return re.sub(r"#(\d+);", lambda found: chr(int(found[1])), text.replace("<br/>", "\n"))


@pytest.mark.parametrize("status", ODD)
def test_a_status_may_be_any_text_in_dot(status: str) -> None:
    lines = view(TransitionInfo(status, status, "done"), initial=status).to_dot().splitlines()
    label = re.match(r'    s0 \[label="((?:[^"\\]|\\.)*)", style="rounded,dashed"', lines[3])
    assert label is not None
    assert (
        label[1].replace("\\\\", "\0").replace('\\"', '"').replace("\\n", "\n").replace("\0", "\\") == status
    )
