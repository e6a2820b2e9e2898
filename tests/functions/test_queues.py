"""Limited queues, from the outside: everything that runs on them obeys, and their limits can be changed."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

import detent
from detent import Queue, Rate, Workflow, step, task, workflow
from detent.app.queues import queue_reasons
from detent.cli.queues import queues
from detent.errors import InvalidArgument, UnknownQueue
from tests.functions.world import Apps, Gate, crash, eventually, result, wait_for


class Judge:
    """Sees what executes, and remembers the most that executed at a time: in all, and of each key."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begins: list[tuple[float, str]] = []

    @contextmanager
    def sees(self, key: str = "", pause: float = 0.01) -> Iterator[None]:
        with self._guard:
            self.begins.append((time.monotonic(), key))
            self._now[key] += 1
            self._now["all"] += 1
            for one in (key, "all"):
                self.most[one] = max(self.most[one], self._now[one])
        time.sleep(pause)
        yield
        with self._guard:
            self._now[key] -= 1
            self._now["all"] -= 1


judge = Judge()
gate = Gate()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "judge", Judge())
    monkeypatch.setitem(globals(), "gate", Gate())


@step(queue="llm", key=lambda customer, number: customer)
def embed(customer: str, number: int) -> int:
    with judge.sees(customer):
        return number * 2


@workflow
def embed_all(customers: list[str]) -> list[int]:
    return [handle.result() for handle in [embed.spawn(name, n) for n, name in enumerate(customers)]]


@workflow
def visit(key: str = "") -> str:
    with judge.sees(key):
        return key


@workflow
async def avisit(key: str = "") -> str:
    with judge.sees(key, 0):
        await asyncio.sleep(0.01)
    return key


@workflow
def parent(number: int) -> list[str]:
    return [handle.result() for handle in [child.options(queue="llm").spawn(n) for n in range(number)]]


@workflow
def child(number: int) -> str:
    with judge.sees():
        return str(number)


@workflow
def nap() -> str:
    with judge.sees():
        pass
    detent.sleep(seconds=0.1)
    with judge.sees():
        return "rested"


@step
def blocked() -> str:
    gate.pass_through()
    return "through"


@workflow
def waits_at_the_gate() -> str:
    return blocked()


class Ingest(Workflow):
    customer: str

    @task(queue="llm", key=lambda self: self.customer)
    def one(self) -> None:
        with judge.sees(self.customer):
            pass

    @task(queue="llm", key=lambda self: self.customer)
    def two(self) -> None:
        with judge.sees(self.customer):
            pass

    @task(queue="llm", key="shared")
    def three(self) -> None:
        with judge.sees("shared"):
            pass


@step
def touch(key: str) -> str:
    with judge.sees(key):
        return key


def test_runs_of_a_queue_never_exceed_its_concurrency_over_two_workers(apps: Apps) -> None:
    queues = [Queue("default", concurrency=3)]
    first = apps(visit, avisit, queues=queues)
    apps(visit, avisit, queues=queues)
    runs: list[detent.Run[Any]] = [*first.start_many(visit, [()] * 15)]
    runs += first.start_many(avisit, [()] * 15)
    assert [result(run) for run in runs] == [""] * 30
    assert judge.most["all"] <= 3


def test_spawned_steps_obey_the_limits_of_their_keys(apps: Apps) -> None:
    app = apps(embed_all, embed, queues=["default", Queue("llm", key_concurrency=1)])
    run = app.start(embed_all, ["a", "a", "b", "a", "b", "c"])
    assert result(run) == [0, 2, 4, 6, 8, 10]
    assert max(judge.most[key] for key in "abc") == 1


def test_children_obey(apps: Apps) -> None:
    app = apps(parent, child, queues=["default", Queue("llm", concurrency=2)])
    assert result(app.start(parent, 6)) == [str(n) for n in range(6)]
    assert judge.most["all"] <= 2


def test_nodes_of_classes_obey_by_key(apps: Apps) -> None:
    app = apps(Ingest, queues=["default", Queue("llm", key_concurrency=1)])
    runs = [app.start(Ingest, customer=name) for name in ("a", "b")]
    for run in runs:
        result(run)
    assert (judge.most["a"], judge.most["b"], judge.most["shared"]) == (1, 1, 1)


def test_nodes_of_graphs_obey_by_key(apps: Apps) -> None:
    g = detent.Graph("touches")
    for number in range(6):
        name = "ab"[number % 2]
        g.node(f"touch{number}", job=touch, args={"key": name}, queue="llm", key=name, depends_on=[])
    app = apps(touch, queues=["default", Queue("llm", key_concurrency=1)])
    result(app.start(g))
    assert (judge.most["a"], judge.most["b"]) == (1, 1)


def test_a_run_gives_its_key_to_what_it_begins(apps: Apps) -> None:
    app = apps(parent, child, queues=["default", Queue("llm", key_concurrency=1)])
    result(app.options(key="acme").start(parent, 4))
    assert judge.most["all"] == 1


