"""What a worker tells subscribers: that it is up or down, what it claims, what it begins."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from ..clock import from_micros
from ..events import Claimed, WorkerDown, WorkerUp
from ..execution.main import MainFrame
from ..execution.services import Services
from ..execution.work import Work
from ..kernel.rows import WorkerRow
from ..kernel.settle import NODE


class WorkerReports:
    """Emits the events of a worker; without subscribers it does nothing."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._observer = services.observer

    def up(self, worker: WorkerRow) -> None:
        if self._observer.active:
            queues = tuple(sorted(worker.queues.split(",")))
            self._observer.emit(
                WorkerUp(time=self._now(), worker=worker.id, queues=queues, concurrency=worker.concurrency)
            )

    def down(self, worker: str, reason: Literal["stopped", "dead", "lost"], executions: int) -> None:
        if self._observer.active:
            self._observer.emit(
                WorkerDown(time=self._now(), worker=worker, reason=reason, executions=executions)
            )

    def claimed(self, worker: str, count: int, seconds: float) -> None:
        if self._observer.active:
            duration = timedelta(seconds=seconds)
            self._observer.emit(Claimed(time=self._now(), worker=worker, count=count, duration=duration))

    def begins(self, work: MainFrame | Work) -> None:
        """A node tells that by itself, when its graph is known."""
        if self._observer.active and work.claimed.kind != NODE:
            self._services.began(work.claimed, work.context)

    def _now(self) -> datetime:
        return from_micros(self._services.clock.now())
