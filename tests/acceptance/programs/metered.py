"""Documents of several customers on a queue with limits; each body writes when it begins and when it ends.

The log is the judge of the limits: it knows nothing of the database.  All processes of a machine share the
clock of its times.
"""

import json
import os
import time
from datetime import timedelta
from typing import NamedTuple

from detent import Queue, Rate, workflow

from .effects import VARIABLE
from .worker import main

CONCURRENCY, PER_WORKER, PER_CUSTOMER = 6, 4, 2
RATE = Rate(20, per=timedelta(seconds=1))
QUEUES = [
    "default",
    Queue(
        "api",
        concurrency=CONCURRENCY,
        per_worker=PER_WORKER,
        key_concurrency=PER_CUSTOMER,
        rate=RATE,
        fair=True,
    ),
]


class Line(NamedTuple):
    at: float
    what: str
    customer: str
    pid: int


@workflow(queue="api")
def document(customer: str) -> str:
    _write("begin", customer)
    time.sleep(0.05)
    _write("end", customer)
    return customer


def _write(what: str, customer: str) -> None:
    line = json.dumps([time.monotonic(), what, customer, os.getpid()]) + "\n"
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read(path: str) -> list[Line]:
    """The log in the order of time."""
    with open(path, encoding="utf-8") as file:
        return sorted(Line(*json.loads(text)) for text in file)


if __name__ == "__main__":
    main(queues=QUEUES)
