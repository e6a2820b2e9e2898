"""Queues: their limits, what executes and waits, by key, and what operators did."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...app.limit_texts import limit_text
from ...app.queues import QueueStatus
from ...app.views import HistoryEvent, history_events
from ...clock import from_micros
from ...errors import UnknownQueue
from ...kernel.admission import NO_KEY
from ...kernel.queues import LIMITS, Rate
from ...stores.verbs import queue_figures, statistics
from ...stores.verbs.queue_figures import MOST_PER_KEY
from ...stores.verbs.queue_verbs import WAITING_COUNTED
from ...stores.verbs.queues import history_of
from .source import Document, Source
from .workers import worker_documents

KEYS = 12  # keys that a page shows of a queue
LOOKED_AT = 1_000  # waiting executions among which the oldest is looked for
LINES = 5  # of the history
TITLES = {
    "concurrency": "at the same time",
    "per_worker": "at the same time in one worker",
    "key_concurrency": "at the same time for one key",
    "rate": "begin in a span",
    "key_rate": "begin in a span for one key",
    "fair": "keys take turns",
    "aging": "wait worth one level of priority",
}


def queue_documents(source: Source) -> Document:
    """Every queue that the app declares, that has limits in the database, or that a worker serves."""
    engine = source.engine
    _ = engine.services
    stored = engine.store.queues()
    served: dict[str, int] = {}
    for worker in worker_documents(source)["workers"]:
        for name in worker["queues"] if worker["state"] == "alive" else ():
            served[name] = served.get(name, 0) + 1
    operable = list(dict.fromkeys([*engine.settings.queue_names, *(queue.name for queue in stored)]))
    begun = engine.store.read(partial(queue_figures.begun, queues=stored, now=engine.clock.now()))
    names = dict.fromkeys([*operable, *sorted(served)])
    return {
        "queues": [
            _queue(source, name, operable=name in operable, workers=served.get(name, 0), begun=begun)
            for name in names
        ],
        "most": WAITING_COUNTED - 1,
        "most_per_key": MOST_PER_KEY,
    }


def queue_status(source: Source, name: str) -> QueueStatus:
    """A queue that operators can change; UnknownQueue if there is none of that name."""
    return source.app.queues[name].status()


def limit_values(source: Source, name: str) -> dict[str, str]:
    """The limits that apply now, as texts for a form."""
    return {limit: limit_text(value) for limit, value in queue_status(source, name).limits.items()}


def _queue(source: Source, name: str, *, operable: bool, workers: int, begun: dict[str, int]) -> Document:
    store = source.engine.store
    try:
        status = queue_status(source, name) if operable else None
    except UnknownQueue:  # its row was removed since it was listed
        status = None
    executing = dict(status.executing) if status else store.executing_in([name]).get(name, {})
    first = _oldest(source, name)
    document: Document = {
        "name": name,
        "operable": status is not None,
        "paused": status is not None and status.paused,
        "paused_at": status.paused_at if status else None,
        "reason": status.reason if status else None,
        "limits": [],
        "waiting": min(status.waiting if status else store.waiting_in(name), WAITING_COUNTED - 1),
        "executing": sum(executing.values()),
        "oldest": None if first is None else from_micros(first[1]),
        "oldest_run": None if first is None else first[0],
        "workers": workers,
        "begun": begun.get(name),
        "by_key": _keys(source, name, executing),
        "history": [line_document(source, line) for line in _history(source, name)],
    }
    if status is not None:
        document["limits"] = [
            {
                "name": limit,
                "title": TITLES[limit],
                "value": _plain(status.limits[limit]),
                "text": limit_text(status.limits[limit]),
                "declared": _plain(status.declared[limit]),
                "declared_text": limit_text(status.declared[limit]),
                "changed": limit in status.changed,
            }
            for limit in LIMITS
            if status.limits[limit] not in (None, False) or limit in status.changed
        ]
    return document


def _oldest(source: Source, name: str) -> tuple[str, int] | None:
    """Of the executions that are claimed next, the one that waits longest: its run, and since when."""
    rows = source.engine.store.read(partial(statistics.backlog, queue=name, limit=LOOKED_AT))
    return min(
        ((row.run_id, row.since) for row in rows if row.since is not None),
        key=lambda one: one[1],
        default=None,
    )


def _keys(source: Source, name: str, executing: dict[str, int]) -> list[Document]:
    """The keys that execute or wait most."""
    waiting = source.engine.store.read(partial(queue_figures.waiting_by_key, queue=name))
    keys = sorted(
        {key for key in (*waiting, *executing) if key != NO_KEY},
        key=lambda key: (-waiting.get(key, 0), -executing.get(key, 0), key),
    )
    return [
        {"key": key, "executing": executing.get(key, 0), "waiting": waiting.get(key, 0)}
        for key in keys[:KEYS]
    ]


def _history(source: Source, name: str) -> list[HistoryEvent]:
    return history_events(source.engine.store.history(history_of(name)))[-LINES:][::-1]


def line_document(source: Source, line: HistoryEvent) -> Document:
    """A line of a history."""
    return {"at": line.at, "event": line.event, "detail": source.mask(line.detail)}


def _plain(value: Any) -> Any:
    if isinstance(value, Rate):
        return {"count": value.count, "per_seconds": value.per.total_seconds()}
    return value.total_seconds() if hasattr(value, "total_seconds") else value
