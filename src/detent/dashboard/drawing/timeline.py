"""The timeline of a run: one row for each node or step, one bar for each attempt, idle time folded.

Time is mapped to a scale from 0 to `WIDTH`.  A stretch in which nothing happens, and that would take more
than a fraction of the scale, is drawn with a fixed width and labelled with its length: a run that slept for
two days shows its work, not the days.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 1000.0
FOLDED = 44.0  # the width of a folded stretch
WORTH_FOLDING = 0.2  # of all time: a shorter stretch is drawn as it is ...
WORTH_SECONDS = 1.0  # ... and so is one of less than a second
LABEL = 60.0  # the room that a label on the axis takes
SHORTEST = 2.0  # the width of the shortest bar
MOST_ROWS = 300


@dataclass(frozen=True, slots=True)
class Span:
    """An attempt: queued until `started`, then running until `ended`.  Times are seconds."""

    row: str
    label: str
    state: str
    attempt: int
    queued: float | None  # due then; None if not known
    started: float | None
    ended: float | None  # None: it has not ended
    waits: bool = False  # a sleep or a wait for a message: it takes no worker


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a row: x and width on the scale."""

    x: float
    width: float
    kind: str  # queue, run, wait
    state: str
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """A node or a step, with its bars."""

    id: str
    label: str
    state: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """A stretch of time that is not drawn to scale."""

    x: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the axis: seconds since the beginning."""

    x: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline:
    rows: tuple[Row, ...]
    folds: tuple[Fold, ...]
    ticks: tuple[Tick, ...]
    seconds: float  # from the beginning to the end
    hidden: int  # rows that are not shown


def timeline(spans: Sequence[Span], *, begin: float, end: float, fold: bool = True) -> Timeline:
    """Draw these attempts between two moments."""
    end = max(end, begin + 0.001)
    scale = Scale(_busy(spans, begin, end), begin, end, fold=fold)
    rows: dict[str, list[Span]] = {}
    for span in spans:
        rows.setdefault(span.row, []).append(span)
    shown = list(rows.items())[:MOST_ROWS]
    drawn = tuple(
        Row(id, own[-1].label, own[-1].state, tuple(bar for span in own for bar in _bars(span, scale, end)))
        for id, own in shown
    )
    return Timeline(drawn, scale.folds, tuple(scale.ticks()), end - begin, len(rows) - len(shown))


def _busy(spans: Iterable[Span], begin: float, end: float) -> list[tuple[float, float]]:
    """The stretches in which something runs or is due, merged."""
    stretches = [(begin, begin), (end, end)]
    for span in spans:
        if span.started is None:
            if span.queued is not None:
                stretches.append((min(span.queued, end), min(span.queued, end)))
            continue
        first = min(span.queued, span.started) if span.queued is not None else span.started
        last = end if span.ended is None else span.ended
        # The ends of a wait are moments; between them nothing happens.
        stretches += [(first, first), (last, last)] if span.waits else [(first, last)]
    merged: list[tuple[float, float]] = []
    for first, last in sorted((max(begin, a), min(end, b)) for a, b in stretches):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


class Scale:
    """Maps moments to places; longer idle stretches have a fixed width."""

    def __init__(self, busy: Sequence[tuple[float, float]], begin: float, end: float, *, fold: bool) -> None:
        idle = [(a[1], b[0]) for a, b in itertools.pairwise(busy)]
        total = end - begin
        folded = [one for one in idle if fold and one[1] - one[0] > max(total * WORTH_FOLDING, WORTH_SECONDS)]
        left = total - sum(b - a for a, b in folded)
        room = max(WIDTH / 3, WIDTH - FOLDED * len(folded))
        # A run that only waits has nothing else to draw: then the time is drawn as it is.
        if left < total * 1e-9:
            folded, left, room = [], total, WIDTH
        self._rate = room / left
        # Moments and their places: the beginning, then the two ends of each fold.
        self._marks: list[tuple[float, float]] = [(begin, 0.0)]
        self.folds: tuple[Fold, ...] = ()
        width = FOLDED if room == WIDTH - FOLDED * len(folded) else (WIDTH - room) / max(1, len(folded))
        for a, b in folded:
            x = self.at(a)
            self._marks += [(a, x), (b, x + width)]
            self.folds += (Fold(round(x, 2), round(width, 2), b - a),)
        self._begin, self._end = begin, end

    def at(self, moment: float) -> float:
        """The place of a moment: linear between two marks."""
        for (a, x), (b, y) in zip(self._marks, self._marks[1:], strict=False):
            if moment <= b:
                return x if b == a else x + (moment - a) / (b - a) * (y - x)
        last, x = self._marks[-1]
        return x + max(0.0, moment - last) * self._rate

    def ticks(self) -> Iterable[Tick]:
        """Marks at round distances, none inside a fold."""
        step = _round_step((self._end - self._begin - sum(fold.seconds for fold in self.folds)) / 5)
        at, last = self._begin, -1000.0
        while at <= self._end and step > 0:
            x = self.at(at)
            if x - last >= WIDTH / 8 and not any(
                f.x - LABEL < x < f.x + f.width + LABEL / 2 for f in self.folds
            ):
                yield Tick(round(x, 2), at - self._begin)
                last = x
            following = at + step
            jump = self._behind_fold(at, following)
            at = following if jump is None else jump

    def _behind_fold(self, at: float, following: float) -> float | None:
        """The end of a fold that begins between two marks: a wait of years has no marks inside."""
        folds = zip(self._marks[1::2], self._marks[2::2], strict=True)
        return next((b for (a, _), (b, _) in folds if at <= a < following), None)


def _round_step(seconds: float) -> float:
    for step in (
        *(n * 10.0**e for e in range(-3, 1) for n in (1, 2, 5)),
        15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800,
    ):  # fmt: skip
        if step >= seconds:
            return float(step)
    return seconds


def _bars(span: Span, scale: Scale, end: float) -> Iterable[Bar]:
    if span.queued is not None and (span.started is None or span.started - span.queued > 0.0005):
        until = end if span.started is None else span.started
        if until > span.queued:
            yield _bar(span, scale, span.queued, until, "queue")
    if span.started is not None:
        kind = "wait" if span.waits else "run"
        yield _bar(span, scale, span.started, end if span.ended is None else span.ended, kind)


def _bar(span: Span, scale: Scale, a: float, b: float, kind: str) -> Bar:
    x, y = scale.at(a), scale.at(max(a, b))
    width = max(SHORTEST if kind != "queue" else 0.5, y - x)
    x = min(x, WIDTH - width)
    return Bar(round(x, 2), round(width, 2), kind, span.state, span.attempt, max(0.0, b - a))
