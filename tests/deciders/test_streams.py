"""Events as they are read back: what cannot be read, what is missing, what has become of old ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

import detent
from detent import Decider, Decision, upcaster
from detent.errors import InvalidState, RunNotFound, UnreadableEvent
from tests.conformance.builders import everything
from tests.deciders import rolling
from tests.deciders.operations import applied, deciding_of
from tests.deciders.orders import Log, Say, change, letters, log, sql, texts, types
from tests.functions.world import Apps, eventually


@pytest.fixture
def app(apps: Apps) -> detent.App:
    """An app without a worker, whose log `l` has five events."""
    app = apps(Log, worker=False)
    for text in "abcde":
        app.execute(Log, Say("l", text))
    return app


def forget(app: detent.App, decider: Any = Log, instance: str = "l") -> None:
    """Let the process remember nothing of an instance."""
    bound = app.engine.services.bound(decider)
    bound.recall(f"{bound.name}:{instance}")


def spoil(app: detent.App, sequence: int, **columns: Any) -> None:
    """Change a stored event of the log."""
    new = ", ".join(f"{name} = :{name}" for name in columns)
    statement = f"UPDATE detent_events SET {new} WHERE run_id = 'log:l' AND sequence = :sequence"
    assert change(app, statement, sequence=sequence, **columns) == 1
    forget(app)


DAMAGES: dict[str, Callable[[detent.App], None]] = {
    "no json": lambda app: spoil(app, 3, data='{"text":'),
    "a field of another type": lambda app: spoil(app, 3, data='{"text":7,"at":"2030-01-01T00:00:00Z"}'),
    "a field too few": lambda app: spoil(app, 3, data='{"text":"c"}'),
    "a type that is unknown": lambda app: spoil(app, 3, type="Whispered"),
}


# -- What cannot be read -------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_event_that_cannot_be_read_is_named_and_nothing_changes(app: detent.App, damage: str) -> None:
    DAMAGES[damage](app)
    before = everything(app.engine.store)
    with pytest.raises(UnreadableEvent) as caught:
        app.execute(Log, Say("l", "f", mails=["one"]), input_id="x")
    error = caught.value
    assert (error.instance, error.sequence, error.position) == ("log:l", 3, 3)
    assert error.type in ("Said", "Whispered")
    for part in ("log:l", "3", error.type):
        assert part in str(error)
    assert everything(app.engine.store) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_before_an_event_that_cannot_be_read_time_travel_works(app: detent.App, damage: str) -> None:
    DAMAGES[damage](app)
    assert app.state_at(Log, "l", sequence=2).said == ["a", "b"]
    assert [one.event.text for one in app.events(Log, "l", limit=2)] == ["a", "b"]  # type: ignore[union-attr]
    assert [one.event.text for one in app.events(Log, "l", after=3)] == ["d", "e"]  # type: ignore[union-attr]
    for ask in (
        lambda: app.state_at(Log, "l", sequence=3),
        lambda: app.state_at(Log, "l"),
        lambda: app.events(Log, "l"),
    ):
        with pytest.raises(UnreadableEvent):
            ask()


def test_other_instances_go_on_in_the_same_commit(app: detent.App) -> None:
    spoil(app, 3, data="{")
    answers = applied(
        app,
        deciding_of(app, Log, Say("k", "before")),
        deciding_of(app, Log, Say("l", "f")),
        deciding_of(app, Log, Say("m", "behind")),
    )
    assert [isinstance(answer, UnreadableEvent) for answer in answers] == [False, True, False]
    assert (texts(app, Log, "k"), texts(app, Log, "m")) == (["before"], ["behind"])


def test_a_repaired_event_lets_the_instance_go_on(app: detent.App) -> None:
    [(data,)] = sql(app, "SELECT data FROM detent_events WHERE sequence = 3")
    spoil(app, 3, data="{")
    with pytest.raises(UnreadableEvent):
        app.execute(Log, Say("l", "f"))
    spoil(app, 3, data=data)
    app.execute(Log, Say("l", "f"))
    assert texts(app, Log) == list("abcdef")


def test_an_event_that_is_missing_is_named(app: detent.App) -> None:
    change(app, "DELETE FROM detent_events WHERE run_id = 'log:l' AND sequence = 3")
    forget(app)
    before = everything(app.engine.store)
    for ask in (
        lambda: app.execute(Log, Say("l", "f")),
        lambda: app.state_at(Log, "l"),
        lambda: app.state_at(Log, "l", sequence=3),
        lambda: app.state_at(Log, "l", sequence=5),
    ):
        with pytest.raises(UnreadableEvent, match="missing") as caught:
            ask()
        assert (caught.value.instance, caught.value.sequence) == ("log:l", 3)
    assert app.state_at(Log, "l", sequence=2).said == ["a", "b"]
    assert everything(app.engine.store) == before


def test_a_first_event_that_is_missing_is_named(app: detent.App) -> None:
    change(app, "DELETE FROM detent_events WHERE run_id = 'log:l' AND sequence = 1")
    forget(app)
    for ask in (lambda: app.execute(Log, Say("l", "f")), lambda: app.state_at(Log, "l")):
        with pytest.raises(UnreadableEvent, match="missing"):
            ask()


# -- Time travel ---------------------------------------------------------------------------------------


def test_the_state_at_each_event(app: detent.App) -> None:
    for number in range(6):
        assert app.state_at(Log, "l", sequence=number).said == list("abcde")[:number]
    assert app.state_at(Log, "l").said == list("abcde")


def test_the_state_beyond_the_last_event_is_refused(app: detent.App) -> None:
    for wrong in (6, -1):
        with pytest.raises(InvalidState, match="log:l"):
            app.state_at(Log, "l", sequence=wrong)
    with pytest.raises(RunNotFound, match="log:nobody"):
        app.state_at(Log, "nobody")


def test_events_come_in_pages(app: detent.App) -> None:
    assert [one.sequence for one in app.events(Log, "l", after=1, limit=2)] == [2, 3]
    assert app.events(Log, "l", after=5) == []
    assert app.events(Log, "nobody") == []


# -- Old events ----------------------------------------------------------------------------------------


@dataclass
class Account:
    entries: list[str] = field(default_factory=list)


@dataclass
class Book:
    id: str
    amount: int = 1


@dataclass
class Booked:
    amount: int
    currency: str
    by: str


class Bank(Decider[Account, Book, Booked, None]):
    """The code of today: an event has had three versions and another name."""

    type = "bank"

    def initial(self) -> Account:
        return Account()

    def decide(self, state: Account, input: Book, now: datetime) -> Decision:
        return Decision.event(Booked(input.amount, "CHF", "today"))

    def evolve(self, state: Account, event: Booked) -> Account:
        return Account([*state.entries, f"{event.amount} {event.currency} {event.by}"])

    @upcaster("Booked", version=1)
    def with_currency(data: dict[str, Any]) -> dict[str, Any]:  # noqa: N805
        return {**data, "currency": "EUR"}

    @upcaster("Booked", version=2)
    def with_author(data: dict[str, Any]) -> dict[str, Any]:  # noqa: N805
        return {**data, "by": "nobody"}

    @upcaster("Entered", to="Booked")
    def renamed(data: dict[str, Any]) -> dict[str, Any]:  # noqa: N805
        return {"amount": data["sum"]}


def stored(app: detent.App, sequence: int, **columns: Any) -> None:
    new = ", ".join(f"{name} = :{name}" for name in columns)
    change(app, f"UPDATE detent_events SET {new} WHERE sequence = :sequence", sequence=sequence, **columns)
    forget(app, Bank, "b")


def test_old_events_are_read_as_todays_through_a_chain_of_versions_and_names(apps: Apps) -> None:
    app = apps(Bank, worker=False)
    for _ in range(4):
        app.execute(Bank, Book("b"))
    stored(app, 1, type="Entered", version=1, data='{"sum":10}')
    stored(app, 2, version=1, data='{"amount":20}')
    stored(app, 3, version=2, data='{"amount":30,"currency":"USD"}')
    assert app.state_at(Bank, "b").entries == [
        "10 EUR nobody",
        "20 EUR nobody",
        "30 USD nobody",
        "1 CHF today",
    ]
    assert app.execute(Bank, Book("b", 2)) == [Booked(2, "CHF", "today")]
    assert sql(app, "SELECT type, version FROM detent_events ORDER BY position") == [
        ("Entered", 1),
        ("Booked", 1),
        ("Booked", 2),
        ("Booked", 3),
        ("Booked", 3),
    ], "what is stored stays as it is"


def test_an_upcaster_that_raises_names_the_event_and_changes_nothing(apps: Apps) -> None:
    app = apps(Bank, worker=False)
    app.execute(Bank, Book("b"))
    app.execute(Bank, Book("b"))
    stored(app, 2, type="Entered", version=1, data='{"amount":10}')
    before = everything(app.engine.store)
    with pytest.raises(UnreadableEvent, match="KeyError") as caught:
        app.execute(Bank, Book("b"))
    assert (caught.value.sequence, caught.value.position, caught.value.type) == (2, 2, "Entered")
    assert everything(app.engine.store) == before
    assert app.state_at(Bank, "b", sequence=1).entries == ["1 CHF today"]


def test_an_upcaster_that_returns_nonsense_is_named(apps: Apps) -> None:
    class Careless(Bank):
        type = "bank"

        @upcaster("Booked", version=2)
        def with_author(data: dict[str, Any]) -> Any:  # noqa: N805
            return None

    app = apps(Careless, worker=False)
    app.execute(Careless, Book("b"))
    change(app, "UPDATE detent_events SET version = 2")
    forget(app, Careless, "b")
    with pytest.raises(UnreadableEvent):
        app.execute(Careless, Book("b"))


def test_an_event_of_a_newer_version_than_the_code_knows_is_read_if_it_fits(apps: Apps) -> None:
    """In a rolling deploy the old code meets events of the new one: what it does not know it leaves out."""
    app = apps(Bank, worker=False)
    app.execute(Bank, Book("b"))
    stored(app, 1, version=9, data='{"amount":1,"currency":"EUR","by":"new","iban":"x"}')
    assert app.state_at(Bank, "b").entries == ["1 EUR new"]


def test_an_event_that_only_the_new_code_knows_stops_the_old_code_at_that_instance_alone(apps: Apps) -> None:
    new, old = apps(rolling.New, worker=False), apps(rolling.Old, worker=False)
    new.execute(rolling.New, rolling.Begin("r"))
    with pytest.raises(UnreadableEvent, match="Begun") as caught:
        old.execute(rolling.Old, rolling.Ping("r"))
    assert caught.value.type == "Begun"
    assert old.execute(rolling.Old, rolling.Ping("other"))
    assert new.execute(rolling.New, rolling.Ping("r"))
    assert types(new, rolling.New, "r") == ["Begun", "Pinged"]


def test_an_answer_for_an_instance_that_the_old_code_cannot_read_waits_for_the_new_code(apps: Apps) -> None:
    new = apps(rolling.New, worker=False)
    new.execute(rolling.New, rolling.Begin("r"))
    new.execute(rolling.New, rolling.Ping("r"))
    old = apps(rolling.Old)
    eventually(lambda: len(letters(new, "rolling:r", "effect")) == 3, "the old code has tried it")
    assert new.dead_letters.count() == 0
    old.close()
    worker = apps(rolling.New)
    eventually(lambda: len(types(worker, rolling.New, "r")) == 5, "the new code has taken all of it")
    assert worker.dead_letters.count() == 0


# -- The code of others --------------------------------------------------------------------------------


def test_an_initial_state_is_not_shared_between_instances(apps: Apps) -> None:
    app = apps(decider := log(), worker=False)
    applied(app, *(deciding_of(app, decider, Say(instance, instance)) for instance in "klm"))
    assert [texts(app, decider, instance) for instance in "klm"] == [["k"], ["l"], ["m"]]
    assert [app.state_at(decider, instance).said for instance in "klm"] == [["k"], ["l"], ["m"]]


def test_forgotten_snapshots_are_taken_anew(apps: Apps) -> None:
    class Often(Bank):
        type = "often"
        snapshot_every = 2

    app = apps(Often, worker=False)
    app.execute(Often, Book("b"))
    app.execute(Often, Book("b"))
    assert [app.deciders.forget_snapshots(Often) for _ in range(2)] == [1, 0]
    app.execute(Often, Book("b"))
    app.execute(Often, Book("b"))
    assert app.deciders.forget_snapshots(Often) == 1
    assert len(app.state_at(Often, "b").entries) == 4
