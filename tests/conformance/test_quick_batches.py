"""The commonest batches: starts, records and ends of functions, however they are sent."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from detent.kernel.external_changes import Pause
from detent.kernel.operations import Operation, Verdict
from detent.kernel.queues import KEYLESS
from detent.kernel.rows import Lease
from detent.kernel.settle import Outcome
from detent.stores.batch.apply import Applied, take_lease
from detent.stores.driver import Line, Trouble
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    claim,
    enlist,
    everything,
    executing,
    execution,
    new_step,
    one,
    recording,
    settling,
    start,
    state_of,
)


@pytest.fixture
def mixed(store: Store) -> list[Operation]:
    """A start, the record of a step, and the end of another run."""
    enlist(store, "w1")
    first, second = executing(store, "one"), executing(store, "two")
    return [start("three"), recording(first, new_step("one")), settling(second, waited=False)]


def test_a_batch_of_all_three_kinds_is_applied(store: Store, mixed: list[Operation]) -> None:
    started, recorded, ended = store.apply(mixed).answers
    assert started[0].created
    assert recorded is Verdict.APPLIED
    assert ended.verdict is Verdict.APPLIED
    assert [step.key for step in store.journal(["one"])["one"]] == ["charge"]
    assert state_of(store, "two") == "completed"
    assert state_of(store, "three") == "ready"


@pytest.mark.parametrize("kinds", ["ends", "all"])
def test_a_quick_batch_is_one_round_trip_to_a_server(
    store: Store, mixed: list[Operation], kinds: str
) -> None:
    if store.dialect == "sqlite":
        return
    session = store._writer._open().session
    before = session.asked
    store.apply(mixed if kinds == "all" else mixed[2:])
    assert session.asked == before + 1


def test_a_batch_that_cannot_be_committed_raises_and_changes_nothing(
    store: Store, mixed: list[Operation]
) -> None:
    if store.dialect != "postgres":  # the others send the commit by itself
        return
    before = everything(store)
    with failing_commits(store), pytest.raises(Exception, match="not today"):
        store.apply(mixed)
    assert everything(store) == before
    assert store.apply(mixed).answers[1] is Verdict.APPLIED


def test_more_runs_than_one_statement_takes_start_record_and_end_together(store: Store) -> None:
    enlist(store, "w1")
    runs = [f"run{number:03}" for number in range(300)]
    one(store, start(*runs))
    held = claim(store, "w1", limit=300)
    later = start(*(f"later{number:03}" for number in range(300)))
    batch: list[Operation] = [later]
    batch += [recording(row, new_step(row.run_id, result="1")) for row in held]
    batch += [settling(row, waited=False, result=f'"{row.run_id}"') for row in held]
    answers = store.apply(batch).answers
    assert [started.created for started in answers[0]] == [True] * 300
    assert answers[1:301] == [Verdict.APPLIED] * 300
    assert {settled.verdict for settled in answers[301:]} == {Verdict.APPLIED}
    assert [store.run(run).result for run in ("run000", "run299")] == ['"run000"', '"run299"']
    assert sum(len(steps) for steps in store.journal(runs).values()) == 300


def test_a_start_of_which_the_worker_has_room_for_a_part_is_a_quick_batch(store: Store) -> None:
    enlist(store, "w1")
    both = start("ours", "another's")
    take_lease(both.executions[0], Lease(worker="w1", token="t"))
    assert store.driver.quick([both], helpers_wanted=False) is not None
    assert store.apply([both]).made_ready
    assert [execution(store, run).worker for run in ("ours", "another's")] == ["w1", None]
    assert [state_of(store, run) for run in ("ours", "another's")] == ["executing", "ready"]


def test_a_start_on_a_queue_with_keys_takes_turns_with_the_keys(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.driver, "keyed", frozenset({"default"}))
    one(store, start("run"))
    with store._reading() as tx:
        assert tx.query("SELECT queue_key FROM detent_executions") == [(KEYLESS,)]


def test_a_run_that_was_paused_does_not_keep_others_of_its_batch_from_their_ends(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("one", "two"))
    first, second = claim(store, "w1", limit=2)
    store.change(Pause(first.run_id), now=NOW)
    settled = store.apply([settling(first, waited=False), settling(second, waited=False)]).answers
    assert [answer.verdict for answer in settled] == [Verdict.APPLIED, Verdict.APPLIED]
    assert store.run(second.run_id).state == "finished"


def test_an_end_under_a_stale_token_does_not_keep_others_of_its_batch_from_their_ends(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("one", "two"))
    first, second = claim(store, "w1", limit=2)
    stale = settling(replace(first, token="another"), waited=False)
    batch = [
        start("three"),
        recording(second, new_step(second.run_id)),
        stale,
        settling(second, waited=False),
    ]
    started, recorded, refused, ended = store.apply(batch).answers
    assert (started[0].created, recorded, ended.verdict) == (True, Verdict.APPLIED, Verdict.APPLIED)
    assert refused.verdict is Verdict.STALE
    assert [state_of(store, run) for run in ("one", "two", "three")] == ["executing", "completed", "ready"]
    assert [store.run(run).state for run in ("one", "two")] == ["ready", "finished"]


def test_a_batch_of_a_worker_declared_dead_ends_and_records_nothing(
    store: Store, mixed: list[Operation]
) -> None:
    store.reap("w1", max_recoveries=5, now=NOW)
    started, recorded, ended = store.apply(mixed).answers
    assert started[0].created
    assert (recorded, ended.verdict) == (Verdict.STALE, Verdict.STALE)
    assert store.journal(["one"])["one"] == []
    assert [state_of(store, run) for run in ("one", "two", "three")] == ["ready"] * 3


@pytest.fixture
def long(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """The operations that go the long way."""
    found: list[Operation] = []
    slowly = type(store)._slowly

    def noted(self: Store, operations: Sequence[Operation], *rest: Any) -> Applied:
        found.extend(operations)
        return slowly(self, operations, *rest)

    monkeypatch.setattr(type(store), "_slowly", noted)
    return found


def test_the_end_of_a_run_that_another_process_waits_for_needs_no_long_way(
    store: Store, mixed: list[Operation], long: list[Operation]
) -> None:
    store.watch(["two"], among=[])
    assert store.apply(mixed).answers[2].verdict is Verdict.APPLIED
    assert (long, store.run("two").state) == ([], "finished")


def test_the_end_of_a_run_that_a_node_of_another_waits_for_goes_the_long_way(
    store: Store, mixed: list[Operation], long: list[Operation]
) -> None:
    with store._writer.transaction() as tx:
        tx.run("UPDATE detent_runs SET watched = 2 WHERE id = 'two'")
    assert store.apply(mixed).answers[2].verdict is Verdict.APPLIED
    assert mixed[2] in long


def test_an_id_that_is_taken_refuses_the_whole_batch(store: Store, mixed: list[Operation]) -> None:
    one(store, start("three"))
    before = everything(store)
    with pytest.raises(Exception) as caught:
        store.apply(mixed)
    assert store.driver.trouble(caught.value) is Trouble.UNIQUE
    assert everything(store) == before


def ended_run(store: Store, line: Line, outcome: Outcome) -> list[str]:
    """The rows of a run that has started, recorded a step and ended."""
    one(store, start("run"))
    [claimed] = claim(store, "w1")
    end: dict[str, Any] = {"error": '{"message":"no"}'} if outcome is Outcome.FAILED else {"result": '"it"'}
    store.apply([recording(claimed, new_step()), settling(claimed, outcome, waited=False, **end)], line=line)
    with store._writer.transaction() as tx:
        tables = ("runs", "executions", "steps")
        rows = [repr(row) for table in tables for row in tx.query(f"SELECT * FROM detent_{table}")]
        for table in tables:
            tx.run(f"DELETE FROM detent_{table}")
    return [row.replace(claimed.token, "token") for row in rows]


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILED])
def test_both_ways_of_ending_write_the_same_rows(store: Store, outcome: Outcome) -> None:
    enlist(store, "w1")
    quick = ended_run(store, Line.MAIN, outcome)
    assert quick == ended_run(store, Line.SPLIT, outcome)
    assert len(quick) == 3


HOSTILE = "'; DROP TABLE detent_runs; -- \\' \"`\\ %(rows)s {rows} ? $1 \u00bf'\u7e17\U0001f600\n'"


def test_quotes_and_backslashes_are_only_text(store: Store) -> None:
    enlist(store, "w1")
    text = json.dumps(HOSTILE)
    runs = [f"{HOSTILE}{number}" for number in range(2)]
    one(store, start(*runs, input=text))
    held = claim(store, "w1", limit=2)
    assert [row.run_input for row in held] == [text, text]
    batch: list[Operation] = [start("later", input=HOSTILE)]
    batch += [recording(row, new_step(row.run_id, HOSTILE, result=text)) for row in held]
    batch += [settling(row, waited=False, result=f"{HOSTILE} of {row.run_id}") for row in held]
    assert [answer.verdict for answer in store.apply(batch).answers[3:]] == [Verdict.APPLIED] * 2
    assert [store.run(run).result for run in runs] == [f"{HOSTILE} of {run}" for run in runs]
    assert {step.key for steps in store.journal(runs).values() for step in steps} == {HOSTILE}
    assert store.run("later").input == HOSTILE


def test_executions_of_several_attempts_end_in_one_batch(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("one", "two"))
    with store._writer.transaction() as tx:
        tx.run("UPDATE detent_executions SET attempt = 2 WHERE run_id = 'two'")
    held = claim(store, "w1", limit=2)
    answers = store.apply([settling(row, waited=False, result=f'"{row.attempt}"') for row in held]).answers
    assert [answer.verdict for answer in answers] == [Verdict.APPLIED] * 2
    assert [store.run(run).result for run in ("one", "two")] == ['"1"', '"2"']


@contextmanager
def failing_commits(store: Store) -> Iterator[None]:
    """A constraint that is checked when a transaction commits, and then fails."""
    with store._user_connections.connection() as connection, connection.autocommit() as tx:
        tx.run(
            "CREATE FUNCTION detent_refuse() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN RAISE EXCEPTION ''not today''; END'"
        )
        tx.run(
            "CREATE CONSTRAINT TRIGGER detent_refuse AFTER INSERT ON detent_steps"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION detent_refuse()"
        )
        try:
            yield
        finally:
            tx.run("DROP TRIGGER detent_refuse ON detent_steps")
            tx.run("DROP FUNCTION detent_refuse()")