def test_a_sleeping_run_holds_no_slot(apps: Apps) -> None:
    app = apps(nap, queues=[Queue("default", concurrency=1)])
    begun = time.monotonic()
    runs = app.start_many(nap, [()] * 8)
    assert [result(run) for run in runs] == ["rested"] * 8
    assert judge.most["all"] == 1
    assert time.monotonic() - begun < 8  # (were the slots held, workers would wait for heartbeats)


def test_a_run_whose_spawned_steps_share_its_only_slot_ends(apps: Apps) -> None:
    app = apps(embed_all, embed, queues=[Queue("llm", concurrency=1)])
    assert result(app.options(queue="llm").start(embed_all, ["a", "b", "c"])) == [0, 2, 4]


def test_a_crashed_worker_frees_its_slots(apps: Apps) -> None:
    queues = [Queue("default", concurrency=1)]
    first = apps(waits_at_the_gate, blocked, visit, queues=queues)
    stuck = first.start(waits_at_the_gate)
    gate.wait_for_arrival()
    second = apps(waits_at_the_gate, blocked, visit, queues=queues)
    later = second.start(visit)
    assert later.refresh().state == "ready"
    crash(first, reaped_by=second)
    gate.open()
    assert result(stuck) == "through"
    assert result(later) == ""


def test_no_window_has_more_begins_than_the_rate(apps: Apps) -> None:
    rate = Rate(4, per=timedelta(seconds=0.5))
    app = apps(visit, queues=[Queue("default", rate=rate)])
    runs = app.start_many(visit, [()] * 12)
    for run in runs:
        result(run)
    begins = sorted(at for at, _ in judge.begins)
    for begin in begins:
        assert sum(begin <= at < begin + 0.5 for at in begins) <= 4


def test_per_worker_limits_one_process(apps: Apps) -> None:
    app = apps(visit, queues=[Queue("default", per_worker=2)])
    for run in app.start_many(visit, [()] * 10):
        result(run)
    assert judge.most["all"] <= 2


def test_one_customer_with_a_backlog_does_not_delay_another(apps: Apps) -> None:
    app = apps(visit, queues=[Queue("default", concurrency=1, fair=True)])
    app.queues["default"].pause()
    backlog = [app.options(key="big").start(visit, "big") for _ in range(20)]
    late = app.options(key="small").start(visit, "small")
    app.queues["default"].resume()
    result(late)
    for run in backlog:
        result(run)
    order = [key for _, key in judge.begins]
    assert order.index("small") <= 1


def test_a_paused_queue_begins_nothing_and_ends_what_runs(apps: Apps) -> None:
    app = apps(waits_at_the_gate, blocked, visit, queues=[Queue("default", concurrency=5)])
    running = app.start(waits_at_the_gate)
    gate.wait_for_arrival()
    app.queues["default"].pause("the bank is closed")
    waiting = app.start(visit)
    gate.open()
    assert result(running) == "through"
    status = app.queues["default"].status()
    assert (status.paused, status.reason, status.waiting) == (True, "the bank is closed", 1)
    assert waiting.refresh().state == "ready"
    app.queues["default"].resume()
    assert result(waiting) == ""


def test_a_queue_without_limits_can_be_paused(apps: Apps) -> None:
    app = apps(visit)
    app.queues["default"].pause()
    run = app.start(visit)
    assert app.queues["default"].waiting == 1
    app.queues["default"].resume()
    assert result(run) == ""


def test_limits_can_be_changed_while_workers_run_and_outlive_a_restart(apps: Apps) -> None:
    app = apps(visit, queues=[Queue("default", concurrency=1)])
    app.queues["default"].set(concurrency=7, rate=Rate(5, per=1))
    again = apps(visit, queues=[Queue("default", concurrency=1)])
    status = again.queues["default"].status()
    assert status.limits["concurrency"] == 7
    assert status.declared["concurrency"] == 1
    assert status.changed == ("concurrency", "rate")
    deployed = apps(visit, queues=[Queue("default", concurrency=2)])
    assert deployed.queues["default"].limits["concurrency"] == 2
    assert deployed.queues["default"].limits["rate"] == Rate(5, per=1)
    deployed.queues["default"].reset()
    assert deployed.queues["default"].limits["rate"] is None


def test_a_limit_that_is_raised_lets_more_begin(apps: Apps) -> None:
    app = apps(waits_at_the_gate, blocked, queues=[Queue("default", concurrency=1)])
    runs = app.start_many(waits_at_the_gate, [()] * 2)
    gate.wait_for_arrival()
    app.queues["default"].set(concurrency=2)
    gate.wait_for_arrival()
    gate.open()
    for run in runs:
        result(run)


