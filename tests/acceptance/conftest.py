"""A world per test: a fresh database, and no process left when the test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.acceptance.support")

from tests.acceptance.private_server import PrivateServer, private_server  # noqa: E402
from tests.acceptance.support import World  # noqa: E402


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    world = World(database_url, tmp_path)
    yield world
    world.close()


@pytest.fixture(scope="module", params=["postgres", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    """A server that no other test uses.  Starting one takes seconds: one serves a module."""
    with private_server(request.param) as server:
        yield server


@pytest.fixture
def world_on_server(server: PrivateServer, tmp_path: Path) -> Iterator[World]:
    """A world on an empty database of `server`."""
    with server.database() as url:
        world = World(url, tmp_path)
        yield world
        server.start()
        server.thaw()
        world.close()
