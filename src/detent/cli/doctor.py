"""`detent doctor`: checks the app, its database and its workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.table import Table
from rich.text import Text

from ..app.liveness import living
from ..errors import DatabaseError, DetentError, SchemaTooNew
from ..kernel.rows import ExecutionState, WorkerRow
from ..stores.driver import Trouble
from ..stores.open import open_store
from ..stores.store import Store
from ..stores.verbs.checkup import Waiting, commit_seconds, durability, schema, waiting, wake_up_seconds
from .command import Failure, app_argument, command, json_option
from .find_app import Target, find, kind, place, require_file
from .output import console, span, write_json

OK, WARNING, BAD = "ok", "warning", "bad"
_MARKS = {OK: ("✓", "green"), WARNING: ("!", "yellow"), BAD: ("✗", "bold red")}
_SLOW_COMMIT = 0.05
_CLOCK_OFF, _CLOCK_FAR_OFF = 0.5, 5.0
_OVERDUE = 10.0


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    status: str
    found: str
    advice: str = ""


@command(example="detent doctor shop:app")
@app_argument
@json_option
def doctor(app: str, as_json: bool) -> None:
    """Check the database, the workers and the waiting work.

    Changes nothing.  The exit code is 1 if a check is bad.
    """
    target = find(app)
    findings = []
    rows = Table.grid(padding=(0, 2))
    for finding in examine(target):
        findings.append(finding)
        mark, style = _MARKS[finding.status]
        rows.add_row(Text(mark, style=style), finding.name, Text(finding.found, style=_style(finding)))
        if finding.advice:
            rows.add_row("", "", Text(f"→ {finding.advice}"))
    well = all(finding.status != BAD for finding in findings)
    if as_json:
        write_json({"ok": well, "checks": [asdict(finding) for finding in findings]})
    else:
        console().print(rows)
    sys.exit(0 if well else 1)


def _style(finding: Finding) -> str:
    return "" if finding.status == OK else _MARKS[finding.status][1]


def examine(target: Target) -> Iterator[Finding]:
    """Run all checks in order; skip those that depend on a failed one."""
    store = target.app.engine.store
    try:
        ground = _ground(target, store)
        yield from ground
        if any(finding.status == BAD for finding in ground):
            return
        yield _durability(store)
        yield _commit(store)
        yield _wake_ups(target, store)
        yield _clock(store)
        workers = living(store)
        backlog = waiting(store)
        yield _workers(target, workers, backlog)
        yield _definitions(target, backlog)
        yield _overdue(target, workers, backlog)
    finally:
        store.close()


def _ground(target: Target, store: Store) -> list[Finding]:
    """Whether the database exists and has Detent's tables."""
    url = target.app.engine.url
    where = f"{kind(url)}, {place(url)}"
    began = time.perf_counter()
    try:
        require_file(url)
        version = schema(store)
    except Failure as missing:
        return [Finding("database", BAD, missing.message)]
    except DatabaseError as error:
        if isinstance(error, SchemaTooNew) or "schema" in type(error).__name__.lower():
            advice = "" if isinstance(error, SchemaTooNew) else f"run `detent migrate {target.reference}`"
            return [Finding("database", OK, where), Finding("schema", BAD, str(error), advice)]
        return [Finding("database", BAD, str(error))]
    except DetentError as error:
        return [Finding("database", BAD, str(error))]
    except Exception as error:
        if store.driver.trouble(error) is Trouble.OTHER:
            raise
        return [Finding("database", BAD, f"{where}: {error}")]
    took = span(time.perf_counter() - began)
    return [
        Finding("database", OK, f"{where}: answers in {took}"),
        Finding("schema", OK, f"version {version}"),
    ]


def _durability(store: Store) -> Finding:
    seen = durability(store)
    found = ", ".join(f"{name} = {value}" for name, value in seen.found.items())
    if not seen.wanted:
        return Finding("durability", OK, found)
    wanted = ", ".join(f"{name} = {value}" for name, value in seen.wanted.items())
    return Finding(
        "durability",
        WARNING,
        f"{found}: a power failure may lose the last commits",
        f"set {wanted} in the server, unless you accept this",
    )


