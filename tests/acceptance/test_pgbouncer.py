"""PostgreSQL behind a PgBouncer that pools transactions: every transaction may get another session."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from detent import App, Run
from tests.acceptance.programs import chains, hanging, pooled
from tests.acceptance.support import (
    PATIENCE,
    Process,
    World,
    alive,
    all_finish,
    eventually,
    journals_agree,
    settled_once,
    start_chains,
    written_once,
)

pytestmark = pytest.mark.acceptance

RUNS = 150
WAITING_RUNS = 10  # each has two children
LEASE = 3  # seconds
TAKEN_OVER_WITHIN = LEASE + 7.0

# What lives longer than a transaction.  The named settings are those that PgBouncer itself keeps in step
# with its clients.
KEPT = """
SELECT 'setting ' || name FROM pg_settings
 WHERE source = 'session'
   AND lower(name) NOT IN ('application_name', 'client_encoding', 'datestyle', 'timezone',
                           'standard_conforming_strings', 'intervalstyle')
UNION ALL
SELECT 'prepared ' || name FROM pg_prepared_statements
UNION ALL
SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable
UNION ALL
SELECT 'channel ' || channel FROM pg_listening_channels() AS channel
UNION ALL
SELECT 'advisory lock' FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL
SELECT 'temporary tables' WHERE pg_my_temp_schema() <> 0
"""
SESSIONS = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database()
   AND backend_type = 'client backend'
"""


@pytest.fixture
def world(pgbouncer_url: str, tmp_path: Path) -> Iterator[World]:
    world = World(pgbouncer_url, tmp_path)
    yield world
    world.close()


def test_steps_and_transactions_run_and_no_session_keeps_anything(world: World) -> None:
    app = world.chains()
    workers = two_workers(world, app)
    runs = start_chains(app, RUNS)
    all_finish(world, app, RUNS)
    settled_once(app, RUNS)
    written_once(app, RUNS)
    journals_agree(world, app, runs)
    assert {effect.pid for effect in world.effects()} == {worker.pid for worker in workers}
    assert kept_by_sessions(world) == set()
    assert complaints(world) == []


def test_what_waits_is_woken_and_no_session_keeps_anything(world: World) -> None:
    """By time, by messages, by spawned steps, by children; nobody can call a worker here: it looks."""
    app = world.app(pooled)
    two_workers(world, app)
    numbers = [2 * n for n in range(WAITING_RUNS)]
    runs: list[Run[Any]] = [
        *app.start_many(pooled.waits, [(n,) for n in numbers]),
        *app.start_many(pooled.awaits, [(n,) for n in numbers]),
    ]
    eventually(lambda: all_listen(world, runs), "all of them wait for a message")
    for run, number in zip(runs, numbers * 2, strict=True):
        run.send("number", number)
    assert [result(run) for run in runs] == [10 * n for n in numbers * 2]
    all_finish(world, app, 3 * len(runs))
    assert kept_by_sessions(world) == set()
    assert complaints(world) == []


def test_a_run_starts_with_the_transaction_of_its_user(world: World) -> None:
    app = world.chains()
    two_workers(world, app)
    with connected(world) as connection:
        with connection.transaction():
            kept = app.within(connection).start(chains.chain)
        with connection.transaction():
            lost = app.within(connection).start(chains.achain)
            raise psycopg.Rollback
        assert len(result(kept)) == chains.PLACES
        assert connection.execute("SELECT id FROM detent_runs").fetchall() == [(kept.id,)]
    assert lost.id != kept.id
    assert kept_by_sessions(world) == set()


def test_a_killed_worker_is_noticed_when_its_lease_ends(world: World) -> None:
    app = world.app(hanging)
    first = world.worker("hanging", lease=LEASE)
    eventually(lambda: alive(app, first), "the first worker has begun")
    runs = [*app.start_many(hanging.hangs, [()] * 5), *app.start_many(hanging.ahangs, [()] * 5)]
    eventually(lambda: len(world.effects()) == len(runs), "all of them hang in the first worker")
    second = world.worker("hanging", lease=LEASE)
    eventually(lambda: alive(app, second), "the second worker has begun")

    first.kill()
    died = time.monotonic_ns()
    world.release()
    all_finish(world, app, len(runs))

    begun = [effect.at for effect in world.effects() if effect.kind == "begin" and effect.pid == second.pid]
    assert len(begun) == len(runs)
    took = (max(begun) - died) / 1e9
    print(f"taken over within {took:.2f} s")
    assert took < TAKEN_OVER_WITHIN


def test_the_look_into_sessions_sees_what_they_keep(world: World) -> None:
    """Or the promise above would be worth nothing."""
    assert kept_by_sessions(world) == set()
    with connected(world) as connection:
        for statement in (
            "SET jit = off",
            "PREPARE one AS SELECT 1",
            "LISTEN anything",
            "SELECT pg_advisory_lock(1)",
            "CREATE TEMPORARY TABLE scratch (id integer)",
        ):
            connection.execute(statement)
    assert kept_by_sessions(world) == {
        "setting jit",
        "prepared one",
        "channel anything",
        "advisory lock",
        "temporary tables",
    }


def two_workers(world: World, app: App) -> list[Process]:
    workers = [world.worker("pooled", concurrency=20) for _ in range(2)]
    eventually(lambda: alive(app, *workers), "both workers have begun")
    return workers


def all_listen(world: World, runs: Sequence[Run[Any]]) -> bool:
    listening = {effect.run for effect in world.effects() if effect.kind == "listens"}
    return listening == {run.id for run in runs}


def result(run: Run[Any]) -> Any:
    return run.result(timeout=timedelta(seconds=PATIENCE))


def complaints(world: World) -> list[str]:
    """Lines of a worker's log that tell of anything unusual, such as a statement that is not prepared."""
    return [line for line in world.logs().splitlines() if line and " INFO " not in line]


def kept_by_sessions(world: World) -> set[str]:
    """What the sessions with this database keep beyond their transactions.

    A transaction that stays open holds on to its session: so many of them that they hold all sessions see
    into each.  A session around the pooler would never be among them.
    """
    kept: set[str] = set()
    held: set[int] = set()
    with ExitStack() as stack:
        while True:
            connection = stack.enter_context(connected(world))
            stack.enter_context(connection.transaction())
            held |= column(connection, "SELECT pg_backend_pid()")
            kept |= column(connection, KEPT)
            if column(connection, SESSIONS) <= held:
                return kept


def column(connection: psycopg.Connection, statement: LiteralString) -> set[Any]:
    return {row[0] for row in connection.execute(statement)}


def connected(world: World) -> psycopg.Connection:
    """A connection of a user who knows of the pooler, too."""
    return psycopg.connect(world.url.partition("?")[0], autocommit=True, prepare_threshold=None)
