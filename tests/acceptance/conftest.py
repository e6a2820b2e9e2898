"""A world per test: a fresh database, and no process left when the test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.support import World


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    world = World(database_url, tmp_path)
    yield world
    world.close()
