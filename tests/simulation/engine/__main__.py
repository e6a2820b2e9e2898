"""Play seeds of the simulation of the engine, and print the trace of one that fails.

python -m tests.simulation.engine --seed 123       one seed, with its trace
python -m tests.simulation.engine --from 0 --count 1000
"""

import argparse
import sys
import time

from tests.simulation.engine.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.engine")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    if given.seed is not None:
        world = simulate(given.seed)
        print("\n".join(world.trace))
        return 0 if world.violation is None else 1
    began, failed = time.process_time(), []
    for seed in range(given.first, given.first + given.count):
        world = simulate(seed)
        if world.violation is not None:
            failed.append(seed)
            print(f"seed {seed}: {str(world.violation)[:250]}", flush=True)
    print(f"{given.count} seeds, {time.process_time() - began:.1f} s; failed: {failed}")
    return 1 if failed else 0


sys.exit(main())
