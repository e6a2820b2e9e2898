"""Starting runs: ids, options, heroes, and what is refused."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import step, workflow
from detent.errors import (
    AlreadyRunning,
    ConfigurationError,
    DefinitionError,
    RunConflict,
    RunNotFound,
    UnknownDefinition,
    UnknownQueue,
)
from tests.functions.world import SOON, Apps, eventually, is_over, result, state


@step(retry=detent.Retry(attempts=5))
def charge(order_id: int) -> str:
    return f"receipt-{order_id}"


@step
def ship(order_id: int, receipt: str) -> None: ...


@workflow
def fulfil(order_id: int) -> str:
    receipt = charge(order_id)
    detent.sleep(SOON)
    ship(order_id, receipt)
    return receipt


@workflow
def double(number: int) -> int:
    return number * 2


@workflow(queue="elsewhere")
def elsewhere() -> None: ...


def test_the_first_example_works_as_written(url: str) -> None:
    app = detent.App(url, include=[fulfil])
    with app:
        run = app.start(fulfil, 42)
        assert run.id
        assert run.state in ("ready", "performing")
        assert run.result(timeout=20) == "receipt-42"
    assert app.run(run.id).state == "finished"
    app.close()


def test_the_first_example_works_for_asyncio(url: str) -> None:
    async def program() -> Any:
        async with detent.AsyncApp(url, include=[fulfil]) as app:
            run = await app.start(fulfil, 42)
            return await run.result(timeout=20)

    assert asyncio.run(program()) == "receipt-42"


def test_outside_of_an_engine_definitions_are_plain_functions() -> None:
    assert charge(1) == "receipt-1"
    assert double(4) == 8


def test_a_step_without_an_engine_can_be_mapped_and_viewed_from_both_worlds() -> None:
    @step
    async def fetch(url: str) -> str:
        return url.upper()

    assert fetch.sync("a") == "A"
    assert fetch.sync.map(["a", "b"]) == ["A", "B"]
    assert asyncio.run(fetch.aio.map(["a", "b"])) == ["A", "B"]
    assert asyncio.run(charge.aio(3)) == "receipt-3"


def test_a_run_is_durable_when_start_returns(apps: Apps, url: str) -> None:
    run = apps(double, worker=False).start(double, 4)
    assert apps(double, worker=False).run(run.id).state == "ready"


def test_an_app_without_a_worker_leaves_the_work_to_others(apps: Apps) -> None:
    starter = apps(double, worker=False)
    run = starter.start(double, 4)
    apps(double)
    assert result(run) == 8


def test_start_many_starts_all_of_them(apps: Apps) -> None:
    app = apps(double)
    runs = app.start_many(double, [(number,) for number in range(20)])
    assert [result(run) for run in runs] == [number * 2 for number in range(20)]
    assert app.start_many(double, []) == []


def test_the_same_id_and_input_is_the_same_run(apps: Apps) -> None:
    app = apps(double)
    first = app.options(id="order-1").start(double, 4)
    assert result(first) == 8
    again = app.options(id="order-1").start(double, 4)
    assert (again.id, again.state) == ("order-1", "finished")
    assert len(app.runs()) == 1


def test_the_same_id_started_at_the_same_moment_is_one_run(apps: Apps) -> None:
    one, other = apps(double), apps(double)
    barrier = threading.Barrier(8)
    found: list[Any] = []

    def begin(app: detent.App) -> None:
        barrier.wait()
        found.append(result(app.options(id="order-1").start(double, 4)))

    threads = [threading.Thread(target=begin, args=(app,)) for app in (one, other) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [8] * 8
    assert len(one.runs()) == 1


def test_the_same_id_with_another_input_is_refused(apps: Apps) -> None:
    app = apps(double)
    app.options(id="order-1").start(double, 4)
    with pytest.raises(RunConflict, match="order-1") as caught:
        app.options(id="order-1").start(double, 5)
    assert caught.value.run_id == "order-1"


def test_a_delayed_run_does_not_begin_early(apps: Apps) -> None:
    app = apps(double)
    run = app.options(delay=timedelta(hours=1)).start(double, 1)
    soon = app.options(delay=SOON).start(double, 2)
    assert result(soon) == 4
    assert state(run) == "ready"


def test_higher_priority_runs_first(apps: Apps) -> None:
    order: list[int] = []

    @workflow
    def note(priority: int) -> None:
        order.append(priority)

    starter = apps(note, worker=False)
    runs = [starter.options(priority=number).start(note, number) for number in (0, 5, -3, 9)]
    apps(note, concurrency=1)
    for run in runs:
        result(run)
    assert order == [9, 5, 0, -3]


def test_a_run_goes_to_the_queue_that_its_options_name(apps: Apps) -> None:
    app = apps(double, queues=["default", "high"])
    run = app.options(queue="high").start(double, 1)
    assert result(run) == 2
    assert run.row.queue == "high"


def test_a_queue_that_is_not_declared_is_refused(apps: Apps) -> None:
    app = apps(double, elsewhere)
    with pytest.raises(UnknownQueue, match=r"'high' is not declared by this app \(it has default\)"):
        app.options(queue="high").start(double, 1)
    with pytest.raises(UnknownQueue, match="elsewhere"):
        app.start(elsewhere)
    assert app.runs() == []


def test_what_is_not_included_is_refused(apps: Apps) -> None:
    app = apps(fulfil)
    with pytest.raises(UnknownDefinition, match=r"include=\[double\]"):
        app.start(double, 1)
    with pytest.raises(UnknownDefinition, match="nothing"):
        app.start("nothing")


def test_a_step_or_a_plain_function_cannot_be_started(apps: Apps) -> None:
    app = apps(fulfil)
    with pytest.raises(DefinitionError, match="is a step"):
        app.start(charge, 1)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="@workflow"):
        app.start(print, 1)  # type: ignore[call-overload]


def test_arguments_that_do_not_fit_are_refused_before_anything_is_stored(apps: Apps) -> None:
    app = apps(double)
    untyped: Any = double
    with pytest.raises(TypeError, match=r"double\(\)"):
        app.start(untyped, 1, 2)
    with pytest.raises(TypeError, match="unknown"):
        app.start(untyped, 1, unknown=1)
    assert app.runs() == []


def test_an_id_that_databases_refuse_is_refused_by_us(apps: Apps) -> None:
    app = apps(double)
    for bad in ("", "a\x00b", "x" * 201):
        with pytest.raises(ConfigurationError):
            app.options(id=bad).start(double, 1)
    with pytest.raises(ConfigurationError, match="start_many"):
        app.options(id="one").start_many(double, [(1,), (2,)])


def test_one_active_run_per_hero(apps: Apps) -> None:
    app = apps(double, worker=False)
    first = app.options(hero=("user", 7)).start(double, 1)
    with pytest.raises(AlreadyRunning, match="user 7") as caught:
        app.options(hero=("user", 7)).start(double, 2)
    assert caught.value.run_id == first.id
    app.options(hero=("user", 8)).start(double, 3)


def test_a_hero_whose_run_is_over_may_run_again(apps: Apps) -> None:
    app = apps(double)
    result(app.options(hero=("user", 7)).start(double, 1))
    assert result(app.options(hero=("user", 7)).start(double, 2)) == 4


def test_a_paused_run_keeps_its_heros_slot(apps: Apps) -> None:
    app = apps(double, worker=False)
    app.options(hero=("user", 7)).start(double, 1).pause()
    with pytest.raises(AlreadyRunning):
        app.options(hero=("user", 7)).start(double, 2)


def test_allow_multiple_lets_a_hero_have_several_runs(apps: Apps) -> None:
    app = apps(double, worker=False)
    options = app.options(hero=("user", 7), allow_multiple=True)
    options.start(double, 1)
    options.start(double, 2)
    assert len(app.runs()) == 2


def test_registered_classes_are_heroes(apps: Apps) -> None:
    class User:
        def __init__(self, id: int) -> None:
            self.id = id

    app = apps(double, worker=False)
    with pytest.raises(ConfigurationError, match=r"app\.hero\(User"):
        app.options(hero=User(1)).start(double, 1)
    app.hero(User, key=lambda user: user.id)
    app.options(hero=User(1)).start(double, 1)
    with pytest.raises(AlreadyRunning, match="User 1"):
        app.options(hero=User(1)).start(double, 2)


def test_an_unknown_run_is_an_error_that_names_it(apps: Apps) -> None:
    app = apps(double, worker=False)
    with pytest.raises(RunNotFound, match="nobody"):
        app.run("nobody")


def test_an_unknown_setting_or_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="colour"):
        detent.App("sqlite:///:memory:", colour="red")  # type: ignore[call-arg]


def test_definitions_that_are_called_need_not_be_included(apps: Apps) -> None:
    @step
    def inner(number: int) -> int:
        return number + 1

    @workflow
    def child(number: int) -> int:
        return inner(number)

    @workflow
    def outer(number: int) -> int:
        return child(number) + sum(inner.map([1, 2]))

    assert result(apps(outer).start(outer, 1)) == 2 + 5


def test_two_definitions_of_one_name_are_refused() -> None:
    @workflow(id="double")
    def other(number: int) -> int:
        return number

    with pytest.raises(DefinitionError, match="two definitions have the name 'double'"):
        detent.App("sqlite:///:memory:", include=[double, other])


def test_arguments_arrive_as_their_annotations_say(apps: Apps) -> None:
    seen: list[Any] = []

    @workflow
    def take(span: timedelta, *rest: tuple[int, int], flag: bool = False, **named: set[int]) -> None:
        seen.append((span, rest, flag, named))

    result(apps(take).start(take, timedelta(hours=1), (1, 2), (3, 4), flag=True, more={5}))
    assert seen == [(timedelta(hours=1), ((1, 2), (3, 4)), True, {"more": {5}})]


def test_runs_lists_the_newest_and_filters(apps: Apps) -> None:
    app = apps(double, fulfil, worker=False)
    started = [app.start(double, number) for number in range(3)]
    app.start(fulfil, 1)
    assert {run.id for run in app.runs(type="double")} == {run.id for run in started}
    assert len(app.runs(limit=2)) == 2
    assert app.runs(state="finished") == []


def test_two_apps_in_one_process_do_not_meet(apps: Apps, tmp_path_factory: pytest.TempPathFactory) -> None:
    app = apps(double)
    file = tmp_path_factory.mktemp("other") / "other.db"
    with detent.App(f"sqlite:///{file}", include=[double]) as other:
        here, there = app.start(double, 1), other.start(double, 2)
        assert (result(here), result(there)) == (2, 4)
        assert [run.id for run in other.runs()] == [there.id]


def test_an_app_can_be_opened_again_after_it_was_closed(url: str) -> None:
    app = detent.App(url, include=[double])
    for number in (1, 2):
        with app:
            run = app.start(double, number)
            assert result(run) == number * 2
    eventually(lambda: is_over(run), "the run is over")
    app.close()


def test_a_block_leaves_an_open_app_as_it_was_opened_and_closes_it(url: str) -> None:
    with detent.App(url, include=[double]).open(worker=False) as app:
        assert app.start(double, 1).state == "ready"
        assert app.engine.worker is None
    assert not app.engine.is_open
    with app.open(worker=True):
        assert result(app.start(double, 2)) == 4
    assert not app.engine.is_open


def test_a_block_leaves_an_open_app_as_it_was_opened_for_asyncio_too(url: str) -> None:
    async def program() -> None:
        async with await detent.AsyncApp(url, include=[double]).open(worker=False) as app:
            await app.start(double, 1)
            assert app.engine.worker is None
        assert not app.engine.is_open
        async with await app.open(worker=True):
            assert await (await app.start(double, 2)).result(timeout=20) == 4
        assert not app.engine.is_open

    asyncio.run(program())


def test_a_block_has_a_worker_though_the_app_was_used_before_or_opened_in_an_earlier_life(url: str) -> None:
    app = detent.App(url, include=[double])
    run = app.start(double, 1)  # opens the database, but says nothing about a worker
    with app:
        assert result(run) == 2
    app.open(worker=False).close()
    with app:
        assert result(app.start(double, 2)) == 4


class Unsaved:
    """An object that has no id yet."""

    id = None


@pytest.mark.parametrize(
    "hero", [("User", None), ("User", ""), (None, 1), ("", 1), Unsaved()], ids=lambda hero: repr(hero)[:20]
)
def test_a_hero_without_a_type_or_an_id_is_refused(apps: Apps, hero: Any) -> None:
    """All heroes without an id would share one slot."""
    app = apps(double, worker=False)
    app.hero(Unsaved, key=lambda it: it.id)
    with pytest.raises(ConfigurationError, match="must be set and not empty"):
        app.options(hero=hero).start(double, 1)
    assert app.runs() == []


def test_a_hero_id_may_be_zero_or_false(apps: Apps) -> None:
    app = apps(double, worker=False)
    app.options(hero=("User", 0)).start(double, 1)
    with pytest.raises(AlreadyRunning):
        app.options(hero=("User", "0")).start(double, 1)


def test_queues_given_as_one_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="give a list of names"):
        detent.App("sqlite:///:memory:", queues="high")
