"""A worker process: `python -m tests.acceptance.programs.worker MODULE {"url": ..., "lease": 3}`.

Works on what the module defines until SIGTERM, then drains and ends.  Times are given in seconds.
"""

import faulthandler
import json
import logging
import signal
import sys
from datetime import timedelta
from importlib import import_module
from typing import Any

import detent

SPANS = ("lease", "grace", "patience")


def main(**overrides: Any) -> None:
    """Work, with settings that a program sets beside those on its command line."""
    faulthandler.enable()  # SIGABRT shows where it hangs
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    module, text = sys.argv[1:]
    settings: dict[str, Any] = json.loads(text)
    settings |= {name: timedelta(seconds=settings[name]) for name in SPANS if name in settings} | overrides
    app = detent.App(settings.pop("url"), include=[import_module(module)], **settings)
    # Blocked, so that no thread of ours takes it, and taken from there: a handler may run while its own
    # thread holds the lock of whatever it would set.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with app:
        signal.sigwaitinfo({signal.SIGTERM})


if __name__ == "__main__":
    main()
