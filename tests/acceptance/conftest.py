"""A world per test: a fresh database, and no process left when the test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.acceptance.support")

from tests.acceptance.support import World  # noqa: E402


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    world = World(database_url, tmp_path)
    yield world
    world.close()
