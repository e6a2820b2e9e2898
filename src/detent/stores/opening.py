"""From a URL to a store."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from ..arguments import refuse
from ..errors import UnknownScheme
from .base import Driver
from .sql import SqlStore


def open_store(url: str, *, pool_size: int = 10) -> SqlStore:
    """Return the store of a URL; nothing is connected yet.

    Drivers are imported when they are asked for: loading psycopg takes longer than all of Detent.
    """
    scheme = url.partition(":")[0].partition("+")[0]
    driver: Driver
    if _is_sqlite(url):
        from .sqlite import SqliteDriver

        driver = SqliteDriver(_sqlite_path(url))
        return SqlStore(driver, dialect="sqlite", pool_size=pool_size)
    if scheme in ("postgresql", "postgres"):
        from .postgres import PostgresDriver

        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        pgbouncer = options.pop("pgbouncer", "false").lower() in ("true", "1", "yes")
        plain = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(options), ""))
        return SqlStore(PostgresDriver(plain, pgbouncer=pgbouncer), dialect="postgres", pool_size=pool_size)
    if scheme in ("mysql", "mariadb"):
        from .mysql import MySqlDriver

        return SqlStore(MySqlDriver(url), dialect="mysql", pool_size=pool_size)
    raise UnknownScheme(scheme)


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
