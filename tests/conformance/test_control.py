"""Pause, resume, cancel, watch, note: from outside, while workers are at it."""

from collections.abc import Callable
from typing import Any

import pytest

from detent.errors import AlreadyRunning, InvalidState, RunNotFound
from detent.kernel.external_changes import Cancel, Change, Note, Pause, Resume
from detent.kernel.operations import Start, Verdict
from detent.kernel.rows import RunEnd
from detent.kernel.settle import Outcome
from detent.stores import store as store_module
from detent.stores.driver import Trouble, Tx
from detent.stores.store import Store
from detent.stores.verbs import control
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    begetting,
    claim,
    detail,
    enlist,
    events,
    executing,
    execution,
    for_child,
    for_message,
    held_open,
    is_seen_waiting,
    message,
    new_main,
    new_run,
    new_step,
    one,
    parking,
    recording,
    settling,
    spawning,
    start,
    state_of,
)

LATER = NOW + 60 * SECOND
FAILURE = '{"type":"E","message":"broken"}'


def pause(store: Store, run: str = "run") -> None:
    store.change(Pause(run, reason="looking into it"), now=NOW)


def cancel(store: Store, run: str = "run") -> list[str]:
    return store.change(Cancel(run, reason="changed our bound"), now=NOW + SECOND)


def failed(store: Store) -> None:
    main = executing(store)
    one(store, recording(main, new_step(key="ok", seq=1)))
    one(store, recording(main, new_step(key="broken", seq=2, state="failed", result=None, error=FAILURE)))
    one(store, settling(main, Outcome.FAILED, error=FAILURE))


# -- Pause and resume ------------------------------------------------------------------------------


def test_a_paused_run_is_not_claimed(store: Store) -> None:
    one(store, start())
    pause(store)
    assert (store.run("run").state, state_of(store)) == ("paused", "held")
    assert claim(store) == []
    [(_, event, text)] = store.history("run")
    assert (event, detail(text)) == ("paused", {"by": "operator", "reason": "looking into it"})


@pytest.mark.parametrize("state", ["ready", "timer", "parked"])
def test_resume_keeps_the_times(store: Store, state: str) -> None:
    due = {"ready": NOW, "timer": LATER, "parked": None}[state]
    one(store, Start(runs=[new_run()], executions=[new_main(state=state, scheduled_for=due)]))
    pause(store)
    store.change(Resume("run"), now=NOW + SECOND)
    assert (state_of(store), execution(store).scheduled_for) == (state, due)
    assert store.run("run").state == "ready"
    assert events(store) == ["paused", "resumed"]


def test_a_timer_that_came_due_during_the_pause_is_ready_on_resume(store: Store) -> None:
    one(store, Start(runs=[new_run()], executions=[new_main(state="timer", scheduled_for=LATER)]))
    pause(store)
    store.change(Resume("run"), now=LATER + SECOND)
    assert (state_of(store), execution(store).scheduled_for) == ("ready", LATER)


def test_what_executes_during_a_pause_ends_and_is_recorded(store: Store) -> None:
    main = executing(store)
    pause(store)
    assert state_of(store) == "executing"
    one(store, settling(main, result="1"))
    assert (store.run("run").state, store.run("run").result) == ("finished", "1")


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel"])
def test_a_verb_twice_is_an_invalid_state(store: Store, verb: str) -> None:
    one(store, start())
    if verb == "resume":
        pause(store)
    acts: dict[str, Callable[[], object]] = {
        "pause": lambda: pause(store),
        "resume": lambda: store.change(Resume("run"), now=NOW),
        "cancel": lambda: cancel(store),
    }
    act = acts[verb]
    act()
    with pytest.raises(InvalidState) as caught:
        act()
    assert (caught.value.verb, caught.value.run_id) == (verb, "run")


def test_what_is_not_there_cannot_be_controlled(store: Store) -> None:
    for act in (pause, cancel):
        with pytest.raises(RunNotFound):
            act(store, "nowhere")
    with pytest.raises(RunNotFound):
        store.change(Resume("nowhere"), now=NOW)


def test_of_two_resumes_at_once_one_is_refused(store: Store, rival: Store) -> None:
    one(store, start())
    pause(store)
    with store._writer.transaction() as tx:
        control.resume(tx, "run", now=NOW)
        attempt = Attempt(lambda: rival.change(Resume("run"), now=NOW))
        is_seen_waiting(attempt, store)
    with pytest.raises(InvalidState):
        attempt.result()
    assert events(store) == ["paused", "resumed"]


