"""Nodes of a graph built at run time that fail: retries, timeouts, and error branches."""

import asyncio
import json
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import detent
from detent import DefinitionError, GraphInvalid, Retry, step, workflow
from detent.app.check import Verdict, check
from detent.errors import CannotReattempt
from detent.kernel.drawing import to_dot, to_mermaid
from detent.testing import TestingApp
from tests.functions.world import Apps, Gate, crash, eventually, reap, result, wait_for

ran: list[Any] = []
failing: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()
    failing.clear()


class Declined(Exception):
    pass


@step
def work(name: str) -> str:
    ran.append(name)
    if name in failing:
        raise Declined(f"{name} was declined")
    return name


@step
async def awork(name: str) -> str:
    ran.append(name)
    if name in failing:
        raise Declined(f"{name} was declined")
    return name


@step
def tell(what: Any) -> Any:
    ran.append("tell")
    return what


@step
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return "in time"


@step
async def aslow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "in time"


@step(transactional=True)
def booking(tx: Any, name: str) -> str:
    if name in failing:
        raise Declined("no")
    return name


@workflow
def child(name: str) -> str:
    return work(name)


ALL = (work, awork, tell, slow, aslow, booking, child)


def shop(job: Any = work, **options: Any) -> detent.Graph:
    """charge, then ship; refund if charge fails; then mail."""
    g = detent.Graph("shop")
    charge = g.node("charge", job=job, args={"name": "charge"}, **options)
    g.node("ship", job=work, args={"name": "ship"})
    with g.on_error(charge):
        g.node("refund", job=tell, args={"what": charge.error})
    g.node("mail", job=work, args={"name": "mail"})
    return g


def outcomes(run: detent.Run[Any]) -> dict[str, str]:
    return {node.name: node.outcome or node.state for node in run.nodes()}


PAID = {"charge": "success", "ship": "success", "refund": "skipped_by_condition", "mail": "success"}
FAILED = {
    "charge": "branched_by_exception",
    "ship": "skipped_by_condition",
    "refund": "success",
    "mail": "success",
}


@pytest.mark.parametrize("job", [work, awork, booking, child], ids=lambda job: job.name)
def test_a_node_that_fails_for_good_goes_on_with_its_error_branch(apps: Apps, job: Any) -> None:
    app = apps(*ALL)
    run = app.start(shop(job))
    assert result(run) == "mail"
    assert outcomes(run) == PAID
    failing.add("charge")
    run = app.start(shop(job))
    assert result(run) == "mail"
    assert outcomes(run) == FAILED
    assert run.verify() == []
    charge, _, refund, _ = run.nodes()
    assert (charge.state, refund.state, refund.handles) == ("failed", "completed", "charge")
    assert charge.error is not None
    assert charge.error.type.endswith("Declined")


