"""`make bench`: measure Detent, its peers and the limits in one go; a table, and `bench/results/*.json`.

Rounds, shapes and systems are interleaved; the best of the repeats counts, because other load on the
machine only ever makes things slower.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

from . import catalogue, table
from .measuring import LIMIT_SECONDS
from .rounds import Plan, run
from .statements import count_statements


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--databases", default="postgres,sqlite,mysql")
    parser.add_argument("--shapes", default=",".join(catalogue.SHAPES), help="some of --list")
    parser.add_argument("--systems", default=",".join(catalogue.SYSTEMS), help="some of --list")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for one measurement")
    parser.add_argument(
        "--count-statements",
        action="store_true",
        help="restart PostgreSQL with pg_stat_statements first; only for a server of our own",
    )
    parser.add_argument("--list", action="store_true", help="say what can be measured, and stop")
    parser.add_argument("--show", metavar="FILE", type=Path, help="show the table of earlier results")
    parser.add_argument(
        "--page",
        metavar="FILE",
        type=Path,
        nargs="*",
        help="write docs/benchmarks.md from the latest results, or from these: the best of all",
    )
    options = parser.parse_args()
    if options.list:
        print(catalogue.text())
    elif options.show:
        table.show(json.loads(options.show.read_text())["rows"])
    elif options.page is not None:
        from .page import write_page

        print(f"written to {write_page(options.page)}")
    else:
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    plan = Plan(
        databases=catalogue.available(options.databases.split(",")),
        shapes=catalogue.known(options.shapes.split(","), catalogue.SHAPES),
        systems=catalogue.known(options.systems.split(","), catalogue.SYSTEMS),
        repeat=options.repeat,
        limit=options.limit,
    )
    # Ended from outside, we still drop the database that we are at, and write what we have.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    counted = options.count_statements and count_statements()
    results = run(plan)
    if not results.rows():
        raise SystemExit("nothing was measured")
    table.show(results.rows())
    settings = {"repeat": plan.repeat, "limit": plan.limit, "statements": counted}
    print(f"\nwritten to {results.write(settings)}")


if __name__ == "__main__":
    main()
