"""The event seam: subscribers receive events in order, and never hold the engine up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import detent
from detent import events, observe
from detent.errors import InvalidArgument
from detent.events import Committed, Drifted, Event, Failure, RunEvent, RunFailed, RunFinished
from detent.observe import Observer

NOW = datetime(2026, 3, 29, tzinfo=UTC)
PATIENCE = 60.0


def finished(number: int) -> RunFinished:
    return RunFinished(time=NOW, run_id=str(number), type="flow")


def ids(received: list[Any]) -> list[str]:
    return [event.run_id for event in received]


@pytest.fixture
def observer() -> Iterator[Observer]:
    one = Observer()
    yield one
    one.rest(0.0)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread, as that of an app does."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever, daemon=True)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def test_a_subscriber_receives_what_it_asked_for_in_order(observer: Observer) -> None:
    every: list[Event] = []
    runs: list[Event] = []
    failed: list[Event] = []
    observer.subscribe(every.append, (Event,))
    observer.subscribe(runs.append, (RunEvent,))
    observer.subscribe(failed.append, (RunFailed, Drifted))
    commit = Committed(time=NOW, operations=1, duration=timedelta(0))
    emitted = [finished(1), commit, finished(2)]
    for event in emitted:
        observer.emit(event)
    assert observer.flush(PATIENCE)
    assert (every, runs, failed) == (emitted, [emitted[0], emitted[2]], [])


def test_an_observer_is_active_only_while_somebody_is_subscribed(observer: Observer) -> None:
    received: list[Event] = []
    assert not observer.active
    first = observer.subscribe(received.append, (Event,))
    second = observer.subscribe(print, (RunFailed,))
    first()
    observer.emit(finished(1))
    assert observer.active
    second()
    second()
    assert not observer.active
    assert received == []


def test_a_subscriber_that_is_gone_receives_nothing_that_still_waits(observer: Observer) -> None:
    gate, begun = threading.Event(), threading.Event()
    received: list[Event] = []

    def slow(event: Event) -> None:
        begun.set()
        assert gate.wait(PATIENCE)
        received.append(event)

    unsubscribe = observer.subscribe(slow, (Event,))
    observer.emit(finished(1))
    assert begun.wait(PATIENCE)
    observer.emit(finished(2))
    unsubscribe()
    gate.set()
    assert observer.flush(PATIENCE)
    observer.emit(finished(3))
    assert ids(received) in ([], ["1"])


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_in_a_subscriber_is_logged_once_and_disturbs_nobody(
    observer: Observer, caplog: pytest.LogCaptureFixture, raised: type[BaseException]
) -> None:
    received: list[Event] = []
    healthy = {"3"}

    def failing(event: Any) -> None:
        received.append(event)
        if event.run_id not in healthy:
            raise raised("in the subscriber")

    others: list[Event] = []
    observer.subscribe(failing, (Event,))
    observer.subscribe(others.append, (Event,))
    for number in range(1, 5):
        observer.emit(finished(number))
    assert observer.flush(PATIENCE)
    assert ids(received) == ids(others) == ["1", "2", "3", "4"]
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    # Once for the first two in a row, and once more after it has worked again.
    assert len(told) == 2
    assert all("failing" in record.message and record.exc_info is not None for record in told)


def test_a_slow_subscriber_holds_up_neither_the_engine_nor_the_others(
    observer: Observer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(observe, "MOST_WAITING", 3)
    gate, begun = threading.Event(), threading.Event()
    slowly: list[Event] = []
    others: list[Event] = []

    def slow(event: Event) -> None:
        begun.set()
        assert gate.wait(PATIENCE)
        slowly.append(event)

    observer.subscribe(slow, (Event,))
    observer.subscribe(others.append, (Event,))
    observer.emit(finished(0))
    assert begun.wait(PATIENCE)
    for number in range(1, 10):
        observer.emit(finished(number))
        assert observer._subscriptions[1].flush(PATIENCE)
    assert len(others) == 10
    assert not observer.flush(0.01)
    gate.set()
    assert observer.flush(PATIENCE)
    assert ids(slowly) == ["0", "1", "2", "3"]
    assert "6 events were dropped" in caplog.text


def test_a_coroutine_function_runs_on_the_loop_one_event_at_a_time(loop: asyncio.AbstractEventLoop) -> None:
    observer = Observer(lambda: loop)
    received: list[Event] = []
    inside = 0

    async def subscriber(event: Event) -> None:
        nonlocal inside
        assert asyncio.get_running_loop() is loop
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.001)
        inside -= 1
        received.append(event)

    observer.subscribe(subscriber, (Event,))
    for number in range(5):
        observer.emit(finished(number))
    assert observer.flush(PATIENCE)
    assert ids(received) == ["0", "1", "2", "3", "4"]


def test_sys_exit_in_a_coroutine_ends_neither_the_loop_nor_the_subscription(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Observer(lambda: loop)
    received: list[Event] = []

    async def subscriber(event: Any) -> None:
        received.append(event)
        if event.run_id == "1":
            raise SystemExit(3)

    observer.subscribe(subscriber, (Event,))
    observer.emit(finished(1))
    observer.emit(finished(2))
    assert observer.flush(PATIENCE)
    assert (ids(received), loop.is_running()) == (["1", "2"], True)
    assert "sys.exit(3)" in caplog.text


def test_a_coroutine_without_a_loop_is_logged_and_not_left_unawaited(
    observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    async def subscriber(event: Event) -> None:
        raise AssertionError("there is no loop")

    observer.subscribe(subscriber, (Event,))
    observer.emit(finished(1))
    assert observer.flush(PATIENCE)
    assert "the app is closed" in caplog.text


def test_a_thread_ends_with_its_app_and_starts_again_with_the_next_event(observer: Observer) -> None:
    received: list[Event] = []
    observer.subscribe(received.append, (Event,))
    observer.emit(finished(1))
    observer.rest(PATIENCE)
    observer.emit(finished(2))
    assert observer.flush(PATIENCE)
    assert ids(received) == ["1", "2"]


def test_a_subscriber_may_ask_for_a_flush_without_waiting_for_itself(observer: Observer) -> None:
    answers: list[bool] = []
    observer.subscribe(lambda event: answers.append(observer.flush(PATIENCE)), (Event,))
    observer.emit(finished(1))
    assert observer.flush(PATIENCE)
    assert answers == [True]


def test_what_cannot_be_subscribed_is_refused() -> None:
    app = detent.App("sqlite:///:memory:")
    unfit: list[Any] = [(), (ValueError,), ("RunFailed",), 5, (Event, None)]
    for value in unfit:
        with pytest.raises(InvalidArgument, match=r"classes of detent\.events"):
            app.subscribe(print, events=value)
    with pytest.raises(InvalidArgument, match="a function that takes an event"):
        app.subscribe(5)  # type: ignore[arg-type]
    app.subscribe(print, events=RunFailed)  # type: ignore[arg-type]  # one class alone will do
    assert not app.engine.is_open


def event_classes() -> list[type[Event]]:
    return [value for value in vars(events).values() if isinstance(value, type) and issubclass(value, Event)]


@pytest.mark.parametrize("kind", event_classes())
def test_every_event_shows_how_to_subscribe_to_it_and_cannot_be_changed(kind: type[Event]) -> None:
    assert f"events.{kind.__name__}" in (kind.__doc__ or "")
    assert kind.__struct_config__.frozen
    assert kind.__name__ in (events.__doc__ or "")


def test_an_event_and_its_error_can_be_written_as_json() -> None:
    error = Failure(type="builtins.ValueError", message="no", traceback="Traceback")
    event = RunFailed(time=NOW, run_id="r", type="flow", queue="default", error=error)
    assert msgspec.json.decode(msgspec.json.encode(event), type=RunFailed) == event
    assert str(error) == "ValueError: no"
