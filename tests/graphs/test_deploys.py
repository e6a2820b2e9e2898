"""Deploys: a run meets other code than it began with.  Rules of semantics 6, by number."""

import contextlib
import json
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import detent
from detent import (
    GraphInvalid,
    GraphTampered,
    InvalidState,
    MissingJob,
    RunPaused,
    StepNotDefined,
    step,
    task,
)
from detent.app.check import Verdict, check
from detent.cli.check import check_command
from detent.definitions.workflows import WorkflowType
from tests.functions.world import Apps, eventually, result, wait_for

DAY = timedelta(days=1)
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def version(*nodes: str, waits: dict[str, timedelta] | None = None, fails: str = "") -> Any:
    """A class whose chain is these nodes."""
    body: Any = {}

    def method(name: str) -> Any:
        def node(self: Any) -> str:
            ran.append(name)
            if name == fails:
                raise ValueError(name)
            return name

        node.__name__, node.__qualname__ = name, f"Delivery.{name}"
        return step(wait=(waits or {}).get(name))(node)

    body = WorkflowType.__prepare__("Delivery", (detent.Workflow,))
    for name in nodes:
        body[name] = method(name)
    body["__module__"], body["__qualname__"] = __name__, "Delivery"
    return WorkflowType("Delivery", (detent.Workflow,), body)


def asleep_before(apps: Apps, node: str, *nodes: str) -> detent.Run[Any]:
    """A run of the version with these nodes that sleeps before one of them; its worker is gone."""
    old = version(*nodes, waits={node: DAY})
    app = apps(old)
    run = app.start(old)
    done = nodes[: nodes.index(node)]
    eventually(lambda: ran == list(done), "it sleeps")
    eventually(lambda: [one.state for one in run.nodes()][len(done)] == "scheduled", "it sleeps")
    app.close()
    return run


def outcomes(run: detent.Run[Any]) -> dict[str, str | None]:
    return {node.name: node.outcome for node in run.nodes()}


def due(app: detent.App) -> None:
    """A day has passed."""
    with app.engine.store._writer.transaction() as tx:
        tx.run("UPDATE detent_executions SET scheduled_for = 1 WHERE state IN ('timer', 'held')")


def test_6_1_a_class_run_goes_by_the_code_of_today(apps: Apps) -> None:
    run = asleep_before(apps, "b", "a", "b", "c")
    app = apps(version("a", "b", "c", "d"))
    due(app)
    assert result(app.run(run.id)) == "d"
    assert ran == ["a", "b", "c", "d"]


def test_6_1_a_frozen_run_keeps_its_graph(apps: Apps) -> None:
    run = asleep_before(apps, "b", "a", "b", "c")
    run.freeze()
    app = apps(version("a", "b", "x", "c", "d"))
    again = app.run(run.id)
    assert [node.name for node in again.nodes()] == ["a", "b", "c"]
    due(app)
    assert result(again) == "c"
    assert ran == ["a", "b", "c"]


def test_6_2_a_worker_that_begins_heals_what_nobody_would_come_to(apps: Apps) -> None:
    run = asleep_before(apps, "b", "a", "b")
    app = apps(version("a", "x", "b"))
    assert result(app.run(run.id)) == "b"
    assert ran == ["a", "x", "b"], "what is new is done first, and then there is nothing to wait for"
    [line] = [line for line in app.run(run.id).history() if line.event == "healed"]
    assert line.detail["withdrawn"] == ["b"]
    assert line.detail["begun"] == ["x"]


def test_6_3_a_node_added_before_what_is_done_is_bypassed(apps: Apps) -> None:
    run = asleep_before(apps, "c", "a", "b", "c")
    app = apps(version("a", "x", "b", "c"))
    again = app.run(run.id)
    eventually(lambda: outcomes(again).get("x") == "bypassed_by_deploy", "x is passed over")
    assert ran == ["a", "b"]


def test_6_4_a_done_node_that_is_gone_is_only_worth_a_line(apps: Apps) -> None:
    run = asleep_before(apps, "c", "a", "b", "c")
    app = apps(version("a", "c"))
    due(app)
    assert result(app.run(run.id)) == "c"
    [line] = [line for line in app.run(run.id).history() if line.event == "healed"]
    assert line.detail["removed"] == ["b"]


