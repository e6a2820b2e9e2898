"""The row by which a worker is known to others."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterable, Sequence

import msgspec

from ..ids import uuid7
from ..kernel.rows import WorkerRow


def new_row(*, queues: Sequence[str], concurrency: int, lease: int, jobs: Iterable[str]) -> WorkerRow:
    """A row with a new id, by the clock of this machine."""
    now = time.time_ns() // 1000
    return WorkerRow(
        id=uuid7(),
        name=socket.gethostname(),
        pid=os.getpid(),
        queues=",".join(queues),
        concurrency=concurrency,
        lock_no=random.getrandbits(62),
        started_at=now,
        beat_at=now,
        lease_until=now + lease,
        jobs=msgspec.json.encode(list(jobs)).decode(),
    )
