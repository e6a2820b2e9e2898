"""`python -m tools.chaos FAULT --database DATABASE --count N`: one campaign, its figures, and its verdict."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from .campaign import Plan, conduct
from .faults import Clocks, Fault, Interrupts, Kill9, Sessions
from .judge import Verdict
from .places import DATABASES
from .server_faults import Bouncer, Freezes, FullDisk, Network, ReadOnly, Restarts
from .standby import Failover, SynchronousFailover

KINDS: tuple[type[Fault], ...] = (
    Kill9,
    Sessions,
    Interrupts,
    Clocks,
    Restarts,
    Freezes,
    ReadOnly,
    FullDisk,
    Bouncer,
    Network,
    SynchronousFailover,
    Failover,
)
FAULTS = {fault.name: fault for fault in KINDS}


# For `all`: how many of each, for a thousand processes that are killed.  The others take seconds each.
SHARES = {"kill9": 1.0, "sessions": 1.0, "interrupts": 1.0, "clocks": 0.2, "network": 0.06}
OTHER_SHARE = 0.02
LEAST = 3


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos")
    parser.add_argument("fault", choices=["all", *FAULTS], help="`all`: each kind, on each database")
    parser.add_argument("--database", choices=DATABASES, default=None, help="default: each of them")
    parser.add_argument("--count", type=int, default=100, help="how many faults; `all`: of the quick kinds")
    parser.add_argument("--seed", type=int, default=None, help="for the same choices as another campaign")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--mean", type=float, default=None, help="seconds between two faults, on average")
    parser.add_argument("--in-flight", type=int, default=60, help="runs at a time")
    parser.add_argument("--evidence", type=Path, default=Path(tempfile.gettempdir()) / "detent-chaos")
    given = parser.parse_args(arguments)
    broken = False
    for fault in KINDS if given.fault == "all" else [FAULTS[given.fault]]:
        count = given.count
        if given.fault == "all":
            count = max(LEAST, int(count * SHARES.get(fault.name, OTHER_SHARE)))
        for database in DATABASES if given.database is None else [given.database]:
            broken |= run(fault, database, count, given)
    return 1 if broken else 0


def run(fault: type[Fault], database: str, count: int, given: argparse.Namespace) -> bool:
    """One campaign; whether a promise was broken."""
    if database not in fault.databases:
        print(f"{fault.name} on {database}: there is no such thing")
        return False
    if reason := fault.impossible():
        print(f"{fault.name} on {database}: skipped, because {reason}")
        return False
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4))
    folder = given.evidence / f"{fault.name}-{database}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    plan = Plan(
        fault=fault,
        database=database,
        count=count,
        seed=seed,
        folder=folder,
        workers=given.workers,
        mean=given.mean,
        in_flight=given.in_flight,
    )
    print(f"{fault.name} on {database}: {count} faults, seed {seed}, evidence in {folder}", flush=True)
    verdict = conduct(plan, say=lambda text: print(f"  {text}", file=sys.stderr, flush=True))
    report(verdict)
    return bool(verdict.broken)


def report(verdict: Verdict) -> None:
    for name, value in verdict.figures.items():
        print(f"  {name:<48} {'-' if value is None else value}")
    for complaint in verdict.broken:
        print(f"  BROKEN: {complaint}")
    print("nothing stuck, nothing lost, nothing twice" if not verdict.broken else "a promise was broken")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
