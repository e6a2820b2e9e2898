"""One store per test, on each database."""

from collections.abc import Callable, Iterator

import pytest

from detent.stores.open import open_store
from detent.stores.store import Store
from tests.conformance.builders import empty


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
