"""One active run per workflow and hero, one active execution per node: by the database."""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import AlreadyRunning, Workflow, step
from detent.app.settings import Options
from detent.errors import ConfigurationError
from detent.stores.driver import Trouble, batch
from detent.testing import TestingApp
from tests.conformance.builders import Attempt, held_open, is_seen_waiting
from tests.functions.world import Apps, state
from tests.graphs.world import one_node


class Waits(Workflow):
    @step(wait=timedelta(days=1))
    def work(self) -> None: ...


class Also(Workflow):
    @step(wait=timedelta(days=1))
    def work(self) -> None: ...


@dataclass
class User:
    id: Any


@pytest.fixture
def app(testing: TestingApp) -> TestingApp:
    testing.include(Waits, Also)
    testing.hero(User, key=lambda user: user.id)
    return testing


HEROES = [
    User(2**63 - 1),
    User(uuid.UUID("0190b5a8-7f1e-7cc2-a111-7d9a6b2f0e55")),
    User("émile"),
    ("User", 7),
    ("User", (1, "two")),
    ("Größe", "日本"),
]


@pytest.mark.parametrize("hero", HEROES, ids=str)
def test_a_second_run_for_the_same_hero_is_refused_with_the_first_ones_id(app: TestingApp, hero: Any) -> None:
    run = app.options(hero=hero).start(Waits)
    with pytest.raises(AlreadyRunning) as caught:
        app.options(hero=hero).start(Waits)
    assert (caught.value.run_id, caught.value.type) == (run.id, "Waits")
    assert "allow_multiple=True" in str(caught.value)
    assert len(app.runs(type="Waits")) == 1


def test_heroes_that_differ_in_id_or_type_do_not_meet(app: TestingApp) -> None:
    for hero in [("User", 1), ("User", 2), ("Order", 1), User(3), ("User", "11")]:
        app.options(hero=hero).start(Waits)
    assert len(app.runs(type="Waits")) == 5


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("a", "a "), ("e", "é"), ("ss", "ß")])
def test_ids_that_a_collation_would_take_for_equal_are_two(app: TestingApp, one: str, other: str) -> None:
    app.options(hero=("User", one)).start(Waits)
    app.options(hero=("User", other)).start(Waits)
    assert len(app.runs(type="Waits")) == 2


def test_another_workflow_may_run_for_the_same_hero(app: TestingApp) -> None:
    app.options(hero=User(1)).start(Waits)
    app.options(hero=User(1)).start(Also)
    assert len(app.runs()) == 2


def test_runs_without_a_hero_do_not_meet(app: TestingApp) -> None:
    app.start(Waits)
    app.start(Waits)
    assert len(app.runs()) == 2


def test_allow_multiple_allows_it(app: TestingApp) -> None:
    app.options(hero=User(1)).start(Waits)
    for _ in range(2):
        app.options(hero=User(1), allow_multiple=True).start(Waits)
    assert len(app.runs()) == 3


def test_one_that_was_allowed_beside_others_does_not_hold_the_place(app: TestingApp) -> None:
    app.options(hero=User(1), allow_multiple=True).start(Waits)
    app.options(hero=User(1)).start(Waits)
    with pytest.raises(AlreadyRunning):
        app.options(hero=User(1)).start(Waits)


@pytest.mark.parametrize("end", ["finished", "canceled"])
def test_a_run_that_is_over_gives_the_place_free(app: TestingApp, end: str) -> None:
    run = app.options(hero=User(1)).start(Waits)
    if end == "canceled":
        run.cancel()
    else:
        app.speedrun(run)
    assert state(run) == end
    app.options(hero=User(1)).start(Waits)


@pytest.mark.parametrize("how", ["operator", "exception"])
def test_a_paused_run_keeps_its_place(app: TestingApp, how: str) -> None:
    def body(self: Any) -> None:
        raise LookupError

    flow = one_node(body, wait=timedelta(days=1))
    app.include(flow)
    run = app.options(hero=User(1)).start(flow)
    if how == "operator":
        run.pause()
    else:
        app.speedrun(run)
    assert state(run) == "paused"
    with pytest.raises(AlreadyRunning):
        app.options(hero=User(1)).start(flow)


