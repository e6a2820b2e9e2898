"""continue_as_new: a run ends, a new one continues it, and what addresses the first reaches the last."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import Context, step, workflow
from detent.app.exports import export
from detent.errors import InvalidState, NotInRun, RunNotFound
from detent.kernel.external_changes import Pause
from detent.testing import TestingApp, crash_everywhere, replay
from tests.conformance.builders import Attempt
from tests.functions.world import Apps, Gate, eventually, main, result, wait_parked


@step
def double(number: int) -> int:
    return number * 2


@workflow
def countdown(left: int, total: int = 0) -> int:
    total += double(left)
    if left:
        detent.continue_as_new(left - 1, total=total)
    return total


@workflow
async def acountdown(ctx: Context, left: int) -> str:
    await asyncio.sleep(0)
    if left:
        ctx.continue_as_new(left - 1)
    return ctx.run.id


@workflow
def inbox(rounds: int, seen: list[int]) -> list[int]:
    seen = [*seen, detent.receive("number")]
    if rounds > 1:
        detent.continue_as_new(rounds - 1, seen)
    return seen


@workflow
def parent() -> int:
    return countdown(1)


@workflow
def spawning_parent() -> list[Any]:
    handle = countdown.spawn(3)
    return [double(1), handle.result()]


def test_the_result_of_the_first_run_is_that_of_the_last(apps: Apps) -> None:
    app = apps(countdown, acountdown)
    first = app.options(id="count", attributes={"customer": 7}, priority=3, key="k").start(countdown, 2)
    other = app.options(id="acount").start(acountdown, 2)
    runs: list[detent.Run[Any]] = [first, other]
    assert app.results(runs, timeout=60) == [6, "acount~3"]
    assert [app.run(id).result(timeout=60) for id in ("count", "count~2", "count~3")] == [6, 6, 6]

    first.refresh()
    assert (first.state, first.continued_as, first.continues) == ("finished", "count~2", None)
    second, last = app.run("count~2"), first.current()
    assert (second.continues, second.continued_as) == ("count", "count~3")
    assert (last.id, last.continues, last.continued_as) == ("count~3", "count~2", None)
    assert (last.attributes, last.priority, last.row.queue_key) == ({"customer": 7}, 3, "k")
    assert [event.event for event in first.history() if event.event == "continued_as"] == ["continued_as"]
    assert main(first).outcome == "continued"


def test_a_chain_in_an_async_app_has_the_result_of_its_last_run(url: str) -> None:
    async def count() -> tuple[int, str]:
        async with detent.AsyncApp(url, include=[countdown]) as app:
            run = await app.options(id="count").start(countdown, 2)
            value = await run.result(timeout=60)
            return value, (await run.current()).id

    assert asyncio.run(count()) == (6, "count~3")


def test_a_parent_waits_for_the_last_run_of_its_child(apps: Apps) -> None:
    app = apps(parent, spawning_parent, countdown)
    runs: list[detent.Run[Any]] = [app.start(parent), app.start(spawning_parent)]
    assert app.results(runs, timeout=60) == [2, [2, 12]]
    children = app.runs(parent=runs[0].id)
    assert [child.id[-2:] for child in children] == ["~2"]  # the parent link moves along


def test_a_workflow_that_waits_for_another_run_gets_the_end_of_its_chain(apps: Apps) -> None:
    served: list[detent.App] = []

    @workflow
    def waiting(run_id: str) -> Any:
        return served[0].run(run_id).result()

    app = apps(inbox, waiting)
    served.append(app)
    receiver = app.options(id="in").start(inbox, 2, [])
    waiter = app.start(waiting, "in")
    wait_parked(waiter)
    receiver.send("number", 1)
    receiver.send("number", 2)
    assert result(waiter) == [1, 2]


def test_messages_to_the_first_run_reach_the_current_one_once_and_in_order(apps: Apps) -> None:
    app, elsewhere = apps(inbox), apps(inbox, worker=False)
    run = app.options(id="in").start(inbox, 5, [])
    waiting = Attempt(lambda: result(elsewhere.run("in")))
    for number in range(3):
        run.send("number", number, id=f"n{number}")
    eventually(lambda: run.current().id == "in~4", "three messages are received")
    for number in range(3):
        run.send("number", number, id=f"n{number}")  # sent again: nothing
    run.send("number", 3, id="n3")
    eventually(lambda: run.current().id == "in~5", "the fourth message is received")
    run.send("number", 3, id="n3")
    app.run("in~2").send("number", 4)
    assert result(run) == waiting.result() == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidState, match="in~5"):
        run.send("number", 5)


def test_a_crash_at_any_point_gives_one_successor_and_loses_no_message() -> None:
    def send_all(run: detent.Run[Any]) -> None:
        for number in range(2):
            run.send("number", number)

    assert crash_everywhere(inbox, 2, [], with_=send_all) > 4
    assert crash_everywhere(parent, include=[countdown]) > 4


def test_pause_resume_and_cancel_of_the_first_run_act_on_the_current_one(apps: Apps) -> None:
    app = apps(inbox)
    run = app.options(id="in").start(inbox, 3, [])
    run.send("number", 0)
    eventually(lambda: run.current().id == "in~2", "it has continued")
    run.pause(reason="maintenance")
    assert app.run("in~2").state == "paused"
    run.resume()
    run.set_attributes({"seen": 1})
    assert app.run("in~2").attributes == {"seen": 1}
    run.publish("progress", 1)
    assert app.run("in~2").published("progress") == 1
    run.cancel()
    assert app.run("in~2").state == "canceled"
    with pytest.raises(InvalidState):
        run.cancel()
    with pytest.raises(detent.RunCanceled, match="in~2"):
        result(run)


def test_a_run_that_is_paused_while_it_continues_has_a_paused_successor(apps: Apps) -> None:
    gate = Gate()

    @workflow
    def gated(left: int) -> int:
        if left:
            gate.pass_through()
            detent.continue_as_new(left - 1)
        return left

    app = apps(gated)
    run = app.options(id="gated").start(gated, 1)
    gate.wait_for_arrival()
    app.engine.store.change(Pause(run.id, reason=None), now=app.engine.clock.now())  # the worker is not told
    gate.open()
    eventually(lambda: run.current().id == "gated~2" or run.current().state == "paused", "it has stopped")
    assert run.current().state == "paused"
    run.resume()
    assert result(run) == 0


def test_a_hero_has_one_active_run_of_the_chain(apps: Apps) -> None:
    app = apps(inbox)
    hero = app.options(id="h", hero=("customer", "7"))
    run = hero.start(inbox, 2, [])
    run.send("number", 1)
    eventually(lambda: run.current().id == "h~2", "it has continued")
    with pytest.raises(detent.AlreadyRunning, match="h~2"):
        app.options(hero=("customer", "7")).start(inbox, 1, [])
    assert run.current().hero == ("customer", "7")
    assert app.options(id="h").start(inbox, 2, []).id == "h"  # found, not begun again


def test_it_waits_for_what_the_run_has_spawned(apps: Apps) -> None:
    gate = Gate()

    @step
    def slow() -> None:
        gate.pass_through()

    @workflow
    def spawning(left: int) -> int:
        if left:
            slow.spawn()
            countdown.spawn(1)
            detent.continue_as_new(left - 1)
        return left

    app = apps(spawning, slow, countdown)
    run = app.options(id="s").start(spawning, 1)
    gate.wait_for_arrival()
    eventually(lambda: main(run).state == "scheduled", "it waits")
    assert run.current().id == "s"
    gate.open()
    assert result(run) == 0


def test_finally_blocks_run_and_except_clauses_do_not_stop_it(apps: Apps) -> None:
    done: list[str] = []

    @workflow
    def stubborn(left: int) -> int:
        try:
            if left:
                detent.continue_as_new(left - 1)
        except Exception:
            done.append("except Exception")
        except BaseException:  # deliberately swallowed
            done.append(f"{left}")
        finally:
            done.append("finally")
        return left

    @workflow
    async def in_task(left: int) -> int:
        async def again() -> None:
            detent.continue_as_new(left - 1)

        if left:
            task = asyncio.create_task(again())
            await asyncio.wait([task])
            await asyncio.sleep(60)
        return left

    app = apps(stubborn, in_task)
    assert app.results([app.start(stubborn, 1), app.start(in_task, 1)], timeout=60) == [0, 0]
    assert done == ["1", "finally", "finally"]


def test_bad_calls_are_refused_with_clear_errors(apps: Apps) -> None:
    @step
    def inside() -> None:
        detent.continue_as_new(1)

    @workflow
    def from_step() -> None:
        inside()

    @workflow
    def with_bad_arguments(left: int) -> str:
        messages: list[str] = []
        for args, kwargs in (((1, 2), {}), ((1,), {"right": 1}), (("one",), {})):
            try:
                detent.continue_as_new(*args, **kwargs)
            except Exception as error:
                messages.append(f"{type(error).__name__}: {error}")
        return "\n".join(messages)

    app = apps(from_step, inside, with_bad_arguments)
    with pytest.raises(NotInRun, match=r"detent\.continue_as_new\(\) works only in a running workflow"):
        detent.continue_as_new()
    with pytest.raises(NotInRun, match="outside its steps"):
        result(app.start(from_step))
    lines = result(app.start(with_bad_arguments, 1)).splitlines()
    assert len(lines) == 3
    assert "with_bad_arguments" in lines[0]
    assert "right" in lines[1]
    assert "left" in lines[2]


def test_the_deadline_is_that_of_the_chain(detent_app: TestingApp) -> None:
    @workflow
    def forever() -> None:
        detent.sleep(hours=1)
        detent.continue_as_new()

    app = detent_app
    run = app.options(id="d", deadline=timedelta(hours=3, minutes=30)).start(forever)
    app.speedrun(run)
    assert run.current().id == "d~4"
    with pytest.raises(detent.DeadlineExceeded):
        run.result(timeout=0)


def test_retention_removes_members_and_keeps_the_first_while_the_chain_is_active(apps: Apps) -> None:
    app = apps(inbox)
    run = app.options(id="in").start(inbox, 4, [])
    for number in range(3):
        run.send("number", number)
    eventually(lambda: run.current().id == "in~4", "three messages are received")
    with pytest.raises(InvalidState, match="in~4"):
        run.delete()
    eventually(lambda: app.engine.remove_old(timedelta(0)) == 2, "old members are removed")
    with pytest.raises(RunNotFound):
        app.run("in~2")
    run.send("number", 3)  # the first id stays the address
    assert result(run) == [0, 1, 2, 3]
    eventually(lambda: app.engine.remove_old(timedelta(0)) >= 1, "all of it is removed")
    with pytest.raises(RunNotFound):
        run.send("number", 4)


def test_a_member_can_be_forked_and_replayed(apps: Apps) -> None:
    app = apps(countdown)
    run = app.options(id="count").start(countdown, 2)
    assert result(run) == 6
    fork = app.fork(app.run("count~2"))
    assert result(fork) == 2 + 4 + 0
    assert fork.current().id == f"{fork.id}~2"
    for member in ("count", "count~2", "count~3"):
        replay(export(app.engine, app.run(member).row), countdown, include=[double])


def test_an_id_that_is_taken_is_passed_over(apps: Apps) -> None:
    app = apps(countdown)
    app.options(id="count~2").start(countdown, 0)
    run = app.options(id="count").start(countdown, 1)
    assert result(run) == 2
    assert run.current().id == "count~3"


def test_a_schedule_takes_a_chain_for_one_run(detent_app: TestingApp) -> None:
    @workflow
    def polls(left: int = 2) -> None:
        detent.sleep(minutes=8)
        if left:
            detent.continue_as_new(left - 1)

    app = detent_app
    app.schedule("poll", polls, every=timedelta(minutes=10), overlap="skip")
    app.advance(minutes=31)
    schedule = app.schedules["poll"].refresh()
    last = schedule.last_run
    assert last is not None
    assert last.id.endswith("~3")
    assert len([run for run in app.runs(type=polls) if run.continues is None]) == 1
