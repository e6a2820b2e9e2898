"""Dead letters and inboxes, for users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..clock import from_micros
from ..definitions.deciders import instance_of
from ..errors import ConfigurationError, InvalidState, NotADeadLetter, RunNotFound
from ..execution.failures import decode_error
from ..kernel.external_changes import DiscardLetter, ReplayLetter
from ..kernel.rows import Error
from ..kernel.settle import EFFECT, INBOX
from ..stores.verbs.dead_letters import DeadRow
from .deciders import Asked
from .engine import Engine

DEFAULT_LIMIT = 50
ALL_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An effect, a timer or an inbox that was given up.

    for letter in app.dead_letters(Order):
        print(letter.instance, letter.type, letter.attempts, letter.error)
    """

    id: str  # for replay and discard: the instance's run, and the node
    decider: str
    instance: str
    kind: str  # effect, timer, inbox
    type: str  # the class of the effect or of the timer's input
    payload: str | None  # as it is stored
    error: Error | None
    attempts: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Backlog:
    """The number of inputs that wait in the inboxes of a decider.

    for backlog in app.deciders.inboxes():
        print(backlog.decider, backlog.pending, backlog.oldest)
    """

    decider: str
    pending: int
    instances: int
    oldest: timedelta  # how long the first of them has waited


@dataclass(frozen=True, slots=True)
class SkippedLetter:
    """A dead letter that could not be replayed, and why."""

    letter: str  # its id
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of `app.dead_letters.replay_all()`: the number of replayed letters, and the skipped ones.

    report = app.dead_letters.replay_all(Order)
    print(report.replayed, report.skipped)
    """

    replayed: int
    skipped: tuple[SkippedLetter, ...] = ()


def dead_letters(
    engine: Engine, decider: Asked | None, instance: str | None, limit: int | None
) -> list[DeadLetter]:
    """What was given up, latest first."""
    _ = engine.services
    name, run_id = _filters(engine, decider, instance)
    rows = engine.store.dead_letters(type=name, run_id=run_id, limit=limit or DEFAULT_LIMIT)
    return [_shown(row) for row in rows]


def count_dead(engine: Engine, decider: Asked | None) -> int:
    _ = engine.services
    name = _name(engine, decider)
    return sum(count for type, _, count in engine.store.count_dead() if not name or type == name)


def replay(engine: Engine, letter: DeadLetter | str) -> None:
    """Take one up again, with a fresh budget."""
    engine.change(ReplayLetter(*_place(letter)))


def replay_all(engine: Engine, decider: Asked | None, instance: str | None) -> ReplayReport:
    """Take up again what is dead now, each at most once; what cannot be replayed is skipped."""
    replayed = 0
    skipped: list[SkippedLetter] = []
    for id in _ids(engine, *_filters(engine, decider, instance)):
        try:
            replay(engine, id)
            replayed += 1
        except (NotADeadLetter, InvalidState, RunNotFound) as error:
            skipped.append(SkippedLetter(id, str(error)))
    return ReplayReport(replayed, tuple(skipped))


def _ids(engine: Engine, type: str, run_id: str) -> Iterator[str]:
    """The letters that are dead at the first look, longest ago first, each once.

    A letter that is replayed and given up again in the meantime is not replayed twice.
    """
    _ = engine.services
    newest = engine.store.dead_letters(type=type, run_id=run_id, limit=1)
    place = (0, "", "")
    seen: set[str] = set()
    while newest:
        rows = engine.store.walk_dead(
            type=type, run_id=run_id, beyond=place, until=newest[0].finished_at, limit=ALL_AT_ONCE
        )
        for row in rows:
            place = row.place
            id = f"{row.run_id}/{row.node}"
            if id not in seen:
                seen.add(id)
                yield id
        if len(rows) < ALL_AT_ONCE:
            return


def discard(engine: Engine, letter: DeadLetter | str) -> None:
    """Discard one; an inbox continues after the input that blocked it."""
    engine.change(DiscardLetter(*_place(letter)))


def backlogs(engine: Engine) -> list[Backlog]:
    """The inboxes in which something waits, one line for each decider."""
    _ = engine.services
    now = engine.clock.now()
    return [
        Backlog(row.type, row.pending, row.instances, timedelta(microseconds=max(0, now - row.oldest)))
        for row in engine.store.inboxes()
    ]


def _filters(engine: Engine, decider: Asked | None, instance: str | None) -> tuple[str, str]:
    """The decider's name and the instance's run; empty if all are asked for."""
    if instance is not None and decider is None:
        raise ConfigurationError(f"instance={instance!r} needs the decider that it belongs to")
    name = _name(engine, decider)
    return name, "" if instance is None else f"{name}:{instance}"


def _name(engine: Engine, decider: Asked | None) -> str:
    if decider is None or isinstance(decider, str):
        return decider or ""  # of a decider that the app no longer includes they can be asked for, too
    return engine.registry.decider(decider).name


def _place(letter: DeadLetter | str) -> tuple[str, str]:
    id = letter if isinstance(letter, str) else letter.id
    run_id, slash, node = id.rpartition("/")
    if not slash:
        raise NotADeadLetter(id, "not the id of a letter, such as order:o-1/effect:3.0")
    return run_id, node


def _shown(row: DeadRow) -> DeadLetter:
    mark = {EFFECT: "!", INBOX: "<"}.get(row.kind, "@")
    return DeadLetter(
        id=f"{row.run_id}/{row.node}",
        decider=row.type,
        instance=instance_of(row.run_id),
        kind=row.kind,
        type=row.job.partition(mark)[2] or INBOX,
        payload=row.input,
        error=None if row.error is None else decode_error(row.error),
        attempts=row.failures + row.recoveries + 1,
        at=from_micros(row.finished_at),
    )


class DeadLetters:
    """`app.dead_letters`: lists, replays and discards dead letters.

    for letter in app.dead_letters(Order, limit=10):
        app.dead_letters.replay(letter)
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(
        self, decider: Any = None, instance: str | None = None, *, limit: int | None = None
    ) -> list[DeadLetter]:
        """The latest first: all, those of a decider, those of an instance."""
        return dead_letters(self._engine, decider, instance, limit)

    def count(self, decider: Any = None) -> int:
        """How many dead letters there are, of one decider or of all."""
        return count_dead(self._engine, decider)

    def replay(self, letter: DeadLetter | str) -> None:
        """Try a letter again with a new retry budget; NotADeadLetter if it is executing or done."""
        replay(self._engine, letter)

    def replay_all(self, decider: Any = None, instance: str | None = None) -> ReplayReport:
        """Try the current dead letters again, each once: all, those of a decider, or those of an instance.

        A letter that cannot be replayed (its instance was canceled, another caller was faster) is skipped,
        and listed with the reason.
        """
        return replay_all(self._engine, decider, instance)

    def discard(self, letter: DeadLetter | str) -> None:
        """Remove a letter.  An inbox continues after the input that blocks it."""
        discard(self._engine, letter)
