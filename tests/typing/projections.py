"""What a type checker must make of projections.  Never run; `make check` reads it."""

from __future__ import annotations

from typing import Any, assert_type

import detent
from detent import AsyncTransaction, AsyncView, Projection, Recorded, Transaction, View
from detent.app.projections import ProjectionStatus


class Totals(Projection):
    name = "totals"

    def setup(self, view: View) -> None:
        assert_type(view.tx, Transaction)
        assert_type(view.table("totals"), str)

    def apply(self, event: Recorded[Any], view: View) -> None:
        assert_type(event.position, int)
        view["key"] = view.get("key", 0) + 1
        del view["other"]
        assert_type("key" in view, bool)


class Awaited(Projection):
    name = "awaited"

    async def apply(self, event: Recorded[Any], view: AsyncView) -> None:
        assert_type(view.tx, AsyncTransaction)
        view["key"] = await view.get("key", 0) + 1


def sync_face(app: detent.App) -> None:
    assert_type(app.projections.status(), list[ProjectionStatus])
    assert_type(app.projections.rebuild(Totals), int)
    assert_type(app.projections.rebuild("totals", restart=True), int)
    assert_type(app.projections.skip(Totals, position=3), int)
    assert_type(app.projections.view(Totals).items(prefix="a", limit=3), list[tuple[str, Any]])
    assert_type(app.projections.view(Totals()).table("totals"), str)
    app.projections.wait(Totals, timeout=5)
    app.projections.view(int)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def async_face(app: detent.AsyncApp) -> None:
    assert_type(await app.projections.status(), list[ProjectionStatus])
    assert_type(await app.projections.rebuild(Totals), int)
    assert_type(await app.projections.view(Awaited).items(), list[tuple[str, Any]])
    await app.projections.wait(Awaited)
