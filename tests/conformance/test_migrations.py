"""Migrations: numbered, forward only, once, also when two processes come at the same moment."""

import os
import re
from collections.abc import Iterator

import pytest

from detent.errors import MigrationChanged, SchemaTooNew, SchemaTooOld
from detent.kernel.operations import Verdict
from detent.stores import migrate
from detent.stores.open import open_store
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    claim,
    enlist,
    eventually,
    one,
    settling,
    start,
)


@pytest.fixture
def empty(database_url: str) -> Iterator[Store]:
    """A store on a database that has nothing of ours."""
    store = open_store(database_url)
    yield store
    store.close()


@pytest.fixture
def second(database_url: str) -> Iterator[Store]:
    store = open_store(database_url)
    yield store
    store.close()


def latest(store: Store) -> int:
    return migrate.migrations(store.dialect)[-1].version


def ledger(store: Store, statement: str) -> None:
    with store._writer.transaction() as tx:
        tx.run(statement)


def test_a_new_database_gets_the_whole_schema(empty: Store) -> None:
    done = empty.migrate(now=NOW)
    assert done == [f"{item.version:04d}_{item.name}" for item in migrate.migrations(empty.dialect)]
    empty.check_schema()
    assert one(empty, start())[0].created


def test_migrating_twice_does_nothing(empty: Store) -> None:
    empty.migrate(now=NOW)
    assert empty.migrate(now=NOW) == []


def test_a_database_without_a_schema_is_too_old(empty: Store) -> None:
    with pytest.raises(SchemaTooOld) as caught:
        empty.check_schema()
    assert (caught.value.found, caught.value.needed) == (0, latest(empty))
    assert "detent migrate" in str(caught.value)


