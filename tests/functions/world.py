"""What the tests of durable functions share: waiting for conditions, gates for steps, crashes."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import detent
from detent.events import Event

PATIENCE = 60.0  # seconds until a condition that does not come true fails its test
SOON = 0.12  # seconds: long enough for a run to let go of its worker, short enough for a test
AMPLE = timedelta(seconds=3)  # for a deadline: the run has begun by then, also on a busy machine


class Apps(Protocol):
    def __call__(self, *include: Any, worker: bool = True, **settings: Any) -> detent.App: ...


class Gate:
    """A step waits here until the test lets it through."""

    def __init__(self) -> None:
        self._arrivals = threading.Semaphore(0)
        self._open = threading.Event()

    def pass_through(self) -> None:
        """For steps: say that we are here, and wait."""
        self._arrivals.release()
        assert self._open.wait(PATIENCE), "nobody opened the gate"

    def wait_for_arrival(self) -> None:
        """For tests: return when somebody has come to the gate."""
        assert self._arrivals.acquire(timeout=PATIENCE), "nobody came to the gate"

    def open(self) -> None:
        self._open.set()


INSERT = "INSERT INTO ledger (entry) VALUES ('{}')"
Ledger = Callable[[], list[str]]  # the entries of a table of the user's own (the fixture `ledger`)


def eventually(condition: Callable[[], Any], what: str = "the condition") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.005)


def result(run: detent.Run[Any]) -> Any:
    """The run's result, or how it failed; never waits for ever."""
    return run.result(timeout=PATIENCE)


def received(app: detent.App) -> None:
    """Return when subscribers have received what the app's worker has done.

    A result does not say so: its waiter may have read it before the thread that committed it reports it.
    """
    worker = app.engine.worker
    if worker is not None:
        eventually(worker.settled_down, "the worker has nothing to do")
    assert app.engine.observer.flush(PATIENCE)


def state(run: detent.Run[Any]) -> str:
    return run.refresh().state


def is_over(run: detent.Run[Any]) -> bool:
    return state(run) in ("finished", "failed", "canceled")


def wait_for(run: detent.Run[Any], *states: str) -> None:
    eventually(lambda: state(run) in states, f"{run!r} is {' or '.join(states)}")


def wait_parked(run: detent.Run[Any]) -> None:
    """Return when the run has begun and waits, and no worker holds it."""

    def parked() -> bool:
        latest = main(run)  # one that nobody has claimed yet is scheduled, too
        return state(run) == "ready" and latest.state == "scheduled" and latest.started_at is not None

    eventually(parked, f"{run!r} waits")


def main(run: detent.Run[Any]) -> Any:
    """The latest attempt at the run's main function."""
    return [item for item in run.executions() if item.kind == "main"][-1]


def failure(run: detent.Run[Any]) -> Exception:
    """The error that waiting for the run raises."""
    try:
        value = result(run)
    except Exception as error:
        return error
    raise AssertionError(f"{run!r} returned {value!r}")


def recorded(run: detent.Run[Any], *kinds: str) -> list[str]:
    """The keys that the run's journal holds, in order."""
    return [
        item.node
        for item in run.executions()
        if item.kind != "main" and (not kinds or item.kind in kinds) and item.finished_at is not None
    ]


def events(run: detent.Run[Any], name: str) -> list[Any]:
    """The details of the lines of that name in the run's history."""
    return [event.detail for event in run.history() if event.event == name]


def wait_draining(app: detent.App) -> None:
    """Return when all that the app executes knows that it has to end."""

    def told() -> bool:
        worker = app.engine.worker
        return worker is None or all(work.interrupt == "draining" for work in worker._works())

    eventually(told, "it drains")


def crash(app: detent.App, *, reaped_by: detent.App, max_recoveries: int = 5) -> None:
    """The app's process is dead: nothing of it reaches the database any more, and others take over."""
    worker = app.engine.worker
    assert worker is not None
    worker.crash()
    reap(app, reaped_by=reaped_by, max_recoveries=max_recoveries)


def reap(app: detent.App, *, reaped_by: detent.App, max_recoveries: int = 5) -> None:
    """Others think that the app's worker is dead; it does not know yet."""
    assert app.engine.worker is not None
    engine = reaped_by.engine
    engine.store.reap(app.engine.worker.id, max_recoveries=max_recoveries, now=engine.clock.now())
    if engine.worker is not None:
        engine.worker.poke()


class CardDeclined(Exception):
    """A custom exception with fields, as people write them."""

    def __init__(self, code: int, *, card: str) -> None:
        super().__init__(f"card {card} declined with {code}")
        self.code = code
        self.card = card


class Unrebuildable(Exception):
    """One that holds what has no JSON form."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Seen:
    """A subscriber that remembers its events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    def wait(self, number: int, *kinds: type[Event]) -> list[Any]:
        """The events of these classes, when there are so many."""
        eventually(lambda: len(self.of(*kinds)) >= number, f"{number} of {kinds} in {self.events}")
        return self.of(*kinds)
