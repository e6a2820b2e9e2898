"""What a node does about an exception: whose policy counts, for which errors, how often, how patiently."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

import detent
from detent import ExceptionPolicy, Retry, Workflow, step
from detent.testing import TestingApp
from tests.functions.world import Apps, Gate, crash, events, eventually, reap, result, state, wait_for
from tests.graphs.world import attempts, both_kinds, last, one_node

PAUSED = ("failed", "paused_by_exception")
CANCELED = ("failed", "canceled_by_exception")
SKIPPED = ("skipped", "skipped_by_exception")
AGAIN = ("failed", "reattempted_by_exception")
DONE = ("completed", "success")


class Declined(Exception): ...


class CardDeclined(Declined): ...


def raising(error: BaseException | type[BaseException], times: int = 10_000) -> Any:
    def body(self: Any) -> None:
        if self.ctx.attempt <= times:
            raise error

    return body


def ended(testing: TestingApp, flow: Any) -> list[tuple[str, str | None]]:
    run = testing.start(flow)
    testing.speedrun(run)
    return attempts(run)


# -- Whose policy counts -------------------------------------------------------------------------------


def test_without_any_policy_the_run_pauses(testing: TestingApp) -> None:
    assert ended(testing, one_node(raising(Declined))) == [PAUSED]


def test_the_nodes_own_policy_comes_before_those_of_its_class(testing: TestingApp) -> None:
    class Flow(Workflow):
        detent.on_exception(Declined, action="cancel")
        detent.on_exception(action="cancel")

        @step(on_exception="skip")
        def work(self) -> None:
            raise Declined

    assert ended(testing, Flow) == [SKIPPED]


def test_a_policy_of_the_node_for_other_errors_leaves_this_one_to_the_class(testing: TestingApp) -> None:
    class Flow(Workflow):
        detent.on_exception(Declined, action="cancel")

        @step(on_exception=ExceptionPolicy("skip", on=(KeyError,)))
        def work(self) -> None:
            raise Declined

    assert ended(testing, Flow) == [CANCELED]


def test_of_several_policies_of_a_node_the_first_that_fits_counts(testing: TestingApp) -> None:
    policies = [
        ExceptionPolicy("cancel", on=(KeyError,)),
        ExceptionPolicy("skip", on=(Declined,)),
        ExceptionPolicy("cancel"),
    ]
    assert ended(testing, one_node(raising(CardDeclined), on_exception=policies)) == [SKIPPED]


def test_a_policy_for_this_error_comes_before_a_blanket_that_was_declared_later(testing: TestingApp) -> None:
    class Flow(Workflow):
        detent.on_exception(Declined, action="skip")
        detent.on_exception(action="cancel")

        @step
        def work(self) -> None:
            raise Declined

    assert ended(testing, Flow) == [SKIPPED]


def test_of_two_policies_for_an_error_the_latest_counts(testing: TestingApp) -> None:
    class Flow(Workflow):
        detent.on_exception(CardDeclined, action="cancel")
        detent.on_exception(Declined, action="skip")

        @step
        def work(self) -> None:
            raise CardDeclined

    assert ended(testing, Flow) == [SKIPPED]


def test_a_subclass_comes_before_its_parent(testing: TestingApp) -> None:
    class Base(Workflow):
        detent.on_exception(CardDeclined, action="cancel")
        detent.on_exception(action="cancel")

        @step
        def work(self) -> None:
            raise CardDeclined

    class Specific(Base):
        detent.on_exception(Declined, action="skip")

    class Blanket(Base):
        detent.on_exception(action="skip")

    class Grandchild(Specific):
        detent.on_exception(Declined, action="pause")

    assert ended(testing, Specific) == [SKIPPED]
    assert ended(testing, Blanket) == [CANCELED]  # the parent's is for this very error
    assert ended(testing, Grandchild) == [PAUSED]
    assert ended(testing, Base) == [CANCELED]


def test_the_blanket_of_the_class_is_for_every_other_error(testing: TestingApp) -> None:
    class Flow(Workflow):
        detent.on_exception(Declined, action="cancel")
        detent.on_exception(action="skip")

        @step
        def work(self) -> None:
            raise KeyError

    assert ended(testing, Flow) == [SKIPPED]


def test_retries_come_first_then_the_policy(testing: TestingApp) -> None:
    flow = one_node(raising(Declined), retry=Retry(attempts=3), on_exception="skip")
    assert ended(testing, flow) == [AGAIN, AGAIN, SKIPPED]


def test_an_error_that_the_retry_is_not_for_goes_to_the_policy_at_once(testing: TestingApp) -> None:
    flow = one_node(raising(Declined), retry=Retry(attempts=3, on=(KeyError,)), on_exception="skip")
    assert ended(testing, flow) == [SKIPPED]
    flow = one_node(raising(Declined), retry=Retry(attempts=3, never_on=(Declined,)), on_exception="skip")
    assert ended(testing, flow) == [SKIPPED]


# -- Matchers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "matcher",
    [
        Declined,
        CardDeclined,
        f"{__name__}.CardDeclined",
        f"{__name__}.Declined",  # by the name of a parent too
        "builtins.Exception",
        lambda error: isinstance(error, CardDeclined) and error.args == ("51",),
    ],
    ids=["class", "own class", "dotted name", "dotted name of a parent", "builtins", "callable"],
)
def test_a_matcher_is_a_class_a_dotted_name_or_a_callable(testing: TestingApp, matcher: Any) -> None:
    flow = one_node(raising(CardDeclined("51")), on_exception=ExceptionPolicy("skip", on=(KeyError, matcher)))
    assert ended(testing, flow) == [SKIPPED]


@pytest.mark.parametrize(
    "matcher",
    [KeyError, "not.there.Error", lambda error: False],
    ids=["class", "dotted name", "callable"],
)
def test_what_does_not_match_is_left_to_the_default(testing: TestingApp, matcher: Any) -> None:
    flow = one_node(raising(CardDeclined), on_exception=ExceptionPolicy("skip", on=matcher))
    assert ended(testing, flow) == [PAUSED]


def test_a_matcher_that_raises_does_not_match_and_the_error_says_so(testing: TestingApp) -> None:
    def broken(error: BaseException) -> bool:
        raise ZeroDivisionError("in the matcher")

    run = testing.start(one_node(raising(Declined("51")), on_exception=ExceptionPolicy("skip", on=(broken,))))
    testing.speedrun(run)
    assert attempts(run) == [PAUSED]
    assert last(run).error.message == "51"


# -- How often, how patiently --------------------------------------------------------------------------


def times(testing: TestingApp, flow: Any) -> tuple[list[timedelta], list[tuple[str, str | None]]]:
    """The waits between the attempts, and the attempts."""
    run = testing.start(flow)
    testing.speedrun(run)
    rows = sorted(
        (item for item in run.executions() if item.node == "work"), key=lambda item: int(item.attempt)
    )
    moments: list[datetime] = [row.scheduled_for for row in rows if row.scheduled_for is not None]
    return [b - a for a, b in pairwise(moments)], attempts(run)


@both_kinds
def test_reattempt_alone_means_a_hundred_with_backoff(testing: TestingApp, is_async: bool) -> None:
    waits, seen = times(testing, one_node(raising(Declined), is_async, on_exception="reattempt"))
    assert seen == [*[AGAIN] * 100, PAUSED]
    assert waits[:4] == [timedelta(seconds=number) for number in (1, 2, 4, 8)]
    assert waits[-1] == timedelta(minutes=5)
    assert waits == sorted(waits)


def test_a_reattempt_that_succeeds_goes_on(testing: TestingApp) -> None:
    assert ended(testing, one_node(raising(Declined, times=2), on_exception="reattempt")) == [
        AGAIN,
        AGAIN,
        DONE,
    ]


def test_a_policy_waits_the_same_each_time(testing: TestingApp) -> None:
    policy = ExceptionPolicy("reattempt", wait=timedelta(hours=2), max_reattempts=3)
    waits, seen = times(testing, one_node(raising(Declined), on_exception=policy))
    assert (waits, seen) == ([timedelta(hours=2)] * 3, [AGAIN, AGAIN, AGAIN, PAUSED])


@both_kinds
def test_reattempts_without_a_wait_are_limited_alike(testing: TestingApp, is_async: bool) -> None:
    policy = ExceptionPolicy("reattempt", wait=timedelta(0), max_reattempts=3)
    waits, seen = times(testing, one_node(raising(Declined, times=20), is_async, on_exception=policy))
    assert (waits, seen) == ([timedelta(0)] * 3, [AGAIN, AGAIN, AGAIN, PAUSED])


@both_kinds
def test_retries_without_a_wait_are_limited_alike(testing: TestingApp, is_async: bool) -> None:
    flow = one_node(raising(Declined, times=20), is_async, retry=Retry(attempts=3, first=timedelta(0)))
    assert ended(testing, flow) == [AGAIN, AGAIN, PAUSED]


def test_a_policy_waits_longer_and_longer(testing: TestingApp) -> None:
    backoff = Retry(first=timedelta(minutes=1), factor=3, longest=timedelta(minutes=5))
    policy = ExceptionPolicy("reattempt", backoff=backoff, max_reattempts=4)
    waits, seen = times(testing, one_node(raising(Declined), on_exception=policy))
    assert waits == [timedelta(minutes=number) for number in (1, 3, 5, 5)]
    assert seen[-1] == PAUSED


def test_the_attempts_of_a_backoff_do_not_limit_the_policy(testing: TestingApp) -> None:
    policy = ExceptionPolicy("reattempt", backoff=Retry(attempts=2, on=(KeyError,)), max_reattempts=4)
    assert ended(testing, one_node(raising(Declined), on_exception=policy)) == [*[AGAIN] * 4, PAUSED]


@pytest.mark.parametrize(("then", "expected"), [("pause", PAUSED), ("cancel", CANCELED), ("skip", SKIPPED)])
def test_when_the_reattempts_are_used_up_then_is_done(
    testing: TestingApp, then: str, expected: tuple[str, str]
) -> None:
    policy = ExceptionPolicy("reattempt", wait=timedelta(1), max_reattempts=2, then=then)
    assert ended(testing, one_node(raising(Declined), on_exception=policy)) == [AGAIN, AGAIN, expected]


def test_a_class_level_policy_reattempts_alike(testing: TestingApp) -> None:
    class Flow(Workflow):
        detent.on_exception(Declined, action="reattempt", max_reattempts=2, wait=timedelta(1), then="skip")

        @step
        def work(self) -> None:
            raise Declined

    assert ended(testing, Flow) == [AGAIN, AGAIN, SKIPPED]


def test_no_reattempts_at_all(testing: TestingApp) -> None:
    policy = ExceptionPolicy("reattempt", max_reattempts=0, then="skip")
    assert ended(testing, one_node(raising(Declined), on_exception=policy)) == [SKIPPED]


@pytest.mark.parametrize("option", ["retry", "reattempt"])
def test_a_resume_gives_a_fresh_budget(testing: TestingApp, option: str) -> None:
    choices: dict[str, Any] = {
        "retry": {"retry": Retry(attempts=3)},
        "reattempt": {"on_exception": ExceptionPolicy("reattempt", max_reattempts=2)},
    }
    run = testing.start(one_node(raising(Declined), **choices[option]))
    testing.speedrun(run)
    assert attempts(run) == [AGAIN, AGAIN, PAUSED]
    run.resume()
    testing.speedrun(run)
    assert attempts(run) == [AGAIN, AGAIN, PAUSED] * 2


def test_a_reattempt_from_outside_gives_a_fresh_budget(testing: TestingApp) -> None:
    run = testing.start(one_node(raising(Declined), retry=Retry(attempts=3)))
    testing.speedrun(run)
    run.reattempt("work")
    testing.speedrun(run)
    assert attempts(run) == [AGAIN, AGAIN, PAUSED] * 2


def test_what_a_node_asks_for_itself_does_not_use_up_its_retries(testing: TestingApp) -> None:
    def body(self: Any) -> None:
        if self.ctx.attempt <= 5:
            self.reattempt()
        if self.ctx.attempt <= 7:
            raise Declined

    flow = one_node(body, retry=Retry(attempts=3))
    assert ended(testing, flow) == [*[("completed", "reattempted")] * 5, AGAIN, AGAIN, DONE]


def test_retries_and_each_policy_have_counts_of_their_own(testing: TestingApp) -> None:
    errors = [Declined, Declined, KeyError, OSError, KeyError, OSError, KeyError, OSError, OSError]

    class Flow(Workflow):
        detent.on_exception(OSError, action="reattempt", max_reattempts=3, wait=5, then="skip")
        detent.on_exception(KeyError, action="reattempt", max_reattempts=3, wait=60)

        @step(retry=Retry(attempts=3, on=(Declined,)))
        def work(self) -> None:
            raise errors[self.ctx.attempt - 1]

    run = testing.start(Flow)
    testing.speedrun(run)
    assert attempts(run) == [*[AGAIN] * 8, SKIPPED]
    counts = [item.error.reattempts for item in run.executions() if item.outcome == AGAIN[1] and item.error]
    assert counts[-1] == {"retry": 2, "builtins.KeyError": 3, "builtins.OSError": 3}


def test_policies_of_one_class_that_look_alike_have_counts_of_their_own(testing: TestingApp) -> None:
    class Flow(Workflow):
        detent.on_exception(
            lambda error: "first" in str(error), action="reattempt", max_reattempts=2, wait=0, then="skip"
        )
        detent.on_exception(
            lambda error: "second" in str(error), action="reattempt", max_reattempts=2, wait=0, then="cancel"
        )

        @step
        def work(self) -> None:
            raise Declined("first" if self.ctx.attempt % 2 else "second")

    assert ended(testing, Flow) == [*[AGAIN] * 4, SKIPPED]


def test_the_waits_of_a_policy_begin_anew_after_the_retries(testing: TestingApp) -> None:
    policy = ExceptionPolicy("reattempt", backoff=Retry(first=timedelta(minutes=1)), max_reattempts=2)
    flow = one_node(raising(Declined), retry=Retry(attempts=3), on_exception=policy)
    waits, seen = times(testing, flow)
    assert waits == [timedelta(seconds=number) for number in (1, 2, 60, 120)]
    assert seen == [*[AGAIN] * 4, PAUSED]


def test_the_counts_survive_a_crash(apps: Apps) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        if self.ctx.attempt == 3:
            gate.pass_through()
        raise Declined

    policy = ExceptionPolicy("reattempt", max_reattempts=2, wait=0)
    flow = one_node(body, retry=Retry(attempts=2, first=timedelta(0)), on_exception=policy)
    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    gate.open()
    run = second.run(run.id)
    wait_for(run, "paused")
    assert attempts(run) == [AGAIN, AGAIN, ("failed", "recovered"), AGAIN, PAUSED]


def test_without_a_limit_reattempts_go_on(testing: TestingApp) -> None:
    policy = ExceptionPolicy("reattempt", max_reattempts=None, wait=1)
    assert ended(testing, one_node(raising(Declined, times=150), on_exception=policy)) == [
        *[AGAIN] * 150,
        DONE,
    ]


# -- Crashes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["cancel", "skip", "reattempt"])
def test_a_node_that_kills_its_process_is_limited_and_pauses_whatever_its_policy(
    apps: Apps, action: Any
) -> None:
    gates: list[Gate] = []

    def body(self: Any) -> None:
        gates.append(Gate())
        gates[-1].pass_through()

    flow = one_node(body, on_exception=action)
    app = apps(flow, worker=False)
    run = app.start(flow)
    for death in range(3):
        victim = apps(flow)
        eventually(lambda death=death: len(gates) == death + 1, "it executes")  # type: ignore[misc]
        gates[-1].wait_for_arrival()
        crash(victim, reaped_by=app, max_recoveries=2)
        gates[-1].open()
    assert state(run) == "paused"
    assert attempts(run) == [("failed", "recovered")] * 3
    assert "TooManyRecoveries" in last(run).error.type
    assert "'work' crashed its worker" in last(run).error.message


def test_a_resume_after_too_many_crashes_gives_a_fresh_budget(apps: Apps) -> None:
    gates: list[Gate] = []
    kills = 2

    def body(self: Any) -> None:
        if len(gates) < kills:
            gates.append(Gate())
            gates[-1].pass_through()

    flow = one_node(body)
    app = apps(flow, worker=False)
    run = app.start(flow)

    def die() -> None:
        before = len(gates)
        victim = apps(flow)
        eventually(lambda: len(gates) == before + 1, "it executes")
        gates[-1].wait_for_arrival()
        crash(victim, reaped_by=app, max_recoveries=0)
        gates[-1].open()

    die()
    assert state(run) == "paused"
    run.resume()
    die()
    assert state(run) == "paused"
    run.resume()
    survivor = apps(flow)
    assert result(survivor.run(run.id)) == "after"
    assert attempts(run) == [("failed", "recovered")] * 2 + [DONE]


def test_a_crash_does_not_use_up_a_retry(apps: Apps) -> None:
    gate = Gate()

    def body(self: Any) -> None:
        if self.ctx.attempt == 1:
            gate.pass_through()
        if self.ctx.attempt in (2, 3):
            raise Declined

    flow = one_node(body, retry=Retry(attempts=3, first=timedelta(0)))
    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    crash(first, reaped_by=second)
    gate.open()
    run = second.run(run.id)
    assert result(run) == "after"
    assert attempts(run) == [("failed", "recovered"), AGAIN, AGAIN, DONE]


def test_a_worker_thought_dead_cannot_settle_a_node(apps: Apps) -> None:
    gate = Gate()

    def body(self: Any) -> str:
        if self.ctx.attempt == 1:
            gate.pass_through()
        return f"attempt {self.ctx.attempt}"

    flow = one_node(body)
    first = apps(flow)
    run = first.start(flow)
    gate.wait_for_arrival()
    second = apps(flow)
    reap(first, reaped_by=second)
    assert result(second.run(run.id)) == "after"
    gate.open()
    eventually(
        lambda: first.engine.worker is None or run.id not in first.engine.worker.held_runs(), "it has let go"
    )
    assert attempts(second.run(run.id)) == [("failed", "recovered"), DONE]
    assert last(second.run(run.id)).stored_result == '"attempt 2"'


def test_a_loop_over_items_goes_on_in_the_next_attempt(testing: TestingApp) -> None:
    seen: list[int] = []

    def body(self: Any) -> None:
        for item in self.ctx.iterate(range(5)):
            if item == 3 and self.ctx.attempt == 1:
                raise Declined
            seen.append(item)

    run = testing.start(one_node(body, retry=Retry(attempts=2, first=timedelta(0))))
    testing.speedrun(run)
    assert (seen, attempts(run)) == ([0, 1, 2, 3, 4], [AGAIN, DONE])


def test_what_a_policy_decided_is_in_the_history(testing: TestingApp) -> None:
    run = testing.start(one_node(raising(Declined("51"), times=1), on_exception="reattempt"))
    testing.speedrun(run)
    [detail] = events(run, "reattempted_by_exception")
    assert (detail["node"], detail["attempt"], detail["error"]["message"]) == ("work", 1, "51")
    wait_for(run, "finished")
