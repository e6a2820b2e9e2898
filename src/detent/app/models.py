"""Loading heroes that are models of Django or SQLAlchemy, without importing either on our own.

Both are looked for among the modules that the process uses already: whoever has such
heroes has imported the library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from ..stores.open import plain_connections

_DIALECTS = {"mysql": "mysql+pymysql://", "mariadb": "mariadb+pymysql://"}


class Hero(msgspec.Struct, frozen=True):
    """A hero that the app only knows by name."""

    type: str
    id: str


def load_model(url: str, type: str, id: str) -> Any:
    """The object of that name; None if it no longer exists.  If no model has that name, a `Hero`.

    SQLAlchemy models are read from the app's own database; register others with `app.hero(..., load=)`.
    """
    for find in (_django, _sqlalchemy):
        found, hero = find(url, type, id)
        if found:
            return hero
    return Hero(type, id)


def _django(url: str, type: str, id: str) -> tuple[bool, Any]:
    apps = sys.modules.get("django.apps")
    if apps is None or "." not in type:
        return False, None
    try:
        model = apps.apps.get_model(type)
    except (LookupError, ValueError):
        return False, None
    return True, model._base_manager.filter(pk=id).first()


def _sqlalchemy(url: str, type: str, id: str) -> tuple[bool, Any]:
    orm = sys.modules.get("sqlalchemy.orm")
    mapper = None if orm is None else next((m for m in _mappers(orm) if _name(m.class_) == type), None)
    if orm is None or mapper is None:
        return False, None
    columns = mapper.primary_key
    parts = id.split(",") if len(columns) > 1 else [id]
    key = tuple(column.type.python_type(part) for column, part in zip(columns, parts, strict=True))
    # Read, and let go: the hero is a plain object while its node runs, and no connection is held for it.
    with orm.Session(_engine(url), expire_on_commit=False) as session:
        hero = session.get(mapper.class_, key)
        if hero is not None:
            session.expunge(hero)
        return True, hero


def _mappers(orm: Any) -> Iterator[Any]:
    for registry in orm.mapperlib._all_registries():
        yield from registry.mappers


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


@lru_cache(maxsize=8)
def _engine(url: str) -> Any:
    sqlalchemy = sys.modules["sqlalchemy"]
    # The stores know how to read the address: SQLAlchemy would not understand all that libpq does.
    connect = plain_connections(url)
    if connect is None:
        return sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
    dialect = _DIALECTS.get(url.partition(":")[0].partition("+")[0], "postgresql+psycopg://")
    return sqlalchemy.create_engine(dialect, creator=connect, poolclass=sqlalchemy.pool.NullPool)
