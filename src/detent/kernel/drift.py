"""Drift: where today's code asks for something else than what a run recorded.

A replay runs a workflow's function against the journal of a run and executes nothing.
What it has seen comes here, and `judge` alone decides what of it is a difference:

    (recording, what was seen)  ->  differences

A line is the workflow's main line, or one task that it started.  Every line is answered
from the journal until it asks for what the journal does not hold as done: its edge.

    1. Other arguments than recorded, and a result that today's types cannot read, are
       differences at every place.
    2. When no line can continue, all that was recorded must have been asked for: something
       that comes first now was added before it.  Likewise where a line continues beyond what
       was not recorded (a value, a spawn) and then meets what was.
    3. When the function has come out, what was recorded and not asked for is a difference,
       except in lines that concurrency explains: one that the code canceled, or that had
       not ended when the function came out, may have got further in the recorded run.
    4. A run that is finished or failed must come out with that result or that error, and
       must not ask for more than was recorded.  A run in flight may stop at any edge, and
       come out with anything: its worker may have died just before it wrote that down.
    5. What the record cannot tell is not a difference: an end that came from outside (a
       deadline, a cancel), what a resume has set aside, and what follows a question that
       only the database could answer.

The replay itself tries every way of reading the record (replay.replayer), and what it
reports is what none of them explains: code that has not changed is never reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec import field

from ..serialization.decoders import decode
from .journal import FINAL, POINTS, line_of
from .rows import Error, RunRow, RunState, Step

_SHOWN = 3  # keys that a line lists before it only counts
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
# Errors that neither the code nor the journal can raise again: the world was so at that moment.
_FROM_OUTSIDE = frozenset(
    "DeadlineExceeded AlreadyRunning RunConflict RunNotFound DatabaseUnavailable PayloadTooLarge "
    "UnknownDefinition UnknownQueue StepMismatch".split()
)
# Decoded after they are recorded: the recorded run may have met the same error there.
_READ_LATE = ("spawn", "child", "receive")


class Kind(StrEnum):
    ADDED = "added"  # asked for, and not recorded, before something that is, or in a run that is over
    UNASKED = "unasked"  # recorded, and not asked for any more
    ARGUMENTS = "arguments"  # asked for with other arguments than recorded
    UNREADABLE = "unreadable"  # recorded, and today's type cannot hold it
    OUTCOME = "outcome"  # the function comes out otherwise than the run did
    STUCK = "stuck"  # the code did not come to rest


class Difference(msgspec.Struct, frozen=True):
    """One place where the code does not follow the record; `step` is None for the run as a whole.

    for difference in drifted.value.differences:
        print(difference.step, difference.recorded, difference.now)
    """

    kind: Kind
    step: str | None
    recorded: str
    now: str

    def __str__(self) -> str:
        what = "the run" if self.step is None else self.step
        return f"{what}: {self.recorded}; the code now {self.now}"


class End(StrEnum):
    """How a replay ended."""

    RETURNED = "returned"
    RAISED = "raised"
    EDGE = "edge"  # the code asks for what is not recorded, or not done yet
    BLIND = "blind"  # the code asks what only the database could answer
    STUCK = "stuck"


class Replay(msgspec.Struct, frozen=True):
    """What came of a replay: where it ended, and the differences that it met.

    replayed = replay("run.json", fulfil)
    print(replayed.end, replayed.edge)
    """

    run_id: str
    workflow: str
    end: End
    edge: tuple[str, ...]  # what the code asks for next, one key for each line that stopped
    detail: str  # the value, the error, or what could not be known
    differences: tuple[Difference, ...]


class Recording(msgspec.Struct, frozen=True):
    """A run as it was recorded."""

    row: RunRow
    steps: tuple[Step, ...]
    as_of: int  # when it was read
    set_aside: frozenset[str] = frozenset()  # failures that a resume forgot
    resumed: bool = False

    @classmethod
    def of(
        cls, row: RunRow, steps: Iterable[Step], history: Iterable[tuple[int, str, str]], as_of: int
    ) -> Recording:
        forgotten, resumed = set(), False
        for _, event, detail in history:
            resumed = resumed or event == "resumed"
            if event == "set_aside":
                forgotten.add(msgspec.json.decode(detail, type=dict[str, object])["step"])
        return cls(row, tuple(steps), as_of, frozenset(str(key) for key in forgotten), resumed)

    @property
    def finished(self) -> bool:
        return self.row.state == RunState.FINISHED

    @property
    def failure(self) -> Error | None:
        """The error that the function came out with, where that is recorded."""
        begun = next((step for step in self.steps if step.kind == "undo" and step.key == "undo"), None)
        if begun is not None and begun.name == "undo":  # it is being undone, or was
            text = begun.error
        else:
            text = self.row.error if self.row.state == RunState.FAILED else None
        return None if text is None else decode(text, Error)

    @property
    def over(self) -> bool:
        """Whether it is recorded how the function came out."""
        return self.finished or self.failure is not None

    @property
    def last_moment(self) -> int:
        """Until when the run is known: its end, or when it was read."""
        moments = [moment for step in self.steps for moment in (step.started_at, step.finished_at) if moment]
        end = self.row.finished_at if self.row.finished_at is not None else self.as_of
        return max([end, *moments])

    @property
    def past_deadline(self) -> bool:
        return self.row.deadline is not None and self.row.deadline <= self.last_moment

    def points(self) -> list[Step]:
        """What the code must ask for, in the order in which it was recorded."""
        found = [step for step in self.steps if step.kind in POINTS]
        return sorted(found, key=lambda step: (step.started_at or step.finished_at or 0, step.seq))


class Seen(msgspec.Struct):
    """What a replay has seen."""

    end: End = End.STUCK
    detail: str = ""
    error: Error | None = None  # that the function came out with
    same_result: bool = False
    result: str = ""  # of the run, for people
    edge: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)  # lines that concurrency explains
    loose: bool = False  # lines could not be told apart: what was not asked for says nothing
    ahead: str | None = None  # what the main line asked for last that was not recorded
    added: dict[str, str] = field(default_factory=dict)  # what was not recorded, before what was
    found: list[Difference] = field(default_factory=list)
    unreadable: list[tuple[Step, str]] = field(default_factory=list)


def judge(recording: Recording, seen: Seen) -> tuple[Difference, ...]:
    """Return the differences between the record and what a replay has seen."""
    found = [*seen.found, *(_added(key, [before]) for key, before in seen.added.items())]
    if seen.end is End.BLIND:
        return (*found, *_unreadable(seen.unreadable))
    if seen.end is End.STUCK:
        stuck = Difference(Kind.STUCK, None, f"recorded as {recording.row.state}", seen.detail)
        return (*found, *_unreadable(seen.unreadable), stuck)
    missed = _unasked(recording, seen)
    missed += _outcome(recording, seen, told=bool(missed))
    read = _unreadable(_unexplained(recording, seen, followed=not missed))
    if read and seen.error is not None and _short(seen.error.type) == "CannotDecode":
        missed = []  # what follows from it
    return (*found, *read, *missed)


def _unasked(recording: Recording, seen: Seen) -> list[Difference]:
    """Rules 2 and 3."""
    points = recording.points()
    left = [step for step in points if step.key not in seen.asked]
    if recording.resumed:  # with failures set aside, concurrent code may take another way than before
        left = [step for step in left if step.state in FINAL]
    left = [step for step in left if not line_of(step).startswith(tuple(seen.excused))]
    if not left or seen.loose:
        return []
    if seen.end is not End.EDGE:
        return [_gone(step, f"{_verb(seen)} without it") for step in left]
    if any(_unsettled(recording, key) for key in seen.edge):
        return []
    # What comes after all that was asked for may still be asked for, behind what was added.
    asked = [number for number, step in enumerate(points) if step.key in seen.asked]
    later = [step.key for step in points[max(asked, default=-1) + 1 :] if step in left]
    gone = [_gone(step, "continues without it") for step in left if step.key not in later]
    return [*gone, *(_added(key, later) for key in seen.edge[:1] if later)]


def _gone(step: Step, now: str) -> Difference:
    return Difference(Kind.UNASKED, step.key, f"recorded ({step.kind}, {step.state})", now)


def _unsettled(recording: Recording, key: str) -> bool:
    """Whether a resume has set this aside: what it gives next time, the record cannot tell."""
    given_away = {step.key for step in recording.steps if step.kind in ("spawn", "child")}
    return key in recording.set_aside or (recording.resumed and key in given_away)


def _outcome(recording: Recording, seen: Seen, *, told: bool) -> list[Difference]:
    """Rule 4."""
    failure = recording.failure
    if not recording.over or recording.past_deadline:
        return []
    if failure is not None:
        if _short(failure.type) in _FROM_OUTSIDE or _same_error(failure, seen.error):
            return []
        recorded = f"failed with {_short(failure.type)}: {failure.message}"
    else:
        if seen.end is End.RETURNED and seen.same_result:
            return [] if seen.ahead is None else [_more("finished without it", seen.ahead)]
        recorded = f"returned {seen.result}"
    if seen.end is not End.EDGE:
        return [Difference(Kind.OUTCOME, None, recorded, _verb(seen))]
    if told or seen.loose:
        return []  # that something was added is said already
    return [_more(f"not recorded as done, and the run {recorded}", key) for key in seen.edge[:1]]


def _more(recorded: str, key: str) -> Difference:
    return Difference(Kind.ADDED, key, recorded, "requests it")


def _verb(seen: Seen) -> str:
    return f"{'returns' if seen.end is End.RETURNED else 'raises'} {seen.detail}"


def _added(key: str, others: list[str]) -> Difference:
    names = ", ".join(repr(other) for other in others[:_SHOWN])
    names += f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    return Difference(Kind.ADDED, key, f"not recorded as done, unlike {names}", "requests it first")


def _unexplained(recording: Recording, seen: Seen, *, followed: bool) -> list[tuple[Step, str]]:
    """What cannot be read, unless the recorded run met the same and the code went on as recorded."""
    failed = recording.failure
    if failed is not None and followed and _short(failed.type) == "CannotDecode":
        return []
    comes_out = seen.error is not None and _short(seen.error.type) == "CannotDecode"
    late = followed and (recording.over or not comes_out)
    return [(step, why) for step, why in seen.unreadable if not (late and step.kind in _READ_LATE)]


def _unreadable(found: list[tuple[Step, str]]) -> list[Difference]:
    return [
        Difference(
            Kind.UNREADABLE, step.key, f"recorded ({step.kind}, {step.state})", f"cannot read it: {why}"
        )
        for step, why in found
    ]


def _same_error(recorded: Error, seen: Error | None) -> bool:
    """The same class and message; where it was imported from, and addresses in memory, do not count."""
    if seen is None or _short(recorded.type) != _short(seen.type):
        return False
    if _short(seen.type) in ("ExceptionGroup", "BaseExceptionGroup"):
        return True  # how many of several failures it holds is a matter of time
    return _ADDRESS.sub("0x", recorded.message) == _ADDRESS.sub("0x", seen.message)


def _short(type: str) -> str:
    return type.rpartition(".")[2]
