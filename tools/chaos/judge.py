"""The verdict: what must hold of the ledger and of the log, and the figures."""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.acceptance.programs.effects import Effect

from . import workload

Step = tuple[str, str]


@dataclass
class Evidence:
    """All that a campaign leaves behind."""

    log: Sequence[Effect]
    ledger: Sequence[tuple[str, str]]
    states: Mapping[int, str]  # what Detent says of each run; "" where it does not know it
    faults: Sequence[int]  # when they were over, of the monotonic clock in nanoseconds
    killed: Mapping[int, Sequence[int]]  # process -> when it died; its number may be used again
    lossy: bool = False  # the database itself may have lost commits: then steps run again
    other: list[str] = field(default_factory=list)  # what went wrong beside


@dataclass
class Verdict:
    figures: dict[str, Any]
    broken: list[str]


def judge(evidence: Evidence) -> Verdict:
    """Hold the evidence against the promises."""
    numbers = sorted(evidence.states)
    begun = _begun(evidence.log)
    found = Counter(evidence.ledger)
    expected = Counter((workload.owner_of(n), place) for n in numbers for place in workload.expected(n))
    missing, surplus = expected - found, found - expected
    late = late_bodies(evidence.log)
    changed = changed_results(evidence.log)
    unexplained = unexplained_repeats(evidence)
    raised = [line for line in evidence.log if line.kind == "raised"]
    lost = [n for n in numbers if evidence.states[n] == ""]
    incomplete = {owner for owner, _ in missing}
    stuck = [n for n in numbers if workload.owner_of(n) in incomplete and n not in lost]
    ended = [n for n in numbers if workload.owner_of(n) not in incomplete]
    strange = {n: s for n, s in evidence.states.items() if s in ("failed", "paused", "canceled")}
    repeated = [step for step, lines in begun.items() if len(lines) > 1]
    transactional = [step for step in repeated if begun[step][0].kind == "begin tx"]
    waits = recoveries(evidence)

    figures = {
        "faults": len(evidence.faults),
        "runs started": len(numbers),
        "runs ended": len(ended),
        "runs stuck": len(stuck),
        "runs lost": len(lost),
        "runs failed, paused or canceled": len(strange),
        "starts repeated with the same id": _repeated_starts(evidence.log),
        "starts that raised": len(raised),
        "bodies executed": sum(map(len, begun.values())),
        "steps executed": len(begun),
        "steps executed more than once": len(repeated),
        "  of these transactional, rolled back before": len(transactional),
        "steps executed again after their record": len(late),
        "steps of a living worker executed again": len(unexplained),
        "results that changed": len(changed),
        "transactional effects expected": expected.total(),
        "transactional effects found": found.total(),
        "transactional effects missing": missing.total(),
        "transactional effects too many": surplus.total(),
        "time to recover, samples": len(waits),
        "time to recover, p50": _share(waits, 0.5),
        "time to recover, p95": _share(waits, 0.95),
        "time to recover, max": _share(waits, 1.0),
    }
    broken = [
        *_complain("runs are stuck", [(workload.run_id(n), evidence.states[n]) for n in stuck]),
        *_complain("runs are lost", [workload.run_id(n) for n in lost]),
        *_complain("runs ended otherwise", [(workload.run_id(n), s) for n, s in strange.items()]),
        *_complain("transactional effects are missing", sorted(missing)),
        *_complain("transactional effects are there too often", sorted(surplus)),
        *evidence.other,
    ]
    if not evidence.lossy:
        broken += [
            *_complain("steps ran again after their record", late),
            *_complain("steps of a living worker ran again", unexplained),
            *_complain("results changed", changed),
            *_complain("starts raised", [(line.run, line.value) for line in raised]),
        ]
    return Verdict(figures, broken)


def late_bodies(log: Sequence[Effect]) -> list[Effect]:
    """Bodies that began after their result was recorded, as a line of the workflow proves."""
    recorded: dict[Step, int] = {}
    for line in log:
        if line.kind == "returned":
            step = (line.run, line.place)
            recorded[step] = min(line.at, recorded.get(step, line.at))
    return [
        line
        for line in log
        if line.kind in ("begin", "begin tx") and line.at > recorded.get((line.run, line.place), line.at)
    ]


def changed_results(log: Sequence[Effect]) -> list[Step]:
    """Steps whose result was not the same each time that the workflow came by."""
    values: dict[Step, set[str]] = defaultdict(set)
    for line in log:
        if line.kind == "returned":
            values[line.run, line.place].add(line.value)
    return [step for step, seen in values.items() if len(seen) > 1]


def unexplained_repeats(evidence: Evidence) -> list[tuple[Effect, Effect]]:
    """Plain bodies that ran again though the process of the time before had not died."""
    return [
        (before, again)
        for lines in _begun(evidence.log).values()
        for before, again in pairwise(lines)
        if before.kind == "begin"
        and not before.run.startswith("ledger:")
        and not before.at <= _death(evidence, before) <= again.at
    ]


def recoveries(evidence: Evidence) -> list[float]:
    """Seconds, sorted.

    Where processes were killed: from the death to the moment at which a body that it interrupted runs
    again, one sample for each such body.  If the next worker that took it over was killed before the body
    began, the sample has both takeovers: with many kills a second, it is not the time of one.
    Elsewhere: from the end of the fault to the next result that some workflow received, which proves a
    commit, one sample for each fault.
    """
    if evidence.killed:
        return sorted(_interrupted(evidence))
    proofs = sorted(line.at for line in evidence.log if line.kind == "returned")
    places = [bisect_right(proofs, fault) for fault in evidence.faults]
    return sorted(
        (proofs[place] - fault) / 1e9
        for place, fault in zip(places, evidence.faults, strict=True)
        if place < len(proofs)
    )


def _interrupted(evidence: Evidence) -> Iterable[float]:
    ended = {(line.run, line.place, line.pid) for line in evidence.log if line.kind == "end"}
    for lines in _begun(evidence.log).values():
        for before, again in pairwise(lines):
            died = _death(evidence, before)
            interrupted = (before.run, before.place, before.pid) not in ended
            if before.kind == "begin" and interrupted and died < again.at:
                yield (again.at - died) / 1e9


def _death(evidence: Evidence, line: Effect) -> float:
    """When the process that wrote this line died; infinity where nobody killed it."""
    return min((at for at in evidence.killed.get(line.pid, ()) if at >= line.at), default=math.inf)


def _begun(log: Sequence[Effect]) -> dict[Step, list[Effect]]:
    begun: dict[Step, list[Effect]] = defaultdict(list)
    for line in log:
        if line.kind in ("begin", "begin tx"):
            begun[line.run, line.place].append(line)
    for lines in begun.values():
        lines.sort(key=lambda line: line.at)
    return begun


def _repeated_starts(log: Sequence[Effect]) -> int:
    tries = Counter(line.run for line in log if line.kind == "starting")
    return sum(count - 1 for count in tries.values())


def _share(sorted_values: Sequence[float], share: float) -> float | None:
    if not sorted_values:
        return None
    return round(sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))], 2)


def _complain(what: str, found: Sequence[Any]) -> list[str]:
    return [f"{len(found)} {what}: {found[:5]}"] if found else []
