"""An app with a worker, and its dashboard, on every database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import detent
from detent.dashboard.access import SESSION
from detent.testing import TestingApp
from tests.dashboard.client import TOKEN, VIEWER_TOKEN, Client
from tests.dashboard.world import INCLUDE

MakeClient = Callable[..., Client]


@pytest.fixture
def shop(url: str) -> Iterator[TestingApp]:
    """On each database; its time passes only when the test says so."""
    with TestingApp(url, include=INCLUDE) as app:
        yield app


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestingApp]:
    """On SQLite alone, for what has nothing to do with the database."""
    with TestingApp(f"sqlite:///{tmp_path_factory.mktemp('small') / 'small.db'}", include=INCLUDE) as app:
        yield app


@pytest.fixture
def make(small: TestingApp) -> MakeClient:
    """Makes clients of a dashboard with tokens."""

    def client(**options: Any) -> Client:
        places = {name: options.pop(name) for name in ("host", "address", "scheme") if name in options}
        options.setdefault("token", TOKEN)
        options.setdefault("viewer_token", VIEWER_TOKEN)
        return Client(detent.dashboard(small, **options), **places)

    return client


def operator(app: detent.App, **options: Any) -> Client:
    """A client that has logged in."""
    client = Client(detent.dashboard(app, token=TOKEN, **options))
    assert client.login().status_code == 303
    assert SESSION in client.cookies
    return client
