"""The watch over connections: what it cuts, and what it leaves alone."""

import gc
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from detent.stores.watch import Watch

FAR = 1_000_000.0  # seconds: the thread of the watch does not look by itself


class Connection:
    """A connection to a server that is this test."""

    def __init__(self, place: str = "h1") -> None:
        self.place = place
        self.number: int | None = None
        self.unanswered = False
        self.ours, self.theirs = socket.socketpair()

    def __del__(self) -> None:
        self.ours.close()
        self.theirs.close()

    def is_cut(self) -> bool:
        self.theirs.setblocking(False)
        try:
            return self.theirs.recv(1) == b""
        except BlockingIOError:
            return False


class Driver:
    """A driver whose servers are silent when the test says so."""

    name = "Test"
    patience = FAR

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.asked: list[str] = []

    def waiting(self, connection: Connection) -> int | None:
        return connection.number

    def descriptor(self, connection: Connection) -> int:
        return connection.ours.fileno()

    def place(self, connection: Connection) -> str:
        return connection.place

    def is_silent(self, connection: Connection) -> bool:
        self.asked.append(connection.place)
        return connection.place in self.silent


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def watch(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr("detent.stores.watch.LONGEST_LOOK", FAR)
    watch = Watch(driver)
    yield watch
    watch.close()


def _watched(watch: Watch, place: str = "h1") -> Connection:
    connection = Connection(place)
    watch.add(connection)
    return connection


def test_a_connection_is_cut_when_its_server_answers_nobody(driver: Driver, watch: Watch) -> None:
    waits, idle = _watched(watch), _watched(watch)
    waits.number = 7
    driver.silent.add("h1")
    watch.look()
    assert not waits.is_cut()  # it may have begun a moment ago
    watch.look()
    assert (waits.is_cut(), waits.unanswered) == (True, True)
    assert not idle.is_cut()


def test_a_long_statement_is_left_alone_while_its_server_answers(driver: Driver, watch: Watch) -> None:
    waits = _watched(watch)
    waits.number = 7
    for _ in range(5):
        watch.look()
    assert driver.asked == ["h1"] * 4
    assert not waits.is_cut()


def test_a_busy_connection_costs_the_server_nothing(driver: Driver, watch: Watch) -> None:
    busy = _watched(watch)
    driver.silent.add("h1")
    for number in range(5):
        busy.number = number
        watch.look()
    assert driver.asked == []
    assert not busy.is_cut()


def test_each_server_is_asked_for_itself(driver: Driver, watch: Watch) -> None:
    """An address may name several: the new primary answers, the old one does not."""
    old, new = _watched(watch, "h1"), _watched(watch, "h2")
    old.number = new.number = 1
    driver.silent.add("h1")
    watch.look()
    watch.look()
    assert (old.is_cut(), new.is_cut()) == (True, False)


def test_an_answer_that_comes_at_the_last_moment_is_not_cut(driver: Driver, watch: Watch) -> None:
    """Its descriptor may belong to something else by now."""
    waits = _watched(watch)
    waits.number = 1
    driver.silent.add("h1")
    watch.look()

    def answered(connection: Connection) -> int:
        descriptor = connection.ours.fileno()
        connection.number = 2
        return descriptor

    driver.descriptor = answered  # type: ignore[method-assign]
    watch.look()
    assert not waits.is_cut()


def test_a_closed_connection_does_no_harm(driver: Driver, watch: Watch) -> None:
    waits, other = _watched(watch), _watched(watch)
    waits.number = other.number = 1
    driver.silent.add("h1")
    watch.look()
    waits.ours.close()
    watch.look()
    assert other.is_cut()


def test_a_child_process_leaves_the_connections_of_its_parent_alone(driver: Driver, watch: Watch) -> None:
    inherited = _watched(watch)
    inherited.number = 1
    driver.silent.add("h1")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        mine = _watched(watch)
        mine.number = 1
        watch.look()
        watch.look()
        os.write(writing, b"1" if mine.is_cut() and not inherited.is_cut() else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.close(writing)


def test_the_watch_ends_with_its_store(driver: Driver, watch: Watch) -> None:
    _watched(watch)
    [thread] = [one for one in threading.enumerate() if one.name == "detent-watch" and one is watch._thread]
    watch.close()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_the_watch_ends_when_no_connection_is_left(driver: Driver, watch: Watch) -> None:
    driver.patience = 0.0  # it looks often
    connection = _watched(watch)
    thread = watch._thread
    assert thread is not None
    del connection
    gc.collect()
    thread.join(timeout=30)
    assert not thread.is_alive()
    _watched(watch)
    assert watch._thread is not None
