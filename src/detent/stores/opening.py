"""From a URL to a store."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from ..errors import UnknownScheme
from .base import Driver
from .mysql import MySqlDriver
from .postgres import PostgresDriver
from .sql import SqlStore
from .sqlite import SqliteDriver


def open_store(url: str, *, pool_size: int = 10) -> SqlStore:
    """Return the store of a URL; nothing is connected yet."""
    scheme = url.partition(":")[0].partition("+")[0]
    driver: Driver
    if scheme == "sqlite":
        driver = SqliteDriver(unquote(urlsplit(url).path.removeprefix("/")))
        return SqlStore(driver, dialect="sqlite", pool_size=pool_size)
    if scheme in ("postgresql", "postgres"):
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        pgbouncer = options.pop("pgbouncer", "false").lower() in ("true", "1", "yes")
        plain = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(options), ""))
        return SqlStore(PostgresDriver(plain, pgbouncer=pgbouncer), dialect="postgres", pool_size=pool_size)
    if scheme in ("mysql", "mariadb"):
        return SqlStore(MySqlDriver(url), dialect="mysql", pool_size=pool_size)
    raise UnknownScheme(scheme)