def test_6_4_a_node_to_come_that_is_gone_pauses_the_run_and_skip_goes_on(apps: Apps) -> None:
    run = asleep_before(apps, "b", "a", "b", "c")
    app = apps(version("a", "c"))
    again = app.run(run.id)
    wait_for(again, "paused")
    with pytest.raises(RunPaused) as caught:
        again.result()
    assert isinstance(caught.value.__cause__, StepNotDefined)
    again.resume()
    assert again.refresh().state == "paused", "resuming tries again, and it is still gone"
    again.skip("b")
    assert result(again) == "c"
    assert ran == ["a", "c"]


def test_6_4_resume_goes_on_when_the_node_is_back(apps: Apps) -> None:
    run = asleep_before(apps, "b", "a", "b", "c")
    middle = apps(version("a", "c"))
    wait_for(middle.run(run.id), "paused")
    middle.close()
    app = apps(version("a", "b", "c"))
    due(app)
    again = app.run(run.id)
    again.resume()
    assert result(again) == "c"
    assert ran == ["a", "b", "c"]


def test_6_5_a_run_whose_class_is_gone_is_readable_listed_and_can_be_canceled(apps: Apps) -> None:
    run = asleep_before(apps, "b", "a", "b")
    app = apps()
    again = app.run(run.id)
    assert [one.id for one in app.runs(type="Delivery")] == [run.id]
    assert [(node.name, node.state) for node in again.nodes()] == [("a", "completed"), ("b", "scheduled")]
    assert "b" in again.to_mermaid()
    again.cancel()
    assert again.refresh().state == "canceled"


# Frozen graphs


@step
def noted(name: str) -> str:
    ran.append(name)
    return name


def two_nodes() -> detent.Graph:
    g = detent.Graph("two")
    g.node("one", job=noted, args={"name": "one"}, wait=DAY)
    g.node("two", job=noted, args={"name": "two"})
    return g


def looked_after(app: detent.App, run: detent.Run[Any]) -> bool:
    """Whether the upkeep, which else comes by every now and then, has paused the run."""
    assert app.engine.worker is not None
    app.engine.worker.upkeep.find_missing()
    return run.refresh().state == "paused"


def test_6_6_a_missing_job_pauses_the_run_with_what_can_be_done_about_it(apps: Apps) -> None:
    starter = apps(noted, worker=False)
    run = starter.start(two_nodes())
    due(starter)
    app = apps(missing_after=timedelta(0))
    eventually(lambda: looked_after(app, run), "it pauses")
    with pytest.raises(RunPaused) as caught:
        app.run(run.id).result()
    error = caught.value.__cause__
    assert isinstance(error, MissingJob)
    text = str(error)
    assert f'Dynamic run {run.id} references job "noted" which no longer exists.' in text
    assert "Node: one (n_" in text
    assert "Frozen at: " in text
    assert all(f"{number}. " in text for number in (1, 2, 3))
    assert ran == []


def tamper(app: detent.App, run_id: str, change: Any) -> None:
    """Change what is stored of a graph, behind everybody's back."""
    with app.engine.store._writer.transaction() as tx:
        text = "".join(row[0] for row in tx.query(tx.sql.graphs.graph, id=run_id))
        tx.run(tx.sql.graphs.delete_graph, id=run_id)
        changed = change(text)
        rows = json.dumps([{"run_id": run_id, "part": 0, "body": changed}])
        tx.run(tx.sql.graphs.insert_graphs, rows=rows)


def signed(app: detent.App, run_id: str) -> None:
    """Sign what is stored, as a forger would who knows how."""
    with app.engine.store._writer.transaction() as tx:
        text = "".join(row[0] for row in tx.query(tx.sql.graphs.graph, id=run_id))
        signature = detent.kernel.graph.signature_of(text)
        tx.run(tx.sql.graphs.set_graph, id=run_id, signature=signature, irregular=0)


def test_6_6_a_graph_that_is_not_what_was_signed_executes_nothing(apps: Apps) -> None:
    starter = apps(noted, worker=False)
    run = starter.start(two_nodes())
    tamper(starter, run.id, lambda text: text.replace('"noted"', '"other"'))
    due(starter)
    app = apps(noted)
    again = app.run(run.id)
    wait_for(again, "paused")
    with pytest.raises(RunPaused) as caught:
        again.result()
    assert isinstance(caught.value.__cause__, GraphTampered)
    assert ran == []


def circle(text: str) -> str:
    document = msgspec.json.decode(text)
    first, second = document["nodes"].values()
    first["depends_on"] = [list(document["nodes"])[1]]
    second["depends_on"] = [next(iter(document["nodes"]))]
    return msgspec.json.encode(document).decode()


def deep(text: str) -> str:
    nested = "[" * 1_000_000 + "]" * 1_000_000
    return text.replace('"args":{', '"args":{"x":' + nested + ",", 1)


