"""What a type checker must make of definitions, of starting them, and of keywords.  Never run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_type

import detent
from detent import AsyncRun, Context, Handle, Run, step, task, workflow


@step
def charge(order_id: int) -> str:
    return str(order_id)


@step
def pay(order_id: int, currency: str = "EUR") -> str:
    return f"{order_id} {currency}"


@step
async def fetch(url: str) -> bytes:
    return url.encode()


@step
async def look_up(ctx: Context, name: str) -> int:
    return len(ctx.run.id + name)


@workflow
def fulfil(order_id: int) -> str:
    return charge(order_id)


@workflow
def report(ctx: Context, day: str, *, copies: int = 1) -> float:
    return float(len(day) * copies)


@workflow
async def crawl(url: str) -> int:
    return len(await fetch(url))


@workflow
async def watch(ctx: Context, url: str, seconds: float = 1.0) -> list[str]:
    return [url, str(seconds), ctx.run.id]


@workflow
def nightly() -> bool:
    return True


@workflow
def wide(a: int, b: int, c: int, d: int, e: int) -> complex:
    return complex(a + b + c + d + e)


def calls(ctx: Context) -> None:
    assert_type(charge(1), str)
    assert_type(charge(order_id=1), str)
    assert_type(charge.sync(1), str)
    assert_type(fetch.sync("u"), bytes)
    assert_type(look_up.sync("ann"), int)
    assert_type(charge.spawn(1), Handle[str])
    assert_type(fetch.spawn("u"), Handle[bytes])
    assert_type(look_up.spawn(name="ann").result(), int)
    assert_type(crawl.spawn("u").result(), int)
    assert_type(report("today", copies=2), float)
    assert_type(report(ctx, "today"), float)
    charge()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    charge("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fetch.sync()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    look_up.sync()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    look_up.spawn(1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    charge.spawn()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    crawl.spawn(1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    report()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    report("today", copies="2")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


async def async_calls() -> None:
    assert_type(await fetch("u"), bytes)
    assert_type(await look_up("ann"), int)
    assert_type(await charge.aio(1), str)
    assert_type(await look_up.aio("ann"), int)
    assert_type(await fetch.spawn("u"), bytes)
    assert_type(await crawl("u"), int)
    await fetch()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await charge.aio()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await charge.aio("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def maps() -> None:
    assert_type(charge.map([1, 2]), list[str])
    assert_type(pay.map(range(3)), list[str])
    assert_type(fetch.sync.map(["u"]), list[bytes])
    assert_type(look_up.sync.map({"ann"}), list[int])
    charge.map(["1"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    pay.map(["1"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    fetch.sync.map([1])  # type: ignore[list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]


def maps_with_options() -> None:
    assert_type(charge.map([1, 2], concurrency=20), list[str])
    assert_type(fetch.sync.map(["u"], concurrency=20), list[bytes])
    assert_type(charge.map([1, 2], return_exceptions=True), list[Any])
    assert_type(pay.map([1, 2], extra={"currency": "USD"}, concurrency=2), list[Any])
    charge.map(["1"], concurrency=20)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    charge.map([1], concurrent=20)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def races() -> None:
    handles = [charge.spawn(1), charge.spawn(2)]
    assert_type(detent.first(handles), Handle[str])
    assert_type([handle.result() for handle in detent.as_completed(handles)], list[str])


async def async_races() -> None:
    handles = [fetch.spawn("a"), fetch.spawn("b")]
    assert_type(await (await detent.aio.first(handles)), bytes)
    assert_type([await handle async for handle in detent.aio.as_completed(handles)], list[bytes])


async def async_maps() -> None:
    assert_type(await fetch.map(["u"]), list[bytes])
    assert_type(await look_up.map(["ann"]), list[int])
    assert_type(await charge.aio.map([1]), list[str])
    assert_type(await fetch.map(["u"], concurrency=3), list[bytes])
    assert_type(await fetch.map(["u"], return_exceptions=True), list[Any])
    await fetch.map([1])  # type: ignore[list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await charge.aio.map(["1"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def children() -> None:
    child = fulfil.options(id="fulfil-42", deadline=timedelta(hours=1), queue="mail", priority=3)
    assert_type(child(42), str)
    assert_type(child.spawn(42).result(), str)
    assert_type(crawl.options(id="c").sync("u"), int)
    assert_type(watch.options(attributes={"customer": "acme"}).spawn("u"), Handle[list[str]])
    child("42")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    child.spawn()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fulfil.options(colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def starting(app: detent.App, connection: Any) -> None:
    assert_type(app.start(fulfil, 42), Run[str])
    assert_type(app.start(report, "today", copies=2), Run[float])
    assert_type(app.start(crawl, "u").result(), int)
    assert_type(app.start(watch, url="u").result(), list[str])
    assert_type(app.options(id="x").start(fulfil, 42).result(), str)
    assert_type(app.options(delay=5).start(watch, "u", 2.0), Run[list[str]])
    assert_type(app.within(connection).start(crawl, "u"), Run[int])
    assert_type(app.within(connection).options(priority=1).start(report, "today"), Run[float])
    assert_type(app.options(priority=1).within(connection).start(nightly), Run[bool])
    app.start(fulfil)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.start(crawl)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.start(report)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.start(charge, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.options(id="x").start(fulfil, "42")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.options(id="x").start(watch)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.within(connection).start(report, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.within(connection).start(fulfil)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.options(timeot=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.options(delay="5m")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.within(connection).options(colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def starting_many(app: detent.App, connection: Any, rows: list[tuple[Any, ...]]) -> None:
    assert_type(app.start_many(nightly, [(), ()]), list[Run[bool]])
    assert_type(app.start_many(fulfil, [(1,), (2,)]), list[Run[str]])
    assert_type(app.start_many(fulfil, ((n,) for n in range(3))), list[Run[str]])
    assert_type(app.start_many(crawl, [("u",)]), list[Run[int]])
    assert_type(app.start_many(report, [("today",)]), list[Run[float]])
    assert_type(app.start_many(watch, [("u", 2.0)]), list[Run[list[str]]])
    assert_type(app.start_many(wide, [(1, 2, 3, 4, 5)]), list[Run[complex]])
    assert_type(app.start_many("fulfil", rows), list[Run[Any]])
    assert_type(app.options(priority=1).start_many(fulfil, [(1,)]), list[Run[str]])
    assert_type(app.within(connection).start_many(crawl, [("u",)]), list[Run[int]])
    app.start_many(fulfil, [("1",)])  # type: ignore[arg-type, list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.start_many(fulfil, [(1, 2)])  # type: ignore[arg-type, list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.start_many(watch, [(1,)])  # type: ignore[arg-type, list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.options(priority=1).start_many(crawl, [(1,)])  # type: ignore[arg-type, list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.within(connection).start_many(fulfil, [()])  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def async_starting(app: detent.AsyncApp, connection: Any) -> None:
    assert_type(await app.start(fulfil, 42), AsyncRun[str])
    assert_type(await (await app.start(watch, "u")).result(), list[str])
    assert_type(await app.options(id="x").start(crawl, "u"), AsyncRun[int])
    assert_type(await app.within(connection).start(report, "today"), AsyncRun[float])
    assert_type(await app.within(connection).options(id="x").start(crawl, "u"), AsyncRun[int])
    assert_type(await app.start_many(crawl, [("u",)]), list[AsyncRun[int]])
    assert_type(await app.options(priority=1).start_many(fulfil, [(1,)]), list[AsyncRun[str]])
    await app.start(crawl)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await app.options(id="x").start(fulfil, "42")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await app.within(connection).start(report)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await app.start_many(fulfil, [("1",)])  # type: ignore[arg-type, list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.options(timeot=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await app.executions(colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def keywords() -> None:
    detent.App("sqlite:///:memory:", concurrency=3, lease=30, retention=timedelta(days=7))
    detent.AsyncApp("sqlite:///:memory:", include=[fulfil], on_drift="warn")
    detent.App("sqlite:///:memory:", concurency=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    detent.App("sqlite:///:memory:", concurrency="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    detent.AsyncApp("sqlite:///:memory:", on_drift="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(step(retry=detent.Retry(attempts=3), strict=True), detent.StepMaker)
    assert_type(step(executor="process", id="crunch"), detent.StepMaker)
    step(retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    step(isolation="serializable")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    workflow(timeout=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    workflow(on_exception="skip")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    task(depends_on="validate", colour="red")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


@step(transactional=True, isolation="serializable", retry=detent.Retry(attempts=3))
def debit(tx: detent.Transaction, account: str, amount: int) -> int:
    return amount


class Booking(detent.Workflow):
    @step
    def reserve(self) -> str:
        return "reserved"

    @step(depends_on="reserve", transactional=True)
    def book(self, tx: detent.Transaction) -> None: ...

    @task(depends_on=[reserve], transactional=True, on_exception="skip")
    def log(self, tx: detent.Transaction) -> None: ...


def steps_as_values(by_name: dict[str, Callable[[int], str]], booking: Booking) -> None:
    by_name["charge"] = charge
    assert_type(debit("ann", 5), int)
    assert_type(booking.reserve(), str)
    debit("ann")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def covariance(app: detent.App) -> None:
    anything: Run[object] = app.start(fulfil, 42)
    handle: Handle[object] = charge.spawn(1)
    print(anything.id, handle.result())
