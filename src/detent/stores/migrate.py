"""Migrations: numbered, forward only, checksummed, under a lock."""

from __future__ import annotations

import hashlib
import os
from functools import cache

import msgspec

from ..errors import MigrationChanged, SchemaTooNew, SchemaTooOld
from .driver import Tx

_LEDGER = """CREATE TABLE IF NOT EXISTS detent_migrations (
    version    INTEGER PRIMARY KEY,
    name       VARCHAR(255) NOT NULL,
    checksum   VARCHAR(64) NOT NULL,
    applied_at BIGINT NOT NULL
)"""
_APPLIED = "SELECT version, checksum FROM detent_migrations ORDER BY version"
_NOTE = (
    "INSERT INTO detent_migrations (version, name, checksum, applied_at)"
    " VALUES ({version}, '{name}', '{checksum}', {now})"
)


class Migration(msgspec.Struct, frozen=True):
    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations(dialect: str) -> list[Migration]:
    """The migrations of a dialect, in order."""
    return list(_read(dialect))


@cache
def _read(dialect: str) -> tuple[Migration, ...]:
    """Read once for each process: every app that opens asks for them."""
    # Not importlib.resources, which loads much to read packages inside of archives too.
    folder = os.path.join(os.path.dirname(__file__), "migrations", dialect)
    found = []
    for entry in sorted(os.listdir(folder)):
        if entry.endswith(".sql"):
            version, name = entry.removesuffix(".sql").split("_", 1)
            with open(os.path.join(folder, entry), encoding="utf-8") as file:
                found.append(Migration(int(version), name, file.read()))
    return tuple(found)


def check(applied: list[tuple[int, str]], known: list[Migration]) -> list[Migration]:
    """Return what is still to be applied; refuse a database that we do not understand."""
    by_version = {migration.version: migration for migration in known}
    for version, checksum in applied:
        if version not in by_version:
            raise SchemaTooNew(version, known[-1].version)
        if by_version[version].checksum != checksum:
            raise MigrationChanged(version)
    done = {version for version, _ in applied}
    return [migration for migration in known if migration.version not in done]


def require(applied: list[tuple[int, str]], known: list[Migration]) -> None:
    """Raise unless the database has exactly the schema of this version."""
    if check(applied, known):
        raise SchemaTooOld(max((version for version, _ in applied), default=0), known[-1].version)


def applied(tx: Tx) -> list[tuple[int, str]]:
    return [(row[0], row[1]) for row in tx.query(_APPLIED)]


def migrate(tx: Tx, dialect: str, *, now: int) -> list[Migration]:
    """Bring the schema up to this version; return what was applied.

    MySQL commits at every DDL statement, so the lock is one that outlives commits
    there, and each migration is noted only when all of it is done.
    """
    with tx.driver.migration_lock(tx):
        tx.run(_LEDGER)
        missing = check(applied(tx), migrations(dialect))
        for migration in missing:
            tx.driver.script(tx.connection, migration.text)
            tx.run(
                _NOTE.format(
                    version=migration.version, name=migration.name, checksum=migration.checksum, now=now
                )
            )
        return missing
