"""What a decider's instances come to, in plain Python.

The model is told of each operation in the order in which the store took them, and says what the answer must
be.  It asks the same decider, and shares nothing else with Detent: no rows, no leases, no batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

from detent.clock import from_micros, to_micros
from detent.definitions.decisions import Decision, Timer, TimerCancelled
from tests.simulation.clerk import PATIENT, Clerk, Errand, Input, Refused, State

INBOX = "inbox"
_MICROSECOND = timedelta(microseconds=1)


class Fact(NamedTuple):
    """An event, and where it stands."""

    instance: str
    sequence: int
    event: Any
    cause: str
    at: int


class Stale(Exception):
    """Nobody waits for this any more."""


@dataclass
class Letter:
    """A timer, an effect or an inbox, until it is done."""

    node: str
    due: int
    content: Any = None  # the input of a timer, the effect
    key: str | None = None
    attempt: int = 1
    failures: int = 0

    @property
    def kind(self) -> str:
        return self.node.partition(":")[0]


@dataclass
class Instance:
    id: str
    state: State
    sequence: int = 0
    letters: dict[str, Letter] = field(default_factory=dict)
    dead: dict[str, Letter] = field(default_factory=dict)
    inbox: dict[str, Input] = field(default_factory=dict)  # by their ids, in the order of arrival
    emptied: int = 0  # how often somebody was called to empty the inbox
    caused: dict[str, list[Any]] = field(default_factory=dict)  # by the ids of inputs

    @property
    def timers(self) -> dict[str, Letter]:
        return {node: letter for node, letter in self.letters.items() if letter.kind == "timer"}


class Drained(NamedTuple):
    applied: int
    refused: bool
    more: bool


class Model:
    """All instances, and everything that happened, in order."""

    def __init__(self, clerk: Clerk) -> None:
        self.clerk = clerk
        self.log: list[Fact] = []
        self.instances: dict[str, Instance] = {}

    def instance(self, id: str) -> Instance:
        """An instance as it is; one that nobody knows is not begun by looking."""
        return self.instances.get(id) or Instance(id, self.clerk.initial())

    # -- Inputs ------------------------------------------------------------------------------------

    def execute(self, input: Input, input_id: str | None, now: int) -> list[Any]:
        instance = self.instance(self.clerk.route(input))
        if input_id is not None and input_id in instance.caused:
            return []
        self._catch_up(instance, now)
        events = self._turn(instance, input, now)
        if input_id is not None:
            instance.caused[input_id] = events
        return events

    def _catch_up(self, instance: Instance, now: int) -> None:
        """What arrived in the inbox earlier comes first, up to what cannot be decided."""
        if instance.state.over or INBOX in instance.dead:
            return
        for input_id, input in list(instance.inbox.items()):
            try:
                self._turn(instance, input, now)
            except Refused:
                return
            del instance.inbox[input_id]

    def enqueue(self, input: Input, input_id: str, now: int) -> bool:
        """Whether it is new."""
        instance = self.instance(self.clerk.route(input))
        if input_id in instance.caused:
            return False
        self.instances[instance.id] = instance
        instance.caused[input_id] = []
        if instance.state.over:
            return True
        instance.inbox[input_id] = input
        if INBOX not in instance.letters and INBOX not in instance.dead:
            instance.emptied += 1
            instance.letters[INBOX] = Letter(INBOX, now, attempt=instance.emptied)
        return True

    def _turn(self, instance: Instance, input: Input, now: int) -> list[Any]:
        if instance.state.over:
            return []
        decision = self.clerk.decide(instance.state, input, from_micros(now))
        self.instances[instance.id] = instance
        for event in decision.events:
            self._append(instance, event, input, now)
            instance.state = self.clerk.evolve(instance.state, event)
        for key in dict.fromkeys(decision.cancels):
            if self._silence(instance, key):
                self._append(instance, TimerCancelled(key), input, now)
        self._send_out(instance, decision, now)
        if instance.state.over:
            for timers in (instance.letters, instance.dead):
                for node in [node for node, letter in timers.items() if letter.kind == "timer"]:
                    del timers[node]
        return list(decision.events)

    def _append(self, instance: Instance, event: Any, input: Input, now: int) -> None:
        instance.sequence += 1
        self.log.append(Fact(instance.id, instance.sequence, event, type(input).__name__, now))

    def _silence(self, instance: Instance, key: str) -> bool:
        """Cancel the timer with this key, also a dead one; say whether there was one."""
        found = [
            (letters, node)
            for letters in (instance.letters, instance.dead)
            for node, letter in letters.items()
            if letter.kind == "timer" and letter.key == key
        ]
        for letters, node in found:
            del letters[node]
        assert len(found) <= 1
        return bool(found)

    def _send_out(self, instance: Instance, decision: Decision, now: int) -> None:
        last = instance.sequence
        for number, timer in enumerate(_lasting(decision.timers)):
            if timer.key is not None:
                self._silence(instance, timer.key)
            span = timer.after or timedelta()
            due = to_micros(timer.at) if timer.at is not None else now + span // _MICROSECOND
            node = f"timer:{last}.{number}"
            instance.letters[node] = Letter(node, due, timer.input, timer.key)
        for number, effect in enumerate(decision.effects):
            node = f"effect:{last}.{number}"
            instance.letters[node] = Letter(node, now, effect)

    # -- Letters -----------------------------------------------------------------------------------

    def held(self, id: str, node: str, attempt: int) -> Letter:
        """The letter, if that is the attempt that counts."""
        letter = self.instance(id).letters.get(node)
        if letter is None or letter.attempt != attempt:
            raise Stale
        return letter

    def brings(self, id: str, letter: Letter, input: Input, now: int) -> list[Any]:
        """A timer fires, or an effect is answered: it is over with the decision, or nothing happened."""
        instance = self.instance(self.clerk.route(input))
        self._catch_up(instance, now)
        letters = self.instances[id].letters
        if letter.node not in letters:
            raise Stale  # what came from the inbox has cancelled the timer
        del letters[letter.node]
        try:
            return self._turn(instance, input, now)
        except Refused:
            letters[letter.node] = letter
            raise

    def drain(self, id: str, inputs: list[str], now: int) -> Drained:
        instance = self.instances[id]
        applied = 0
        for input_id in inputs:
            if input_id not in instance.inbox:
                continue  # somebody else has decided it
            try:
                self._turn(instance, instance.inbox[input_id], now)
            except Refused:
                return Drained(applied, True, True)
            del instance.inbox[input_id]
            applied += 1
        if not instance.inbox:
            del instance.letters[INBOX]
        return Drained(applied, False, bool(instance.inbox))

    def succeeded(self, id: str, letter: Letter) -> None:
        effect: Errand = letter.content
        assert not effect.fails_at(letter.attempt)
        assert effect.answer is None, "it had an answer, that nobody decided"
        del self.instances[id].letters[letter.node]

    def failed(self, id: str, letter: Letter, now: int) -> bool:
        """Whether it is tried again."""
        retry = self.clerk.retry if letter.kind == "effect" else PATIENT
        letter.failures += 1
        wait = retry.wait_after(letter.failures, Refused())
        if wait is None or (isinstance(letter.content, Errand) and letter.content.hopeless):
            self.give_up(id, letter)
            return False
        letter.attempt += 1
        letter.due = now + wait // _MICROSECOND
        if letter.kind == INBOX:
            self.instances[id].emptied += 1
        return True

    def give_up(self, id: str, letter: Letter) -> None:
        del self.instances[id].letters[letter.node]
        self.instances[id].dead[letter.node] = letter

    def replay(self, id: str, node: str, now: int) -> None:
        """A dead letter is taken up again, as if it had never failed."""
        instance = self.instances[id]
        letter = instance.dead.pop(node)
        instance.letters[node] = replace(letter, attempt=letter.attempt + 1, failures=0, due=now)
        if node == INBOX:
            instance.emptied += 1

    def discard(self, id: str, node: str, now: int) -> None:
        """It is thrown away; of an inbox the input that is in the way."""
        instance = self.instances[id]
        if node != INBOX:
            del instance.dead[node]
            return
        for input_id in list(instance.inbox)[:1]:
            del instance.inbox[input_id]
        self.replay(id, node, now)

    def recovered(self, id: str, letter: Letter, due: int) -> None:
        """Its worker died."""
        letter.attempt += 1
        letter.due = due
        if letter.kind == INBOX:
            self.instances[id].emptied += 1


def _lasting(timers: tuple[Timer, ...]) -> list[Timer]:
    """Those of a decision that are not replaced within it, each where the first of its key stood."""
    lasting: dict[Any, Timer] = {}
    for number, timer in enumerate(timers):
        lasting[timer.key or number] = timer
    return list(lasting.values())
