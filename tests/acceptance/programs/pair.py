"""Two workers in one process, each with an app of its own; otherwise like `worker`."""

import faulthandler
import json
import logging
import signal
import sys
from importlib import import_module
from typing import Any

import detent


def main() -> None:
    faulthandler.enable()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    module, text = sys.argv[1:]
    settings: dict[str, Any] = json.loads(text)
    url = settings.pop("url")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    include = [import_module(module)]
    with detent.App(url, include=include, **settings), detent.App(url, include=include, **settings):
        signal.sigwaitinfo({signal.SIGTERM})


if __name__ == "__main__":
    main()