def test_the_same_id_again_is_the_same_run_and_not_a_second(app: TestingApp) -> None:
    first = app.options(hero=User(1), id="the-one").start(Waits)
    again = app.options(hero=User(1), id="the-one").start(Waits)
    assert first.id == again.id
    assert len(app.runs()) == 1


def test_many_at_once_for_one_hero_are_refused_whole(app: TestingApp) -> None:
    with pytest.raises(ConfigurationError, match=r"User 1 has one active run of Waits .*allow_multiple=True"):
        app.options(hero=User(1)).start_many(Waits, [(), ()])
    assert app.runs() == []
    app.options(hero=User(1), allow_multiple=True).start_many(Waits, [(), ()])
    assert len(app.runs()) == 2


def test_of_two_starts_at_once_one_wins(apps: Apps) -> None:
    first, second = apps(Waits, worker=False), apps(Waits, worker=False)
    start = first.engine.planned(Waits, [((), {})], Options(hero=("User", 1)))
    with held_open(first.engine.store, start):
        attempt = Attempt(lambda: second.options(hero=("User", 1)).start(Waits))
        is_seen_waiting(attempt, first.engine.store)
    with pytest.raises(AlreadyRunning) as caught:
        attempt.result()
    assert caught.value.run_id == start.runs[0].id
    assert [run.id for run in second.runs()] == [start.runs[0].id]


def test_a_start_that_waited_for_one_that_was_rolled_back_succeeds(apps: Apps) -> None:
    first, second = apps(Waits, worker=False), apps(Waits, worker=False)
    start = first.engine.planned(Waits, [((), {})], Options(hero=("User", 1)))
    attempt: Attempt[Any]
    with pytest.raises(ZeroDivisionError), held_open(first.engine.store, start):
        attempt = Attempt(lambda: second.options(hero=("User", 1)).start(Waits))
        is_seen_waiting(attempt, first.engine.store)
        raise ZeroDivisionError
    run = attempt.result()
    assert [other.id for other in second.runs()] == [run.id]


def test_the_database_itself_refuses_a_second_active_execution_of_a_node(app: TestingApp) -> None:
    run = app.start(Waits)
    app.settle_down()
    store = app.engine.store
    start = app.engine.planned(Waits, [((), {})], Options())
    [row] = start.executions
    row.run_id, row.attempt = run.id, 2
    with pytest.raises(Exception, match=r"(?i)unique|duplicate") as caught, store._writer.transaction() as tx:
        tx.run(tx.sql.insert_executions, rows=batch([row]))
    assert store.driver.trouble(caught.value) is Trouble.UNIQUE


def test_a_hero_that_the_app_does_not_know_is_refused_with_what_to_write(testing: TestingApp) -> None:
    testing.include(Waits)
    with pytest.raises(ConfigurationError, match=r"app.hero\(Stranger, key=lambda it: it.id\)"):
        testing.options(hero=Stranger()).start(Waits)
    assert testing.runs() == []


class Stranger: ...


def test_a_hero_that_a_subclass_is_known_by_its_parent(app: TestingApp) -> None:
    class Admin(User): ...

    run = app.options(hero=Admin(5)).start(Waits)
    assert (run.row.hero_type, run.row.hero_id) == ("User", "5")
    with pytest.raises(AlreadyRunning):
        app.options(hero=User(5)).start(Waits)


def test_a_child_of_a_graph_takes_no_heros_place(app: TestingApp) -> None:
    child = one_node(lambda self: None)

    class Parent(Workflow):
        inner = step(job=child)

    app.include(Parent)
    runs = [app.options(hero=User(number)).start(Parent) for number in (1, 2)]
    for run in runs:
        app.speedrun(run)
        assert state(run) == "finished"
    assert isinstance(runs[0], detent.Run)
