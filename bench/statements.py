"""Counting statements on PostgreSQL, which only a library loaded at the server's start can do."""

from __future__ import annotations

import os
import sys

from detent.stores.open import open_store
from tools import servers

from .databases import CONTROLS, URLS


def count_statements() -> bool:
    """Restart the server with pg_stat_statements; False where the server is not ours or does not have it."""
    url, control = os.environ.get(URLS["postgres"]), os.environ.get(CONTROLS["postgres"])
    if not url or not control:
        print("statements are not counted: this PostgreSQL is not ours to restart", file=sys.stderr)
        return False
    connection = open_store(url).driver.connect()
    cursor = connection.cursor()
    cursor.execute("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_stat_statements'")
    if not cursor.fetchone()[0]:
        print("statements are not counted: pg_stat_statements is not installed", file=sys.stderr)
        return False
    cursor.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
    connection.close()
    servers.stop(control)
    servers.start(control)
    return True
