"""Documents that `--json` prints: stable keys, times in ISO 8601 and UTC."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ..app.app import App
from ..app.views import Execution, HistoryEvent, shown_state
from ..app.waiting import WaitReason
from ..clock import from_micros
from ..errors import PayloadError
from ..kernel.rows import Error, RunRow, WorkerRow
from ..kernel.versions import all_versions, started_by
from ..serialization.decoders import decode


def run_document(app: App, row: RunRow) -> dict[str, Any]:
    created = from_micros(row.created_at)
    finished = None if row.finished_at is None else from_micros(row.finished_at)
    return {
        "id": row.id,
        "type": row.type,
        "state": shown_state(row),
        "queue": row.queue,
        "priority": row.priority,
        "input": call_document(app, row.input),
        "result": payload(app, row.result),
        "error": None if row.error is None else error_document(decode(row.error, Error)),
        "parent": row.parent,
        "hero": None if row.hero_type is None else {"type": row.hero_type, "id": row.hero_id},
        "attributes": row.attributes,
        "drifted": row.drifted,
        "version": started_by(row.versions),
        "versions": list(all_versions(row.versions)),
        "pinned_to": row.pin,
        "forked_from": row.forked_from,
        "continues": row.continues,
        "continued_as": row.continued_as,
        "deadline": None if row.deadline is None else iso(from_micros(row.deadline)),
        "created_at": iso(created),
        "finished_at": iso(finished),
        "seconds": None if finished is None else (finished - created).total_seconds(),
    }


def reason_document(reason: WaitReason) -> dict[str, Any]:
    return {
        "kind": reason.kind,
        "text": str(reason),
        "name": reason.name,
        "node": reason.node,
        "until": iso(reason.until),
    }


def execution_document(app: App, item: Execution) -> dict[str, Any]:
    return {
        "node": item.node,
        "attempt": item.attempt,
        "kind": item.kind,
        "state": item.state,
        "outcome": item.outcome,
        "worker": item.worker,
        "scheduled_for": iso(item.scheduled_for),
        "started_at": iso(item.started_at),
        "finished_at": iso(item.finished_at),
        "seconds": item.duration,
        "input": call_document(app, item.stored_input),
        "result": payload(app, item.stored_result),
        "error": None if item.error is None else error_document(item.error),
        "ancestry_hash": item.ancestry_hash,
    }


def history_document(happenings: Iterable[HistoryEvent]) -> list[dict[str, Any]]:
    return [{"at": iso(item.at), "event": item.event, "detail": item.detail} for item in happenings]


def worker_document(row: WorkerRow, *, alive: bool) -> dict[str, Any]:
    return {
        "id": row.id,
        "host": row.name,
        "pid": row.pid,
        "alive": alive,
        "queues": row.queues.split(","),
        "concurrency": row.concurrency,
        "version": row.version,
        "started_at": iso(from_micros(row.started_at)),
        "beat_at": iso(from_micros(row.beat_at)),
        "lease_until": iso(from_micros(row.lease_until)),
    }


def error_document(error: Error) -> dict[str, str]:
    return {"type": error.type, "message": error.message, "traceback": error.traceback}


def call_document(app: App, text: str | None) -> Any:
    """A call's arguments, with both keys."""
    call = payload(app, text)
    if isinstance(call, dict) and {*call} <= {"args", "kwargs"}:
        return {"args": [], "kwargs": {}} | call
    return call


def payload(app: App, text: str | None) -> Any:
    """A stored value, decoded; as stored if this app cannot decode it (for example an encrypted one)."""
    if text is None:
        return None
    try:
        return app.engine.services.codec.decode(text)
    except PayloadError:
        return text


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
