"""`make soak`: a million executions on PostgreSQL beside a reader that sits in its transaction.

The reader holds the snapshot that it took at the start, as a forgotten session or a long report does.  While
it does, nothing that died since can be cleared away: a queue that finds its next job by stepping over its
dead ones gets slower and slower.  After each slice we take the throughput, what a claim costs (one that
found something, and one that found nothing), the sizes of tables and indexes, the dead rows, and the latency
of a start; all of it should stay flat.  A look over everything that is ready cannot: it is measured too, with
the share of the time that the worker gave to it.

The speed of a shared machine changes within minutes.  So the executions of a slice take turns with a few on
an empty database, and times are judged by their ratio to those.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import detent
from detent.stores.open import open_store

from . import workflows
from .databases import fresh_database
from .peers.protocol import CONCURRENCY
from .results import RESULTS, machine, quantile

CHUNK = 5_000  # runs that one call starts ...
FRESH_CHUNK = 1_000  # ... and on the empty database
SLICES = 20
FLAT = 1.5  # so much worse may the last quarter be than the first

# A look over everything on a queue that is empty: it reads whatever lies in its way.
LOOK = """EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT e.run_id, e.node, e.attempt FROM detent_executions e
 WHERE e.state = 'ready' AND e.queue = 'default'
 ORDER BY e.precedence, e.scheduled_for, e.run_id LIMIT 100 FOR UPDATE SKIP LOCKED"""
SIZES = """
SELECT sum(pg_table_size(relid)), sum(pg_indexes_size(relid)), sum(n_dead_tup), sum(n_live_tup)
  FROM pg_stat_user_tables WHERE relname LIKE 'detent_%'"""


@dataclass
class Slice:
    """One slice, and the state of the database after it."""

    executions: int  # so far
    per_second: float
    claims: int
    claim_ms_p50: float
    claim_ms_p99: float
    claim_us_per_execution: float
    empty_claim_ms: float  # the median of those that found nothing, without those that looked over everything
    look_ms: float  # over everything
    look_pages: int
    look_share: float  # of the slice's time
    tables_mib: float
    indexes_mib: float
    bytes_per_execution: float
    dead_rows: int
    start_ms_p50: float
    start_ms_p99: float
    # The same on an empty database, meanwhile.
    fresh_per_second: float
    fresh_claim_us_per_execution: float
    fresh_empty_claim_ms: float
    fresh_start_ms_p50: float


class Claims:
    """Times every claim of a store, and the looks over everything among them."""

    def __init__(self, store: Any) -> None:
        self.taken: list[tuple[float, int]] = []
        self.empty: list[float] = []
        self.looking = 0.0
        self._claim: Callable[..., Any] = store.claim
        store.claim = self

    def clear(self) -> None:
        self.taken, self.empty, self.looking = [], [], 0.0

    def __call__(self, *args: Any, claim_cursor: Any, **kwargs: Any) -> Any:
        begun, looking = time.perf_counter(), self.looking
        found = self._claim(*args, claim_cursor=_Watched(claim_cursor, self), **kwargs)
        seconds = time.perf_counter() - begun
        if found:
            self.taken.append((seconds, len(found)))
        elif self.looking == looking:
            self.empty.append(seconds * 1000)
        return found


class _Watched:
    """A claim_cursor that tells how long its looks took."""

    def __init__(self, claim_cursor: Any, claims: Claims) -> None:
        self._claim_cursor = claim_cursor
        self._claims = claims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim_cursor, name)

    def looked(self, seconds: float) -> None:
        self._claims.looking += seconds
        self._claim_cursor.looked(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--no-reader", action="store_true", help="without the reader, to compare")
    options = parser.parse_args()
    with fresh_database("postgres") as url:
        slices = asyncio.run(soak(url, options.executions, reader=not options.no_reader))
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"soak-{now:%Y%m%dT%H%M%SZ}.json"
    document = {
        "at": now.isoformat(),
        "machine": machine(),
        "reader": not options.no_reader,
        "slices": [asdict(each) for each in slices],
    }
    path.write_text(json.dumps(document, indent=1))
    print(f"written to {path}")
    steep = grown(slices)
    for sentence in steep:
        print(f"NOT FLAT: {sentence}")
    sys.exit(1 if steep else 0)


async def soak(url: str, executions: int, *, reader: bool) -> list[Slice]:
    """The slices, one after the other, in one process with one worker."""
    found: list[Slice] = []
    size = max(CHUNK, executions // SLICES)
    async with _app(url) as app:
        claims = Claims(app.engine.store)
        await (await app.start(workflows.one_step, 0)).result()
        with closing(_connect(url)) as watching, closing(_connect(url)) as idle:
            if reader:
                _sit(idle)
            while not found or found[-1].executions < executions:
                done = found[-1].executions if found else 0
                taken, fresh = await _slice(app, claims, size)
                found.append(_measured(watching, done + size, taken, fresh))
                _say(found[-1])
    return found


def _app(url: str) -> detent.AsyncApp:
    return detent.AsyncApp(url, include=workflows.ALL, migrate=True, concurrency=CONCURRENCY)


async def _slice(app: detent.AsyncApp, claims: Claims, size: int) -> tuple[Rounds, Rounds]:
    with fresh_database("postgres") as url:
        async with _app(url) as fresh_app:
            fresh = Rounds(fresh_app, Claims(fresh_app.engine.store))
            await fresh.run(FRESH_CHUNK)  # warms up
            fresh.clear()
            taken = Rounds(app, claims)
            taken.clear()
            for first in range(0, size, CHUNK):
                await taken.run(min(CHUNK, size - first))
                await fresh.run(FRESH_CHUNK)
            await taken.start_singly()
            await fresh.start_singly()
    return taken, fresh


class Rounds:
    """Executions of one app, and what they took."""

    def __init__(self, app: detent.AsyncApp, claims: Claims) -> None:
        self._app = app
        self._claims = claims
        self.clear()

    def clear(self) -> None:
        self._claims.clear()
        self._executions = 0
        self._seconds = 0.0
        self.start_ms: list[float] = []

    async def run(self, count: int) -> None:
        begun = time.perf_counter()
        await _run(self._app, count)
        self._seconds += time.perf_counter() - begun
        self._executions += count

    async def start_singly(self) -> None:
        self.start_ms = await _latencies(self._app)

    @property
    def per_second(self) -> float:
        return self._executions / self._seconds

    @property
    def claim_ms(self) -> list[float]:
        """Of each claim that found something, in order."""
        return sorted(seconds * 1000 for seconds, _ in self._claims.taken) or [0.0]

    @property
    def claim_us_per_execution(self) -> float:
        return 1000 * sum(self.claim_ms) / (sum(count for _, count in self._claims.taken) or 1)

    @property
    def empty_claim_ms(self) -> float:
        return statistics.median(self._claims.empty) if self._claims.empty else 0.0

    @property
    def look_share(self) -> float:
        return self._claims.looking / self._seconds


async def _run(app: detent.AsyncApp, count: int) -> None:
    started = await app.start_many(workflows.one_step, [(number,) for number in range(count)])
    await asyncio.gather(*(run.result() for run in started))


async def _latencies(app: detent.AsyncApp) -> list[float]:
    found = []
    for _ in range(40):
        await asyncio.sleep(0.01)
        found.append(await (await app.start(workflows.latency, time.time())).result() * 1000)
    return sorted(found)


def _connect(url: str) -> Any:
    return open_store(url).driver.connect()


def _sit(connection: Any) -> None:
    """Take a snapshot, and keep it."""
    cursor = connection.cursor()
    cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    cursor.execute("SELECT count(*) FROM detent_runs")
    cursor.fetchone()


def _measured(watching: Any, executions: int, taken: Rounds, fresh: Rounds) -> Slice:
    cursor = watching.cursor()
    cursor.execute(LOOK)
    plan = cursor.fetchone()[0][0]
    cursor.execute(SIZES)
    tables, indexes, dead, _ = (int(value or 0) for value in cursor.fetchone())
    return Slice(
        executions=executions,
        per_second=taken.per_second,
        claims=len(taken.claim_ms),
        claim_ms_p50=quantile(taken.claim_ms, 0.5),
        claim_ms_p99=quantile(taken.claim_ms, 0.99),
        claim_us_per_execution=taken.claim_us_per_execution,
        empty_claim_ms=taken.empty_claim_ms,
        look_ms=float(plan["Execution Time"]),
        look_pages=int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"]),
        look_share=taken.look_share,
        tables_mib=tables / 2**20,
        indexes_mib=indexes / 2**20,
        bytes_per_execution=(tables + indexes) / executions,
        dead_rows=dead,
        start_ms_p50=quantile(taken.start_ms, 0.5),
        start_ms_p99=quantile(taken.start_ms, 0.99),
        fresh_per_second=fresh.per_second,
        fresh_claim_us_per_execution=fresh.claim_us_per_execution,
        fresh_empty_claim_ms=fresh.empty_claim_ms,
        fresh_start_ms_p50=quantile(fresh.start_ms, 0.5),
    )


def grown(slices: list[Slice]) -> list[str]:
    """What is not flat: the last quarter against the first, the very first slice left out as it warms up.

    A slice without a figure does not count: without an empty claim, for instance, there is no time of one.
    """

    def growth(figure: Callable[[Slice], float]) -> float:
        figures = [value for value in map(figure, slices[1:]) if value > 0]
        quarter = len(figures) // 4
        if not quarter:
            return 1.0
        return statistics.median(figures[-quarter:]) / statistics.median(figures[:quarter])

    found = [
        f"{what} has grown {by:.1f} times"
        for what, by in (
            (
                "a claim's cost for each execution",
                growth(lambda each: _ratio(each.claim_us_per_execution, each.fresh_claim_us_per_execution)),
            ),
            (
                "a claim on an empty queue",
                growth(lambda each: _ratio(each.empty_claim_ms, each.fresh_empty_claim_ms)),
            ),
            (
                "the latency of a start",
                growth(lambda each: _ratio(each.start_ms_p50, each.fresh_start_ms_p50)),
            ),
            (
                "the size of tables and indexes for each execution",
                growth(lambda each: each.bytes_per_execution),
            ),
        )
        if by > FLAT
    ]
    throughput = growth(lambda each: _ratio(each.per_second, each.fresh_per_second))
    if throughput < 1 / FLAT:
        found.append(f"the throughput fell to {throughput:.0%}")
    return found


def _ratio(figure: float, fresh: float) -> float:
    """A time or a rate as a multiple of that on an empty database; itself if there was none to compare."""
    return figure / fresh if fresh > 0 else figure


def latest() -> dict[str, Any] | None:
    """What the last soak has left."""
    found = max(RESULTS.glob("soak-*.json"), default=None)
    document: dict[str, Any] | None = None if found is None else json.loads(Path(found).read_text())
    return document


def _say(each: Slice) -> None:
    print(
        f"{each.executions:>9,} executions: {each.per_second:,.0f}/s (fresh {each.fresh_per_second:,.0f})"
        f", claim p50 {each.claim_ms_p50:.2f} ms p99 {each.claim_ms_p99:.2f} ms"
        f" ({each.claim_us_per_execution:.0f} us each, fresh {each.fresh_claim_us_per_execution:.0f})"
        f", an empty one {each.empty_claim_ms:.2f} ms (fresh {each.fresh_empty_claim_ms:.2f})"
        f", a look over everything {each.look_ms:.2f} ms {each.look_pages} pages"
        f" ({each.look_share:.1%} of the time)"
        f", start p50 {each.start_ms_p50:.2f} ms (fresh {each.fresh_start_ms_p50:.2f})"
        f", tables {each.tables_mib:.0f} MiB, indexes {each.indexes_mib:.0f} MiB"
        f", {each.dead_rows:,} dead rows",
        flush=True,
    )


if __name__ == "__main__":
    main()
