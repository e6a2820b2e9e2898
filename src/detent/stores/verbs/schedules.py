"""Schedules: stored, declared by the code, fired.

A firing is the start of a run with a deterministic id and the advance of the schedule's row, in one
transaction under the row's lock.  Whatever crashes, and however many workers look at the same moment,
both happen or neither does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import msgspec

from ...errors import InvalidScheduleState, InvalidState, ScheduleConflict, UnknownSchedule
from ...kernel import schedules as rules
from ...kernel.operations import Start
from ...kernel.rows import RunState
from ...kernel.schedules import ACTIVE, CODE, PAUSED, REMOVED, ScheduleRow
from ..batch import apply as batches
from ..driver import Tx, batch, news, rows_to, write
from .cancel import note
from .control import cancel

SCHEDULES_AT_ONCE = 100  # that one transaction fires
MOST_FORMER = 50  # earlier declarations that a row remembers
OVERLAPPED = "the next run of its schedule begins"  # why a run was canceled

Starter = Callable[[ScheduleRow, int], Start]


class Fired(msgspec.Struct):
    """What a look at the schedules that are due has brought about."""

    looked_at: int = 0  # schedules that were due; as many as were asked for: there may be more
    started: list[str] = []
    canceled: list[str] = []
    failed: list[tuple[str, str]] = []  # schedules whose run could not be started, and why


class Declared(msgspec.Struct):
    """What a declaration in the code has changed: names of schedules."""

    created: list[str] = []
    changed: list[str] = []
    returned: list[str] = []  # they were removed, and are declared again
    outdated: dict[str, int] = {}  # declared by newer code, and when that was last seen


def page(tx: Tx, after: str, limit: int) -> list[ScheduleRow]:
    """Schedules in the order of their names."""
    return rows_to(ScheduleRow, tx.query(tx.sql.schedules.page, after=after, limit=limit))


def read(tx: Tx, name: str) -> ScheduleRow | None:
    rows = rows_to(ScheduleRow, tx.query(tx.sql.schedules.one, name=name))
    return rows[0] if rows else None


def lock(tx: Tx, name: str) -> ScheduleRow:
    rows = rows_to(ScheduleRow, tx.query(tx.sql.schedules.lock, name=name))
    if not rows:
        raise UnknownSchedule(name)
    found: ScheduleRow = rows[0]
    return found


def history_of(name: str) -> str:
    """Under which id the history of a schedule is kept."""
    return f"schedule:{name}"


def run_states(tx: Tx, runs: Collection[str]) -> dict[str, str]:
    """The states of those of the runs that exist; of one that was continued, that of its chain."""
    if not runs:
        return {}
    return dict(tx.query(tx.sql.schedules.run_states, rows=batch([{"id": run} for run in sorted(runs)])))


# Made by the code, or at run time


def create(tx: Tx, row: ScheduleRow) -> bool:
    """Store a schedule that is made at run time; False if the same one is there already."""
    known = _insert(tx, row)
    if known is None:
        _tell(tx)
        return True
    if (known.source, known.fingerprint) != (row.source, row.fingerprint):
        raise ScheduleConflict(row.name, known.source)
    return False


def _insert(tx: Tx, row: ScheduleRow) -> ScheduleRow | None:
    """Store a new schedule; returns the one, locked, that has its name already."""
    found = rows_to(ScheduleRow, tx.query(tx.sql.schedules.lock, name=row.name))
    if found:
        return cast(ScheduleRow, found[0])
    write(tx, tx.sql.schedules.insert, [row])
    known = lock(tx, row.name)  # another process may have been faster
    if (known.fingerprint, known.created_at) != (row.fingerprint, row.created_at):
        return known
    note(tx, history_of(row.name), "created", {"by": row.source}, row.created_at)
    return None


def declare(
    tx: Tx,
    rows: Sequence[ScheduleRow],
    *,
    now: int,
    rolled_back: Collection[str] = (),
    only_new: bool = False,
) -> Declared:
    """Store what the code declares; twice changes nothing.

    A declaration that the row has not seen before is a deploy, and replaces it.  One that it has seen
    belongs to older code: it replaces the row only if it is among those that are `rolled_back`.
    `only_new`: leave what exists as it is.
    """
    done = Declared()
    for row in sorted(rows, key=lambda row: row.name):
        known = _insert(tx, row)
        if known is None:
            done.created.append(row.name)
        elif not only_new:
            _redeclare(tx, known, row, now, row.name in rolled_back, done)
    if done.created or done.changed or done.returned:
        _tell(tx)
    return done


def _redeclare(
    tx: Tx, known: ScheduleRow, row: ScheduleRow, now: int, rolled_back: bool, done: Declared
) -> None:
    former: list[str] = msgspec.json.decode(known.former, type=list[str])
    same = known.source == CODE and known.fingerprint == row.fingerprint
    if not same and row.fingerprint in former and not rolled_back and known.state != REMOVED:
        done.outdated[row.name] = known.seen_at
        return
    if same and known.state != REMOVED:
        return
    if not same:
        former = [one for one in former if one != row.fingerprint] + [known.fingerprint]
    known.former = msgspec.json.encode(former[-MOST_FORMER:]).decode()
    known.source, known.served_by = CODE, row.served_by
    known.fingerprint, known.job, known.input = row.fingerprint, row.job, row.input
    retimed = known.timing != row.timing
    known.timing, known.terms, known.error = row.timing, row.terms, None
    known.seen_at = known.updated_at = now
    if known.state == REMOVED:
        known.state, known.reason = ACTIVE, None
        retimed = True
        done.returned.append(row.name)
    else:
        done.changed.append(row.name)
    if retimed:  # with the same times, firings that were missed are not lost
        known.next_for, known.queued_for = row.next_for, None
    if known.state == ACTIVE:
        known.due_at = (
            None if known.next_for is None else rules.due_at(known.name, known.when, known.next_for)
        )
    save(tx, [known])
    note(tx, history_of(row.name), "declared", {"by": CODE, "timing": row.timing}, now)


def seen(tx: Tx, declared: Collection[tuple[str, str]], now: int) -> None:
    """Note that workers with these declarations, by name and fingerprint, are at work."""
    rows = [{"name": name, "fingerprint": text, "seen_at": now} for name, text in sorted(declared)]
    write(tx, tx.sql.schedules.seen, rows)


def code_schedules(tx: Tx, jobs: Collection[str]) -> dict[str, tuple[str, int]]:
    """The schedules of the code that start these jobs: fingerprints, and when each was last declared."""
    rows = batch([{"job": job} for job in sorted(jobs)])
    return {row[0]: (row[1], row[2]) for row in tx.query(tx.sql.schedules.of_code, rows=rows)}


def remove(tx: Tx, names: Collection[str], *, now: int) -> None:
    """Mark schedules that the code no longer declares as removed; twice does nothing."""
    for name in sorted(names):
        row = lock(tx, name)
        if row.state == REMOVED:
            continue
        row.state, row.due_at, row.queued_for = REMOVED, None, None
        row.reason = "it is no longer declared in the code"
        row.updated_at = now
        save(tx, [row])
        note(tx, history_of(name), "removed", {"reason": row.reason}, now)


def save(tx: Tx, rows: Sequence[ScheduleRow]) -> None:
    """Write schedules that we have locked."""
    write(tx, tx.sql.schedules.save, rows)


def _tell(tx: Tx) -> None:
    """Wake the workers of other processes at the commit."""
    tx.driver.notify(tx, news(work=True))


# Operators


def pause(tx: Tx, name: str, *, reason: str | None, now: int) -> ScheduleRow:
    """Stop firing; twice changes the reason."""
    row = lock(tx, name)
    if row.state == REMOVED:
        raise InvalidScheduleState("pause", name, f"removed: {row.reason}")
    row.state, row.reason, row.due_at, row.queued_for = PAUSED, reason, None, None
    row.updated_at = now
    save(tx, [row])
    note(tx, history_of(name), "paused", {"by": "operator", "reason": reason}, now)
    return row


def resume(tx: Tx, name: str, *, now: int) -> ScheduleRow:
    """Fire again, from now on; what fell into the pause does not happen.  Twice does nothing."""
    row = lock(tx, name)
    if row.state == REMOVED:
        raise InvalidScheduleState("resume", name, f"removed: {row.reason}")
    if row.state == PAUSED:
        row.state, row.reason, row.updated_at = ACTIVE, None, now
        row.next_for, row.due_at = rules.first_times(name, row.when, now)
        save(tx, [row])
        note(tx, history_of(name), "resumed", {"by": "operator"}, now)
        _tell(tx)
    return row


def change(tx: Tx, name: str, changed: Callable[[ScheduleRow], ScheduleRow], *, now: int) -> ScheduleRow:
    """Replace what a schedule was asked for by `changed` of the stored one; the same again does nothing.

    Its counts and its last run stay.  A schedule of the code is only changed there.
    """
    row = lock(tx, name)
    if row.source == CODE:
        raise InvalidScheduleState("change", name, "declared in the code", "change it there")
    asked = changed(row)
    if asked.fingerprint == row.fingerprint:
        return row
    retimed = row.timing != asked.timing
    row.job, row.input, row.timing, row.terms = asked.job, asked.input, asked.timing, asked.terms
    row.fingerprint, row.error, row.updated_at = asked.fingerprint, None, now
    if retimed:  # with the same times, firings that were missed still happen
        row.next_for, row.queued_for = asked.next_for, None
        row.due_at = asked.due_at if row.state == ACTIVE else None
    elif row.state == ACTIVE and row.next_for is not None:  # it may wait for a retry of what failed
        row.due_at = rules.due_at(name, row.when, row.next_for)
    save(tx, [row])
    note(tx, history_of(name), "changed", {"by": "operator", "timing": row.timing}, now)
    _tell(tx)
    return row


def delete(tx: Tx, name: str, *, now: int) -> None:
    """Forget a schedule; its runs stay.  One that the code declares cannot be deleted."""
    row = lock(tx, name)
    if row.source == CODE and row.state != REMOVED:
        raise InvalidScheduleState(
            "delete", name, "declared in the code", "remove it there; pause() stops it until then"
        )
    tx.run(tx.sql.schedules.delete, name=name)
    note(tx, history_of(name), "deleted", {"by": "operator"}, now)


def begin_extra(
    tx: Tx, row: ScheduleRow, times: Sequence[int], start: Starter, verb: str, now: int
) -> list[str]:
    """Start the runs of these times that do not exist yet, beside the schedule's own firings."""
    ids = [rules.run_id(row.name, nominal) for nominal in times]
    known = run_states(tx, ids)
    wanted = [start(row, nominal) for id, nominal in zip(ids, times, strict=True) if id not in known]
    _begin(tx, wanted)
    detail = {"by": "operator", "runs": len(wanted), "from": times[0], "until": times[-1]}
    note(tx, history_of(row.name), verb, detail, now)
    return [start.runs[0].id for start in wanted]


