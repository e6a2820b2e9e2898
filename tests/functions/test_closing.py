"""Closing an app ends with a closed app, whatever refuses to end."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from detent import App, step, workflow
from detent.execution import services

SOON = 20.0


@pytest.mark.parametrize("way", ["swallows", "blocks"])
def test_an_async_step_that_refuses_to_end_does_not_keep_the_app_open(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    monkeypatch.setattr(services, "PATIENCE", 0.3)
    began, over = threading.Event(), threading.Event()

    @step
    async def stubborn() -> None:
        began.set()
        while not over.is_set():
            if way == "blocks":
                time.sleep(0.05)
                continue
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    @workflow
    async def flow() -> None:
        await stubborn()

    app = App(sqlite_url, include=[flow], grace=timedelta(seconds=0.1)).open(worker=True)
    try:
        app.start(flow)
        assert began.wait(SOON)
        app.close()
        assert not app.engine.is_open
        assert "was still running" in caplog.text
        app.open(worker=False)
        app.close()
    finally:
        over.set()


def test_every_part_is_closed_though_one_of_them_fails(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow
    def flow() -> int:
        return 1

    app = App(sqlite_url, include=[flow]).open(worker=True)
    worker = app.engine.worker
    assert worker is not None
    real, closed = worker.stop, list[str]()

    def stop() -> None:
        real()
        raise RuntimeError("a part that fails")

    def note(name: str, method: Any) -> Any:
        def close() -> None:
            closed.append(name)
            method()

        return close

    monkeypatch.setattr(worker, "stop", stop)
    for name, part in (("store", app.engine.store), ("committer", app.engine.services.committer)):
        monkeypatch.setattr(part, "close", note(name, part.close))
    with pytest.raises(RuntimeError, match="a part that fails"):
        app.close()
    assert closed == ["committer", "store"]
    assert not app.engine.is_open