def test_bad_limits_and_keys_are_refused(apps: Apps) -> None:
    app = apps(visit, embed_all, embed, queues=["default", Queue("llm", concurrency=1)])
    with pytest.raises(UnknownQueue):
        app.queues["nowhere"].pause()
    with pytest.raises(InvalidArgument, match="concurency"):
        app.queues["llm"].set(concurency=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="concurrency"):
        app.queues["llm"].set(concurrency=0)
    for key in ("", "x" * 201, 7, "a\x7f"):
        with pytest.raises(InvalidArgument, match="key"):
            app.options(key=key)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="once"):
        detent.App("sqlite:///:memory:", queues=[Queue("a"), Queue("a", concurrency=1)])
    run = app.start(embed_all, [""])
    wait_for(run, "failed")


def test_a_run_that_a_queue_holds_up_says_why(apps: Apps) -> None:
    queue = Queue("default", concurrency=1, key_rate=Rate(1, per=60))
    app = apps(waits_at_the_gate, blocked, visit, queues=[queue])
    app.options(key="a").start(waits_at_the_gate)
    gate.wait_for_arrival()
    other, same = app.options(key="b").start(visit), app.options(key="a").start(visit)
    [full] = queue_reasons(app.engine, other.id)
    assert (full.kind, full.queue, full.until) == ("concurrency", "default", None)
    assert [(one.kind, one.name) for one in other.waiting_for] == [("limit", "default")]
    app.queues["default"].set(concurrency=9)
    assert result(other) == ""
    [rated] = queue_reasons(app.engine, same.id)
    assert (rated.kind, rated.key, rated.node) == ("key_rate", "a", "main")
    assert rated.until is not None
    assert "key 'a' on queue 'default' until" in str(rated)
    assert [(one.kind, one.until) for one in same.waiting_for] == [("rate", rated.until)]
    app.queues["default"].set(key_concurrency=1)
    [keyed] = queue_reasons(app.engine, same.id)
    assert str(keyed) == "the concurrency limit of key 'a' on queue 'default'"
    app.queues["default"].pause("closed")
    [paused] = queue_reasons(app.engine, same.id)
    assert str(paused) == "queue 'default' is paused: closed"
    assert [(one.kind, str(one)) for one in same.waiting_for] == [("paused", str(paused))]
    assert queue_reasons(app.engine, other.id) == []
    gate.open()


def test_the_command_line_lists_pauses_and_changes_queues(apps: Apps, url: str) -> None:
    app = apps(visit, worker=False, queues=["default", Queue("mail", concurrency=50)])
    app.queues["mail"].set(concurrency=20)

    def detent_queues(*words: str) -> Any:
        done = CliRunner().invoke(queues, [*words, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    paused = detent_queues("pause", url, "mail", "--reason", "closed")
    assert (paused["paused"], paused["reason"]) == (True, "closed")
    assert not detent_queues("resume", url, "mail")["paused"]
    changed = detent_queues("set", url, "mail", "--concurrency", "10", "--rate", "5/1m", "--fair", "yes")
    assert changed["limits"]["concurrency"] == 10
    assert changed["declared"]["concurrency"] == 50
    assert changed["limits"]["rate"] == {"count": 5, "per_seconds": 60.0}
    assert changed["changed"] == ["concurrency", "fair", "rate"]
    assert detent_queues("set", url, "mail", "--rate", "none")["limits"]["rate"] is None
    assert detent_queues("set", url, "mail", "--reset")["changed"] == []
    assert [queue["name"] for queue in detent_queues("list", url)] == ["default", "mail"]
    assert CliRunner().invoke(queues, ["set", url, "mail", "--rate", "fast"]).exit_code == 2
    assert CliRunner().invoke(queues, ["set", url, "mail"]).exit_code == 2
    shown = CliRunner().invoke(queues, ["list", url])
    assert "concurrency 50" in " ".join(shown.output.split())


def test_the_async_app_has_the_same_verbs(url: str) -> None:
    async def story() -> Any:
        async with detent.AsyncApp(
            url, include=[avisit], queues=[Queue("default", concurrency=2)], migrate=False
        ) as app:
            await app.queues["default"].pause("closed")
            run = await app.options(key="a").start(avisit, "a")
            before = await app.queues["default"].status()
            await app.queues["default"].set(concurrency=1)
            limits = await app.queues["default"].limits()
            names = [queue.name async for queue in app.queues]
            await app.queues["default"].resume()
            return before.paused, before.waiting, limits["concurrency"], names, await run.result()

    assert asyncio.run(story()) == (True, 1, 1, ["default"], "a")


def test_queues_without_limits_have_no_row_and_no_other_path(apps: Apps) -> None:
    app = apps(visit, queues=["default", Queue("mail")])
    result(app.start(visit))
    worker = app.engine.worker
    assert worker is not None
    assert worker.limited.names == frozenset()
    assert app.engine.store.queues() == []


def test_a_worker_learns_of_limits_that_another_process_sets(apps: Apps) -> None:
    app, operator = apps(visit), apps(visit, worker=False)
    worker = app.engine.worker
    assert worker is not None
    operator.queues["default"].pause()
    eventually(lambda: worker.limited.names == {"default"}, "the heartbeat tells")
    run = app.start(visit)
    assert operator.queues["default"].waiting == 1
    operator.queues["default"].resume()
    assert result(run) == ""