def test_a_database_that_misses_a_migration_is_too_old(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    empty.migrate(now=NOW)
    known = migrate.migrations(empty.dialect)
    newer = migrate.Migration(known[-1].version + 1, "more", "CREATE TABLE detent_more (id INTEGER);\n")
    monkeypatch.setattr(migrate, "migrations", lambda dialect: [*known, newer])
    with pytest.raises(SchemaTooOld) as caught:
        empty.check_schema()
    assert (caught.value.found, caught.value.needed) == (known[-1].version, newer.version)
    assert empty.migrate(now=NOW) == [f"{newer.version:04d}_more"]
    empty.check_schema()


def test_a_database_of_a_newer_version_is_refused(empty: Store) -> None:
    empty.migrate(now=NOW)
    ledger(
        empty, "INSERT INTO detent_migrations (version, name, checksum, applied_at) VALUES (99, 'x', 'y', 1)"
    )
    for verb in (empty.check_schema, lambda: empty.migrate(now=NOW)):
        with pytest.raises(SchemaTooNew) as caught:
            verb()
        assert (caught.value.found, caught.value.known) == (99, latest(empty))


def test_a_migration_that_is_not_what_it_was_is_refused(empty: Store) -> None:
    empty.migrate(now=NOW)
    ledger(empty, "UPDATE detent_migrations SET checksum = 'another' WHERE version = 1")
    for verb in (empty.check_schema, lambda: empty.migrate(now=NOW)):
        with pytest.raises(MigrationChanged) as caught:
            verb()
        assert caught.value.version == 1


def test_a_second_migrator_waits_for_the_first(empty: Store, second: Store) -> None:
    with empty._writer.transaction() as tx, empty.driver.migration_lock(tx):
        attempt = Attempt(lambda: second.migrate(now=NOW))
        eventually(
            lambda: attempt.is_inside("begin") or attempt.is_inside("migration_lock"),
            "the second migrator asks for the lock",
        )
        migrate.migrate(tx, empty.dialect, now=NOW)
        assert not attempt.done
    assert attempt.result() == []
    second.check_schema()


def test_many_migrators_at_once_migrate_once(empty: Store, database_url: str) -> None:
    stores = [open_store(database_url) for _ in range(4)]
    try:
        attempts = [Attempt(lambda store=store: store.migrate(now=NOW)) for store in stores]  # type: ignore[misc]
        done = sorted(len(attempt.result()) for attempt in attempts)
        assert done == [0, 0, 0, len(migrate.migrations(empty.dialect))]
    finally:
        for store in stores:
            store.close()


def test_the_lock_is_free_again_after_a_migration(empty: Store, second: Store) -> None:
    """Also where it belongs to the session, which lives on as the writer's connection."""
    empty.migrate(now=NOW)
    assert second.migrate(now=NOW) == []


def test_a_migration_that_was_cut_short_can_be_run_again(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrate.migrations(empty.dialect)
    first = known[0]
    cut = first.text[: first.text.rindex("CREATE TABLE")] + "CREATE NONSENSE;\n"
    monkeypatch.setattr(migrate, "migrations", lambda dialect: [migrate.Migration(1, first.name, cut)])
    with pytest.raises(Exception, match=r"(?i)syntax|near"):
        empty.migrate(now=NOW)
    monkeypatch.setattr(migrate, "migrations", lambda dialect: known)
    assert empty.migrate(now=NOW)
    empty.check_schema()


def test_a_migration_that_was_done_and_not_noted_is_run_again(empty: Store) -> None:
    """MySQL commits at every DDL statement: a process may die behind the last one, before the note."""
    empty.migrate(now=NOW)
    if empty.dialect == "mysql":
        done = migrate.migrations("mysql")[-1]
        ledger(empty, f"DELETE FROM detent_migrations WHERE version = {done.version}")
        assert empty.migrate(now=NOW) == [f"{done.version:04d}_{done.name}"]
    empty.check_schema()


def test_runs_of_an_older_schema_are_found_after_the_migration(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrate.migrations(empty.dialect)
    monkeypatch.setattr(migrate, "migrations", lambda dialect: known[:1])
    empty.migrate(now=NOW)
    # As version 1 wrote it: today's statements know more columns.
    with empty._writer.transaction() as tx:
        tx.run(
            "INSERT INTO detent_runs (id, type, kind, queue, priority, input, created_at)"
            " VALUES ('old', 'flow', 'function', 'default', 0, '{}', 1)"
        )
    monkeypatch.setattr(migrate, "migrations", lambda dialect: known)
    empty.migrate(now=NOW)
    assert [run.id for run in empty.runs(limit=5, state="active", type="flow")] == ["old"]
    assert empty.run("old").attributes == {}


def test_graphs_come_to_a_database_that_has_runs_under_way(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older version has begun and claimed goes on, and its workers count as knowing nothing."""
    known = migrate.migrations(empty.dialect)
    monkeypatch.setattr(migrate, "migrations", lambda dialect: known[:1])
    empty.migrate(now=NOW)
    with empty._writer.transaction() as tx:
        tx.run(
            "INSERT INTO detent_workers (id, name, pid, queues, concurrency, lock_no, started_at, beat_at,"
            f" lease_until) VALUES ('w1', 'w1', 1, 'default', 1, 7, {NOW}, {NOW}, {NOW})"
        )
        for name, state, lease in (
            ("waiting", "ready", "NULL, NULL"),
            ("under way", "executing", "'w1', 't'"),
        ):
            tx.run(
                "INSERT INTO detent_runs (id, type, kind, queue, priority, input, created_at)"
                f" VALUES ('{name}', 'flow', 'function', 'default', 0, '{{}}', 1)"
            )
            tx.run(
                "INSERT INTO detent_executions (run_id, node, attempt, kind, job, queue, precedence, state,"
                " scheduled_for, created_at, worker, token)"
                f" VALUES ('{name}', 'main', 1, 'main', 'flow', 'default', 0, '{state}', 1, 1, {lease})"
            )
    monkeypatch.setattr(migrate, "migrations", lambda dialect: known)
    assert empty.migrate(now=NOW) == [f"{item.version:04d}_{item.name}" for item in known[1:]]
    run = empty.run("waiting")
    assert (run.signature, run.frozen_at, run.irregular) == (None, None, 0)
    assert empty.unknown_jobs(before=NOW) == []  # those are for nodes of graphs
    [orphan] = empty.reap("w1", max_recoveries=5, now=NOW) or []
    assert orphan.run_id == "under way"
    enlist(empty, "w2")
    for claimed in claim(empty, "w2", limit=5, now=NOW + 60 * SECOND):
        assert one(empty, settling(claimed, result="1")).verdict is Verdict.APPLIED
    assert [empty.run(name).state for name in ("waiting", "under way")] == ["finished", "finished"]


def test_a_later_migration_that_was_cut_short_anywhere_can_be_run_again(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrate.migrations(empty.dialect)
    for place, later in enumerate(known[1:], start=1):
        statements = [text for text in later.text.split(";\n") if text.strip()]
        for number in range(len(statements)):
            text = "".join(f"{statement};\n" for statement in [*statements[:number], "CREATE NONSENSE"])
            cut = migrate.Migration(later.version, later.name, text)
            monkeypatch.setattr(migrate, "migrations", lambda dialect, at=place, cut=cut: [*known[:at], cut])
            with pytest.raises(Exception, match=r"(?i)syntax|near"):
                empty.migrate(now=NOW)
    monkeypatch.setattr(migrate, "migrations", lambda dialect: known)
    assert empty.migrate(now=NOW)[-1] == f"{known[-1].version:04d}_{known[-1].name}"
    empty.check_schema()
    assert one(empty, start())[0].created


def test_the_dialects_have_the_same_tables_and_columns() -> None:
    assert _columns("sqlite") == _columns("postgres") == _columns("mysql")


def _columns(dialect: str) -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    ours = "hero_slot active_node".split()  # stand-ins for partial indexes, in MySQL only
    for item in migrate.migrations(dialect):
        for statement in item.text.split(";\n"):
            written = [line for line in statement.splitlines() if line.strip()]
            lines = [line for line in written if not line.strip().startswith("--")]
            if lines and lines[0].startswith("CREATE TABLE"):
                words = [line.split()[0] for line in lines[1:] if line.startswith("    ") and line[4] != " "]
                name = lines[0].removesuffix(" (").split()[-1]
                tables[name] = [word for word in words if word.islower() and word not in ours]
            altered = re.match(r"ALTER TABLE (\w+)", "\n".join(lines))
            if altered:
                tables[altered[1]] += re.findall(r"ADD COLUMN (\w+)", statement)
    return tables


def test_opening_an_app_again_reads_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrate.migrations("sqlite")
    known.pop()  # a list of the caller's own
    monkeypatch.setattr(os, "listdir", lambda folder: pytest.fail(f"{folder} was read again"))
    assert len(migrate.migrations("sqlite")) == len(known) + 1
