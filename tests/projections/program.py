"""A process with a worker that runs a projection; it may die in the middle of a batch.

python -m tests.projections.program URL work            works until its standard input is closed
python -m tests.projections.program URL crash POSITION  dies when it applies that event, uncommitted
"""

import os
import sys
from datetime import timedelta
from typing import Any

import detent
from detent import Projection, Recorded, View
from tests.projections.world import Account


class Seen(Projection):
    """Writes down each event: by key, and in a table in which none fits twice."""

    name = "seen"
    batch = 50

    def __init__(self, dies_at: int | None = None) -> None:
        self.dies_at = dies_at

    def setup(self, view: View) -> None:
        view.tx.execute(
            f"CREATE TABLE IF NOT EXISTS {view.table('seen')} (position BIGINT PRIMARY KEY, pid BIGINT)"
        )

    def apply(self, event: Recorded[Any], view: View) -> None:
        view["count"] = view.get("count", 0) + 1
        view.tx.execute(
            f"INSERT INTO {view.table('seen')} (position, pid) VALUES ({event.position}, {os.getpid()})"
        )
        if event.position == self.dies_at:
            os._exit(9)


def main(url: str, verb: str, position: str = "0") -> None:
    seen = Seen(int(position) if verb == "crash" else None)
    with detent.App(url, include=[Account, seen], grace=timedelta(seconds=5)):
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
