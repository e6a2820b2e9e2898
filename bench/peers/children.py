"""Processes that an adapter starts: workers beside it, servers of its system.  Standard library only."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def worker_of(module: str, url: str, queue: str = "other") -> Iterator[subprocess.Popen[str]]:
    """`python -m MODULE worker URL QUEUE` in another process, from when it has said a line until the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, "worker", url, queue],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the worker in the other process did not start")
        yield process
    finally:
        process.kill()
        process.wait()


def stay() -> None:
    """Say that a worker is ready, and work until killed."""
    print("ready", flush=True)
    time.sleep(3600)


@contextmanager
def server(argv: Sequence[str], port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    """A server of the system's own, from when it takes connections until the end; gives its process id."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # what it complains of is shown with the failure
        env=os.environ | (env or {}),
    )
    try:
        until = time.monotonic() + 60
        while not answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{os.path.basename(argv[0])} did not start")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def limited(count: int, one: Callable[[int], Awaitable[T]], at_once: int) -> list[T]:
    """So many calls, with so many of them under way at a time."""
    gate = asyncio.Semaphore(at_once)

    async def call(number: int) -> T:
        async with gate:
            return await one(number)

    return list(await asyncio.gather(*(call(number) for number in range(count))))


async def until(done: Callable[[], Awaitable[Any]], every: float = 0.02) -> None:
    """Wait until it says yes."""
    while not await done():
        await asyncio.sleep(every)
