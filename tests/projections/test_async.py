"""Projections with `async def`, and from asyncio."""

import asyncio
from typing import Any

import pytest

import detent
from detent import AsyncView, Projection, Recorded
from detent.errors import ProjectionBlocked, ProjectionNotBlocked
from tests.projections.conftest import Timeless
from tests.projections.world import Account, Add, add, rows, status, totals


class Awaited(Projection):
    name = "awaited"
    refused: int | None = None

    async def setup(self, view: AsyncView) -> None:
        await view.tx.execute(
            f"CREATE TABLE IF NOT EXISTS {view.table('seen')} (position BIGINT PRIMARY KEY)"
        )

    async def apply(self, event: Recorded[Any], view: AsyncView) -> None:
        await asyncio.sleep(0)
        key = f"account:{event.instance}"
        view[key] = await view.get(key, 0) + event.event.amount
        await view.tx.execute(f"INSERT INTO {view.table('seen')} (position) VALUES ({event.position})")
        if event.event.amount == self.refused:
            raise ValueError("refused")

    async def teardown(self, view: AsyncView) -> None:
        await view.tx.execute(f"DROP TABLE IF EXISTS {view.table('seen')}")


def test_an_async_projection_keeps_up(timeless: Timeless) -> None:
    app = timeless(Awaited)
    add(app, *range(1, 31))
    app.settle_down()
    assert totals(app, Awaited) == {"a": 465}
    assert rows(app.engine.store, "SELECT COUNT(*) FROM seen_g1") == [(30,)]


def test_an_async_projection_is_blocked_like_any_other(timeless: Timeless) -> None:
    class Refusing(Awaited):
        refused = 13

    app = timeless(Refusing)
    add(app, 1, 13, 2)
    app.settle_down()
    assert (status(app).blocked_at, status(app).error) == (2, "ValueError: refused")
    assert totals(app, Refusing) == {"a": 1}
    assert rows(app.engine.store, "SELECT position FROM seen_g1") == [(1,)]


def test_an_async_projection_is_rebuilt(timeless: Timeless) -> None:
    app = timeless(Awaited)
    add(app, 1, 2)
    app.settle_down()
    app.projections.rebuild(Awaited)
    app.settle_down()
    app.clock.advance(seconds=30)
    app.settle_down()
    assert totals(app, Awaited) == {"a": 3}
    assert rows(app.engine.store, "SELECT position FROM seen_g2 ORDER BY position") == [(1,), (2,)]
    with pytest.raises(Exception, match="seen_g1"):
        rows(app.engine.store, "SELECT position FROM seen_g1")


def test_projections_are_used_from_asyncio(url: str) -> None:
    class Refusing(Awaited):
        refused = 13

    async def main() -> None:
        async with detent.AsyncApp(url, include=[Account, Refusing]) as app:
            await app.execute(Account, Add("a", 5))
            await app.projections.wait(Refusing, timeout=20)
            view = app.projections.view(Refusing)
            assert await view.get("account:a") == 5
            assert await view.items(prefix="account:") == [("account:a", 5)]
            assert await view.table("seen") == "seen_g1"
            [seen] = await app.projections.status()
            assert (seen.position, seen.lag) == (1, 0)
            with pytest.raises(ProjectionNotBlocked):
                await app.projections.skip(Refusing)
            await app.execute(Account, Add("a", 13))
            with pytest.raises(ProjectionBlocked):
                await app.projections.wait(Refusing, timeout=20)
            assert await app.projections.skip(Refusing) == 2
            await app.projections.wait(Refusing, timeout=20)
            assert await app.projections.rebuild(Refusing) == 2

    asyncio.run(main())


def test_an_async_projection_on_the_users_loop_is_in_nobodys_way(url: str) -> None:
    async def main() -> Any:
        async with detent.AsyncApp(url, include=[Account, Awaited]) as app:
            await asyncio.gather(*(app.execute(Account, Add(f"{n % 5}", 1)) for n in range(60)))
            await app.projections.wait(Awaited, timeout=20)
            return await app.projections.view(Awaited).items(prefix="account:")

    assert asyncio.run(main()) == [(f"account:{n}", 12) for n in range(5)]
