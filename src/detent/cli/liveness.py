"""Which live worker could take an execution."""

from __future__ import annotations

from ..app.liveness import alive
from ..stores.store import Store
from ..stores.verbs.listing import Overdue


class Workforce:
    """The live workers and their load."""

    def __init__(self, store: Store) -> None:
        self._workers = alive(store)
        self._executing = store.executing()

    def taker(self, item: Overdue) -> tuple[str, str]:
        """Which live worker could take an execution (`none`, `busy` or `free`), and the reason in words."""
        if not self._workers:
            return "none", "no worker is alive"
        serving = [row for row in self._workers if item.queue in row.queues.split(",")]
        if not serving:
            return "none", f"no worker takes from {item.queue}"
        if all(self._executing.get(row.id, 0) >= row.concurrency for row in serving):
            return "busy", "its workers are busy" if len(serving) > 1 else "its worker is busy"
        # What a worker includes is not in the database: that is left to people.
        return "free", f"a worker has a free slot; does it include {item.job}?"
