"""Steps for other processes, which have to find them by their names."""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import detent
from detent import Retry, step
from tests.functions.world import CardDeclined, Unrebuildable

TWICE = Retry(attempts=2, first=timedelta(0))
OPEN: list[TextIO] = []  # files that stay open as long as the process lives


@step(executor="process")
def square(number: int) -> tuple[int, int]:
    """The square, and who computed it."""
    return number * number, os.getpid()


@step(executor="process")
def divide(number: int, by: int) -> float:
    return number / by


@step(executor="process")
def decline() -> None:
    raise CardDeclined(51, card="4711")


@step(executor="process")
def break_a_lock() -> None:
    raise Unrebuildable


@step(executor="process")
def apply(function: Callable[[], Any]) -> Any:
    return function()


@step(executor="process")
def make_a_lock() -> Any:
    return threading.Lock()


@step(executor="process")
def die() -> None:
    os._exit(3)


@step(executor="process", retry=TWICE)
def die_once(folder: str) -> str:
    begin(folder)
    if len(begun(folder)) == 1:
        os._exit(3)
    return "survived"


@step(executor="process", timeout=0.5)
def take_too_long(folder: str) -> None:
    begin(folder)
    wait_for(Path(folder, "never"))


@step(executor="process", timeout=0.5, retry=TWICE)
def take_too_long_once(folder: str) -> str:
    begin(folder)
    if len(begun(folder)) == 1:
        wait_for(Path(folder, "never"))
    return "in time"


@step(executor="process")
def wait_for_release(folder: str) -> int:
    begin(folder)
    wait_for(Path(folder, "release"))
    return len(begun(folder))


def begin(folder: str) -> None:
    """Leave a file that stays locked for as long as this process lives."""
    number = time.monotonic_ns()
    file = Path(folder, f"new-{number}")
    life = file.open("w")
    fcntl.flock(life, fcntl.LOCK_EX)
    file.rename(Path(folder, f"begun-{number}"))
    OPEN.append(life)


def begun(folder: str | Path) -> list[Path]:
    """A file for each time that a body began."""
    return sorted(Path(folder).glob("begun-*"))


def lives(file: Path) -> bool:
    """Whether the process that began there lives still."""
    with file.open() as life:
        try:
            fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


@step(executor="process")
def append_elsewhere(number: int) -> None:
    detent.append("tokens", number)


@step(executor="process")
def publish_elsewhere(value: int) -> None:
    detent.publish("value", value)
