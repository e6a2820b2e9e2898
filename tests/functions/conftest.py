"""Apps on each database.

Making a database takes longer than most of these tests: one serves a module, and is emptied in between.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

import detent
from detent.stores.opening import open_store
from tests.functions.world import Apps

TABLES = "graphs waits executions steps messages readiness history attributes workers runs".split()


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mysql"])
def module_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with Detent's schema."""
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('functions') / 'detent.db'}"
        _migrate(url)
        yield url
        return
    name = f"detent_{uuid4().hex[:12]}"
    server: str = request.getfixturevalue(f"{request.param}_url")
    admin = request.getfixturevalue(f"_{request.param}")
    admin.create(name)
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    _migrate(url)
    yield url
    admin.drop(name)


def _migrate(url: str) -> None:
    store = open_store(url)
    store.migrate(now=1)
    store.close()


@pytest.fixture
def url(module_url: str) -> str:
    """A database that is empty apart from Detent's tables."""
    store = open_store(module_url)
    with store._writer.transaction() as tx:
        for table in TABLES:
            tx.run(f"DELETE FROM detent_{table}")
    store.close()
    return module_url


@pytest.fixture
def apps(url: str) -> Iterator[Apps]:
    """Makes apps that work in the background, and closes them when the test is over."""
    opened: list[detent.App] = []

    def make(*include: Any, worker: bool = True, **settings: Any) -> detent.App:
        settings.setdefault("grace", timedelta(seconds=1))
        app = detent.App(url, include=include, **settings)
        opened.append(app)
        return app.open(worker=worker)

    yield make
    for app in opened:
        app.close()
