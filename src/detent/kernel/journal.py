"""The journal: matching what a replay asks for to what was recorded.

A step is known by its name and by how often it was asked for in its scope:
`charge`, `charge#2`.  So adding a step to the code does not move the others.

A scope is the main line of the workflow, or one task that it started; tasks
count for themselves, because which of two gets on first may differ from replay
to replay.  The main line writes `charge#2`, a task of `branch()` writes
`branch:charge#2`, the next one `branch#2:charge#2`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .rows import Step, StepState

FINAL = (StepState.COMPLETED, StepState.FAILED)
# Entries whose sequence number is the place of their answer in the recorded order.
ANSWERS = ("step", "receive", "publish", "append", "send", "result", "first")
# Entries that only give the place of an answer whose own entry does not: the end of a sleep, of spawned
# work, of a child; and the cancellation of a call by the workflow's own code.
ORDER, CANCEL = "order", "cancel"
ACCEPTED = "accepted"  # an operator accepted that the code differs from what was recorded before
# What the code asked for as a point of its own way; values, marks and places only go along.
REFUSED = "refused"  # a child that was not started: its id belongs to another run
POINTS = ("step", "spawn", "child", REFUSED, "sleep", "receive", "publish", "append", "send")
NAMED = ("receive", "publish", "append", "send")  # their keys end with a name that users choose


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A place in the recorded order: the call that was answered then."""

    seq: int
    key: str
    canceled: bool = False  # by the workflow's own code, after `lasted` microseconds
    lasted: int = 0


def order_key(key: str) -> str:
    """Where the place of a call's answer is recorded, if its own entry does not tell."""
    return f"{ORDER}/{key}"


def cancel_key(key: str) -> str:
    """Where it is recorded that the workflow's own code cancelled a call."""
    return f"{CANCEL}/{key}"


class Scope:
    """One line of calls: counts names, and the tasks that it started."""

    __slots__ = ("_children", "_counts", "path")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._counts: dict[str, int] = {}
        self._children: dict[str, int] | None = None  # most lines start no tasks

    def key(self, name: str) -> str:
        """The key of the next call of `name`."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        key = name if count == 1 else f"{name}#{count}"
        return f"{self.path}{key}"

    def child(self, name: str) -> Scope:
        """The scope of the next task of a function of that name."""
        if self._children is None:
            self._children = {}
        count = self._children.get(name, 0) + 1
        self._children[name] = count
        return Scope(f"{self.path}{name if count == 1 else f'{name}#{count}'}:")


class Journal:
    """What a run has recorded so far, and what this replay has asked for."""

    __slots__ = ("_asked", "_entries", "_seq", "has_cancels")

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._entries = {step.key: step for step in steps}
        self._seq = 0
        self._asked: set[str] = set()
        self.has_cancels = False
        if self._entries:
            self._seq = max(step.seq for step in self._entries.values())
            self.has_cancels = any(step.kind == CANCEL for step in self._entries.values())

    def __bool__(self) -> bool:
        """Whether anything is recorded."""
        return bool(self._entries)

    def find(self, key: str) -> Step | None:
        """What is recorded under `key`; asking marks it as still wanted by the code."""
        self._asked.add(key)
        return self._entries.get(key)

    def peek(self, key: str) -> Step | None:
        """The same without asking for it."""
        return self._entries.get(key)

    def put(self, step: Step) -> Step:
        """Take over an entry that is durable now."""
        self._entries[step.key] = step
        if step.kind == CANCEL:
            self.has_cancels = True
        return step

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def completed(self) -> list[Step]:
        """What succeeded, in the order of its recording."""
        done = [step for step in self._entries.values() if step.state == StepState.COMPLETED]
        return sorted(done, key=lambda step: step.seq)

    def undoable(self) -> bool:
        """Whether something succeeded that has a compensation."""
        for step in self._entries.values():
            if step.undo is not None and step.state == StepState.COMPLETED:
                return True
        return False

    def answers(self) -> list[Answer]:
        """What was answered, in the recorded order, and not asked for in this replay yet."""
        found = {}
        for step in self._entries.values():
            if step.kind == CANCEL:
                key = step.key.removeprefix(cancel_key(""))
                lasted = (step.finished_at or 0) - (step.started_at or 0)
                found[key] = Answer(step.seq, key, canceled=True, lasted=max(0, lasted))
        for step in self._entries.values():
            key = step.key.removeprefix(order_key("")) if step.kind == ORDER else step.key
            if step.kind == ORDER or (step.kind in ANSWERS and step.state in FINAL):
                found.setdefault(key, Answer(step.seq, key))
        return sorted((one for one in found.values() if one.key not in self._asked), key=_place)

    def unasked(self) -> list[Step]:
        """What is recorded, and the code of today never asked for."""
        return [step for key, step in self._entries.items() if key not in self._asked]

    def skipped(self, line: str) -> list[Step]:
        """The recorded calls of one line that the code has not asked for, in the recorded order."""
        accepted = self.accepted
        found = [
            step
            for step in self.unasked()
            if step.kind in POINTS and step.seq >= accepted and line_of(step) == line
        ]
        return sorted(found, key=lambda step: step.seq)

    @property
    def accepted(self) -> int:
        """Up to which number an operator accepted that the code differs from the record."""
        marks = (step.seq for step in self._entries.values() if step.kind == ACCEPTED)
        return max(marks, default=0)


def line_of(step: Step) -> str:
    """The line that a step belongs to: `branch:` for `branch:charge#2`, nothing for the main line."""
    # The names of messages may have a colon of their own.
    own = step.key.rfind(f"{step.kind}/{step.name}") if step.kind in NAMED else -1
    end = own if own >= 0 else step.key.rfind(":") + 1
    return step.key[:end]


def _place(answer: Answer) -> int:
    return answer.seq
