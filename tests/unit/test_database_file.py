"""Whether the path of a SQLite database still names the file that was opened."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from detent.errors import DatabaseReplaced
from detent.stores.sqlite import file as database_file
from detent.stores.sqlite.file import DatabaseFile, FileConnection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def opened(folder: Path) -> Iterator[tuple[DatabaseFile, FileConnection]]:
    database = DatabaseFile(str(folder / "detent.db"))
    connection = database.connect(_use)
    database._look_at = 0.0
    yield database, connection
    connection.close()


def _use(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE rows (id)")


def test_a_folder_that_is_moved_between_two_looks_can_come_back(
    opened: tuple[DatabaseFile, FileConnection], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is moved when the file has been seen, and its journal has not."""
    database, connection = opened
    look, away = database_file._inode_at, folder.with_name("away")

    def moving(path: str) -> database_file.Inode | None:
        found = look(path)
        if path == database.path and not away.exists():
            folder.rename(away)
        return found

    monkeypatch.setattr(database_file, "_inode_at", moving)
    with pytest.raises(DatabaseReplaced):
        database.verify(connection)
    monkeypatch.setattr(database_file, "_inode_at", look)
    away.rename(folder)
    database._look_at = 0.0
    database.verify(connection)


def test_a_journal_that_is_deleted_does_not_come_back(
    opened: tuple[DatabaseFile, FileConnection], folder: Path
) -> None:
    database, connection = opened
    journal = folder / "detent.db-wal"
    journal.rename(folder / "elsewhere")
    for _ in range(2):
        with pytest.raises(DatabaseReplaced, match=r"detent\.db-wal"):
            database.verify(connection)
        if not journal.exists():
            (folder / "elsewhere").rename(journal)
