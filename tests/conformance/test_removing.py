"""Removing: only what is over, whole, never before its parent, and without standing in anybody's way."""

import pytest

from detent.kernel.external_changes import Cancel, Note, Pause
from detent.kernel.operations import Start
from detent.kernel.settle import Outcome
from detent.stores import migrate
from detent.stores.sql.queries import TABLES_OF_A_RUN
from detent.stores.store import Store
from detent.stores.verbs import control, retention
from detent.stores.verbs.retention import BEGINNING
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    begetting,
    claim,
    enlist,
    everything,
    executing,
    for_message,
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
)

LONG_AFTER = NOW + 1000 * SECOND


def ended(store: Store, run: str, outcome: Outcome = Outcome.SUCCESS, *, at: int = NOW) -> None:
    one(store, settling(executing(store, run), outcome, now=at))


def expired(store: Store, before: int = LONG_AFTER) -> list[str]:
    return [run.id for run in store.expired(before=before, beyond=BEGINNING, limit=100)]


def remaining(store: Store) -> list[str]:
    return sorted(run.id for run in store.runs(limit=100))


def test_a_run_goes_with_all_that_belongs_to_it(store: Store) -> None:
    """What is left is what was there before it came."""
    ended(store, "other")
    one(store, start("asks", attributes={"customer": "acme"}))
    [asks] = claim(store)
    store.apply(
        [recording(asks, new_step("asks")), message("asks"), parking(asks, for_message("more", "asks"))]
    )
    store.change(Note("asks", "seen", None), now=NOW)
    kept = everything(store)

    one(store, start("run", attributes={"customer": "acme", "amount": 12}))
    [main] = claim(store)
    store.apply([recording(main, new_step()), spawning(main, "piece"), message()])
    [piece] = claim(store)
    store.apply([settling(piece), settling(main)])
    store.change(Note("run", "seen", None), now=NOW)
    assert everything(store) != kept

    assert store.remove(["run"], before=LONG_AFTER) == 1
    assert everything(store) == kept


def test_every_table_with_a_run_id_is_cleared() -> None:
    """A new table that belongs to runs needs a line in TABLES_OF_A_RUN."""
    for dialect in ("sqlite", "postgres", "mysql"):
        text = "".join(item.text for item in migrate.migrations(dialect))
        tables = [
            part.split("(")[0].split()[-1] for part in text.split("CREATE TABLE")[1:] if "run_id " in part
        ]
        assert set(tables) == set(TABLES_OF_A_RUN)


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILED, Outcome.CANCELED_BY_OPERATOR])
def test_what_ended_before_a_moment_goes_however_it_ended(store: Store, outcome: Outcome) -> None:
    ended(store, "old", outcome, at=NOW)
    ended(store, "new", outcome, at=NOW + SECOND)
    assert expired(store, NOW + SECOND) == ["old"]
    assert store.remove(["old", "new"], before=NOW + SECOND) == 1
    assert remaining(store) == ["new"]


def test_what_is_active_or_paused_stays(store: Store) -> None:
    executing(store, "performing")
    one(store, start("ready", "paused"))
    store.change(Pause("paused", reason=None), now=NOW)
    assert expired(store) == []
    assert store.remove(["performing", "ready", "paused", "nowhere"], before=LONG_AFTER) == 0
    assert remaining(store) == ["paused", "performing", "ready"]


def test_what_was_canceled_and_is_still_being_undone_stays(store: Store) -> None:
    main = executing(store)
    one(store, recording(main, new_step(undo="refund")))
    one(store, parking(main, for_message()))
    store.change(Cancel("run", reason=None), now=NOW)
    [found] = store.expired(before=LONG_AFTER, beyond=BEGINNING, limit=5)
    assert not found.may_go
    assert store.remove(["run"], before=LONG_AFTER) == 0

    [undoing] = claim(store, now=NOW + SECOND)
    one(store, settling(undoing, Outcome.CANCELED_BY_OPERATOR))
    assert store.remove(["run"], before=LONG_AFTER) == 1


