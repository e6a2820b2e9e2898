"""The row by which a worker is known to others."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Sequence

import msgspec

from ..execution.services import Services
from ..ids import uuid7
from ..kernel.rows import WorkerRow


def new_row(services: Services, *, queues: Sequence[str], concurrency: int, lease: int) -> WorkerRow:
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
        jobs=msgspec.json.encode(services.registry.names).decode(),
        version=services.version,
    )
