"""The state machine of a decider: what it declares, what was seen of it, and where the two differ.

    (declared transitions, transitions that happened)  ->  StateMachine  ->  Mermaid, DOT

What happened is told by the events of an instance: those of one decision share a turn, and
name the input that led to them; so a turn is a step from the status before its first event
to the status after its last.

Nothing here reads a clock, opens a connection, or knows whose statuses these are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from .decide import BoundDecider, EventRow
from .drawing import quoted

_SEEN = "#5b6770"
_UNSEEN = "#9aa0a6"
_UNDECLARED = "#d64545"
_DIRECTION = re.compile(r"(direction)\s", re.IGNORECASE)
_SAFE = frozenset(" _-.,()/+!?'")  # beside letters and digits: what Mermaid takes as it is


@dataclass(frozen=True, slots=True)
class TransitionInfo:
    """In status `source`, `input` leads to `target`: declared, or seen `count` times, or both.

    for one in app.deciders.machine(Order).undeclared:
        print(one.source, one.input, one.target, one.count)
    """

    source: str
    input: str
    target: str
    count: int = 0
    effects: tuple[str, ...] = ()
    timers: tuple[str, ...] = ()
    declared: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from other transitions: source, input and target."""
        return self.source, self.input, self.target


@dataclass(frozen=True, slots=True)
class StateInfo:
    """A status: whether it is initial, terminal, declared, and seen.

    for state in app.deciders.machine(Order).states:
        print(state.status, state.terminal)
    """

    status: str
    initial: bool = False
    terminal: bool = False
    declared: bool = False
    seen: bool = False


class HistoryStep(msgspec.Struct, frozen=True):
    """One decision of an instance: the input that led to it, and the statuses before and after."""

    sequence: int  # of its first event
    cause: str
    source: str
    target: str
    events: tuple[str, ...]
    happened_at: int
    terminal: bool


class Trace:
    """Follows one instance, event by event; what it has read it need not keep."""

    def __init__(self, bound: BoundDecider) -> None:
        self._bound = bound
        self._turn: list[EventRow] = []
        self._before = ""
        self.state = bound.initial()
        self.sequence = 0

    def feed(self, rows: Iterable[EventRow]) -> Iterator[HistoryStep]:
        """The decisions that these events complete; the last one is complete when another begins."""
        for row in rows:
            if self._turn and row.turn != self._turn[0].turn:
                yield self._step()
            if not self._turn:
                self._before = self._bound.status(self.state)
            self.state = self._bound.fold(self.state, [row])
            self.sequence = row.sequence
            self._turn.append(row)

    def end(self) -> Iterator[HistoryStep]:
        """The last decision, where there is one."""
        if self._turn:
            yield self._step()

    def _step(self) -> HistoryStep:
        first = self._turn[0]
        step = HistoryStep(
            sequence=first.sequence,
            cause=first.cause,
            source=self._before,
            target=self._bound.status(self.state),
            events=tuple(row.type for row in self._turn),
            happened_at=first.happened_at,
            terminal=self._bound.terminal(self.state),
        )
        self._turn = []
        return step


@dataclass(slots=True)
class Sightings:
    """Transitions that were seen, counted; and the statuses in which instances ended."""

    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    terminal: set[str] = field(default_factory=set)

    def add(self, source: str, input: str, target: str, *, count: int = 1, terminal: bool = False) -> None:
        key = (source, input, target)
        self.counts[key] = self.counts.get(key, 0) + count
        if terminal:
            self.terminal.add(target)