def _begin(tx: Tx, starts: Sequence[Start]) -> None:
    """Write new runs, which other processes may take; raise if one is refused."""
    if not starts:
        return
    for start in starts:
        start.chosen = start.remote = True
    applied = batches.apply(tx, starts, helpers_wanted=True)
    tx.made_ready = tx.made_ready or applied.made_ready
    for answer in applied.answers:
        if isinstance(answer, Exception):
            raise answer


# Firing


def next_due(tx: Tx, keys: Collection[str]) -> int | None:
    """When the next of the schedules is due that these keys serve."""
    found: int | None = tx.query(tx.sql.schedules.next_due, rows=_keys(keys))[0][0]
    return found


def _keys(keys: Collection[str]) -> str:
    return batch([{"served_by": key} for key in sorted(keys)])


def fire(tx: Tx, keys: Collection[str], *, start: Starter, now: int) -> Fired:
    """Start what is due of the schedules that these keys serve, and move them on."""
    due: list[ScheduleRow] = rows_to(
        ScheduleRow,
        tx.query(tx.sql.schedules.due, rows=_keys(keys), now=now, limit=SCHEDULES_AT_ONCE),
    )
    done = Fired(looked_at=len(due))
    if not due:
        return done
    states = run_states(tx, {row.last_run for row in due if row.last_run is not None})
    plans = {
        row.name: rules.plan(row, now, last_active=_active(states.get(row.last_run or ""))) for row in due
    }
    known = run_states(tx, {rules.run_id(name, time) for name, plan in plans.items() for time in plan.start})
    starts: list[Start] = []
    for row in due:
        plan = plans[row.name]
        wanted = [time for time in plan.start if rules.run_id(row.name, time) not in known]
        try:
            made = [start(row, time) for time in wanted]
        except Exception as error:  # of arguments that today's code does not take, or of a template
            _postpone(tx, row, error, now, done)
            continue
        if plan.cancels and row.last_run is not None:
            done.canceled += _cancel(tx, row.last_run, now)
        starts += made
        _advance(tx, row, plan, now)
    _begin(tx, starts)
    done.started = [one.runs[0].id for one in starts]
    save(tx, sorted(due, key=lambda row: row.name))
    return done