def test_a_child_stays_as_long_as_its_parent(store: Store) -> None:
    """The parent's journal reads it: were it gone, a parent that is resumed would begin it anew."""
    parent = executing(store, "parent")
    one(store, begetting(parent, "child"))
    [child] = claim(store)
    one(store, settling(child, now=NOW))
    assert store.remove(["child"], before=LONG_AFTER) == 0
    one(store, settling(parent, Outcome.FAILED, now=NOW + 2 * SECOND))
    assert store.remove(["child", "parent"], before=NOW + SECOND) == 0  # the parent is not old enough
    assert {step.kind for step in store.journal(["parent"])["parent"]} == {"child"}

    assert store.remove(["child", "parent"], before=LONG_AFTER) == 1
    assert remaining(store) == ["child"]
    assert store.remove(["child"], before=LONG_AFTER) == 1
    assert remaining(store) == []


def test_a_child_that_outlives_its_parent_stays(store: Store) -> None:
    parent = executing(store, "parent")
    one(store, begetting(parent, "child"))
    one(store, settling(parent, now=NOW))
    assert store.remove(["parent", "child"], before=LONG_AFTER) == 1
    [child] = claim(store)
    assert one(store, settling(child, now=NOW)).verdict == "applied"
    assert store.remove(["child"], before=LONG_AFTER) == 1


def test_it_is_known_beforehand_which_children_would_go(store: Store) -> None:
    def of(run: str, parent: str | None, state: str, at: int | None) -> None:
        one(store, Start(runs=[new_run(run, parent=parent)], executions=[new_main(run, state="completed")]))
        with store._writer.transaction() as tx:
            tx.run(tx.sql.set_run_state, id=run, state=state, error=None, finished_at=at)

    of("root", None, "finished", NOW)
    of("middle", "root", "failed", NOW)
    of("late", "root", "finished", LONG_AFTER)
    of("busy", None, "ready", None)
    of("below-busy", "busy", "finished", NOW)
    parents = ["root", "middle", "late", "busy", "below-busy", "gone"]
    assert store.going_with(parents, before=NOW + SECOND) == {"root", "middle", "gone"}
    assert store.going_with([], before=NOW) == set()


def test_the_walk_over_what_has_expired_leaves_nothing_out(store: Store) -> None:
    for number in range(7):
        ended(store, f"run-{number}", at=NOW + number // 3)
    seen: list[str] = []
    place = BEGINNING
    while found := store.expired(before=LONG_AFTER, beyond=place, limit=2):
        seen += [run.id for run in found]
        place = found[-1].place
    assert seen == [f"run-{number}" for number in range(7)]


def test_removing_twice_does_nothing(store: Store) -> None:
    ended(store, "run")
    assert store.remove(["run"], before=LONG_AFTER) == 1
    assert store.remove(["run"], before=LONG_AFTER) == 0
    assert store.remove([], before=LONG_AFTER) == 0


# -- At the same time --------------------------------------------------------------------------------


def test_two_that_remove_at_once_do_not_wait_for_each_other(store: Store, rival: Store) -> None:
    for run in ("a", "b"):
        ended(store, run)
    with store._writer.transaction() as tx:
        assert retention.remove(tx, ["a"], before=LONG_AFTER) == 1
        attempt = Attempt(lambda: rival.remove(["a", "b"], before=LONG_AFTER))
        if store.dialect == "sqlite":
            is_seen_waiting(attempt, rival)  # writers take turns there
        else:
            assert attempt.result() == 1
    assert attempt.result() == 1
    assert remaining(store) == []


def test_a_run_that_is_being_resumed_is_left_alone(store: Store, rival: Store) -> None:
    ended(store, "run", Outcome.FAILED)
    with store._writer.transaction() as tx:
        control.resume(tx, "run", now=NOW)
        attempt = Attempt(lambda: rival.remove(["run"], before=LONG_AFTER))
        if store.dialect == "sqlite":
            is_seen_waiting(attempt, rival)
        else:
            assert attempt.result() == 0
    assert attempt.result() == 0
    assert store.run("run").state == "ready"


def test_new_work_does_not_wait_for_a_removal(store: Store, rival: Store) -> None:
    """On SQLite it does, as for any write: removals are small."""
    if store.dialect == "sqlite":
        return
    for run in ("a", "b", "c"):
        ended(store, run)
    enlist(store, "w2")
    with store._writer.transaction() as tx:
        assert retention.remove(tx, ["a", "b", "c"], before=LONG_AFTER) == 3
        one(rival, start("another", attributes={"customer": "acme"}))
        [claimed] = claim(rival, "w2")
        assert one(rival, settling(claimed)).verdict == "applied"
    assert remaining(store) == ["another"]
