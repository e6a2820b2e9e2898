"""How the ends of runs in other processes are waited for (app/waiters.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from detent.app.starting import fresh_row
from detent.app.waiters import Waiter, Waiters
from detent.kernel.rows import NewRun, RunEnd

FINISHED = RunEnd(state="finished", result="1")


class Watched:
    """A store that notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.over: list[tuple[str, RunEnd]] = []
        self.locked = False
        self.before_answer: Callable[[], None] = lambda: None

    def watch(self, runs: Sequence[str], among: Sequence[str]) -> list[tuple[str, RunEnd]] | None:
        self.calls.append(("watch", list(runs)))
        self.before_answer()
        return None if self.locked else self.over

    def ends(self, runs: Sequence[str]) -> list[tuple[str, RunEnd]]:
        self.calls.append(("ends", list(runs)))
        return self.over

    def existing(self, runs: Sequence[str]) -> set[str]:
        self.calls.append(("existing", list(runs)))
        return set(runs)

    def take(self) -> list[tuple[str, list[str]]]:
        calls, self.calls = self.calls, []
        return calls


def waiter_of(woken: list[RunEnd], *, wants_pauses: bool) -> Waiter:
    row = fresh_row(NewRun("run", "f", "function", "default", 0, "[]", 1), False)
    return Waiter(row, lambda _, end: woken.append(end), wants_pauses=wants_pauses)


def waiting(
    store: Watched, *, wants_pauses: bool = False
) -> tuple[Waiters, Callable[[], None], list[RunEnd]]:
    """Waiters without their thread, one of which waits for a run of another process; and a look of theirs."""
    waiters = Waiters(cast(Any, store), alone=lambda: False)
    woken: list[RunEnd] = []
    waiters._wait(waiter_of(woken, wants_pauses=wants_pauses))
    return waiters, lambda: cast(None, waiters._look(everybody=True)), woken


def test_a_run_of_another_process_is_watched_once() -> None:
    store = Watched()
    _, look, _ = waiting(store)
    look()
    assert store.take() == [("watch", ["run"]), ("existing", ["run"])]
    look()
    assert store.take() == [("ends", ["run"]), ("existing", ["run"])]


def test_a_run_that_is_over_is_asked_for_once() -> None:
    store = Watched()
    _, look, woken = waiting(store)
    store.over = [("run", FINISHED)]
    look()
    assert store.take() == [("watch", ["run"])]
    assert woken == [FINISHED]


def test_a_run_that_another_transaction_has_locked_is_watched_with_the_next_look() -> None:
    store = Watched()
    _, look, _ = waiting(store)
    store.locked = True
    look()
    store.locked = False
    look()
    look()
    asked = [name for name, _ in store.take()]
    assert asked == ["watch", "ends", "existing", "watch", "existing", "ends", "existing"]


def test_a_run_that_begins_with_a_later_commit_is_watched_once_it_is_there() -> None:
    store = Watched()
    waiters, look, _ = waiting(store)
    waiters.expect(["run"])
    for _ in range(3):  # the first look finds that it is there, the second watches it
        look()
    assert [name for name, _ in store.take() if name != "existing"] == ["watch", "watch", "ends"]


def test_the_run_that_continues_another_is_watched() -> None:
    store = Watched()
    waiters, look, _ = waiting(store)
    look()
    waiters.ended([("run", RunEnd(state="finished", continued_as="next"))])
    store.take()
    look()
    assert store.take()[0] == ("watch", ["next"])


PAUSED = RunEnd(state="paused")


def test_a_pause_that_was_read_before_a_waiter_came_is_not_told_to_it() -> None:
    """The run may have been resumed since, and the waiter waits for what comes after that."""
    store = Watched()
    waiters, look, woken = waiting(store, wants_pauses=True)
    later: list[RunEnd] = []

    def read() -> None:
        waiters._wait(waiter_of(later, wants_pauses=True))

    store.over, store.before_answer = [("run", PAUSED)], read
    look()
    assert (woken, later) == ([PAUSED], [])


def test_a_pause_of_this_process_is_read_before_it_is_told() -> None:
    store = Watched()
    waiters, look, woken = waiting(store, wants_pauses=True)
    look()
    waiters.ended([("run", PAUSED)])  # of the commit; the run has been resumed since
    look()
    assert woken == []
    store.over = [("run", PAUSED)]
    waiters.ended([("run", PAUSED)])
    assert waiters._news.is_set()
    waiters._look(everybody=False)
    assert woken == [PAUSED]
