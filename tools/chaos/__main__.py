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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos")
    parser.add_argument("fault", choices=sorted(FAULTS))
    parser.add_argument("--database", choices=DATABASES, default="postgres")
    parser.add_argument("--count", type=int, default=100, help="how many faults")
    parser.add_argument("--seed", type=int, default=None, help="for the same choices as another campaign")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--mean", type=float, default=None, help="seconds between two faults, on average")
    parser.add_argument("--in-flight", type=int, default=60, help="runs at a time")
    parser.add_argument("--evidence", type=Path, default=Path(tempfile.gettempdir()) / "detent-chaos")
    given = parser.parse_args(arguments)

    fault = FAULTS[given.fault]
    if given.database not in fault.databases:
        print(f"{given.fault} does not exist on {given.database}: only on {', '.join(fault.databases)}")
        return 2
    if reason := fault.impossible():
        print(f"skipped {given.fault}: {reason}")
        return 0
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = given.evidence / f"{given.fault}-{given.database}-{stamp}-{os.getpid()}"
    plan = Plan(
        fault=fault,
        database=given.database,
        count=given.count,
        seed=seed,
        folder=folder,
        workers=given.workers,
        mean=given.mean,
        in_flight=given.in_flight,
    )
    print(
        f"{given.fault} on {given.database}: {given.count} faults, seed {seed}, evidence in {folder}",
        flush=True,
    )
    verdict = conduct(plan, say=lambda text: print(f"  {text}", file=sys.stderr, flush=True))
    report(verdict)
    return 1 if verdict.broken else 0


def report(verdict: Verdict) -> None:
    for name, value in verdict.figures.items():
        print(f"  {name:<48} {'-' if value is None else value}")
    for complaint in verdict.broken:
        print(f"  BROKEN: {complaint}")
    print("nothing stuck, nothing lost, nothing twice" if not verdict.broken else "a promise was broken")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
