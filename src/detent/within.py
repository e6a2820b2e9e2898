"""Writing into somebody else's transaction."""

from __future__ import annotations

from typing import Any

from .errors import ConfigurationError
from .kernel.model import Start
from .runtime.transactions import AsyncTransaction, Transaction
from .stores.base import Trouble
from .stores.sql import SqlStore


def join(store: SqlStore, connection: Any, start: Start) -> None:
    """Apply a start in the transaction of `connection`, which we never end."""
    tx = store.joined(raw_connection(connection))
    try:
        store.apply_within(tx, start)
    except Exception as error:
        if store.driver.trouble(error) is not Trouble.UNIQUE:
            raise
        # The user's transaction may be broken by now; our own connection tells what is in the way.
        found = store.explain_conflict(start)
        if isinstance(found, Exception):
            raise found from error
        raise


def raw_connection(connection: Any) -> Any:
    """The driver's connection inside of what people pass around."""
    if isinstance(connection, Transaction | AsyncTransaction):
        return connection.connection
    if (
        hasattr(connection, "get_bind")
        and hasattr(connection, "connection")
        and callable(connection.connection)
    ):
        connection = connection.connection()  # an SQLAlchemy Session: its Connection
    if hasattr(connection, "engine") and hasattr(connection, "connection"):
        connection = connection.connection  # an SQLAlchemy Connection: the pool's proxy
    if hasattr(connection, "driver_connection"):
        connection = connection.driver_connection
    if not hasattr(connection, "cursor"):
        raise ConfigurationError(
            f"within() takes a DB-API connection, an SQLAlchemy Connection or Session, or a step's tx, "
            f"not {type(connection).__name__}"
        )
    return connection