HOSTILE = {
    "a cycle": (circle, "depend on each other"),
    "a million-deep nesting": (deep, "nested too deeply"),
    "an unknown kind": (
        lambda text: text.replace('"name":"one"', '"name":"one","kind":"exec"'),
        "unknown kind",
    ),
    "no JSON": (lambda text: text[:-5], "is not a valid graph"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_graph_is_refused_though_it_is_signed(apps: Apps, what: str) -> None:
    change, message = HOSTILE[what]
    starter = apps(noted, worker=False)
    run = starter.start(two_nodes())
    tamper(starter, run.id, change)
    signed(starter, run.id)
    due(starter)
    app = apps(noted)
    again = app.run(run.id)
    wait_for(again, "paused")
    with pytest.raises(RunPaused, match=message):
        again.result()
    assert ran == []


def test_a_stored_job_is_looked_up_and_never_imported(apps: Apps) -> None:
    starter = apps(noted, worker=False)
    run = starter.start(two_nodes())
    tamper(starter, run.id, lambda text: text.replace('"job":"noted"', '"job":"os.system"'))
    signed(starter, run.id)
    with starter.engine.store._writer.transaction() as tx:
        tx.run("UPDATE detent_executions SET job = 'os.system'")
    due(starter)
    app = apps(noted, missing_after=timedelta(0))
    eventually(lambda: looked_after(app, run), "it pauses")
    with pytest.raises(RunPaused, match=r"os\.system"):
        app.run(run.id).result()
    assert ran == []


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_graph_cannot_be_imported(apps: Apps, what: str) -> None:
    change, _ = HOSTILE[what]
    app = apps(noted, worker=False)
    run = app.start(two_nodes())
    run.pause()
    before = run.export_graph()
    text = app.engine.store.graph(run.id)
    assert text is not None
    with pytest.raises(GraphInvalid):
        run.import_graph(change(text))
    assert run.export_graph() == before


def test_a_graph_with_an_id_twice_or_an_unknown_job_cannot_be_imported(apps: Apps) -> None:
    app = apps(noted, worker=False)
    run = app.start(two_nodes())
    run.pause()
    text = app.engine.store.graph(run.id)
    assert text is not None
    first = text.index('"n_')
    node = text[first : text.index("}", text.index("}", first) + 1) + 1]
    with pytest.raises(GraphInvalid, match="twice"):
        run.import_graph(text.replace(node, f"{node},{node}", 1))
    with pytest.raises(MissingJob, match=r"os\.system"):
        run.import_graph(text.replace('"noted"', '"os.system"'))


def test_6_6_a_graph_is_replaced_only_while_paused_and_the_history_says_so(apps: Apps) -> None:
    app = apps(noted)
    run = app.start(two_nodes())
    document = json.loads(run.export_graph())
    [second] = [node for node in document["nodes"].values() if node["name"] == "two"]
    second["args"]["name"] = "another"
    [first] = [node for node in document["nodes"].values() if node["name"] == "one"]
    with pytest.raises(InvalidState, match="pause it first"):
        run.import_graph(json.dumps(document))
    run.pause()
    run.import_graph(json.dumps(document))
    assert "graph imported" in [line.event for line in run.history()]
    assert json.loads(run.export_graph())["signature"] != document["signature"]
    due(app)
    run.resume()
    assert result(run) == "another"
    assert ran == ["one", "another"]
    assert first["wait"] == DAY.total_seconds()


# What a deploy would do, before it is done


def verdicts(app: detent.App) -> dict[str, Verdict]:
    return {one.run_id: one.verdict for one in check(app.engine)}


def test_check_tells_the_runs_that_go_on_from_those_that_heal_and_those_that_cannot(apps: Apps) -> None:
    run = asleep_before(apps, "b", "a", "b", "c")
    assert verdicts(apps(version("a", "b", "c"), worker=False)) == {run.id: Verdict.UNCHANGED}
    assert verdicts(apps(version("a", "x", "b", "c"), worker=False)) == {run.id: Verdict.HEALS}
    [left] = check(apps(version("a", "c"), worker=False).engine)
    assert left.verdict is Verdict.CANNOT_CONTINUE
    assert "which Delivery no longer defines" in left.reasons[0]
    [gone] = check(apps(noted, worker=False).engine)
    assert gone.reasons == ("the app does not include 'Delivery'",)


def test_check_finds_jobs_that_a_frozen_graph_needs(apps: Apps) -> None:
    app = apps(noted, worker=False)
    run = app.start(two_nodes())
    assert verdicts(app) == {run.id: Verdict.UNCHANGED}
    [left] = check(apps(worker=False).engine)
    assert (left.verdict, len(left.reasons)) == (Verdict.CANNOT_CONTINUE, 2)


def test_check_replays_durable_functions_without_executing_a_step(apps: Apps) -> None:
    @detent.workflow(id="letter")
    def old() -> None:
        noted("written")
        detent.sleep(days=1)
        noted("sent")

    @detent.workflow(id="letter")
    def new() -> None:
        noted("sealed")
        detent.sleep(days=1)

    app = apps(old, noted)
    run = app.start(old)
    eventually(lambda: run.refresh().state == "ready" and ran == ["written"], "it sleeps")
    app.close()
    assert verdicts(apps(old, noted, worker=False)) == {run.id: Verdict.UNCHANGED}
    [left] = check(apps(new, noted, worker=False).engine)
    assert left.verdict is Verdict.CANNOT_CONTINUE
    assert ran == ["written"]


def test_check_writes_nothing_and_lists_no_run_that_is_over(apps: Apps) -> None:
    app = apps(noted)
    g = detent.Graph("one")
    g.node("one", job=noted, args={"name": "one"})
    assert result(app.start(g)) == "one"
    assert list(check(app.engine)) == []


def test_a_task_added_beside_what_sleeps_begins_with_the_deploy(apps: Apps) -> None:
    run = asleep_before(apps, "b", "a", "b")

    class Delivery(detent.Workflow):
        @step
        def a(self) -> None:
            ran.append("a")

        @step(wait=DAY)
        def b(self) -> None:
            ran.append("b")

        @task(depends_on=a)
        def side(self) -> None:
            ran.append("side")

    began = time.monotonic()
    app = apps(Delivery)
    eventually(lambda: ran == ["a", "side"], f"the new task runs ({time.monotonic() - began:.0f} s)")
    assert outcomes(app.run(run.id))["b"] is None, "b sleeps on"


def changed_letters(apps: Apps, *, strict: bool = False) -> tuple[detent.Run[Any], dict[str, Any]]:
    """A run that sleeps after its first step, and other versions of its code."""

    @detent.workflow(id="letter", strict=strict)
    def old() -> None:
        noted("written")
        detent.sleep(days=1)

    @detent.workflow(id="letter", strict=strict)
    def added() -> None:
        other_step()
        noted("written")
        detent.sleep(days=1)

    @detent.workflow(id="letter", strict=strict)
    def removed() -> None:
        detent.sleep(days=1)

    @detent.workflow(id="letter", strict=strict)
    def changed() -> None:
        noted("sealed")
        detent.sleep(days=1)

    @detent.step
    def other_step() -> None: ...

    app = apps(old, noted)
    run = app.start(old)
    eventually(lambda: run.refresh().state == "ready" and ran == ["written"], "it sleeps")
    app.close()
    versions = {"unchanged": old, "added": added, "removed": removed, "changed": changed}
    return run, {name: apps(code, noted, other_step, worker=False) for name, code in versions.items()}


def test_check_tells_another_order_from_what_cannot_continue(apps: Apps) -> None:
    run, versions = changed_letters(apps)
    found = {name: verdicts(app)[run.id] for name, app in versions.items()}
    assert found == {
        "unchanged": Verdict.UNCHANGED,
        "added": Verdict.CONTINUES,
        "removed": Verdict.CONTINUES,
        "changed": Verdict.CANNOT_CONTINUE,
    }


def test_a_strict_workflow_cannot_continue_without_a_recorded_step(apps: Apps) -> None:
    run, versions = changed_letters(apps, strict=True)
    found = {name: verdicts(app)[run.id] for name, app in versions.items()}
    assert (found["added"], found["removed"]) == (Verdict.CONTINUES, Verdict.CANNOT_CONTINUE)


@pytest.mark.parametrize(
    ("version", "options", "code"),
    [
        ("unchanged", ["--strict"], 0),
        ("added", [], 0),
        ("added", ["--strict"], 1),
        ("changed", [], 1),
    ],
)
def test_the_exit_code_of_check_says_whether_all_runs_continue(
    apps: Apps, monkeypatch: pytest.MonkeyPatch, version: str, options: list[str], code: int
) -> None:
    _, versions = changed_letters(apps)
    monkeypatch.setattr("detent.cli.check.opened", lambda name: contextlib.nullcontext(versions[name]))
    done = CliRunner().invoke(check_command, [version, *options])
    assert done.exit_code == code, done.output
