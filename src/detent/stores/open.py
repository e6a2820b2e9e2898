"""From a URL to a store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..arguments import refuse
from ..errors import UnknownScheme
from .addresses import is_conninfo, postgres_address
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
    if _is_sqlite(url):
        from .sqlite.driver import SqliteDriver

        driver = SqliteDriver(_sqlite_path(url))
        return Store(driver, dialect="sqlite", pool_size=pool_size)
    driver = _server(url)
    return Store(driver, dialect="mysql" if driver.name == "MySQL" else "postgres", pool_size=pool_size)


def _server(url: str) -> PostgresDriver | MySqlDriver:
    scheme = _scheme(url)
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
    return None if _is_sqlite(url) else _server(url).plain


def _scheme(url: str) -> str:
    """The database that an address names; empty where it has no scheme, so that no password is shown."""
    if is_conninfo(url):
        return "postgresql"
    found = re.match(r"([A-Za-z][\w.-]*)(\+[\w.-]+)?:", url)
    return found[1].lower() if found else ""


def refuse_missing_folder(url: str) -> None:
    """Refuse a SQLite URL whose folder does not exist: waiting for the database would not help.

    This is asked when an app opens.  A folder that disappears later may come back, and is waited for.
    """
    if not _is_sqlite(url):
        return
    path = _sqlite_path(url)
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


def _is_sqlite(url: str) -> bool:
    return url.partition(":")[0].partition("+")[0] == "sqlite"


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc:
        # Without this, the file name would be taken for a host, and the database would be in memory.
        advice = f"a path has three slashes before it: sqlite:///{parts.netloc}{parts.path}"
        refuse("App()", "url", url, advice)
    return unquote(parts.path.removeprefix("/"))