def test_the_error_is_data(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("charge")
    g = detent.Graph("data")
    charge = g.node("charge", job=work, args={"name": "charge"})
    with g.on_error(charge):
        g.result({"why": charge.error["message"], "type": charge.error["type"], "out": charge.output})
    run = testing.speedrun(testing.start(g))
    assert run.result() == {
        "why": "charge was declined",
        "type": f"{__name__}.Declined",
        "out": None,
    }


def test_behind_both_sides_the_error_is_none_if_there_was_none(testing: TestingApp) -> None:
    testing.include(*ALL)
    g = shop()
    g.result([g._ref(g._ids["charge"]).error])
    assert testing.speedrun(testing.start(g)).result() == [None]
    failing.add("charge")
    g = shop()
    g.result([g._ref(g._ids["charge"]).error["message"]])
    assert testing.speedrun(testing.start(g)).result() == ["charge was declined"]


def test_all_that_comes_after_it_is_skipped_and_what_does_not_runs(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("charge")
    g = detent.Graph("deep")
    charge = g.node("charge", job=work, args={"name": "charge"})
    label = g.node("label", job=work, args={"name": "label"}, depends_on=None)
    ship = g.node("ship", job=work, args={"name": "ship"}, depends_on=charge)
    both = g.node("both", job=work, args={"name": "both"}, depends_on=[ship, label])
    with g.when(ship.output == "ship"):
        g.node("inside", job=work, args={"name": "inside"})
    with g.otherwise():
        g.node("else", job=work, args={"name": "else"})
    g.spread("many", over=[1, 2], job=tell, arg="what", depends_on=both)
    with g.on_error(charge):
        refund = g.node("refund", job=work, args={"name": "refund"})
    g.node("notice", job=work, args={"name": "notice"}, depends_on=refund)
    run = testing.speedrun(testing.start(g))
    assert run.state == "finished"
    done = {node.name for node in run.nodes() if node.state == "completed"}
    assert done == {"label", "refund", "notice"}
    assert run.verify() == []


def test_error_branches_may_follow_each_other_and_be_nested(testing: TestingApp) -> None:
    testing.include(*ALL)

    def nested() -> detent.Graph:
        g = detent.Graph("nested")
        charge = g.node("charge", job=work, args={"name": "charge"})
        ship = g.node("ship", job=work, args={"name": "ship"})
        with g.on_error(ship):
            g.node("recall", job=work, args={"name": "recall"})
        g.node("shipped", job=work, args={"name": "shipped"})
        with g.on_error(charge):
            refund = g.node("refund", job=work, args={"name": "refund"})
            with g.on_error(refund):
                g.node("call", job=work, args={"name": "call"})
            g.node("refunded", job=work, args={"name": "refunded"})
        g.node("mail", job=work, args={"name": "mail"})
        return g

    def finished() -> set[str]:
        run = testing.speedrun(testing.start(nested()))
        assert run.state == "finished"
        return {node.name for node in run.nodes() if node.state == "completed"}

    assert finished() == {"charge", "ship", "shipped", "mail"}
    failing.add("ship")
    assert finished() == {"charge", "recall", "shipped", "mail"}
    failing.add("charge")
    assert finished() == {"refund", "refunded", "mail"}
    failing.add("refund")
    assert finished() == {"call", "refunded", "mail"}


def test_a_handler_may_be_named_by_the_node_itself(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("charge")
    g = detent.Graph("named")
    g.node("check", job=work, args={"name": "check"})
    refund = g.node("refund", job=work, args={"name": "refund"})
    charge = g.node("charge", job=work, args={"name": "charge"}, on_error=refund)
    g.node("ship", job=work, args={"name": "ship"})
    g.node("mail", job=work, args={"name": "mail"}, depends_on=[charge, refund])
    run = testing.speedrun(testing.start(g))
    assert ran == ["check", "charge", "refund", "mail"]
    assert run.state == "finished"


def test_a_handler_that_fails_pauses_the_run(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.update({"charge", "refund"})
    g = detent.Graph("unlucky")
    charge = g.node("charge", job=work, args={"name": "charge"})
    with g.on_error(charge):
        g.node("refund", job=work, args={"name": "refund"})
    run = testing.speedrun(testing.start(g))
    assert run.state == "paused"
    with pytest.raises(CannotReattempt, match="it has failed, and its error branch ran"):
        run.reattempt("charge")
    failing.clear()
    run.resume()
    assert testing.speedrun(run).result() == "refund"
    assert outcomes(run)["charge"] == "branched_by_exception"


def test_retries_of_the_node_come_before_its_error_branch(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("charge")
    run = testing.speedrun(testing.start(shop(retry=Retry(attempts=3, first=timedelta(seconds=5)))))
    assert ran.count("charge") == 3
    assert outcomes(run) == FAILED
    moments = [
        item.scheduled_for for item in run.executions() if item.node == "charge" and item.scheduled_for
    ]
    waits = [later - first for first, later in pairwise(moments)]
    assert waits == [timedelta(seconds=5), timedelta(seconds=10)]


def test_a_retry_in_a_graph_knows_exceptions_by_their_names(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("charge")
    testing.speedrun(testing.start(shop(retry=Retry(attempts=3, on=(KeyError,)))))
    assert ran.count("charge") == 1
    testing.speedrun(testing.start(shop(retry=Retry(attempts=3, never_on=(Declined,)))))
    assert ran.count("charge") == 2
    testing.speedrun(testing.start(shop(retry=Retry(attempts=3, on=(Declined,)))))
    assert ran.count("charge") == 5


def test_reattempts_come_before_the_error_branch(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("charge")
    run = testing.speedrun(testing.start(shop(on_exception="reattempt")))
    assert ran.count("charge") == 101
    assert outcomes(run) == FAILED


@pytest.mark.parametrize("job", [slow, aslow], ids=["def", "async def"])
def test_a_timeout_of_the_node_is_a_failure(apps: Apps, job: Any) -> None:
    g = detent.Graph("late")
    first = g.node("first", job=job, args={"seconds": 5}, timeout=0.05)
    with g.on_error(first):
        g.result(first.error["type"])
    assert result(apps(*ALL).start(g)) == "detent.errors.runs.StepTimeout"


def test_spreads_and_fan_outs_take_retries_and_timeouts(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("b")
    g = detent.Graph("many")
    g.spread(
        "s", over=["a", "b"], job=work, arg="name", retry=Retry(attempts=2), timeout=5, on_exception="skip"
    )
    g.fan_out(
        "ab", name=str, job=awork, args=lambda n: {"name": n}, retry=Retry(attempts=3), on_exception="skip"
    )
    run = testing.speedrun(testing.start(g))
    assert run.state == "finished"
    assert (ran.count("a"), ran.count("b")) == (2, 5)


def test_it_is_stored_as_data_signed_exported_and_imported(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("ship")
    run = testing.speedrun(
        testing.start(shop(retry=Retry(attempts=2, on=(Declined,)), timeout=timedelta(minutes=1)))
    )
    assert run.state == "paused"
    document = json.loads(run.export_graph())
    nodes = {node["name"]: (id, node) for id, node in document["nodes"].items()}
    assert nodes["charge"][1]["on_error"] is True
    assert nodes["charge"][1]["timeout"] == 60
    assert nodes["charge"][1]["retry"]["on"] == [f"{__name__}.Declined"]
    assert nodes["refund"][1]["branch"] == [nodes["charge"][0], False]
    failing.clear()
    run.import_graph(json.dumps(document))
    run.resume()
    assert testing.speedrun(run).result() == "mail"
    assert outcomes(run) == PAID
    assert run.verify() == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda nodes: nodes["refund"].pop("branch"), "no node belongs to its error branch"),
        (
            lambda nodes: nodes["refund"]["branch"].__setitem__(1, True),
            "but does not depend on such a condition",
        ),
        (lambda nodes: nodes["charge"].pop("on_error"), "but does not depend on such a condition"),
        (
            lambda nodes: nodes["charge"].__setitem__("on_exception", "skip"),
            "has on_error, which is for jobs",
        ),
        (lambda nodes: nodes["charge"].__setitem__("timeout", 0), "it is a number of seconds, more than 0"),
        (
            lambda nodes: nodes["charge"]["retry"].__setitem__("attempts", 0),
            "has an invalid retry",
        ),
        (lambda nodes: nodes["charge"]["retry"].__setitem__("first", -1), "has an invalid retry"),
        (
            lambda nodes: nodes["charge"]["retry"].__setitem__("longest", 1e300),
            "has an invalid retry",
        ),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(testing: TestingApp, change: Any, reason: str) -> None:
    testing.include(*ALL)
    failing.add("ship")
    run = testing.speedrun(testing.start(shop(retry=Retry(attempts=2))))
    document = json.loads(run.export_graph())
    change({node["name"]: node for node in document["nodes"].values()})
    with pytest.raises(GraphInvalid, match=reason):
        run.import_graph(json.dumps(document))


def test_it_is_drawn(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("charge")
    run = testing.speedrun(testing.start(shop()))
    assert "n0 -. error .-> n2" in run.to_mermaid()
    assert "n0 --> n1" in run.to_mermaid()
    assert run.to_dot().count('[style=dashed, label="error"]') == 1
    assert to_mermaid([]) == "graph TD\n"
    assert "digraph" in to_dot([], "x")


def test_check_knows_the_jobs_of_error_branches(apps: Apps) -> None:
    apps(*ALL, worker=False).start(shop())
    [checked] = check(apps(work, worker=False).engine)
    assert checked.verdict is Verdict.CANNOT_CONTINUE
    assert any("refund" in reason for reason in checked.reasons)


def test_a_fork_keeps_the_failure_and_its_branch(testing: TestingApp) -> None:
    testing.include(*ALL)
    failing.add("charge")
    run = testing.speedrun(testing.start(shop()))
    again = testing.speedrun(testing.fork(run, from_step="mail"))
    assert outcomes(again) == FAILED
    assert again.verify() == []
    failing.clear()
    paid = testing.speedrun(testing.fork(run, from_step="charge"))
    assert outcomes(paid) == PAID


def test_an_operator_who_skips_the_node_chooses_the_normal_way(testing: TestingApp) -> None:
    testing.include(*ALL)
    run = testing.start(shop(wait=timedelta(days=1)))
    testing.settle_down()
    run.skip("charge")
    assert outcomes(testing.speedrun(run)) == {**PAID, "charge": "skipped_by_operator"}


@pytest.mark.parametrize("fails", [False, True])
def test_a_paused_run_goes_on_with_the_right_branch(testing: TestingApp, fails: bool) -> None:
    testing.include(*ALL)
    failing.update({"charge"} if fails else set())
    run = testing.start(shop(wait=timedelta(hours=1)))
    testing.settle_down()
    run.pause()
    testing.advance(hours=2)
    run.resume()
    assert outcomes(testing.speedrun(run)) == (FAILED if fails else PAID)


def test_a_worker_that_dies_is_no_failure(apps: Apps) -> None:
    gate = Gate()

    @step(id="gated")
    def gated(name: str) -> str:
        gate.pass_through()
        return name

    first = apps(*ALL, gated)
    run = first.start(shop(gated))
    gate.wait_for_arrival()
    second = apps(*ALL, gated)
    crash(first, reaped_by=second)
    gate.open()
    run = second.run(run.id)
    assert result(run) == "mail"
    assert outcomes(run) == PAID


def test_a_late_failure_of_a_worker_thought_dead_changes_nothing(apps: Apps) -> None:
    gate = Gate()
    calls: list[int] = []

    @step(id="gated")
    def gated(name: str) -> str:
        calls.append(1)
        if len(calls) == 1:
            gate.pass_through()
            raise Declined("too late")
        return name

    first = apps(*ALL, gated)
    run = first.start(shop(gated))
    gate.wait_for_arrival()
    second = apps(*ALL, gated)
    reap(first, reaped_by=second)
    run = second.run(run.id)
    assert result(run) == "mail"
    gate.open()
    eventually(
        lambda: first.engine.worker is None or run.id not in first.engine.worker.held_runs(), "it has let go"
    )
    assert outcomes(run) == PAID


def test_many_error_branches_at_once_join_once(apps: Apps) -> None:
    failing.update(f"p{number}" for number in range(0, 20, 2))
    g = detent.Graph("parts")
    parts = g.fan_out(range(20), name=lambda i: f"p{i}", job=awork, args=lambda i: {"name": f"p{i}"})
    for part in parts:
        with g.on_error(part):
            g.node(f"undo {part.name}", job=awork, args={"name": f"undo {part.name}"})
    g.node("total", job=work, args={"name": "total"})
    run = apps(*ALL).start(g)
    wait_for(run, "finished")
    assert ran[-1] == "total"
    assert sum(str(name).startswith("undo") for name in ran) == 10


# -- Bad input -----------------------------------------------------------------------------------------


def test_what_cannot_have_an_error_branch_says_so() -> None:
    g = detent.Graph("wrong")
    a = g.node("a", job=work, args={"name": "a"})
    b = g.node("b", job=work, args={"name": "b"}, on_exception="skip")
    value = g.value("value", 5)
    other = detent.Graph("other").node("x", job=work, args={"name": "x"})
    for node, reason in (
        (b, "and an error branch"),
        (value, "error branches are for jobs"),
        (other, "give a node of this graph"),
        ("a", "give a node of this graph"),
    ):
        with pytest.raises(DefinitionError, match=reason), g.on_error(node):  # type: ignore[arg-type]
            pass
    with pytest.raises(DefinitionError, match="is empty; add a node"), g.on_error(a):
        pass
    with pytest.raises(DefinitionError, match="already has an error branch"), g.on_error(a):
        pass
    with g.when(a.output == "a"):
        with pytest.raises(DefinitionError, match="must be in the same block as the node"), g.on_error(value):
            pass
        with pytest.raises(DefinitionError, match="in another block"):
            g.node("c", job=work, args={"name": "c"}, on_error=b)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retry": 3}, "write retry=detent.Retry"),
        ({"timeout": 0}, "write timedelta"),
        ({"timeout": True}, "write timedelta"),
        ({"timeout": "5s"}, "write timedelta"),
        ({"job": child, "timeout": 5}, "its job is a workflow"),
        ({"job": booking, "timeout": 5}, "transactional and a `def`"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    g = detent.Graph("wrong")
    with pytest.raises(DefinitionError, match=reason):
        g.node("a", **{"job": work, "args": {"name": "a"}, **options})


def test_fan_outs_and_spreads_have_no_error_branch_of_their_own() -> None:
    g = detent.Graph("wrong")
    with pytest.raises(DefinitionError, match="fan_out takes no on_error"):
        g.fan_out([1], name=str, job=tell, args=lambda i: {"what": i}, on_error="x")  # type: ignore[call-arg]
    with pytest.raises(DefinitionError, match="takes no on_error"):
        g.spread("s", over=[1], job=tell, arg="what", on_error="x")  # type: ignore[call-arg]


def test_the_error_of_a_node_without_an_error_branch_is_refused(testing: TestingApp) -> None:
    testing.include(*ALL)
    g = detent.Graph("wrong")
    a = g.node("a", job=work, args={"name": "a"})
    g.value("b", a.error)
    with pytest.raises(GraphInvalid, match="uses the error of 'a', which has no error branch"):
        testing.start(g)
