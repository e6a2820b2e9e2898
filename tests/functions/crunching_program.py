"""A worker whose step in another process waits: `crunching_program URL FOLDER`.

Its steps are those of `__main__`.  The first SIGINT ends it, in good order.
"""

import signal
import sys
import threading
from pathlib import Path

import detent
from tests.functions import crunching

stopping = threading.Event()


@detent.step(executor="process")
def here(folder: str) -> int:
    crunching.begin(folder)
    crunching.wait_for(Path(folder, "release"))
    return 42


@detent.workflow
def flow(folder: str) -> int:
    return here(folder)


if __name__ == "__main__":
    url, folder = sys.argv[1:]
    signal.signal(signal.SIGINT, lambda number, frame: stopping.set())
    with detent.App(url, include=[flow]) as app:
        run = app.start(flow, folder)
        stopping.wait()
    with app:
        print(app.run(run.id).result(timeout=20))
