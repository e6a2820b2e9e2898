"""Databases without tables of projections; apps for which time passes only when the test says so."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from detent.stores.driver import Tx
from detent.stores.store import Store
from detent.testing import TestingApp
from tests.projections.world import Account

OWN = [f"{name}_g{generation}" for name in ("ledger", "seen") for generation in range(1, 5)]


@pytest.fixture
def url(url: str, _module_store: Store) -> str:
    """The same, without the tables that projections of other tests have made."""
    _module_store.write(_drop_own)
    return url


def _drop_own(tx: Tx) -> None:
    for table in OWN:
        tx.run(f"DROP TABLE IF EXISTS {table}")


class Timeless:
    """Makes apps whose time passes only when the test says so; they are closed when the test is over."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[TestingApp] = []

    def __call__(self, *include: Any, worker: bool = True, **settings: Any) -> TestingApp:
        app = TestingApp(self._url, include=[Account, *include], **settings)
        self._opened.append(app)
        app.open(worker=worker)
        return app

    def close(self) -> None:
        for app in self._opened:
            with suppress(Exception):
                app.close()


@pytest.fixture
def timeless(url: str) -> Iterator[Timeless]:
    made = Timeless(url)
    yield made
    made.close()
