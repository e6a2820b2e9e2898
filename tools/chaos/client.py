"""A process that starts runs, one after the other, until it is told to stop: `client {"url": ...}`.

A start that raises is tried again with the same id.  A client that is killed begins again behind the last
number that its log shows as started; so a start whose answer was lost is repeated with its id.
"""

import faulthandler
import json
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType

import detent
from detent.errors import DatabaseUnavailable
from tests.acceptance.programs import effects
from tools.chaos import workload

PAUSE = 0.05  # seconds


class Interruptible:
    """Lets a SIGINT raise KeyboardInterrupt inside of the block, once, and nowhere else."""

    def __init__(self) -> None:
        self._armed = False
        signal.signal(signal.SIGINT, self._interrupt)

    def __enter__(self) -> None:
        self._armed = True

    def __exit__(self, *exception: object) -> None:
        self._armed = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt


def main(url: str, stop: str, in_flight: int, works: bool) -> None:
    interruptible = Interruptible()
    app = detent.App(url, include=[workload], patience=timedelta(seconds=20), grace=timedelta(seconds=5))
    with app.open(worker=works):
        number, tried = next_number(Path(os.environ[effects.VARIABLE]))
        ended = 0
        while tried or not Path(stop).exists():
            if number - ended >= in_flight and not tried:
                time.sleep(PAUSE)
                ended = count_ended(app, ended)
                continue
            start(app, number, interruptible)
            number, tried = number + 1, False


def next_number(log: Path) -> tuple[int, bool]:
    """The first start that was not confirmed, and whether it was tried: then it is tried to its end."""
    lines = effects.read(log)
    number = max((int(line.place) for line in lines if line.kind == "started"), default=-1) + 1
    return number, any(line.kind == "starting" and int(line.place) == number for line in lines)


def start(app: detent.App, number: int, interruptible: Interruptible) -> None:
    """Start one run, however often it takes; only a database that is away may raise."""
    owner = workload.owner_of(number)
    while True:
        effects.note("starting", owner, number)
        try:
            with interruptible:
                workload.start(app, number)
        except DatabaseUnavailable as error:
            effects.note("unavailable", owner, number, str(error))
        except KeyboardInterrupt:
            effects.note("interrupted", owner, number)
        except Exception as error:
            logging.exception("start %d raised", number)
            effects.note("raised", owner, number, repr(error))
            time.sleep(PAUSE)
        else:
            effects.note("started", owner, number)
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
