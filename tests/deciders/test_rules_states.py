"""States: from snapshots and from memory they are what they are from the events."""

import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

import detent
from detent import Decider, Decision
from detent.errors import UnreadableEvent
from detent.execution.bound_decider import Memory
from tests.deciders.operations import Torn, applied, deciding_of, remembered, torn_at
from tests.deciders.orders import Log, LogState, Said, Say, Stopped, change, log, sql, texts
from tests.functions.world import Apps

MANY = 250  # more events than are read without a look at the snapshot


def snapshots(app: detent.App) -> list[tuple[int, str]]:
    rows = sql(app, "SELECT sequence, fingerprint FROM detent_snapshots ORDER BY run_id")
    return [(row[0], row[1]) for row in rows]


def say(app: detent.App, decider: Any, count: int, since: int = 0) -> list[str]:
    """Say so many things, each in a decision of its own, and return them."""
    said = [str(since + number) for number in range(count)]
    applied(app, *(deciding_of(app, decider, Say("l", text)) for text in said))
    return said


def without_early_events(app: detent.App, before: int) -> None:
    change(app, "DELETE FROM detent_events WHERE sequence <= :before", before=before)


# -- Snapshots -----------------------------------------------------------------------------------------


def test_a_snapshot_is_taken_every_so_many_events(apps: Apps) -> None:
    app = apps(decider := log(snapshot_every=10), worker=False)
    taken = []
    for number in range(35):
        app.execute(decider, Say("l", str(number)))
        taken.append(snapshots(app)[0][0] if snapshots(app) else 0)
    assert taken == [(number + 1) // 10 * 10 for number in range(35)]


def test_a_decider_without_snapshots_takes_none(apps: Apps) -> None:
    app = apps(decider := log(snapshot_every=None), worker=False)
    say(app, decider, MANY)
    assert snapshots(app) == []
    assert len(app.state_at(decider, "l").said) == MANY


def test_a_state_is_loaded_from_its_snapshot_and_what_followed(apps: Apps) -> None:
    """The early events are gone: who needs them would say so."""
    app = apps(decider := log(snapshot_every=100), worker=False)
    said = say(app, decider, MANY)
    said += say(app, decider, 7, MANY)
    assert snapshots(app)[0][0] == MANY
    without_early_events(app, MANY)
    other = apps(decider, worker=False)
    other.execute(decider, Say("l", "more"))
    assert remembered(other, decider).said == [*said, "more"]
    assert other.state_at(decider, "l").said == [*said, "more"]


CHANGES: dict[str, dict[str, Any]] = {
    "snapshot_version": {"snapshot_version": 2},
    "the code of evolve": {"evolve": lambda self, state, event: _shouting(state, event)},
}


def _shouting(state: LogState, event: Any) -> LogState:
    if isinstance(event, Said):
        state.said.append(event.text.upper())
    return state


@pytest.mark.parametrize("what", CHANGES)
def test_a_snapshot_of_other_code_is_ignored_and_taken_anew(apps: Apps, what: str) -> None:
    old = apps(decider := log(snapshot_every=100), worker=False)
    said = say(old, decider, MANY)
    [(_, fingerprint)] = snapshots(old)
    change(old, "UPDATE detent_snapshots SET body = :body", body='{"said":["wrong"],"over":false}')
    changed = log(snapshot_every=100, **CHANGES[what])
    new = apps(changed, worker=False)
    assert new.state_at(changed, "l").said == said
    new.execute(changed, Say("l", "0"))
    [(sequence, renewed)] = snapshots(new)
    assert sequence == MANY + 1
    assert renewed != fingerprint
    without_early_events(new, MANY)
    assert apps(changed, worker=False).state_at(changed, "l").said == [*said, "0"]


@dataclass
class Wider(LogState):
    """A state with one field more."""

    count: int = 0


def test_a_snapshot_of_another_shape_of_the_state_is_ignored(apps: Apps) -> None:
    old = apps(decider := log(snapshot_every=100), worker=False)
    say(old, decider, MANY)

    class Counting(Decider[Wider, Say, Said | Stopped, None]):
        type = "log"

        def initial(self) -> Wider:
            return Wider()

        def decide(self, state: Wider, input: Say, now: datetime) -> Decision:
            return Decision.event(Said(str(state.count), now))

        def evolve(self, state: Wider, event: Any) -> Wider:
            state.count += 1
            return state

    new = apps(Counting, worker=False)
    [event] = new.execute(Counting, Say("l", "?"))
    assert isinstance(event, Said)
    assert event.text == str(MANY), "counted from the events, not from the snapshot"


def test_a_snapshot_that_cannot_be_read_is_put_aside(apps: Apps, caplog: pytest.LogCaptureFixture) -> None:
    app = apps(decider := log(snapshot_every=100), worker=False)
    said = say(app, decider, MANY)
    change(app, "UPDATE detent_snapshots SET body = '{'")
    other = apps(decider, worker=False)
    with caplog.at_level(logging.WARNING, logger="detent"):
        assert other.state_at(decider, "l").said == said
    assert "snapshot" in caplog.text


class Opaque:
    """A value that has no JSON form."""

    def __init__(self, text: str) -> None:
        self.text = text


@dataclass
class OpaqueState:
    said: list[Any] = field(default_factory=list)


class _Hoard(Decider[OpaqueState, Say, Said, None]):
    """Keeps what it is told as something else."""

    type = "log"
    snapshot_every = 10

    def initial(self) -> OpaqueState:
        return OpaqueState()

    def decide(self, state: OpaqueState, input: Say, now: datetime) -> Decision:
        last = state.said[-1].text if state.said else ""
        return Decision.event(Said(f"{input.text} after {last}", now))

    def evolve(self, state: OpaqueState, event: Said) -> OpaqueState:
        return OpaqueState([*state.said, self.kept(event)])

    def kept(self, event: Said) -> Any:
        raise NotImplementedError


def test_a_state_that_cannot_be_stored_only_switches_snapshots_off(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    class Hoard(_Hoard):
        def kept(self, event: Said) -> Any:
            return Opaque(event.text.partition(" ")[0])

    app = apps(Hoard, worker=False)
    with caplog.at_level(logging.WARNING, logger="detent"):
        say(app, Hoard, 35)
    assert [record.message for record in caplog.records if "snapshots" in record.message][1:] == [], (
        "said once"
    )
    assert "without snapshots" in caplog.text
    assert snapshots(app) == []
    other = apps(Hoard, worker=False)
    other.execute(Hoard, Say("l", "35"))
    assert [one.text for one in other.state_at(Hoard, "l").said] == [str(number) for number in range(36)]


def test_a_state_that_does_not_come_back_equal_switches_snapshots_off(
    apps: Apps, caplog: pytest.LogCaptureFixture
) -> None:
    """A dataclass in a field that says `Any` would come back as a dict."""

    class Hoard(_Hoard):
        def kept(self, event: Said) -> Any:
            return Said(event.text.partition(" ")[0], event.at)

    app = apps(Hoard, worker=False)
    with caplog.at_level(logging.WARNING, logger="detent"):
        say(app, Hoard, MANY)
    assert "without snapshots" in caplog.text
    other = apps(Hoard, worker=False)
    [event] = other.execute(Hoard, Say("l", "x"))
    assert event.text == f"x after {MANY - 1}"


def test_a_state_changed_in_place_is_right_after_a_batch_that_was_rolled_back(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = apps(decider := log(snapshot_every=100), worker=False)
    said = say(app, decider, MANY)
    operations = [deciding_of(app, decider, Say("l", text)) for text in "xyz"]
    with pytest.raises(Torn), torn_at("INSERT INTO detent_events", monkeypatch):
        applied(app, *operations)
    app.execute(decider, Say("l", "more"))
    assert remembered(app, decider).said == [*said, "more"]
    assert texts(app, decider) == [*said, "more"]


# -- Memory --------------------------------------------------------------------------------------------


def test_what_another_process_has_added_is_seen(apps: Apps) -> None:
    ours, theirs = apps(Log, worker=False), apps(Log, worker=False)
    for number in range(10):
        (ours, theirs)[number % 2].execute(Log, Say("l", str(number)))
    ours.execute(Log, Say("l", "last"))
    assert remembered(ours, Log).said == [*map(str, range(10)), "last"]


def test_a_process_that_is_far_behind_catches_up(apps: Apps) -> None:
    ours, theirs = apps(Log, worker=False), apps(Log, worker=False)
    ours.execute(Log, Say("l", "first"))
    say(theirs, Log, MANY)
    ours.execute(Log, Say("l", "last"))
    assert remembered(ours, Log).said == ["first", *map(str, range(MANY)), "last"]


def test_memory_that_is_ahead_of_the_database_is_not_used(apps: Apps) -> None:
    """As after a database was set back to yesterday's copy."""
    app = apps(Log, worker=False)
    for text in "abc":
        app.execute(Log, Say("l", text))
    change(app, "DELETE FROM detent_events WHERE sequence = 3")
    app.execute(Log, Say("l", "d"))
    assert remembered(app, Log).said == ["a", "b", "d"]
    assert texts(app, Log) == ["a", "b", "d"]


def test_a_commit_that_was_rolled_back_leaves_no_wrong_state(
    apps: Apps, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = apps(Log, worker=False)
    app.execute(Log, Say("l", "a"))
    with pytest.raises(Torn), torn_at("INSERT INTO detent_events", monkeypatch):
        app.execute(Log, Say("l", "lost"))
    app.execute(Log, Say("l", "b"))
    assert remembered(app, Log).said == ["a", "b"]


def test_the_states_least_used_are_forgotten() -> None:
    memory = Memory(size=3)
    for name in "abc":
        memory.put(name, 1, name)
    memory.put("a", 2, "a")
    memory.put("d", 1, "d")
    assert memory.take("b") is None
    assert [memory.take(name) for name in "acd"] == [(2, "a"), (1, "c"), (1, "d")]


def test_a_state_that_is_older_than_what_is_known_is_not_kept() -> None:
    memory = Memory()
    memory.put("a", 5, "new")
    memory.put("a", 3, "old")
    assert memory.take("a") == (5, "new")


# -- Long lives ----------------------------------------------------------------------------------------

Aged = tuple[detent.App, type[Log], int]


@pytest.fixture(params=[20_000, pytest.param(100_000, marks=pytest.mark.soak)])
def aged(request: pytest.FixtureRequest, apps: Apps) -> Aged:
    """An instance with very many events: some pages of them, and some snapshots."""
    count: int = request.param

    class Tally(Log):
        """Counts rather than keeps."""

        type = "log"
        snapshot_every = count // 5

        def evolve(self, state: LogState, event: Any) -> LogState:
            state.said = [str(int(state.said[0]) + 1) if state.said else "1"]
            return state

    app = apps(Tally, worker=False)
    for _ in range(20):
        app.execute(Tally, Say("l", "x", also=["x"] * (count // 20 - 1)))
    return app, Tally, count


def test_an_instance_with_very_many_events_is_loaded_from_its_snapshot(aged: Aged, apps: Apps) -> None:
    app, decider, count = aged
    assert snapshots(app)[0][0] == count
    without_early_events(app, count - 5)
    other = apps(decider, worker=False)
    assert other.state_at(decider, "l").said == [str(count)]
    other.execute(decider, Say("l", "x"))
    assert remembered(other, decider).said == [str(count + 1)]


def test_an_instance_with_very_many_events_is_loaded_without_a_snapshot(aged: Aged, apps: Apps) -> None:
    app, decider, count = aged
    change(app, "DELETE FROM detent_snapshots")
    other = apps(decider, worker=False)
    other.execute(decider, Say("l", "x"))
    assert remembered(other, decider).said == [str(count + 1)]
    assert snapshots(other)[0][0] == count + 1, "so that nobody has to do that again"


def test_time_travel_over_very_many_events_reads_them_page_by_page(
    aged: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, decider, count = aged
    pages: list[int] = []
    bound = app.engine.services.bound(decider)
    fold = bound.fold

    def counted(state: Any, rows: Any) -> Any:
        pages.append(len(rows))
        return fold(state, rows)

    monkeypatch.setattr(bound, "fold", counted)
    assert app.state_at(decider, "l", sequence=count // 2).said == [str(count // 2)]
    assert sum(pages) == count // 2
    assert max(pages) <= 2_000, "it does not keep all of them in memory"
    change(app, "DELETE FROM detent_events WHERE sequence = 7")
    with pytest.raises(UnreadableEvent):
        app.state_at(decider, "l", sequence=count // 2)
