"""Versions of the code: what a run knows of them, and pinned runs, which only one version continues."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

import detent
from detent import Queue, Workflow, receive, step, workflow
from detent.app.check import Verdict, check
from detent.app.code_version import code_version
from detent.app.liveness import alive, why_unserved
from detent.cli.main import detent as cli
from detent.errors import InvalidArgument, InvalidOption, InvalidState
from detent.kernel.versions import all_versions, is_new, started_by, with_version

from .world import Apps, Gate, events, eventually, result, wait_for, wait_parked


@step
def note(text: str) -> str:
    return text


@workflow
def greet(name: str) -> str:
    return note(f"{name} {receive('word')}")


@workflow(pin=True)
def pinned(name: str) -> str:
    return note(f"{name} {receive('word')}")


@step(retry=detent.Retry(attempts=2, first=0))
def flaky(ctx: detent.Context, number: int) -> int:
    if ctx.attempt == 1:
        raise ValueError("the first time")
    return number


@workflow(pin=True)
def pinned_parts() -> int:
    return sum(one.result() for one in [flaky.spawn(number) for number in range(4)])


class Steps(Workflow, pin=True):
    """A class whose runs stay with the version that started them."""

    @step
    def first(self) -> str:
        return "first"

    @step(retry=detent.Retry(attempts=2, first=0))
    def second(self) -> str:
        if self.ctx.attempt == 1:
            raise ValueError("the first time")
        return "second"


def other_steps() -> type[Workflow]:
    """The same class as a later version has it."""

    class Later(Workflow, name="Steps", pin=True):
        @step
        def first(self) -> str:
            return "first"

        @step
        def third(self) -> str:
            return "third"

    return Later


def workers_of(run: detent.Run[Any]) -> set[str | None]:
    return {item.worker for item in run.executions() if item.worker is not None}


def id_of(app: detent.App) -> str:
    assert app.engine.worker is not None
    return app.engine.worker.id


# What a run knows


def test_a_run_knows_the_version_that_started_it_and_those_that_continued_it(apps: Apps) -> None:
    old = apps(greet, version="v1")
    run = old.start(greet, "Ada")
    wait_parked(run)
    old.close()
    new = apps(greet, version="v2")
    again = new.run(run.id)
    again.send("word", "hello")
    assert result(again) == "Ada hello"
    assert (again.refresh().version, again.versions, again.pinned_to) == ("v1", ("v1", "v2"), None)
    assert events(again, "continued") == [{"version": "v2"}]


def test_a_version_that_continues_a_run_twice_is_noted_once(apps: Apps) -> None:
    starting = apps(greet, version="v1", worker=False)
    run = starting.start(greet, "Ada")
    app = apps(greet, version="v2")
    wait_parked(run)
    run.send("word", "hello")
    assert result(run) == "Ada hello"
    assert run.refresh().versions == ("v1", "v2")
    assert len(events(run, "continued")) == 1
    assert app.start(greet, "Bob").versions == ("v2",)


def test_many_runs_that_are_started_at_once_know_their_version(apps: Apps) -> None:
    app = apps(greet, version="v1", worker=False)
    for run in app.start_many(greet, [("Ada",), ("Bob",)]):
        assert app.run(run.id).version == "v1"


def test_the_versions_of_a_run_are_kept_in_order() -> None:
    assert (started_by(None), all_versions(None)) == (None, ())
    text = with_version(with_version("v1", "v2"), "v3")
    assert (started_by(text), all_versions(text)) == ("v1", ("v1", "v2", "v3"))
    assert not is_new(text, "v2")
    assert is_new(text, "v")
    unknown = with_version(None, "v2")  # of a run from before versions were stored
    assert (started_by(unknown), all_versions(unknown)) == (None, ("v2",))


def test_a_run_that_sees_many_deploys_keeps_all_its_versions(apps: Apps) -> None:
    app = apps(greet, version="v1", worker=False)
    run = app.start(greet, "Ada")
    later = [f"v{number}-{'x' * 90}" for number in range(2, 7)]
    for version in later:
        app.engine.store.note_version([run.id], version, now=app.engine.clock.now())
    assert run.refresh().versions == ("v1", *later)


# The default


def test_the_default_version_is_the_same_for_the_same_code_and_another_for_other_code() -> None:
    def version(*include: Any) -> str:
        return detent.App("sqlite:///:memory:", include=include).engine.version

    assert version(greet, Steps) == version(Steps, greet)
    assert len({version(greet), version(greet, pinned), version(pinned), version(Steps)}) == 4
    assert version(Steps) != version(other_steps())


def test_the_version_of_a_function_covers_what_is_inside_of_it() -> None:
    def compiled(source: str) -> str:
        namespace: dict[str, Any] = {"step": step, "__name__": "somewhere"}
        exec(source, namespace)
        return code_version([namespace["f"]])

    one = "@step\ndef f(n: int) -> int:\n    return sum(i for i in range(n) if i in {1, 2, 3})\n"
    assert compiled(one) == compiled(f"\n\n# moved\n{one}")
    assert compiled(one) != compiled(one.replace("{1, 2, 3}", "{1, 2, 4}"))
    assert compiled(one) != compiled(one.replace("sum(", "max("))


@pytest.mark.parametrize("version", ["", "a,b", "a b", "a\n", "x" * 101, 7])
def test_a_version_is_a_short_printable_text(version: Any) -> None:
    with pytest.raises(InvalidArgument, match="version"):
        detent.App("sqlite:///:memory:", version=version)


def test_pin_is_true_or_false() -> None:
    with pytest.raises(InvalidOption, match="pin"):
        workflow(pin="v1")(lambda: None)  # type: ignore[call-overload]


# Pinned runs


def test_only_workers_of_its_version_continue_a_pinned_run(apps: Apps) -> None:
    apps(pinned, greet, version="v2")
    starting = apps(pinned, greet, version="v1", worker=False)
    run = starting.start(pinned, "Ada")
    other = starting.start(greet, "Bob")
    other.send("word", "hello")
    assert result(other) == "Bob hello"  # which comes after it in the queue
    [reason] = run.waiting_for
    assert (reason.kind, reason.name) == ("version", "v1")
    assert "'v1'" in str(reason)
    assert run.executions()[0].started_at is None
    apps(pinned, greet, version="v1")
    wait_parked(run)
    run.send("word", "hello")
    assert result(run) == "Ada hello"
    assert run.refresh().versions == ("v1",)
    assert run.pinned_to == "v1"


@pytest.mark.parametrize("definition", [pinned_parts, Steps])
def test_spawned_steps_nodes_and_retries_of_a_pinned_run_stay_with_its_version(
    apps: Apps, definition: Any
) -> None:
    starting = apps(definition, version="v1", worker=False)
    run = starting.start(definition)
    others = [apps(definition, version=version) for version in ("v2", "v3")]
    right = apps(definition, version="v1")
    result(run)
    assert workers_of(run) == {id_of(right)}
    assert all(app.start(definition).pinned_to == app.engine.version for app in others)


def test_a_pinned_run_on_a_limited_queue_waits_for_its_version(apps: Apps) -> None:
    queues = [Queue("default", key_concurrency=1, fair=True)]
    right = apps(pinned, greet, version="v1", worker=False, queues=queues)
    left = [right.options(key=key).start(pinned, "Ada") for key in ("a", "b")]
    run = right.options(key="a").start(greet, "Bob")
    run.send("word", "hello")
    apps(pinned, greet, version="v2", queues=queues)
    assert result(run) == "Bob hello"
    assert [one.refresh().state for one in left] == ["ready", "ready"]
    apps(pinned, greet, version="v1", queues=queues)
    for one in left:
        one.send("word", "hello")
        assert result(one) == "Ada hello"


def test_the_deadline_of_a_pinned_run_is_kept_by_its_version(apps: Apps) -> None:
    right = apps(pinned, greet, version="v1", worker=False)
    run = right.options(deadline=0.05).start(pinned, "Ada")
    other = right.options(deadline=0.05).start(greet, "Bob")
    apps(pinned, greet, version="v2")
    with pytest.raises(detent.DeadlineExceeded):
        result(other)
    assert run.refresh().state == "ready"
    apps(pinned, greet, version="v1")
    with pytest.raises(detent.DeadlineExceeded):
        result(run)


def test_another_version_neither_heals_nor_pauses_a_pinned_run_of_a_class(apps: Apps) -> None:
    right = apps(Steps, version="v1", worker=False)
    run = right.start(Steps)
    wrong = apps(other_steps(), version="v2", missing_after=0)
    assert wrong.engine.worker is not None
    eventually(lambda: wrong.engine.worker is not None and wrong.engine.worker.upkeep.begun)
    assert wrong.engine.worker.upkeep.heal() == 0
    assert wrong.engine.worker.upkeep.find_missing() == 0
    assert run.refresh().state == "ready"
    assert events(run, "healed") == []
    apps(Steps, version="v1")
    assert result(run) == "second"


def test_an_operator_of_another_version_cannot_change_the_graph_of_a_pinned_run(apps: Apps) -> None:
    right = apps(Steps, version="v1", worker=False)
    run = right.start(Steps)
    run.pause()
    with pytest.raises(InvalidState, match="pinned to version v1"):
        apps(other_steps(), version="v2", worker=False).run(run.id).resume()
    apps(Steps, version="v2", worker=False).run(run.id).resume()  # the same graph
    assert run.refresh().state == "ready"


def test_a_fork_of_a_pinned_run_belongs_to_the_version_that_forks(apps: Apps) -> None:
    for definition, args in ((pinned, ("Ada",)), (Steps, ())):
        run = apps(definition, version="v1", worker=False).start(definition, *args)
        assert apps(definition, version="v2", worker=False).fork(run.id).pinned_to == "v2"


# Pinning to another version


def test_an_operator_pins_a_run_to_another_version(apps: Apps) -> None:
    old = apps(pinned, version="v1")
    run = old.start(pinned, "Ada")
    wait_parked(run)
    old.close()
    new = apps(pinned, version="v2")
    again = new.run(run.id)
    again.send("word", "hello")
    eventually(lambda: [one.kind for one in again.waiting_for] == ["version"])
    again.repin()
    assert result(again) == "Ada hello"
    assert (again.pinned_to, again.refresh().versions) == ("v2", ("v1", "v2"))
    assert [(line["from"], line["to"]) for line in events(again, "repinned")] == [("v1", "v2")]


def test_a_class_goes_on_by_the_graph_of_the_version_that_it_is_pinned_to(apps: Apps) -> None:
    run = apps(Steps, version="v1", worker=False).start(Steps)
    again = apps(other_steps(), version="v2").run(run.id)
    again.repin()
    assert result(again) == "third"


def test_a_failed_attempt_that_is_resumed_has_the_new_version(apps: Apps) -> None:
    @workflow(pin=True, on_exception="pause")
    def fails() -> str:
        if broken:
            raise ValueError("broken")
        return "repaired"

    broken = [True]
    old = apps(fails, version="v1")
    run = old.start(fails)
    wait_for(run, "paused")
    old.close()
    broken.clear()
    again = apps(fails, version="v2").run(run.id)
    again.repin()
    again.resume()
    assert result(again) == "repaired"


def test_what_executes_cannot_be_pinned_to_another_version(apps: Apps) -> None:
    gate = Gate()

    @workflow(pin=True)
    def waits() -> str:
        gate.pass_through()
        return "done"

    app = apps(waits, version="v1")
    run = app.start(waits)
    gate.wait_for_arrival()
    with pytest.raises(InvalidState, match="performing"):
        run.repin("v2")
    gate.open()
    assert result(run) == "done"
    with pytest.raises(InvalidState, match="finished"):
        run.repin("v2")
    with pytest.raises(InvalidArgument, match="version"):
        run.repin("a,b")


def test_versions_in_asyncio(url: str) -> None:
    async def program() -> None:
        old = detent.AsyncApp(url, include=[pinned], version="v1")
        run = await old.start(pinned, "Ada")
        assert (run.version, run.versions, run.pinned_to) == ("v1", ("v1",), "v1")
        await old.close()
        async with detent.AsyncApp(url, include=[pinned], version="v2") as new:
            again = await new.run(run.id)
            assert [one.kind for one in await again.waiting_for()] == ["version"]
            await again.repin()
            await again.send("word", "hello")
            assert await again.result(timeout=60) == "Ada hello"

    asyncio.run(program())


# Operators


def test_check_lists_pinned_runs_that_no_worker_serves(apps: Apps) -> None:
    right = apps(pinned, version="v1")
    run = right.start(pinned, "Ada")
    wait_parked(run)
    deployed = apps(pinned, version="v2", worker=False)
    [found] = check(deployed.engine)
    assert (found.verdict, found.reasons) == (Verdict.UNCHANGED, ())
    right.close()
    [found] = check(deployed.engine)
    assert found.verdict is Verdict.CANNOT_CONTINUE
    assert "pinned to version 'v1'" in found.reasons[0]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command of the command line on an app, and returns its JSON."""

    def run(app: detent.App, *words: str) -> Any:
        class Opened:
            def __enter__(self) -> detent.App:
                return app

            def __exit__(self, *_: object) -> None: ...

        for module in ("repin", "show"):
            monkeypatch.setattr(f"detent.cli.{module}.opened", lambda _: Opened())
        done = CliRunner().invoke(cli, [words[0], "shop:app", *words[1:], "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    return run


def test_the_command_line_shows_versions_and_pins_runs_to_another(
    apps: Apps, command: Callable[..., Any]
) -> None:
    old = apps(pinned, version="v1", worker=False)
    runs = [old.start(pinned, "Ada") for _ in range(3)]
    app = apps(pinned, version="v2")
    [worker] = command(app, "workers")
    assert worker["version"] == "v2"
    shown = command(app, "show", runs[0].id)
    assert (shown["version"], shown["versions"], shown["pinned_to"]) == ("v1", ["v1"], "v1")
    assert [one["kind"] for one in shown["waiting_for"]] == ["version"]
    assert command(app, "repin", runs[0].id)["pinned_to"] == "v2"
    assert command(app, "repin", runs[1].id, "--version", "v3")["pinned_to"] == "v3"
    assert command(app, "repin-all", "--from", "v1", "--yes") == {"matching": 1, "changed": 1, "refused": {}}
    assert command(app, "repin-all", "--from", "v3", "--yes")["changed"] == 1
    for run in runs:
        run.send("word", "hello")
        assert result(run) == "Ada hello"


def test_a_result_that_is_waited_for_in_vain_says_which_version_is_missing(apps: Apps) -> None:
    apps(pinned, version="v2")
    app = apps(pinned, version="v1", worker=False)
    run = app.start(pinned, "Ada")
    assert "'v1'" in why_unserved(run.row, alive(app.engine.store))