def _commit(store: Store) -> Finding:
    seconds = commit_seconds(store)
    found = f"a small transaction takes {seconds * 1000:.1f} ms"
    if seconds < _SLOW_COMMIT:
        return Finding("commit", OK, found)
    return Finding("commit", WARNING, found, "every step waits for a commit: check the disk or the network")


def _wake_ups(target: Target, store: Store) -> Finding:
    other = open_store(target.app.engine.url)
    try:
        seconds = wake_up_seconds(store, other)
    finally:
        other.close()
    if seconds is not None:
        return Finding("wake-ups", OK, f"received after {seconds * 1000:.0f} ms")
    return Finding(
        "wake-ups",
        WARNING,
        "a notification was not received: new work starts late",
        "if there is a connection pooler, give workers a direct connection, or add ?pgbouncer=true",
    )


def _clock(store: Store) -> Finding:
    before = time.time_ns() // 1000
    database = store.read_heartbeat(now=before).now
    after = time.time_ns() // 1000
    # What the question itself took tells nothing.
    off = 0.0 if before <= database <= after else max(before - database, database - after) / 1e6
    found = "the same as the database's" if off < 0.001 else f"{span(off)} away from the database's"
    if off < _CLOCK_OFF:
        return Finding("clock", OK, found)
    status = WARNING if off < _CLOCK_FAR_OFF else BAD
    return Finding("clock", status, found, "timers fire early or late by this much: run NTP on both machines")


def _workers(target: Target, workers: list[tuple[WorkerRow, bool]], backlog: list[Waiting]) -> Finding:
    living = [row for row, lives in workers if lives]
    alive = [row for row in living if row.drain_at is None]
    dead, drained = len(workers) - len(living), len(living) - len(alive)
    ready = sum(item.count for item in backlog if item.state != ExecutionState.HELD)
    found = f"{len(living) or 'none'} alive" + (f", {dead} dead" if dead else "")
    found += f", {drained} drained" if drained else ""
    start = f"start one: detent worker {target.reference if target.definitions else 'MODULE:APP'}"
    if not alive:
        return Finding(
            "workers", BAD if ready else OK, f"{found}; {ready or 'nothing'} waiting", start if ready else ""
        )
    served = {queue for row in alive for queue in row.queues.split(",")}
    idle = {item.queue for item in backlog if item.state != ExecutionState.HELD} - served
    if idle:
        queues = ", ".join(sorted(idle))
        return Finding("workers", BAD, f"{found}, but none takes from {queues}", f"{start} --queues {queues}")
    if dead:
        return Finding("workers", OK, f"{found}: live workers take over their work within seconds")
    return Finding("workers", OK, found)


def _definitions(target: Target, backlog: list[Waiting]) -> Finding:
    if not target.definitions:
        return Finding("definitions", OK, "not checked: a database URL has no code")
    registry = target.app.engine.registry
    unknown: dict[str, int] = {}
    for item in backlog:
        if not registry.knows(item.job):
            unknown[item.job] = unknown.get(item.job, 0) + item.count
    if not unknown:
        return Finding("definitions", OK, "the app includes everything in flight")
    jobs = ", ".join(f"{job} ({count})" for job, count in sorted(unknown.items()))
    return Finding(
        "definitions",
        BAD,
        f"in flight, but not included in {target.reference}: {jobs}",
        "include them, keep a worker with the old code until they are done, or cancel their runs",
    )


def _overdue(target: Target, workers: list[tuple[WorkerRow, bool]], backlog: list[Waiting]) -> Finding:
    now = time.time_ns() // 1000
    late = [
        (item, (now - item.oldest) / 1e6)
        for item in backlog
        if item.oldest is not None
        and item.state in (ExecutionState.READY, ExecutionState.TIMER)
        and now - item.oldest > _OVERDUE * 1e6
    ]
    if not late:
        return Finding("overdue", OK, "nothing")
    oldest = max(age for _, age in late)
    jobs = ", ".join(sorted({item.job for item, _ in late}))
    found = f"{jobs}: the oldest has been due for {span(oldest)}"
    if not any(lives for _, lives in workers):
        return Finding("overdue", BAD, found, "it starts as soon as there is a worker")
    return Finding(
        "overdue",
        WARNING,
        found,
        f"start more workers, or raise --concurrency; detent runs {target.reference} --overdue "
        "shows the reasons",
    )
