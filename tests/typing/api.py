"""What a type checker must make of the public face.  Never run; `make check` reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import detent
from detent import (
    PREVIOUS,
    Context,
    Retry,
    cancel_if,
    events,
    job_options,
    on_exception,
    step,
    task,
    workflow,
)
from detent.aio import AsyncRun


@step(retry=detent.Retry(attempts=5))
def charge(order_id: int) -> str:
    return str(order_id)


@step
async def fetch(url: str) -> bytes:
    return url.encode()


@step(transactional=True)
def debit(tx: detent.Transaction, account: str, amount: int) -> int:
    return amount


@step
def look_up(ctx: Context, name: str) -> int:
    return len(ctx.run.id + name)


@workflow
def fulfil(order_id: int) -> str:
    assert_type(charge(order_id), str)
    assert_type(charge.map([1, 2]), list[str])
    assert_type(charge.spawn(1).result(), str)
    assert_type(fetch.sync("u"), bytes)
    assert_type(debit("ann", 5), int)
    assert_type(look_up("ann"), int)
    return charge(order_id)


@workflow
async def crawl(ctx: Context, url: str) -> int:
    assert_type(await fetch(url), bytes)
    assert_type(await charge.aio(1), str)
    assert_type(await fetch.map(["a"]), list[bytes])
    assert_type(await fetch.spawn("a"), bytes)
    assert_type(look_up(ctx, "ann"), int)
    return len(await fetch(url))


def sync_face(app: detent.App) -> None:
    run = app.start(fulfil, 42)
    assert_type(run, detent.Run[str])
    assert_type(run.result(), str)
    assert_type(app.start(crawl, "u").result(), int)
    assert_type(app.results([run]), list[str])
    assert_type(app.results([run], return_exceptions=True), list[str | Exception])
    app.start(fulfil, "42")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.start(fulfil)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    facts: dict[str, str | int | bool] = {"customer": "acme", "amount": 12}
    assert_type(app.options(attributes=facts).start(fulfil, 42).attributes, dict[str, str | int | bool])
    listed: list[detent.Run[Any]] = app.runs(type=fulfil, state="failed", limit=5)
    assert_type(listed[0], detent.Run[Any])
    runs: list[detent.Run[Any]] = app.runs.active(attributes=facts, cursor=run)
    assert_type(runs[0], detent.Run[Any])
    assert_type(app.runs.each(parent=run), Iterator[detent.Run[Any]])
    app.runs(colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.runs.failed(limit="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(app.gc(older_than=timedelta(days=30)), int)
    assert_type(app.subscribe(alert, events=(events.RunFailed, events.Drifted)), Callable[[], None])
    app.subscribe(alert, events=(ValueError,))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def alert(event: events.RunFailed | events.Drifted) -> None:
    assert_type(event.run_id, str)
    if isinstance(event, events.RunFailed):
        assert_type(event.error.traceback, str)


async def on_loop(event: events.Event) -> None: ...


async def async_face(app: detent.AsyncApp) -> None:
    run = await app.start(crawl, "u")
    assert_type(run, AsyncRun[int])
    assert_type(await run.result(), int)
    assert_type(await app.results([run]), list[int])
    assert_type(await app.results([run], return_exceptions=True), list[int | Exception])
    assert_type(await app.runs.failed(type="crawl"), list[AsyncRun[Any]])
    assert_type(app.runs.each(cursor=run), AsyncIterator[AsyncRun[Any]])
    assert_type(await app.gc(older_than=timedelta(days=30)), int)
    assert_type(app.subscribe(on_loop), Callable[[], None])


# Graph workflows as classes


@dataclass
class User:
    id: int
    vip: bool = False
    closed: bool = False


class OrderWorkflow(detent.Workflow):
    order_id: int

    @step
    def validate(self) -> None: ...

    @step(wait=timedelta(minutes=5), skip_if=lambda self: self.hero.vip)
    def enrich(self) -> None: ...

    @task(depends_on="validate")
    async def check_inventory(self) -> None: ...

    @task(depends_on=validate, retry=Retry(attempts=3))
    def check_fraud(self) -> None: ...

    @step(depends_on=[check_inventory, check_fraud])
    def charge(self) -> None: ...

    @step(after_step="validate")
    def audit(self) -> None: ...

    @step(also_depends_on=check_fraud)
    def ship(self) -> None: ...

    @cancel_if
    def account_closed(self) -> bool:
        return bool(self.hero.closed)


class Careful(detent.Workflow, name="careful"):
    """Every option of a node, every verb, every hook."""

    may_proceed_without_hero = True
    number: int
    note: str = "none"

    on_exception(ConnectionError, "httpx.HTTPError", action="reattempt", max_reattempts=5)
    on_exception(lambda error: "busy" in str(error), action="reattempt", wait=timedelta(seconds=1))
    on_exception(action="cancel")
    job_options(queue="high", priority=3)
    cancel_if("too_late")
    cancel_if(lambda self: self.number < 0)  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType, reportUnknownMemberType]

    @step(retry=Retry(attempts=2), timeout=3, queue="low", priority=1)
    def first(self) -> str:
        assert_type(self.number, int)
        assert_type(self.ctx.attempt, int)
        assert_type(self.run.id, str)
        return self.note

    @step(on_exception="skip", only_if="too_late")
    def second(self) -> None:
        assert_type(self.first(), str)
        self.cancel()

    @step(on_exception=detent.ExceptionPolicy("reattempt", on=(OSError,), wait=timedelta(seconds=1)))
    async def third(self) -> None:
        self.reattempt(wait=timedelta(minutes=1))

    @task(depends_on=[first, "second"], on_exception=[detent.ExceptionPolicy("cancel", on=(OSError,))])
    def fourth(self) -> None:
        self.pause(after=True)

    @step(before_step=third, depends_on=[PREVIOUS, "first"])
    def fifth(self) -> None:
        self.skip()

    @step(transactional=True)
    def sixth(self, tx: detent.Transaction) -> None:
        tx.execute("SELECT 1")

    seventh = step(job=charge, args=lambda self: {"order_id": self.number})
    eighth = task(job=fulfil, args={"order_id": 1}, depends_on="seventh")

    @step
    def last(self) -> None:
        self.finished(result={"number": self.number})

    def too_late(self) -> bool:
        return self.number > 10

    def before_step_starts(self, name: str) -> None:
        assert_type(name, str)

    @contextmanager
    def around_step(self, name: str) -> Generator[None, None, None]:
        yield


def graph_face(app: detent.App, user: User) -> None:
    run = app.options(hero=user).start(OrderWorkflow, order_id=123)
    assert_type(run, detent.Run[Any])
    app.start(OrderWorkflow, order_id=123)
    app.hero(User, key=lambda it: it.id, load=lambda id: User(int(id)))
    for node in run.nodes():
        assert_type(node.state, str)
    assert_type(run.to_mermaid(), str)
    assert_type(run.export_graph(), str)
    OrderWorkflow(order_id=123, hero=user).validate()
    OrderWorkflow(order="123")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Graphs built at run time


@step
def process_mutation(mutation_id: int) -> None: ...


@step
def aggregate(user_id: int) -> dict[str, int]:
    return {"sum": user_id}


@step
def notify() -> None: ...


@step
def listing() -> list[str]:
    return []


@step
def summarise(pages: list[bytes]) -> int:
    return len(pages)


@detent.template
def month_end(g: detent.Graph, user_id: int, *, note: str = "") -> None:
    g.node("close", job=aggregate, args={"user_id": user_id})


def dynamic_face(app: detent.App, ids: list[int], other_run: detent.Run[str]) -> None:
    g = detent.Graph("close-the-books")
    mutations = g.fan_out(
        ids,
        name=lambda i: f"mutation_{i}",
        job=process_mutation,
        args=lambda i: {"mutation_id": i},
        depends_on=None,
    )
    total = g.node("aggregate", job=aggregate, args={"user_id": 7}, depends_on=mutations)
    g.node("notify", job=notify)
    pages = g.spread("fetch", over=g.node("list", job=listing).output, job=fetch, arg="url")
    with g.when((total.output["sum"] + 1 > 5) & (pages.output.length() < 3)):
        done = g.node("sum", job=summarise, args={"pages": pages.output})
        g.result(done.output)
    with g.otherwise():
        g.node("order", job=OrderWorkflow, args={"order_id": 1}, depends_on=[other_run])
    a, b, c = mutations[:3]
    a >> [b, c] >> total  # pyright: ignore[reportUnusedExpression]
    [a, b] >> total >> done  # pyright: ignore[reportUnusedExpression]
    run = app.start(g)
    assert_type(run, detent.Run[Any])
    app.start(month_end, user_id=7)
    app.start(month_end, 7, note="late")
    app.start(month_end, "7")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.start(month_end)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def async_graph_face(app: detent.AsyncApp, user: User) -> None:
    run = await app.options(hero=user, allow_multiple=True).start(OrderWorkflow, order_id=123)
    assert_type(run, AsyncRun[Any])
    await app.start(month_end, user_id=7)
    await app.start(OrderWorkflow, order_id=123)
    assert_type(await run.to_dot(), str)
