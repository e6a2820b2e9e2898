"""Wake-ups and signs of life: how processes on one database hear of each other."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from detent.clock import SystemClock
from detent.errors import DatabaseUnavailable
from detent.kernel.external_changes import Cancel, Pause, Resume
from detent.kernel.operations import Start
from detent.kernel.rows import WorkerRow
from detent.stores.driver import Listener, Liveness, Tx
from detent.stores.mysql.driver import MySqlListener
from detent.stores.session_locks import KEEP_BUSY, SessionLock
from detent.stores.sqlite.siblings import Ear, LockFiles
from detent.stores.store import Store
from detent.worker.heartbeat import STEADY, SUSPECTED, Heartbeat
from tests.conformance.builders import (
    NOW,
    SECOND,
    Attempt,
    begetting,
    enlist,
    eventually,
    executing,
    held_open,
    new_main,
    new_run,
    one,
    settling,
    start,
    worker_row,
)


@pytest.fixture
def listener(rival: Store) -> Iterator[Listener]:
    listener = rival.driver.listener()
    yield listener
    listener.close()


def hear(listener: Listener) -> Attempt[list[str]]:
    """Wait for news, for as long as it takes."""

    def wait() -> list[str]:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            # MySQL's listener returns now and then without news: here only a real call counts.
            heard = listener._sleep(15) and [""] if isinstance(listener, MySqlListener) else listener.wait(15)
            if heard:
                return heard
        raise AssertionError("heard nothing")

    return Attempt(wait)


def is_listening(store: Store, hearing: Attempt[list[str]]) -> None:
    """On MySQL news find only who sleeps at that moment; elsewhere they wait."""
    if store.dialect == "mysql":
        with store._reading() as tx:
            eventually(
                lambda: bool(
                    tx.query(
                        "SELECT id FROM information_schema.processlist"
                        " WHERE db = DATABASE() AND info LIKE 'SELECT SLEEP(%%'"
                    )
                ),
                "the listener sleeps in the server",
            )


def test_work_for_others_wakes_them(store: Store, listener: Listener) -> None:
    hearing = hear(listener)
    is_listening(store, hearing)
    store.apply([start()], helpers_wanted=True)
    [payload] = hearing.result()
    assert payload == "" or json.loads(payload) == {"work": True, "runs": []}


def test_a_start_meant_for_others_wakes_them_whoever_else_has_time(store: Store, listener: Listener) -> None:
    hearing = hear(listener)
    is_listening(store, hearing)
    operation = start()
    operation.remote = True
    store.apply([operation], helpers_wanted=False)
    assert hearing.result()


@pytest.mark.parametrize("waited", [True, False], ids=["waited", "straight"])  # two ways to write an end
def test_the_end_of_a_watched_run_is_told(store: Store, listener: Listener, waited: bool) -> None:
    main = executing(store)
    store.watch(["run"], among=[])
    hearing = hear(listener)
    is_listening(store, hearing)
    store.apply([settling(main, waited=waited)])
    [payload] = hearing.result()
    assert payload == "" or json.loads(payload).get("runs", ["run"]) == ["run"]


def test_the_end_of_a_run_that_nobody_watches_is_told_to_nobody(store: Store, rival: Store) -> None:
    if store.dialect == "sqlite":  # there, a process also sees that the file has changed
        return
    unwatched, watched = executing(store, "a"), executing(store, "b")
    store.watch(["b"], among=[])
    with closing(rival.driver.listener()) as listener:  # after the starts, which are told, too
        hearing = hear(listener)
        is_listening(store, hearing)
        store.apply([settling(unwatched, waited=False)])
        time.sleep(0.2)
        assert not hearing.done
        store.apply([settling(watched, waited=False)])
        assert hearing.result()


@pytest.mark.parametrize("verb", ["cancel", "resume"])
def test_control_wakes_others(store: Store, listener: Listener, verb: str) -> None:
    one(store, start())
    if verb == "resume":
        store.change(Pause("run", reason=None), now=NOW)
    hearing = hear(listener)
    is_listening(store, hearing)
    if verb == "resume":
        store.change(Resume("run"), now=NOW)
    else:
        store.change(Cancel("run", reason=None), now=NOW)
    assert hearing.result()


@pytest.mark.parametrize("module_url", ["postgres", "sqlite"], indirect=True)
def test_what_is_rolled_back_is_told_to_nobody(store: Store, listener: Listener) -> None:
    with pytest.raises(ZeroDivisionError), held_open(store, start("a")) as tx:
        store.driver.notify(tx, "never")
        raise ZeroDivisionError
    store.apply([start("b")], helpers_wanted=True)
    eventually(
        lambda: bool(heard := listener.wait(1)) and heard != [""] and "never" not in heard, "news of b"
    )


def test_more_news_than_a_notification_holds_does_not_fail_the_commit(
    store: Store, listener: Listener
) -> None:
    main = executing(store)
    for number in range(120):
        one(store, begetting(main, f"{'child' * 40}-{number}"))
    hearing = hear(listener)
    is_listening(store, hearing)
    assert len(store.change(Cancel("run", reason=None), now=NOW)) == 121
    assert hearing.result() == [""]


def test_waking_others_does_not_disturb_the_writers_beside_it(store: Store, listener: Listener) -> None:
    """On MySQL the wake-up is a statement on the writer's own connection."""

    def begin_many(name: str) -> int:
        created = 0
        for number in range(30):
            created += one_with_helpers(store, start(f"{name}-{number}"))
        return created

    attempts = [Attempt(lambda name=name: begin_many(name)) for name in "abcd"]  # type: ignore[misc]
    assert sum(attempt.result() for attempt in attempts) == 120
    assert len(store.runs(limit=200)) == 120
    assert listener.wait(5)