def _active(state: str | None) -> bool:
    return state is not None and not RunState(state).final


def _cancel(tx: Tx, run_id: str, now: int) -> list[str]:
    try:
        canceled = cancel(tx, run_id, reason=OVERLAPPED, now=now)
    except InvalidState:  # it has ended since we looked
        return []
    tx.driver.notify(tx, news(work=True, runs=canceled))
    return canceled


def _advance(tx: Tx, row: ScheduleRow, plan: rules.Plan, now: int) -> None:
    row.next_for, row.due_at, row.queued_for = plan.next_for, plan.due_at, plan.queued_for
    row.fired += len(plan.start)
    row.skipped += plan.skipped
    row.error, row.updated_at = None, now
    if plan.start:
        row.last_for = plan.start[-1]
        row.last_run = rules.run_id(row.name, plan.start[-1])
    if plan.missed is not None:
        detail: dict[str, Any] = {
            "from": plan.missed[0],
            "until": plan.missed[1],
            "catch_up": row.when.catch_up,
        }
        note(tx, history_of(row.name), "missed", detail, now)


def _postpone(tx: Tx, row: ScheduleRow, error: Exception, now: int, done: Fired) -> None:
    """Try again later; until then the schedule says why."""
    text = f"{type(error).__name__}: {error}"
    if row.error != text:
        note(tx, history_of(row.name), "failed", {"error": text}, now)
        done.failed.append((row.name, text))
    row.error, row.due_at, row.updated_at = text, now + rules.RETRY_AFTER, now
