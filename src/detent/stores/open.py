"""From a URL to a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..arguments import refuse
from ..errors import UnknownScheme
from .addresses import is_sqlite, postgres_address, scheme_of, sqlite_path
from .driver import Driver
from .store import Store

if TYPE_CHECKING:
    from .mysql.driver import MySqlDriver
    from .postgres.driver import PostgresDriver


def open_store(url: str, *, pool_size: int = 10) -> Store:
    """Return the store of a URL; nothing is connected yet.

    Drivers are imported when they are asked for: loading psycopg takes longer than all of Detent.
    """
    driver: Driver
    if is_sqlite(url):
        from .sqlite.driver import SqliteDriver

        driver = SqliteDriver(sqlite_path(url))
        return Store(driver, dialect="sqlite", pool_size=pool_size)
    driver = _server(url)
    return Store(driver, dialect="mysql" if driver.name == "MySQL" else "postgres", pool_size=pool_size)


def _server(url: str) -> PostgresDriver | MySqlDriver:
    scheme = scheme_of(url)
    if scheme in ("postgresql", "postgres"):
        from .postgres.driver import PostgresDriver

        address, pgbouncer = postgres_address(url)
        return PostgresDriver(address, pgbouncer=pgbouncer)
    if scheme in ("mysql", "mariadb"):
        from .mysql.driver import MySqlDriver

        return MySqlDriver(url)
    raise UnknownScheme(scheme)


def plain_connections(url: str) -> Callable[[], Any] | None:
    """How a library of the user's connects to the database of a server; None for SQLite."""
    return None if is_sqlite(url) else _server(url).plain


def refuse_missing_folder(url: str) -> None:
    """Refuse a SQLite URL whose folder does not exist: waiting for the database would not help.

    This is asked when an app opens.  A folder that disappears later may come back, and is waited for.
    """
    if not is_sqlite(url):
        return
    path = sqlite_path(url)
    if path in ("", ":memory:"):
        return
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        advice = f"the folder {folder} does not exist; create it, or correct the path"
        if not urlsplit(url).path.startswith("//"):
            advice += f" (an absolute path has four slashes: sqlite:////{urlsplit(url).path.strip('/')})"
        refuse("App()", "url", url, advice)
    if os.path.isdir(path):
        refuse("App()", "url", url, f"{path} is a folder; give the path of a file in it")
