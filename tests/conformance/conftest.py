"""One store per test, on each database.

Making a database takes longer than most of these tests: one serves a module, and is emptied in between.
"""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from detent.stores.open import open_store
from detent.stores.store import Store
from tests.conformance.builders import NOW, empty


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mysql"])
def module_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with Detent's schema."""
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('store') / 'detent.db'}"
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
    store.migrate(now=NOW)
    store.close()


@pytest.fixture
def another(module_url: str) -> Iterator[Callable[[], Store]]:
    """Opens one more store on the same database, as another process would."""
    opened: list[Store] = []

    def open_another() -> Store:
        opened.append(open_store(module_url))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


@pytest.fixture
def store(another: Callable[[], Store]) -> Store:
    """A store on an empty database."""
    store = another()
    with store._writer.transaction() as tx:
        empty(tx)
    return store


@pytest.fixture
def rival(another: Callable[[], Store], store: Store) -> Store:
    """A second process's store on the same database."""
    return another()
