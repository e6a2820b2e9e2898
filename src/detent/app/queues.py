"""`app.queues`: the queues of an app, their limits and how full they are, and an operator's verbs.

    app.queues["mail"].pause("the provider is down")
    app.queues["mail"].set(concurrency=10, rate=Rate(5, per=1))
    for queue in app.queues: print(queue.name, queue.limits, queue.waiting, queue.executing)

A change is stored, so it outlives a restart.  It applies as long as the code declares the value that it
replaced; when a deploy declares another value, that value applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack

from msgspec import to_builtins
from msgspec.structs import replace

from ..arguments import check_reason, refuse_unknown
from ..clock import from_micros
from ..errors import UnknownQueue
from ..kernel.admission import Refusal
from ..kernel.queues import (
    LIMIT_DEFAULTS,
    LIMITS,
    NO_LIMITS,
    Configured,
    LimitKeywords,
    checked_limits,
    shown,
    stored,
)
from ..keywords import shows
from ..stores.verbs.queue_verbs import WAITING_COUNTED
from ..stores.verbs.queues import history_of
from .engine import Engine
from .views import HistoryEvent, history_events


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """A queue at one moment.

        status = app.queues["mail"].status()
        print(status.limits, status.waiting)

    `limits` apply; `declared` is what the code says; `changed` names the limits that an operator has set.
    `waiting` counts what could begin if no limit held it, up to 10,000; `executing` is by key, and the empty
    key stands for executions without one.
    """

    name: str
    limits: Mapping[str, Any]
    declared: Mapping[str, Any]
    changed: tuple[str, ...]
    paused_at: datetime | None
    reason: str | None
    waiting: int
    executing: Mapping[str, int]

    @property
    def paused(self) -> bool:
        """Whether an operator has paused it."""
        return self.paused_at is not None

    @property
    def waiting_text(self) -> str:
        """The number that wait, with a plus sign where more than 10,000 do."""
        return f"{WAITING_COUNTED - 1:,}+" if self.waiting >= WAITING_COUNTED else f"{self.waiting:,}"


class Queues:
    """`app.queues`: by name, or all in the order of their declaration.

    app.queues["mail"].pause("the provider is down")
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getitem__(self, name: str) -> QueueHandle:
        """The queue of that name: one that the app declares, or that has limits in the database."""
        if name not in self._names():
            raise UnknownQueue(name, self._engine.settings.queue_names)
        return QueueHandle(self._engine, name)

    def __iter__(self) -> Iterator[QueueHandle]:
        return (QueueHandle(self._engine, name) for name in self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        declared = self._engine.settings.queue_names
        self._engine.ensure_open()
        stored = [queue.name for queue in self._engine.store.queues()]
        return list(dict.fromkeys([*declared, *stored]))


class QueueHandle:
    """One queue; every attribute is read from the database when you use it.

    mail = app.queues["mail"]
    mail.set(concurrency=10)
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def __repr__(self) -> str:
        return f"<queue {self.name!r}>"

    def status(self) -> QueueStatus:
        """All that is known of the queue at this moment."""
        queue, store = self._configured(), self._engine.store
        return QueueStatus(
            name=self.name,
            limits=shown(queue.limits),
            declared=shown(queue.declared),
            changed=tuple(sorted(queue.applied)),
            paused_at=None if queue.paused_at is None else from_micros(queue.paused_at),
            reason=queue.reason,
            waiting=store.waiting_in(self.name),
            executing=store.executing_in([self.name]).get(self.name, {}),
        )

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits that apply, by name."""
        return shown(self._configured().limits)

    @property
    def paused(self) -> bool:
        """Whether an operator has paused it."""
        return self._configured().paused_at is not None

    @property
    def reason(self) -> str | None:
        """Why it is paused, as the operator said."""
        return self._configured().reason

    @property
    def waiting(self) -> int:
        """How many executions are due and have not begun, up to 10,001."""
        return self.status().waiting

    @property
    def executing(self) -> Mapping[str, int]:
        """How many execute, by key."""
        return self.status().executing

    def pause(self, reason: str | None = None) -> None:
        """Let nothing begin.  What executes ends.  Twice keeps the first moment."""
        reason = check_reason("queue.pause()", reason)
        now = self._engine.clock.now()
        self._change(
            lambda queue: replace(queue, paused_at=queue.paused_at or now, reason=reason),
            "paused",
            {"by": "operator", "reason": reason},
        )

    def resume(self) -> None:
        """Let executions begin again; twice does nothing."""
        self._change(lambda queue: replace(queue, paused_at=None, reason=None), "resumed", {"by": "operator"})

    @shows(LimitKeywords, defaults=LIMIT_DEFAULTS)
    def set(self, **limits: Unpack[LimitKeywords]) -> None:
        """Change limits; None removes one.  They apply until the code declares another value.

        The keywords are those of `Queue`.
        """
        refuse_unknown("queue.set()", limits, LIMITS, kind="limit")
        given = stored(checked_limits("queue.set()", limits))
        detail = {"by": "operator", "limits": to_builtins(given)}
        self._change(lambda queue: queue.changed(given), "limits set", detail)

    def reset(self) -> None:
        """Go back to the limits that the code declares."""
        self._change(lambda queue: replace(queue, changes={}), "limits reset", {"by": "operator"})

    def history(self) -> list[HistoryEvent]:
        """What operators did to the queue, oldest first: paused, resumed, limits set, limits reset.

        for line in app.queues["mail"].history():
            print(line.at, line.event, line.detail)
        """
        self._engine.ensure_open()
        return history_events(self._engine.store.history(history_of(self.name)))

    def _configured(self) -> Configured:
        self._engine.ensure_open()
        found = {queue.name: queue for queue in self._engine.store.queues()}
        limits = self._engine.settings.limits.get(self.name, NO_LIMITS)
        return found.get(self.name) or Configured(name=self.name, declared=limits)

    def _change(self, how: Callable[[Configured], Configured], event: str, detail: object) -> None:
        engine = self._engine
        engine.ensure_open()
        engine.store.refuse_inside("app.queues")
        now = engine.clock.now()
        limits = engine.settings.limits.get(self.name)
        if limits is not None and all(queue.name != self.name for queue in engine.store.queues()):
            engine.store.declare_queues({self.name: limits}, now=now)  # no worker has declared it yet
        engine.store.change_queue(self.name, how, event=event, detail=detail, now=now)
        engine.queues_changed()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReason:
    """Why an execution of a run does not begin, although it is due.

    `kind` is `paused`, `concurrency`, `key_concurrency`, `rate` or `key_rate`.  `until` is the earliest
    moment that a rate permits.
    """

    node: str
    queue: str
    key: str | None
    kind: str
    until: datetime | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """What holds it, without the moment when that ends."""
        if self.kind == Refusal.PAUSED:
            return f"queue {self.queue!r} is paused" + (f": {self.reason}" if self.reason else "")
        of = f"key {self.key!r} on queue {self.queue!r}" if self.kind in _BY_KEY else f"queue {self.queue!r}"
        return f"the {'rate' if self.until is not None else 'concurrency limit'} of {of}"

    def __str__(self) -> str:
        return self.text if self.until is None else f"{self.text} until {self.until:%H:%M:%S}"


_BY_KEY = (Refusal.KEY_CONCURRENCY, Refusal.KEY_RATE)


def queue_reasons(engine: Engine, run_id: str) -> list[QueueReason]:
    """Why executions of a run that are due have to wait for their queues; empty if no queue holds them."""
    engine.ensure_open()
    return [
        QueueReason(
            node=one.node,
            queue=one.queue,
            key=one.key,
            kind=str(one.refusal),
            until=None if one.until is None else from_micros(one.until),
            reason=one.reason,
        )
        for one in engine.store.refused(run_id, now=engine.clock.now())
    ]
