"""A process that starts runs and works on them, beside others: `busy URL COUNT`."""

import faulthandler
import logging
import sys

import detent

from . import chains

if __name__ == "__main__":
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO)
    url, count = sys.argv[1:]
    with detent.App(url, include=[chains]) as app:
        runs = [app.start(chains.chain if number % 2 else chains.achain) for number in range(int(count))]
        for run in runs:
            run.result(timeout=120)