def one_with_helpers(store: Store, operation: Start) -> int:
    [answer] = store.apply([operation], helpers_wanted=True).answers
    return int(answer[0].created)


def test_a_silent_database_wakes_nobody_in_vain(store: Store, listener: Listener) -> None:
    if store.dialect == "mysql":
        assert isinstance(listener, MySqlListener)
        assert not listener._sleep(0.01)
    else:
        listener.wait(0)
        assert listener.wait(0) == []


# -- Signs of life ---------------------------------------------------------------------------------


@pytest.fixture
def liveness_of(store: Store, rival: Store) -> Iterator[tuple[Liveness, Liveness]]:
    ours, theirs = store.driver.liveness(), rival.driver.liveness()
    yield ours, theirs
    ours.leave()
    theirs.leave()


@pytest.fixture
def worker() -> WorkerRow:
    # Named locks of MySQL are the whole server's.
    return worker_row(f"w-{uuid4()}", lock_no=uuid4().int % (1 << 62))


@pytest.fixture
def nobody() -> WorkerRow:
    return worker_row(f"w-{uuid4()}", lock_no=uuid4().int % (1 << 62))


def test_who_took_liveness_is_seen_to_live(
    liveness_of: tuple[Liveness, Liveness], worker: WorkerRow, nobody: WorkerRow
) -> None:
    ours, theirs = liveness_of
    ours.take(worker)
    ours.take(worker)
    assert theirs.vacant([worker, nobody]) == {nobody.id}
    assert theirs.vacant([]) == set()


def test_who_left_is_seen_to_be_gone(liveness_of: tuple[Liveness, Liveness], worker: WorkerRow) -> None:
    ours, theirs = liveness_of
    ours.take(worker)
    ours.leave()
    assert theirs.vacant([worker]) == {worker.id}
    ours.leave()


def test_who_begins_anew_leaves_the_old_liveness(
    liveness_of: tuple[Liveness, Liveness], worker: WorkerRow, nobody: WorkerRow
) -> None:
    ours, theirs = liveness_of
    ours.take(nobody)
    ours.take(worker)
    assert theirs.vacant([worker, nobody]) == {nobody.id}


def test_looking_for_others_needs_no_liveness_of_ones_own(
    liveness_of: tuple[Liveness, Liveness], nobody: WorkerRow
) -> None:
    assert liveness_of[0].vacant([nobody]) == {nobody.id}


def test_a_sign_of_life_that_was_cut_off_is_renewed(
    store: Store, liveness_of: tuple[Liveness, Liveness], worker: WorkerRow
) -> None:
    ours, theirs = liveness_of
    ours.take(worker)
    cut_off(store, ours)
    eventually(lambda: bool(theirs.vacant([worker])), "others see that the sign is gone")
    ours.doubt()
    ours.take(worker)
    assert theirs.vacant([worker]) == set()