def test_resuming_what_failed_begins_a_new_attempt_with_a_fresh_budget(store: Store) -> None:
    failed(store)
    store.change(Resume("run"), now=NOW + 5 * SECOND)
    run, main = store.run("run"), execution(store)
    assert (run.state, run.error, run.finished_at) == ("ready", None, None)
    assert (main.attempt, main.state, main.failures, main.recoveries) == (2, "ready", 0, 0)


def test_resuming_sets_the_last_failure_aside_and_keeps_it_in_the_history(store: Store) -> None:
    failed(store)
    store.change(Resume("run"), now=NOW)
    assert [step.key for step in store.journal(["run"])["run"]] == ["ok"]
    aside = [detail(text) for _, event, text in store.history("run") if event == "set_aside"]
    assert aside == [{"step": "broken", "error": {"type": "E", "message": "broken"}}]


def test_resuming_what_an_exception_paused_tries_that_node_again(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a"))
    [piece] = claim(store)
    one(store, settling(piece, Outcome.PAUSED_BY_EXCEPTION, error=FAILURE))
    store.change(Resume("run"), now=NOW + SECOND)
    again = execution(store, node="a")
    assert (again.attempt, again.state) == (2, "ready")


def test_a_failure_that_the_workflow_has_seen_is_not_tried_again_by_pause_and_resume(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a"))
    [piece] = claim(store)
    one(store, settling(piece, Outcome.FAILED, error=FAILURE))
    pause(store)
    store.change(Resume("run"), now=NOW)
    assert (state_of(store, node="a"), execution(store, node="a").attempt) == ("failed", 1)


def test_resuming_what_was_undone_is_refused(store: Store) -> None:
    main = executing(store)
    one(store, recording(main, new_step(key="undo", kind="undo", state="waiting", result=None)))
    one(store, settling(main, Outcome.FAILED, error=FAILURE))
    with pytest.raises(InvalidState, match="undone"):
        store.change(Resume("run"), now=NOW)
    assert store.run("run").state == "failed"


def test_resuming_a_parent_resumes_its_failed_children(store: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    [child] = claim(store)
    one(store, settling(child, Outcome.FAILED, error=FAILURE))
    one(store, settling(main, Outcome.FAILED, error=FAILURE))
    store.change(Resume("run"), now=NOW + SECOND)
    assert (store.run("run").state, store.run("child").state) == ("ready", "ready")
    assert (state_of(store), state_of(store, "child")) == ("ready", "ready")


def test_a_failed_run_cannot_be_resumed_while_its_hero_has_another(store: Store) -> None:
    one(store, start("first", hero_type="Order", hero_id="7", exclusive=1))
    enlist(store, "w1")
    [claimed] = claim(store)
    one(store, settling(claimed, Outcome.FAILED, error=FAILURE))
    one(store, start("second", hero_type="Order", hero_id="7", exclusive=1))
    with pytest.raises(AlreadyRunning) as caught:
        store.change(Resume("first"), now=NOW)
    assert caught.value.run_id == "second"
    assert (store.run("first").state, state_of(store, "first")) == ("failed", "failed")


@pytest.mark.parametrize(
    "hero",
    [{}, {"hero_type": "Order", "hero_id": "7"}, {"hero_type": "Order", "hero_id": "7", "exclusive": 1}],
    ids=["no hero", "a hero with many runs", "the hero's only run"],
)
def test_another_unique_key_than_that_of_the_hero_is_not_reported_as_the_heros(
    store: Store, monkeypatch: pytest.MonkeyPatch, hero: dict[str, Any]
) -> None:
    one(store, start("first", **hero))
    pause(store, "first")

    def violate(tx: Tx, change: Change[Any], now: int) -> None:
        waits = "INSERT INTO detent_waits (target, run_id, node) VALUES ('first', 'first', 'main')"
        tx.run(waits)
        tx.run(waits)

    monkeypatch.setattr(store_module, "perform", violate)
    with pytest.raises(Exception) as caught:
        store.change(Resume("first"), now=NOW)
    assert store.driver.trouble(caught.value) is Trouble.UNIQUE
    assert store.run("first").state == "paused"


# -- Cancel ----------------------------------------------------------------------------------------


def test_a_canceled_run_leaves_nothing_scheduled(store: Store) -> None:
    main = executing(store)
    one(store, spawning(main, "a", "b"))
    one(store, parking(main, for_message(), wake_at=LATER))
    assert cancel(store) == ["run"]
    run = store.run("run")
    assert (run.state, run.finished_at) == ("canceled", NOW + SECOND)
    assert {(row.state, row.outcome) for row in store.executions("run")} == {
        ("canceled", "canceled_by_operator")
    }
    [(_, event, text)] = store.history("run")
    assert (event, detail(text)) == ("canceled", {"reason": "changed our bound"})


def test_a_paused_run_can_be_canceled(store: Store) -> None:
    one(store, start())
    pause(store)
    cancel(store)
    assert (store.run("run").state, state_of(store)) == ("canceled", "canceled")


def test_a_cancel_reaches_children_and_their_children(store: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    [child] = claim(store)
    one(store, begetting(child, "grandchild"))
    assert set(cancel(store)) == {"run", "child", "grandchild"}
    assert {store.run(run).state for run in ("run", "child", "grandchild")} == {"canceled"}
    assert state_of(store, "grandchild") == "canceled"
    assert state_of(store, "child") == "executing"


def test_a_cancel_leaves_finished_children_as_they_are(store: Store) -> None:
    main = executing(store)
    one(store, begetting(main, "child"))
    [child] = claim(store)
    one(store, settling(child, result="1"))
    assert cancel(store) == ["run"]
    assert store.run("child").state == "finished"


def test_what_has_a_compensation_is_woken_to_be_undone(store: Store) -> None:
    main = executing(store)
    one(store, recording(main, new_step(undo="refund")))
    one(store, spawning(main, "a"))
    one(store, parking(main, for_message(), wake_at=LATER))
    pause(store)
    cancel(store)
    assert (state_of(store), state_of(store, node="a")) == ("ready", "canceled")
    [claimed] = claim(store, now=NOW + SECOND)
    assert (claimed.node, claimed.run_state) == ("main", "canceled")


def test_a_cancel_beside_a_childs_birth_reaches_the_child(store: Store, rival: Store) -> None:
    main = executing(store)
    with held_open(store, begetting(main, "child")):
        attempt = Attempt(lambda: cancel(rival))
        is_seen_waiting(attempt, store)
    assert set(attempt.result()) == {"run", "child"}
    assert store.run("child").state == "canceled"


def test_a_cancel_beside_its_childs_settle_does_not_deadlock(store: Store, rival: Store) -> None:
    """The child's id comes before its parent's: only one order of locking suits both."""
    main = executing(store)
    one(store, begetting(main, "a-child"))
    [child] = claim(store)
    one(store, parking(main, for_child("a-child")))
    with held_open(store, settling(child, result="1")):
        attempt = Attempt(lambda: cancel(rival))
        is_seen_waiting(attempt, store)
    assert attempt.result() == ["run"]
    assert (store.run("a-child").state, store.run("run").state) == ("finished", "canceled")


def test_a_cancel_that_wins_over_a_message_refuses_it(store: Store) -> None:
    one(store, start())
    cancel(store)
    answer = one(store, message())
    assert isinstance(answer, InvalidState)
    assert (answer.verb, answer.state) == ("send to", "canceled")


def test_a_message_that_is_sent_again_after_the_end_of_its_run_was_delivered(store: Store) -> None:
    """Its sender did not see the first answer.  Another message is refused."""
    one(store, start())
    assert one(store, message()) == Verdict.APPLIED
    cancel(store)
    assert one(store, message()) == Verdict.APPLIED
    assert isinstance(one(store, message(message_id="m2")), InvalidState)


# -- Watch and note --------------------------------------------------------------------------------


def test_the_ends_of_many_runs_are_read_at_once(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("a", "b", "c", "d"))
    first, second = claim(store, limit=2)
    store.apply([settling(first, result="1"), settling(second, Outcome.FAILED, error=FAILURE)])
    pause(store, "c")
    ends = dict(store.ends(["a", "b", "c", "d", "nowhere"]))
    assert ends == {
        "a": RunEnd(state="finished", result="1"),
        "b": RunEnd(state="failed", error=FAILURE),
        "c": RunEnd(state="paused"),
    }
    assert store.ends([]) == []


def test_watching_twice_changes_nothing(store: Store) -> None:
    one(store, start())
    assert [store.watch(["run", "run", "nowhere"], among=["run"]) for _ in range(2)] == [[], []]


def test_a_watcher_either_sees_the_end_or_is_told_of_it(store: Store, rival: Store) -> None:
    main = executing(store)
    with held_open(store, settling(main, result="1")):
        attempt = Attempt(lambda: rival.watch(["run"], among=["run"]))
        is_seen_waiting(attempt, store)
    assert attempt.result() == [("run", RunEnd(state="finished", result="1"))]


def test_a_note_is_a_line_of_the_history_and_twice_is_two(store: Store) -> None:
    one(store, start())
    for _ in range(2):
        store.change(Note("run", "unasked", {"steps": ["a"]}), now=NOW)
    assert store.history("run") == [(NOW, "unasked", '{"steps":["a"]}')] * 2
