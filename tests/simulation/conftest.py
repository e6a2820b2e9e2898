"""Stores that serve many worlds: each has a run and a queue of its own."""

from collections.abc import Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from detent.stores.open import open_store
from detent.stores.store import Store
from tests.conformance.builders import NOW
from tests.databases import MySQLAdmin, PostgresAdmin

pytest.register_assert_rewrite(
    "tests.simulation.world", "tests.simulation.clerk_world", "tests.simulation.clerk_model"
)


@pytest.fixture(scope="module")
def memory() -> Iterator[Store]:
    store = open_store("sqlite:///:memory:")
    store.migrate(now=NOW)
    yield store
    store.close()


@pytest.fixture(scope="module", params=["postgres", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store on a server."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    yield from _on_a_server(url, request.getfixturevalue(f"_{request.param}"))


def _on_a_server(server: str, admin: PostgresAdmin | MySQLAdmin) -> Iterator[Store]:
    name = f"detent_{uuid4().hex[:12]}"
    admin.create(name)
    store = open_store(urlsplit(server)._replace(path=f"/{name}").geturl())
    store.migrate(now=NOW)
    yield store
    store.close()
    admin.drop(name)
