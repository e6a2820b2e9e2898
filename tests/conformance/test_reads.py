"""Reads, and transactions that belong to users."""

import pytest

from detent.errors import RunNotFound
from detent.kernel.external_changes import Note, Pause
from detent.kernel.operations import Start, Verdict
from detent.kernel.settle import Outcome
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    begetting,
    claim,
    enlist,
    executing,
    message,
    new_main,
    new_run,
    new_step,
    one,
    recording,
    settling,
    spawning,
    start,
)


def begin(store: Store, run: str, **given: object) -> None:
    one(store, Start(runs=[new_run(run, **given)], executions=[new_main(run)]))


def ids(store: Store, limit: int = 100, **filters: object) -> list[str]:
    return [run.id for run in store.runs(limit=limit, **filters)]


def test_a_run_is_read_back_whole(store: Store) -> None:
    begin(
        store,
        "run",
        type="ship",
        priority=5,
        hero_type="Order",
        hero_id="7",
        deadline=NOW + 9,
        forked_from="other",
        parent="p",
        parent_key="k",
    )
    run = store.run("run")
    assert (run.type, run.kind, run.queue, run.priority) == ("ship", "function", "default", 5)
    assert (run.hero_type, run.hero_id, run.deadline, run.forked_from) == ("Order", "7", NOW + 9, "other")
    assert (run.parent, run.parent_key, run.created_at, run.finished_at) == ("p", "k", NOW, None)


def test_a_run_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(RunNotFound) as caught:
        store.run("nowhere")
    assert caught.value.run_id == "nowhere"


def test_runs_are_listed_newest_first(store: Store) -> None:
    for age, run in enumerate(["new", "middle", "old"]):
        begin(store, run, created_at=NOW - age)
    begin(store, "middle-too", created_at=NOW - 1)
    assert ids(store) == ["new", "middle-too", "middle", "old"]
    assert ids(store, limit=2) == ["new", "middle-too"]


def test_filters_are_taken_together(store: Store) -> None:
    begin(store, "a", type="ship", created_at=NOW)
    begin(store, "b", type="ship", queue="slow", created_at=NOW + 1)
    begin(store, "c", type="bill", queue="slow", created_at=NOW + 2, parent="a")
    store.change(Pause("b", reason=None), now=NOW)
    assert ids(store, type="ship") == ["b", "a"]
    assert ids(store, type="ship", queue="slow") == ["b"]
    assert ids(store, state="paused") == ["b"]
    assert ids(store, parent="a") == ["c"]
    assert ids(store, before=NOW + 2, after=NOW + 1) == ["b"]
    assert ids(store, type=None, queue="slow") == ["c", "b"]
    assert ids(store, type="nothing") == []


def test_a_filter_is_a_value_and_never_sql(store: Store) -> None:
    begin(store, "a")
    assert ids(store, type="' OR '1' = '1") == []
    assert ids(store, type="%") == []


def test_performing_shows_that_something_executes(store: Store) -> None:
    executing(store)
    assert (store.run("run").performing, store.runs(limit=1)[0].performing) == (1, 1)


def test_executions_are_listed_in_the_order_of_their_making(store: Store) -> None:
    main = executing(store)
    one(store, settling(main, Outcome.REATTEMPTED, now=NOW + 1))
    [again] = claim(store, now=NOW + 1)
    one(store, recording(again, executions=[new_main(node="a", kind="step", created_at=NOW + 5)]))
    assert [(row.node, row.attempt) for row in store.executions("run")] == [
        ("main", 1),
        ("main", 2),
        ("a", 1),
    ]
    assert store.executions("nowhere") == []


def test_the_journal_of_many_runs_is_read_at_once(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("a", "b", "c"))
    first, second, _ = claim(store, limit=3)
    store.apply([recording(first, new_step("a")), spawning(second, "piece"), begetting(second, "child")])
    journal = store.journal(["a", "b", "c", "nowhere"])
    assert {run: sorted(step.kind for step in steps) for run, steps in journal.items()} == {
        "a": ["step"],
        "b": ["child", "spawn"],
        "c": [],
        "nowhere": [],
    }
    assert store.journal([]) == {}


def test_what_is_published_last_is_what_is_read(store: Store) -> None:
    main = executing(store)
    assert store.published("run", "progress") is None
    for seq, value in enumerate(["1", "2"], start=1):
        step = new_step(key=f"publish/progress#{seq}", kind="publish", name="progress", seq=seq, result=value)
        one(store, recording(main, step))
    assert store.published("run", "progress") == "2"
    assert store.published("run", "other") is None


def test_the_history_is_in_the_order_of_happening(store: Store) -> None:
    one(store, start())
    for number in range(5):
        store.change(Note("run", f"event-{number}", None), now=NOW)
    assert [event for _, event, _ in store.history("run")] == [f"event-{number}" for number in range(5)]
    assert store.history("nowhere") == []


def test_readers_do_not_wait_for_a_writer(store: Store, rival: Store) -> None:
    main = executing(store)
    with store._writer.transaction() as tx:
        tx.query(tx.sql.lock_run, id="run")
        tx.run(tx.sql.cancel_run, id="run", now=NOW)
        assert rival.run("run").state == "ready"
        assert [row.state for row in rival.executions("run")] == ["executing"]
        assert rival.journal(["run"]) == {"run": []}
    assert one(rival, settling(main)).verdict is Verdict.APPLIED


# -- Transactions of users -------------------------------------------------------------------------


def test_a_users_write_and_our_record_commit_together(store: Store, rival: Store) -> None:
    main = executing(store)
    with store.transaction() as tx:
        tx.run("UPDATE detent_runs SET priority = 9 WHERE id = 'run'")
        assert store.apply_within(tx, recording(main, new_step())) is Verdict.APPLIED
        assert rival.run("run").priority == 0
    assert (rival.run("run").priority, len(rival.journal(["run"])["run"])) == (9, 1)


def test_a_users_failure_rolls_our_record_back(store: Store) -> None:
    main = executing(store)
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.apply_within(tx, recording(main, new_step()))
        raise ZeroDivisionError
    assert store.journal(["run"]) == {"run": []}


def test_an_answer_that_is_an_error_is_raised_in_a_users_transaction(store: Store) -> None:
    with pytest.raises(RunNotFound), store.transaction() as tx:
        store.apply_within(tx, message("nowhere"))


def test_we_write_into_a_transaction_that_a_user_began_and_never_end_it(store: Store, rival: Store) -> None:
    connection = store.driver.connect()
    store.driver.begin(connection)
    assert store.apply_within(store.joined(connection), start("ours"))[0].created
    assert ids(rival) == []
    connection.rollback()
    connection.close()
    assert ids(rival) == []
