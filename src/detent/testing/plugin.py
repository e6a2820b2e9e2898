"""The pytest plugin of the package: the fixture `detent_app`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .apps import TestingApp


@pytest.fixture
def detent_app() -> Iterator[TestingApp]:
    """An app on an in-memory database, with a worker and virtual time."""
    # Imported late: a plugin is loaded by every pytest run, also by those that never use it.
    from .apps import TestingApp

    with TestingApp() as app:
        yield app
