"""A process that starts runs, one after the other, until it is told to stop: `client {"url": ...}`.

A start that raises is tried again with the same id.  A client that is killed begins again behind the last
number that its log shows as started; so a start whose answer was lost is repeated with its id.
"""

import faulthandler
import json
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import detent
from detent.errors import DatabaseUnavailable
from tests.acceptance.programs import effects
from tools.chaos import workload

PAUSE = 0.05  # seconds


def main(url: str, stop: str, in_flight: int, **settings: Any) -> None:
    with detent.App(url, include=[workload], patience=timedelta(seconds=20), **settings).open() as app:
        number = next_number(Path(os.environ[effects.VARIABLE]))
        ended = 0
        while not Path(stop).exists():
            if number - ended >= in_flight:
                time.sleep(PAUSE)
                ended = count_ended(app, ended)
                continue
            start(app, number)
            number += 1


def next_number(log: Path) -> int:
    return max((int(line.place) for line in effects.read(log) if line.kind == "started"), default=-1) + 1


def start(app: detent.App, number: int) -> None:
    """Start one run; only a database that is away may keep us from it."""
    while True:
        effects.note("starting", workload.owner_of(number), number)
        try:
            workload.start(app, number)
        except DatabaseUnavailable as error:
            effects.note("unavailable", workload.owner_of(number), number, str(error))
        except Exception as error:
            logging.exception("start %d raised", number)
            effects.note("raised", workload.owner_of(number), number, repr(error))
            time.sleep(PAUSE)
        else:
            effects.note("started", workload.owner_of(number), number)
            return


def count_ended(app: detent.App, known: int) -> int:
    """How many runs have written their last row; what was known before, when the database does not say."""
    try:
        with app.engine.store.transaction() as tx:
            found = tx.query(
                f"SELECT COUNT(DISTINCT owner) FROM {workload.LEDGER} WHERE place IN ('end', 'tick 1')"
            )
            return int(found[0][0])
    except Exception:
        logging.exception("the ledger could not be read")
        return known


if __name__ == "__main__":
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    main(**json.loads(sys.argv[1]))
