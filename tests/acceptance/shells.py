"""A folder with a small shop in it, and `detent` run there as a process."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from detent.stores.open import open_store
from tests.acceptance.support import eventually
from tests.prefork import python

PATIENCE = 60.0
SHOP = """
import os
import pathlib
import time

import detent
from detent import step, workflow

HERE = pathlib.Path(__file__).parent


@step
def charge(order: int) -> str:
    if order == 13 and not (HERE / "card-works").exists():
        raise ValueError("the card was declined")
    return f"receipt-{order}"


@step
def ship(order: int, receipt: str) -> None: ...


@workflow
def fulfil(order: int, note: str = "") -> str:
    receipt = charge(order)
    ship(order, receipt)
    return receipt + note


@workflow
def ask() -> dict[str, str]:
    return detent.receive("answer")


@step
async def fetch() -> str:
    return "fetched"


@workflow
async def gather() -> str:
    await detent.aio.sleep(0.05)
    return await fetch()


@step
def hang() -> None:
    (HERE / "hangs").touch()
    while not (HERE / "let-go").exists():
        time.sleep(0.02)


@workflow
def stuck() -> None:
    hang()


ALL = [fulfil, ask, gather, stuck]
URL = os.environ["SHOP_URL"]
app = detent.App(URL, include=ALL, queues=["default", "high"])
aapp = detent.AsyncApp(URL, include=ALL)
smaller = detent.App(URL, include=[fulfil])
number = 42
"""


class Shell:
    """A folder with a shop in it, and `detent` run there."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.environment = {**os.environ, "SHOP_URL": url}
        self.environment.pop("DETENT_APP", None)
        self._workers: list[subprocess.Popen[bytes]] = []
        (folder / "shop.py").write_text(SHOP)

    def detent(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "detent", *arguments, cwd=self.folder, env=self.environment, timeout=PATIENCE)

    def ok(self, *arguments: str) -> str:
        done = self.detent(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def worker(self, app: str = "shop:app", *options: str) -> "WorkerProcess":
        log = self.folder / f"worker-{len(self._workers)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "detent", "worker", app, *options],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._workers.append(process)
        return WorkerProcess(process, log)

    def migrate(self) -> None:
        """Make the tables, without a process that does it."""
        with closing(open_store(self.url)) as store:
            store.migrate(now=time.time_ns() // 1000)

    def alive(self) -> set[int]:
        return {worker["pid"] for worker in self.json("workers", self.url) if worker["alive"]}

    def close(self) -> None:
        (self.folder / "let-go").touch()
        for process in self._workers:
            process.kill()
            process.wait()


class WorkerProcess:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def at_work(self) -> "WorkerProcess":
        eventually(lambda: "is running, pid" in self.said(), "the worker begins", PATIENCE)
        return self

    def said(self) -> str:
        assert self._process.poll() in (None, 0), self._log.read_text()
        return self._log.read_text()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ends(self) -> int:
        return self._process.wait(timeout=PATIENCE)

    def drains(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.send(number)
        assert self.ends() == 0, self._log.read_text()
