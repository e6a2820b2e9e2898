"""The pytest plugin: the fixture `detent_app`, there by installing the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .apps import TestingApp


@pytest.fixture
def detent_app() -> Iterator[TestingApp]:
    """An app on a database in memory, with a worker and a clock moved by hand."""
    # Imported late: a plugin is loaded by every pytest run, also by those that never use it.
    from .apps import TestingApp

    with TestingApp() as app:
        yield app
