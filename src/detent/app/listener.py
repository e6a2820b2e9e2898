"""Listening: receives the notifications of other processes, in a separate thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..stores.driver import Listener, Trouble
from ..stores.store import Store

log = logging.getLogger("detent")
RETRY = 0.25  # seconds between two tries to reach a lost database


class Listening:
    """Passes notifications on, from `start` to `stop`; it can be started again."""

    def __init__(self, store: Store, heard: Callable[[str], None]) -> None:
        self._store = store
        self._heard = heard
        self._guard = threading.Lock()
        self._stopped: threading.Event | None = None  # of the thread that listens now
        self._listener: Listener | None = None

    def start(self) -> None:
        """Listen, unless it does already."""
        with self._guard:
            if self._stopped is None:
                self._stopped = stopped = threading.Event()
                try:
                    threading.Thread(
                        target=self._listen, args=(stopped,), name="detent-listener", daemon=True
                    ).start()
                except RuntimeError:  # no more threads: the next call tries again
                    self._stopped = None
                    raise

    def stop(self) -> None:
        """Stop; the thread ends by itself, at the end of its present piece."""
        with self._guard:
            stopped, listener = self._stopped, self._listener
            self._stopped = self._listener = None
        if stopped is not None:
            stopped.set()
            if listener is not None:
                listener.interrupt()

    def _listen(self, stopped: threading.Event) -> None:
        listener = None
        while not stopped.is_set():
            try:
                if listener is None:
                    listener = self._store.driver.listener()
                    if self._stopped is stopped:
                        self._listener = listener
                    if not stopped.is_set():
                        self._heard("")  # what was said before we listened
                for payload in listener.wait(listener.longest):
                    if not stopped.is_set():
                        self._heard(payload)
            except Exception as error:
                if self._store.driver.trouble(error) is not Trouble.GONE:
                    log.exception("listening to the database failed")
                listener = None
                stopped.wait(RETRY)
        if listener is not None:
            listener.close()
