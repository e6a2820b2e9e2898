"""`python -m bench.pages`: every page and API of the dashboard over a database with a million runs.

A small app makes runs of every kind.  One statement per table multiplies them, so that a million runs take
about a minute.  Then each address is asked for several times in this process, without a network; the first
answer counts as well as the best.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import httpx

import detent
from detent import Decider, Decision, EffectContext, Projection, Queue, Recorded, View, step, workflow
from detent.dashboard.rendering import compile_templates
from detent.stores.open import open_store

from .databases import fresh_database

RUNS = 1_000_000
SPREAD = timedelta(hours=24)  # the time in which the runs were created
LIMIT = 300  # milliseconds
COPIED = ("runs", "executions", "steps", "history", "attributes", "events", "inputs", "deadlines", "streams")
TIMES = {"created_at", "finished_at", "started_at", "happened_at", "scheduled_for", "appended_at"} | {
    "received_at"
}


@step
def charge(euros: int) -> str:
    if euros < 0:
        raise ValueError(f"{euros} is less than nothing")
    return f"receipt for {euros}"


@workflow
def order(euros: int) -> str:
    receipt = charge(euros)
    detent.append("log", f"charged {euros}")
    if euros > 100:
        detent.receive("approval")
    if euros > 90:
        detent.sleep(days=300)
    return receipt


@workflow
def report(region: str) -> str:
    return region


@dataclass(frozen=True)
class Open:
    id: str


@dataclass(frozen=True)
class Opened:
    pass


@dataclass(frozen=True)
class State:
    status: str = "new"


@dataclass(frozen=True)
class Greet:
    id: str


class Account(Decider[State, Open, Opened, Greet]):
    type = "account"

    def initial(self) -> State:
        return State()

    def decide(self, state: State, input: Open, now: datetime) -> Decision:
        return Decision.event(Opened())

    def evolve(self, state: State, event: Any) -> State:
        return replace(state, status="open")

    def handle(self, effect: Greet, ctx: EffectContext) -> None: ...


class Count(Projection):
    name = "count"
    deciders = (Account,)

    def apply(self, event: Recorded[Any], view: View) -> None:
        view["events"] = view.get("events", 0) + 1


INCLUDE = (order, report, charge, Account, Count)
QUEUES = (Queue("default"), Queue("mail", concurrency=5), Queue("llm", key_concurrency=2, fair=True))
SAMPLES = 200


def make_samples(app: detent.App) -> None:
    """200 runs: most have finished, some failed, are paused, wait or are queued."""
    for number in range(SAMPLES):
        options: dict[str, Any] = {"id": f"order-{number}", "attributes": {"customer": f"c-{number % 10}"}}
        euros = -1 if number % 20 == 1 else 500 if number % 20 == 2 else 95 if number % 20 == 3 else 5
        if number % 20 == 4:
            options |= {"queue": "llm", "key": f"k-{number}"}
        app.options(**options).start(order, euros)
    for number in range(5):
        app.execute(Account, Open(f"a-{number}"))
    app.schedule("nightly", report, args=("eu",), cron="0 3 * * *")
    while _busy(app):
        time.sleep(0.1)
    for number in range(2, SAMPLES, 40):
        app.run(f"order-{number}").pause(reason="the bank is closed")


def _busy(app: detent.App) -> bool:
    """Whether runs are still executing that do not wait for anything."""
    return len(app.runs.finished(limit=SAMPLES)) + len(app.runs.failed(limit=SAMPLES)) < SAMPLES * 17 // 20


def multiply(url: str, copies: int) -> None:
    """Copy every run so often, each copy a little older than the one before."""
    shift = int(SPREAD.total_seconds() * 1e6) // copies
    connection = open_store(url).driver.connect()
    try:
        cursor = connection.cursor()
        for table in COPIED:
            cursor.execute(f"SELECT * FROM detent_{table} LIMIT 0")
            columns = [one[0] for one in cursor.description]
            generated = "seq" if table in ("history", "inputs") else None  # the database counts it
            kept = [name for name in columns if name != generated]
            values = ", ".join(_copied(table, name, shift) for name in kept)
            cursor.execute(
                f"INSERT INTO detent_{table} ({', '.join(kept)}) WITH RECURSIVE numbers (n) AS "
                f"(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {copies}) "
                f"SELECT {values} FROM detent_{table} CROSS JOIN numbers"
            )
        if url.startswith("postgresql"):
            cursor.execute("ANALYZE")  # the server does it a minute later
    finally:
        connection.close()


def _copied(table: str, column: str, shift: int) -> str:
    if column in ("id", "run_id"):
        return f"{column} || '-' || n"
    if column == "position" and table == "events":
        return "position + n * 1000"  # it is unique
    if column == "entry_id":
        return f"{column} || '-' || n"
    return f"{column} - n * CAST({shift} AS BIGINT)" if column in TIMES else column


def fill(url: str, runs: int) -> None:
    """Make so many runs, unless the database has some."""
    with detent.App(url, include=INCLUDE, queues=list(QUEUES), migrate=True).open(worker=False) as app:
        if app.runs(limit=1):
            return
    with detent.App(url, include=INCLUDE, queues=list(QUEUES)) as app:
        app.queues["llm"].pause("the model is down")
        make_samples(app)
    began = time.perf_counter()
    multiply(url, max(1, runs // SAMPLES - 1))
    print(f"{runs:,} runs made in {time.perf_counter() - began:.0f} s", flush=True)


PAGES = (
    "/", "/runs", "/runs?state=active", "/runs?state=failed", "/runs?state=finished", "/runs?type=order",
    "/runs?type=report", "/runs?queue=llm", "/runs?attribute=customer=c-3", "/runs?after=2h",
    "/runs?overdue=1", "/runs?q=order-0-2500", "/runs?q=less", "/runs?q=nothing-like-this",
    "/runs?drifted=1", "/runs?state=active&type=order&attribute=customer=c-2", "/runs/order-0",
    "/runs/order-1-77", "/runs/order-2-9?tab=graph", "/runs/order-0-9?tab=steps",
    "/runs/order-0-9?tab=messages", "/runs/order-0-9?tab=streams", "/runs/order-0-9?tab=history",
    "/deciders", "/decider?name=account", "/instance?decider=account&id=a-1", "/projections", "/queues",
    "/schedules", "/schedule?name=nightly", "/workers", "/act/create-schedule?workflow=order",
    "/act/resume-all?state=failed", "/act/cancel-all?state=active", "/api/overview", "/api/runs",
    "/api/run?id=order-0-5", "/api/run/steps?id=order-0-5", "/api/run/graph?id=order-0-5",
    "/api/run/timeline?id=order-0-5", "/api/run/messages?id=order-0-5", "/api/run/streams?id=order-0-5",
    "/api/run/history?id=order-0-5", "/api/deciders", "/api/decider?name=account",
    "/api/instance?decider=account&id=a-1", "/api/dead-letters", "/api/projections", "/api/queues",
    "/api/schedules", "/api/schedule?name=nightly", "/api/schedule/preview?cron=0+3+*+*+*", "/api/workers",
    "/api/openapi.json",
)  # fmt: skip
TOKEN = "a-token-of-the-bench"


async def ask(site: Any, path: str, times: int) -> tuple[int, list[float], list[float]]:
    """The status, the milliseconds and the milliseconds of CPU of each answer."""
    transport = httpx.ASGITransport(app=site, client=("127.0.0.1", 1))
    seconds, cpu, status = [], [], 0
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"authorization": f"Bearer {TOKEN}"}
    ) as client:
        for _ in range(times):
            began, used = time.perf_counter(), time.process_time()
            status = (await client.get(path)).status_code
            seconds.append((time.perf_counter() - began) * 1000)
            cpu.append((time.process_time() - used) * 1000)
    return status, seconds, cpu


def measure(url: str, *, runs: int, times: int, only: str) -> int:
    """Print a line for each address; returns how many took longer than the limit."""
    fill(url, runs)
    slow = 0
    with detent.App(url, include=INCLUDE, queues=list(QUEUES)).open(worker=False) as app:
        site = detent.dashboard(app, token=TOKEN)
        compile_templates()  # as `detent dashboard` does before it listens
        print(f"{'first':>8} {'best':>8} {'cpu':>8}  ms")
        for path in PAGES:
            if only not in path:
                continue
            status, seconds, cpu = asyncio.run(ask(site, path, times))
            late = max(seconds[0], min(seconds)) > LIMIT
            slow += late
            note = "  SLOW" if late else ""
            note += "" if status == 200 else f"  status {status}"
            print(f"{seconds[0]:8.1f} {min(seconds):8.1f} {min(cpu):8.1f}  {path}{note}", flush=True)
    return slow


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--databases", default="postgres,sqlite")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--times", type=int, default=5, help="how often each address is asked for")
    parser.add_argument("--only", default="", help="addresses that contain this text")
    parser.add_argument("--url", help="measure this database instead, and keep it; an empty one is filled")
    options = parser.parse_args()
    logging.getLogger("detent").setLevel(logging.CRITICAL)  # some runs fail on purpose
    slow = 0
    if options.url:
        slow = measure(options.url, runs=options.runs, times=options.times, only=options.only)
    for kind in options.databases.split(",") if not options.url else ():
        print(kind)
        with fresh_database(kind) as url:
            slow += measure(url, runs=options.runs, times=options.times, only=options.only)
    if slow:
        raise SystemExit(f"{slow} addresses took longer than {LIMIT} ms")


if __name__ == "__main__":
    main()
