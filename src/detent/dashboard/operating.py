"""Actions on queues, schedules and workers; see actions.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..app.limit_texts import parse_limit
from ..kernel.queues import LIMITS
from ..stores.verbs import drains
from .documents.queues import TITLES, limit_values
from .documents.source import Document, Source
from .forms import Action, BadAction, Field, Values

QUEUE = Field("queue", "Queue", kind="hidden")
WORKER = Field("worker", "Worker", kind="hidden")
SCHEDULE = Field("schedule", "Schedule", kind="hidden")
HINTS = {
    "rate": "Such as 100/1m",
    "key_rate": "Such as 20/1s",
    "aging": "Such as 5m",
}

# -- Queues --------------------------------------------------------------------------------------------


def _pause_queue(source: Source, values: Values, name: str, reason: str) -> Document:
    source.app.queues[values["queue"]].pause(reason)
    return {"queue": values["queue"]}


def _resume_queue(source: Source, values: Values, name: str, reason: str) -> Document:
    source.app.queues[values["queue"]].resume()
    return {"queue": values["queue"]}


def _set_limits(source: Source, values: Values, name: str, reason: str) -> Document:
    queue = source.app.queues[values["queue"]]
    given: dict[str, Any] = {limit: _limit(limit, values[limit]) for limit in LIMITS if limit in values}
    present = queue.limits
    changed: Any = {limit: value for limit, value in given.items() if value != present[limit]}
    if not changed:
        raise BadAction("These are the limits that apply now. Change one of them.")
    queue.set(**changed)
    return {"queue": values["queue"], "changed": sorted(changed)}


def _limit(limit: str, text: str) -> Any:
    try:
        return parse_limit(limit, text)
    except ValueError as error:
        raise BadAction(f"{limit}: {error}, or leave it empty", field=limit) from None


def _present_limits(source: Source, values: Values) -> Values:
    return limit_values(source, values.get("queue", ""))


def _reset_limits(source: Source, values: Values, name: str, reason: str) -> Document:
    source.app.queues[values["queue"]].reset()
    return {"queue": values["queue"]}


# -- Schedules -----------------------------------------------------------------------------------------


def _pause_schedule(source: Source, values: Values, name: str, reason: str) -> Document:
    source.app.schedules[values["schedule"]].pause(reason=reason)
    return {"schedule": values["schedule"]}


def _resume_schedule(source: Source, values: Values, name: str, reason: str) -> Document:
    source.app.schedules[values["schedule"]].resume()
    return {"schedule": values["schedule"]}


def _trigger(source: Source, values: Values, name: str, reason: str) -> Document:
    return {"run": source.app.schedules[values["schedule"]].trigger().id, "schedule": values["schedule"]}


def _backfill(source: Source, values: Values, name: str, reason: str) -> Document:
    start, end = _moment("Start", values["start"]), _moment("End", values["end"])
    if end <= start:
        raise BadAction("The end must be later than the start.")
    made = source.app.schedules[values["schedule"]].backfill(start, end)
    return {"schedule": values["schedule"], "started": len(made)}


def _delete_schedule(source: Source, values: Values, name: str, reason: str) -> Document:
    source.app.schedules[values["schedule"]].delete()
    return {"schedule": None}


# -- Workers -------------------------------------------------------------------------------------------


def _drain(source: Source, values: Values, name: str, reason: str) -> Document:
    return _change_worker(source, values["worker"], drains.drain)


def _undrain(source: Source, values: Values, name: str, reason: str) -> Document:
    return _change_worker(source, values["worker"], drains.undrain)


def _change_worker(source: Source, worker: str, verb: Callable[..., bool]) -> Document:
    engine = source.engine
    if not engine.control(lambda now: engine.store.write(lambda tx: verb(tx, worker, now=now))):
        raise BadAction("This worker is not registered any more.")
    return {"worker": worker}


def _moment(label: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadAction(
            f"{label}: write a time such as 2026-11-16T03:00; without a zone it is UTC."
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


OPERATING = (
    Action(
        "pause-queue", "Pause this queue", "Pause",
        "Nothing of this queue begins, in any worker. What executes now ends.",
        "queue", _pause_queue, (QUEUE,), danger=True, done="The queue is paused.",
    ),
    Action(
        "resume-queue", "Resume this queue", "Resume",
        "What waits in this queue begins again.",
        "queue", _resume_queue, (QUEUE,), done="The queue continues.",
    ),
    Action(
        "set-limits", "Change the limits of this queue", "Change limits",
        "The limits apply at once, in every worker, until the code declares other values. "
        "An empty field means no limit.",
        "queue", _set_limits,
        (
            QUEUE,
            *(
                Field(
                    limit, limit.replace("_", " ").capitalize(),
                    HINTS.get(limit) or TITLES[limit].capitalize(), "limit", required=False,
                    choices=("no", "yes") if limit == "fair" else (),
                )
                for limit in LIMITS
            ),
        ),
        present=_present_limits, done="The limits are changed.",
    ),
    Action(
        "reset-limits", "Use the limits of the code", "Use the code's limits",
        "Every change by operators is dropped. What the code declares applies.",
        "queue", _reset_limits, (QUEUE,), done="The limits of the code apply.",
    ),
    Action(
        "pause-schedule", "Pause this schedule", "Pause",
        "It fires no more. Runs that it has started continue.",
        "schedule", _pause_schedule, (SCHEDULE,), done="The schedule is paused.",
    ),
    Action(
        "resume-schedule", "Resume this schedule", "Resume",
        "It fires again from now on. Firings that fell into the pause do not happen.",
        "schedule", _resume_schedule, (SCHEDULE,), done="The schedule continues.",
    ),
    Action(
        "trigger", "Start a run of this schedule now", "Start now",
        "A run begins at once, beside the firings of the schedule. The schedule itself does not change.",
        "schedule", _trigger, (SCHEDULE,), done="The run of the schedule is started.",
    ),
    Action(
        "backfill", "Start the runs of a time that has passed", "Backfill",
        "A run begins for each firing in this time that has none. They run beside each other.",
        "schedule", _backfill,
        (
            SCHEDULE,
            Field("start", "Start", "The first firing, such as 2026-11-16T03:00; UTC"),
            Field("end", "End", "Up to, but without"),
        ),
        done="The missing runs are started.",
    ),
    Action(
        "delete-schedule", "Delete this schedule", "Delete",
        "It is forgotten. Its runs stay. A schedule that the code declares can only be removed there.",
        "schedule", _delete_schedule, (SCHEDULE,), danger=True, done="The schedule is deleted.",
    ),
    Action(
        "drain", "Drain this worker", "Drain",
        "It claims nothing more. What it executes ends; then the process can be stopped. "
        "It continues to fire schedules and to apply projections.",
        "worker", _drain, (WORKER,), done="The worker is being drained.",
    ),
    Action(
        "undrain", "Let this worker claim again", "Claim again",
        "It claims and executes again, within two seconds.",
        "worker", _undrain, (WORKER,), done="The worker claims again.",
    ),
)  # fmt: skip
