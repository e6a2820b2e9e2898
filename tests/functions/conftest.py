"""What several tests of functions need."""

from collections.abc import Iterator

import pytest

from detent.stores.open import open_store
from tests.functions.world import Ledger


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """A table of the user's own in the same database; calling it reads the entries."""
    store = open_store(url)
    with store._writer.transaction() as tx:
        for table in ("ledger", "ledger_made"):
            tx.run(f"DROP TABLE IF EXISTS {table}")
        tx.run("CREATE TABLE ledger (entry VARCHAR(100) NOT NULL)")

    def entries() -> list[str]:
        with store._reading() as tx:
            return sorted(row[0] for row in tx.query("SELECT entry FROM ledger"))

    yield entries
    store.close()
