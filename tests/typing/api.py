"""What a type checker must make of the public face.  Never run; `make check` reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, assert_type

import detent
from detent import Context, step, workflow
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
    app.start(fulfil, "42")  # type: ignore[call-overload]
    app.start(fulfil)  # type: ignore[call-overload]
    facts: dict[str, str | int | bool] = {"customer": "acme", "amount": 12}
    assert_type(app.options(attributes=facts).start(fulfil, 42).attributes, dict[str, str | int | bool])
    assert_type(app.runs(type=fulfil, state="failed", limit=5), list[detent.Run[Any]])
    assert_type(app.runs.active(attributes=facts, cursor=run), list[detent.Run[Any]])
    assert_type(app.runs.each(parent=run), Iterator[detent.Run[Any]])
    app.runs(colour="red")  # type: ignore[call-arg]
    app.runs.failed(limit="5")  # type: ignore[arg-type]
    assert_type(app.gc(older_than=timedelta(days=30)), int)


async def async_face(app: detent.AsyncApp) -> None:
    run = await app.start(crawl, "u")
    assert_type(run, AsyncRun[int])
    assert_type(await run.result(), int)
    assert_type(await app.runs.failed(type="crawl"), list[AsyncRun[Any]])
    assert_type(app.runs.each(cursor=run), AsyncIterator[AsyncRun[Any]])
    assert_type(await app.gc(older_than=timedelta(days=30)), int)
