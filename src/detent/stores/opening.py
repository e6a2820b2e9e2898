"""From a URL to a store."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from ..errors import UnknownScheme
from .base import Driver
from .sql import SqlStore


def open_store(url: str, *, pool_size: int = 10) -> SqlStore:
    """Return the store of a URL; nothing is connected yet.

    Drivers are imported when they are asked for: loading psycopg takes longer than all of Detent.
    """
    scheme = url.partition(":")[0].partition("+")[0]
    driver: Driver
    if scheme == "sqlite":
        from .sqlite import SqliteDriver

        driver = SqliteDriver(unquote(urlsplit(url).path.removeprefix("/")))
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
