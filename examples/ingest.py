"""Fair multi-tenant ingest through a rate-limited API, with a worker that is killed halfway.

The API permits 20 calls per second, and 5 calls at a time for each customer.  One customer has half of the
documents; the queue is fair, so the others do not wait behind it.  Every call writes to a log of its
own, and at the end that log is the judge: not Detent says that the limits held.

    python examples/ingest.py                    500 documents, about half a minute
    DOCUMENTS=50 python examples/ingest.py
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import detent
from detent import Queue, Rate, step, workflow
from running import database_url

RATE = Rate(20, per=timedelta(seconds=1))
PER_CUSTOMER = 5
CALL = 0.2  # seconds that a call takes
QUEUES: list[str | Queue] = ["default", Queue("api", rate=RATE, key_concurrency=PER_CUSTOMER, fair=True)]


class Line(NamedTuple):
    """What the log says: at that moment a call for a customer began or ended, in that process."""

    at: float
    what: str
    customer: str
    document: int
    pid: int


@step
def call_api(customer: str, document: int) -> int:
    note("begin", customer, document)
    time.sleep(CALL)
    note("end", customer, document)
    return document


@workflow(queue="api")
def ingest(customer: str, document: int) -> int:
    return call_api(customer, document)


def note(what: str, customer: str, document: int) -> None:
    """Append a line in one write, so that lines of several processes do not mix."""
    line = f"{time.monotonic()} {what} {customer} {document} {os.getpid()}\n"
    with open(os.environ["INGEST_LOG"], "ab", buffering=0) as log:
        log.write(line.encode())


def read(log: Path) -> list[Line]:
    found = [line.split() for line in log.read_text().splitlines()]
    return sorted(Line(float(at), what, customer, int(n), int(pid)) for at, what, customer, n, pid in found)


def judge(lines: list[Line], killed: dict[int, float]) -> list[str]:
    """What the log says against the limits.  `killed` has the moment at which a process was dead."""
    complaints: list[str] = []
    begins = [line.at for line in lines if line.what == "begin"]
    for place, begin in enumerate(begins):
        window = sum(at < begin + RATE.per.total_seconds() for at in begins[place : place + RATE.count + 1])
        if window > RATE.count:
            complaints.append(f"more than {RATE.count} calls began in the second from {begin}")
    executing: Counter[tuple[int, str]] = Counter()
    deaths = [Line(at, "killed", "", 0, pid) for pid, at in killed.items()]
    for line in sorted([*lines, *deaths]):
        if line.what == "killed":
            executing = Counter({key: number for key, number in executing.items() if key[0] != line.pid})
            continue
        executing[line.pid, line.customer] += 1 if line.what == "begin" else -1
        at_a_time = sum(number for key, number in executing.items() if key[1] == line.customer)
        if at_a_time > PER_CUSTOMER:
            complaints.append(f"{at_a_time} calls for {line.customer} at a time at {line.at}")
    return complaints


def make_app(url: str) -> detent.App:
    return detent.App(url, include=[ingest], queues=QUEUES, migrate=True)


def start_worker(url: str, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "INGEST_LOG": str(log)}
    return subprocess.Popen([sys.executable, __file__, "worker", url], env=environment)


def work(url: str) -> None:
    """In a process of its own, until it is told to stop."""
    logging.getLogger("detent").setLevel(logging.ERROR)  # that a worker died is no news here
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    with make_app(url):
        while not stopped:
            time.sleep(0.05)


def customer_of(document: int) -> str:
    return "big" if document % 2 else f"small-{document % 24}"


def trial(url: str, log: Path, documents: int) -> tuple[list[Line], dict[int, float]]:
    """Ingest the documents, and kill one of two workers halfway; returns the log and the killed process."""
    log.touch()
    killed: dict[int, float] = {}
    with make_app(url).open(worker=False) as app:
        workers = [start_worker(url, log) for _ in range(2)]
        try:
            runs = [
                app.options(key=customer_of(number)).start(ingest, customer_of(number), number)
                for number in range(documents)
            ]
            victim = halfway(log, documents, workers)
            workers.remove(victim)
            victim.kill()
            victim.wait()
            killed[victim.pid] = time.monotonic()
            workers.append(start_worker(url, log))
            assert [run.result(timeout=300) for run in runs] == list(range(documents))
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
    return read(log), killed


def halfway(log: Path, documents: int, workers: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Wait until half of the documents are done; returns a worker that is in the middle of a call."""
    while True:
        lines = read(log)
        calling = Counter(line.pid for line in lines if line.what == "begin")
        calling.subtract(line.pid for line in lines if line.what == "end")
        busy = [worker for worker in workers if calling[worker.pid]]
        if busy and sum(line.what == "end" for line in lines) >= documents // 2:
            return busy[0]
        time.sleep(0.02)


def main(url: str) -> None:
    documents = int(os.environ.get("DOCUMENTS", "500"))
    with tempfile.TemporaryDirectory() as folder:
        lines, killed = trial(url, Path(folder) / "calls.log", documents)
    begins = [line for line in lines if line.what == "begin"]
    ends = sum(line.what == "end" for line in lines)
    seconds = lines[-1].at - lines[0].at
    print(f"{documents} documents in {seconds:.1f} s, {len(begins)} calls")
    print(f"1 worker was killed, in the middle of {len(begins) - ends} calls")
    first = {line.customer: line.at - lines[0].at for line in reversed(begins)}
    print(f"the last customer waited {max(first.values()):.1f} s for its first call")
    complaints = judge(lines, killed)
    print("\n".join(complaints) or "both limits held")
    if complaints:
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(sys.argv[2])
    else:
        main(database_url())