@dataclass(frozen=True)
class StateMachineView:
    """The state machine of a decider: declared and seen transitions.

        view = app.deciders.machine(Order)
        view.undeclared          # seen, but not declared
        view.unseen              # declared, but never seen
        print(view.to_mermaid())

    If a decider declares no transitions, `undeclared` is empty.
    """

    decider: str
    states: tuple[StateInfo, ...]
    transitions: tuple[TransitionInfo, ...]
    unreadable: Mapping[str, Exception] = field(default_factory=dict)  # instances that could not be followed

    @property
    def declared(self) -> tuple[TransitionInfo, ...]:
        """The declared transitions, with their counts."""
        return tuple(edge for edge in self.transitions if edge.declared)

    @property
    def observed(self) -> tuple[TransitionInfo, ...]:
        """The seen transitions."""
        return tuple(edge for edge in self.transitions if edge.count)

    @property
    def undeclared(self) -> tuple[TransitionInfo, ...]:
        """The transitions that were seen, but are not declared."""
        if not self.declared:
            return ()
        return tuple(edge for edge in self.transitions if not edge.declared)

    @property
    def unseen(self) -> tuple[TransitionInfo, ...]:
        """The transitions that are declared, but were never seen."""
        return tuple(edge for edge in self.transitions if not edge.count)

    def to_mermaid(self) -> str:
        """A Mermaid state diagram, for Markdown.

        Mermaid draws all arrows alike, so the label says if a transition was never seen or is not
        declared; statuses that were never seen are dashed, undeclared ones red.
        """
        short = self._short()
        wrong = {edge.key for edge in self.undeclared}
        lines = ["stateDiagram-v2"]
        lines += [f'    state "{_mermaid(state.status)}" as {short[state.status]}' for state in self.states]
        lines += [f"    [*] --> {short[state.status]}" for state in self.states if state.initial]
        for edge in self.transitions:
            label = _label(edge)
            if edge.key in wrong:
                label = f"{label}\n! not declared"
            elif not edge.count:
                label = f"{label}\n(never seen)"
            lines.append(f"    {short[edge.source]} --> {short[edge.target]} : {_mermaid(label)}")
        lines += [f"    {short[state.status]} --> [*]" for state in self.states if state.terminal]
        return "\n".join([*lines, *self._classes(short)]) + "\n"

    def _classes(self, short: Mapping[str, str]) -> list[str]:
        styles = {
            "unseen": f"stroke-dasharray:5 5,stroke:{_UNSEEN}",
            "undeclared": f"stroke:{_UNDECLARED},color:{_UNDECLARED}",
        }
        lines = []
        for name, style in styles.items():
            found = [short[state.status] for state in self.states if self._class(state) == name]
            if found:
                lines += [f"    classDef {name} {style}", f"    class {','.join(found)} {name}"]
        return lines

    def _class(self, state: StateInfo) -> str:
        if not state.seen:
            return "unseen"
        return "undeclared" if self.declared and not state.declared else "seen"

    def to_dot(self) -> str:
        """A graph for Graphviz: never seen transitions are dashed, undeclared ones red."""
        short = self._short()
        wrong = {edge.key for edge in self.undeclared}
        colours = {"unseen": _UNSEEN, "undeclared": _UNDECLARED, "seen": _SEEN}
        lines = [f"digraph {quoted(self.decider)} {{", "    rankdir=LR;", "    node [shape=box];"]
        for state in self.states:
            kind = self._class(state)
            style = "rounded,dashed" if kind == "unseen" else "rounded"
            double = ", peripheries=2" if state.terminal else ""
            lines.append(
                f"    {short[state.status]} [label={quoted(state.status)}, "
                f'style="{style}", color="{colours[kind]}"{double}];'
            )
            if state.initial:
                lines += ["    begin [shape=point];", f"    begin -> {short[state.status]};"]
        for edge in self.transitions:
            kind = "undeclared" if edge.key in wrong else "seen" if edge.count else "unseen"
            dashed = ", style=dashed" if kind == "unseen" else ""
            colour = f'color="{colours[kind]}", fontcolor="{colours[kind]}"'
            lines.append(
                f"    {short[edge.source]} -> {short[edge.target]} "
                f"[label={quoted(_label(edge))}, {colour}{dashed}];"
            )
        return "\n".join([*lines, "}"]) + "\n"

    def _short(self) -> dict[str, str]:
        """Names that no language reserves."""
        return {state.status: f"s{number}" for number, state in enumerate(self.states)}


def compare(
    decider: str,
    *,
    initial: str,
    declared: Iterable[TransitionInfo],
    seen: Sightings,
    unreadable: Mapping[str, Exception] | None = None,
) -> StateMachineView:
    """Lay what was seen over what is declared."""
    edges: dict[tuple[str, str, str], TransitionInfo] = {}
    for edge in declared:
        known = edges.get(edge.key, edge)
        effects = tuple(dict.fromkeys((*known.effects, *edge.effects)))
        timers = tuple(dict.fromkeys((*known.timers, *edge.timers)))
        edges[edge.key] = replace(
            edge, declared=True, count=seen.counts.get(edge.key, 0), effects=effects, timers=timers
        )
    for key, count in sorted(seen.counts.items()):
        edges.setdefault(key, TransitionInfo(*key, count=count))
    states = _states(initial, tuple(edges.values()), seen)
    return StateMachineView(decider, states, tuple(edges.values()), unreadable or {})


def _states(initial: str, edges: tuple[TransitionInfo, ...], seen: Sightings) -> tuple[StateInfo, ...]:
    """All statuses, in the order in which the edges name them; the initial one first."""
    names = dict.fromkeys((initial, *(status for edge in edges for status in (edge.source, edge.target))))
    said = {status for edge in edges if edge.declared for status in (edge.source, edge.target)}
    visited = {status for edge in edges if edge.count for status in (edge.source, edge.target)}
    left = {edge.source for edge in edges if edge.source != edge.target}
    return tuple(
        StateInfo(
            status,
            initial=status == initial,
            # Of a status that no instance was in, the declaration alone tells: nothing leads out of it.
            terminal=status in seen.terminal or (status in said - visited and status not in left),
            declared=status in said,
            seen=status in visited,
        )
        for status in names
    )


def _label(edge: TransitionInfo) -> str:
    """`Create × 3`, and below it what comes with it."""
    lines = [edge.input if not edge.count else f"{edge.input} × {edge.count}"]
    lines += [f"effect {name}" for name in edge.effects]
    lines += [f"timer {name}" for name in edge.timers]
    return "\n".join(lines)


def _mermaid(text: str) -> str:
    """Text that Mermaid cannot take for its own: by entities, as it spells them."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    shown = "<br/>".join("".join(map(_character, line)) for line in lines)
    # Its lexer looks for `direction LR` anywhere in a line, and takes no string that is empty.
    return _DIRECTION.sub(r"\1#32;", shown) or "(empty)"


def _character(char: str) -> str:
    if char.isalnum() or char in _SAFE or (ord(char) > 127 and char.isprintable()):
        return char
    return " " if ord(char) < 32 or not char.isprintable() else f"#{ord(char)};"