def test_a_reading_sees_who_is_alive_as_far_as_the_database_can(
    store: Store, liveness_of: tuple[Liveness, Liveness], worker: WorkerRow, nobody: WorkerRow
) -> None:
    ours, _ = liveness_of
    for row in (worker, nobody):
        store.register(row)
    ours.take(worker)
    held = {id: held for id, _, _, held in store.read_heartbeat(now=NOW).workers}
    assert held == {worker.id: store.dialect != "sqlite", nobody.id: False}
    ours.leave()
    eventually(
        lambda: not any(row[3] for row in store.read_heartbeat(now=NOW).workers),
        "the lock is seen to be gone",
    )


# -- The heartbeat --------------------------------------------------------------------------------------


def heartbeat_of(store: Store, worker: WorkerRow, on_lost: Callable[[], WorkerRow]) -> Heartbeat:
    """Alive, but beating only when it is told to."""
    heartbeat = Heartbeat(
        store,
        SystemClock(),
        worker,
        lease=30 * SECOND,
        max_recoveries=5,
        look=lambda: store.read_heartbeat(now=time.time_ns() // 1000),
        on_heartbeat=lambda reading: None,
        on_rescue=lambda worker, again: None,
        on_lost=on_lost,
        on_doubt=lambda: None,
    )
    heartbeat._liveness.take(worker)
    store.register(worker)
    store.renew(worker.id, lease=30 * SECOND, now=time.time_ns() // 1000)
    heartbeat._renewed = time.monotonic()
    return heartbeat


@pytest.fixture
def heartbeats(
    store: Store, rival: Store, worker: WorkerRow, nobody: WorkerRow
) -> Iterator[tuple[Heartbeat, Heartbeat]]:
    """Two workers that live; neither is ever declared dead."""

    def never() -> WorkerRow:
        raise AssertionError("a worker that lives was thought dead")

    pair = heartbeat_of(store, worker, never), heartbeat_of(rival, nobody, never)
    yield pair
    for heartbeat in pair:
        heartbeat._liveness.leave()


def test_a_heartbeat_whose_sign_of_life_was_cut_off_shows_itself_again_by_its_next_beat(
    store: Store, heartbeats: tuple[Heartbeat, Heartbeat], worker: WorkerRow, nobody: WorkerRow
) -> None:
    mine, other = heartbeats
    mine.beat()
    lease = lease_of(store, worker)
    cut_off(store, mine._liveness)
    eventually(lambda: bool(other._liveness.vacant([worker])), "others see that the sign is gone")
    mine.beat()
    assert other._liveness.vacant([worker]) == set()
    assert lease_of(store, worker) > lease


def test_a_lock_that_its_session_lost_is_taken_again_by_the_next_heartbeat(
    store: Store, heartbeats: tuple[Heartbeat, Heartbeat], worker: WorkerRow
) -> None:
    """The session goes on; only its lock is gone."""
    mine, other = heartbeats
    liveness = mine._liveness
    if not isinstance(liveness, SessionLock):
        return  # a file stays locked as long as its process runs
    mine.beat()
    with liveness._connection.cursor() as cursor:
        mysql = store.dialect == "mysql"
        cursor.execute("SELECT RELEASE_ALL_LOCKS()" if mysql else "SELECT pg_advisory_unlock_all()")
        cursor.fetchall()
    assert other._liveness.vacant([worker]) == {worker.id}
    mine.beat()
    assert other._liveness.vacant([worker]) == set()


def test_the_end_of_a_lock_session_wakes_its_heartbeat(
    store: Store, heartbeats: tuple[Heartbeat, Heartbeat], worker: WorkerRow
) -> None:
    """So the lock is free for a fraction of a second, and no other worker doubts that this one is alive."""
    mine, _ = heartbeats
    if not isinstance(mine._liveness, SessionLock):
        return  # a file stays locked as long as its process runs
    stopping = threading.Event()
    resting = threading.Thread(target=mine._liveness.rest, args=(stopping, 3600.0))
    resting.start()
    try:
        cut_off(store, mine._liveness)
        eventually(lambda: not resting.is_alive(), "the heartbeat is due at once")
    finally:
        stopping.set()
        resting.join()
    mine.beat()
    assert not mine._liveness._ended()


def lease_of(store: Store, worker: WorkerRow) -> int:
    [until] = [row.lease_until for row in store.workers() if row.id == worker.id]
    return until


def test_nobody_is_dead_who_renewed_the_lease_after_the_look(
    store: Store, heartbeats: tuple[Heartbeat, Heartbeat], worker: WorkerRow
) -> None:
    """Only its sign of life is gone.  It was missed for long when the lease is renewed."""
    mine, other = heartbeats
    cut_off(store, mine._liveness)
    eventually(lambda: bool(other._liveness.vacant([worker])), "others see that the sign is gone")
    other.beat()
    other._suspects[worker.id] = (0.0, lease_of(store, worker))
    store.renew(worker.id, lease=31 * SECOND, now=time.time_ns() // 1000)
    other.beat()
    assert worker.id in {row.id for row in store.workers()}
    found_dead = lease_of(store, worker)
    store.renew(worker.id, lease=32 * SECOND, now=time.time_ns() // 1000)
    assert store.reap(worker.id, max_recoveries=5, now=NOW, unless_renewed=found_dead) is None
    assert worker.id in {row.id for row in store.workers()}


def test_a_worker_that_shows_no_sign_of_life_for_a_while_is_dead(
    store: Store, heartbeats: tuple[Heartbeat, Heartbeat], worker: WorkerRow
) -> None:
    mine, other = heartbeats
    cut_off(store, mine._liveness)
    eventually(lambda: bool(other._liveness.vacant([worker])), "others see that the sign is gone")
    for _ in range(3):  # however many looks there are in a moment
        other.beat()
    assert worker.id in {row.id for row in store.workers()}
    since, lease = other._suspects[worker.id]
    other._suspects[worker.id] = (since - SUSPECTED, lease)
    other.beat()
    assert worker.id not in {row.id for row in store.workers()}


def test_silence_proves_nothing_shortly_after_our_own_loss_of_the_database(
    store: Store, heartbeats: tuple[Heartbeat, Heartbeat], worker: WorkerRow
) -> None:
    """The server restarted, and this worker was the first to connect again."""
    mine, other = heartbeats
    other._lost_at = time.monotonic()
    cut_off(store, mine._liveness)
    eventually(lambda: bool(other._liveness.vacant([worker])), "others see that the sign is gone")
    other.beat()
    since, _ = other._suspects[worker.id]
    assert since == other._lost_at + STEADY - SUSPECTED


def test_a_renewal_that_failed_is_due_again_with_the_next_beat(
    store: Store,
    heartbeats: tuple[Heartbeat, Heartbeat],
    worker: WorkerRow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a few failures in a row let the lease expire, and a living worker is declared dead."""
    mine, _ = heartbeats
    lease, renew = lease_of(store, worker), store.renew
    mine._renewed -= 10.0

    def fail(*args: Any, **options: Any) -> bool:
        monkeypatch.setattr(store, "renew", renew)
        raise DatabaseUnavailable("the database", "it restarts")

    monkeypatch.setattr(store, "renew", fail)
    with pytest.raises(DatabaseUnavailable):
        mine.beat()
    assert lease_of(store, worker) == lease
    mine.beat()
    assert lease_of(store, worker) > lease


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "not renewed"])
def test_a_worker_whose_lease_has_expired_gets_a_moment_to_renew_it(
    store: Store, heartbeats: tuple[Heartbeat, Heartbeat], worker: WorkerRow, renewed: bool
) -> None:
    """After an outage that was longer than the lease, one worker is the first to connect again."""
    mine, other = heartbeats
    store.renew(worker.id, lease=-SECOND, now=time.time_ns() // 1000)
    other.beat()
    assert worker.id in {row.id for row in store.workers()}
    if renewed:
        mine._renewed -= 10.0
        mine.beat()
    if worker.id in other._suspects:
        since, lease = other._suspects[worker.id]
        other._suspects[worker.id] = (since - SUSPECTED, lease)
    other.beat()
    assert (worker.id in {row.id for row in store.workers()}) is renewed


def test_the_session_of_a_sign_of_life_is_used_now_and_then(store: Store, worker: WorkerRow) -> None:
    """A server ends sessions that are idle; seeing the lock from another session does not keep it."""
    liveness = store.driver.liveness()
    if isinstance(liveness, LockFiles):
        return
    liveness.take(worker)
    liveness.seen()
    liveness._used_at -= KEEP_BUSY  # type: ignore[attr-defined]
    looked: list[bool] = []
    alive = liveness._alive  # type: ignore[attr-defined]

    def look() -> bool:
        looked.append(alive())
        return looked[-1]

    liveness._alive = look  # type: ignore[attr-defined]
    assert not liveness.take(worker)
    assert looked == [True]
    liveness.leave()


def test_who_is_seen_to_live_costs_no_more_than_the_reading(
    store: Store, heartbeats: tuple[Heartbeat, Heartbeat], monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(tx: Tx, statement: str, **parameters: Any) -> Any:
            statements.append(statement)
            return method(tx, statement, **parameters)

        return call

    def looked(*_: Any) -> set[str]:
        statements.append("a look of the liveness")
        return set()

    monkeypatch.setattr(Tx, "run", counted(Tx.run))
    monkeypatch.setattr(Tx, "query", counted(Tx.query))
    liveness = heartbeats[0]._liveness
    if not isinstance(liveness, LockFiles):  # which asks the file system, not the database
        monkeypatch.setattr(liveness, "_alive", looked)
        monkeypatch.setattr(liveness, "vacant", looked)
    for _ in range(3):
        heartbeats[0].beat()
    assert statements == [store.driver.statements.heartbeat] * 3


def test_a_listener_that_is_hushed_stops_waiting(store: Store, listener: Listener) -> None:
    stop = threading.Event()

    def listen() -> None:
        while not stop.is_set():
            listener.wait(listener.longest)

    thread = threading.Thread(target=listen)
    thread.start()
    stop.set()

    def stopped() -> bool:
        listener.interrupt()
        return not thread.is_alive()

    eventually(stopped, "it stops")


@pytest.mark.parametrize("module_url", ["sqlite"], indirect=True)
def test_what_others_write_to_the_file_is_noticed_though_nothing_was_heard_for_long(
    store: Store, listener: Listener
) -> None:
    """A server tells it by itself."""
    assert isinstance(listener, Ear)
    listener._active -= 3600
    with sqlite3.connect(store.driver.path) as connection:  # type: ignore[attr-defined]
        connection.execute("CREATE TABLE somebody_elses (fact)")
    connection.close()
    assert listener.wait(15) == [""]


def cut_off(store: Store, liveness: Liveness) -> None:
    if isinstance(liveness, LockFiles):
        assert liveness._mine is not None
        liveness._mine[0].unlink()
        return
    connection = liveness._connection  # type: ignore[attr-defined]
    with store._reading() as tx:
        if store.dialect == "postgres":
            tx.query("SELECT pg_terminate_backend(CAST(%(pid)s AS integer))", pid=connection.info.backend_pid)
        else:
            tx.run(f"KILL {connection.thread_id()}")


TAKE_OFFICE = """
import sys
from detent.kernel.rows import WorkerRow
from detent.stores.open import open_store
url, id, lock_no = sys.argv[1:]
liveness = open_store(url).driver.liveness()
liveness.take(WorkerRow(id=id, name="", pid=0, queues="", concurrency=0, lock_no=int(lock_no),
                      started_at=0, beat_at=0, lease_until=0))
print("alive", flush=True)
sys.stdin.read()
"""


@pytest.mark.acceptance
def test_a_killed_process_is_seen_dead(
    module_url: str, liveness_of: tuple[Liveness, Liveness], worker: WorkerRow
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TAKE_OFFICE, module_url, worker.id, str(worker.lock_no)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"alive\n"
            assert liveness_of[0].vacant([worker]) == set()
        finally:
            process.kill()
    eventually(lambda: liveness_of[0].vacant([worker]) == {worker.id}, "its sign of life is gone")


def test_two_listeners_both_hear(store: Store, another: Callable[[], Store]) -> None:
    listeners = [another().driver.listener() for _ in range(2)]
    try:
        hearings = [hear(listener) for listener in listeners]
        for hearing in hearings:
            is_listening(store, hearing)
        if store.dialect == "mysql":
            both_listen(store)
        store.apply([start()], helpers_wanted=True)
        assert all(hearing.result() for hearing in hearings)
    finally:
        for listener in listeners:
            listener.close()


def both_listen(store: Store) -> None:
    sleeping = (
        "SELECT COUNT(*) FROM information_schema.processlist"
        " WHERE db = DATABASE() AND info LIKE 'SELECT SLEEP(%%'"
    )
    with store._reading() as tx:
        eventually(lambda: bool(tx.query(sleeping)[0][0] == 2), "both listeners sleep in the server")


def test_a_timer_start_is_no_news_for_idle_workers(store: Store) -> None:
    later = new_main(state="timer", scheduled_for=NOW + 60 * SECOND)
    enlist(store, "w1")
    applied = store.apply([Start(runs=[new_run()], executions=[later])], helpers_wanted=True)
    assert not applied.made_ready
