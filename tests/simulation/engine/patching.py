"""Which names of the engine are replaced during a simulation, and put back after it."""

from __future__ import annotations

import asyncio
import concurrent.futures._base as futures
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pkgutil import iter_modules
from typing import Any
from unittest import mock

import detent.app
import detent.ids
from detent.execution import services
from detent.stores.claim_cursor import ClaimCursor

from .loop import SimLoop
from .primitives import Primitives
from .scheduler import Scheduler

REAL = {"threading": threading, "time": time, "queue": queue}
for _part in iter_modules(detent.app.__path__, "detent.app."):  # an app loads some of them when it is used
    import_module(_part.name)
LEFT_ALONE = ("detent.cli", "detent.testing", "detent.definitions.context")


class _Asyncio:
    """`asyncio`, with loops of the simulation."""

    def __init__(self, scheduler: Scheduler, loops: list[SimLoop]) -> None:
        self._scheduler = scheduler
        self._loops = loops

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def new_event_loop(self) -> SimLoop:
        loop = SimLoop(self._scheduler)
        self._loops.append(loop)
        return loop

    def set_event_loop(self, loop: Any) -> None:
        """Each simulated thread has its own; nothing asks for it but by `get_running_loop`."""


class _Os:
    """`os`, whose random bytes come from the seed."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def urandom(self, size: int) -> bytes:
        return self._source.randbytes(size)


def _modules() -> list[tuple[Any, str]]:
    """Modules of the engine, and the names in them that stand for a module that we replace."""
    found = []
    for name, module in sorted(sys.modules.items()):
        if name.startswith("detent.") and not name.startswith(LEFT_ALONE):
            found += [(module, each) for each, real in REAL.items() if getattr(module, each, None) is real]
    return found


@contextmanager
def patched(scheduler: Scheduler, primitives: Primitives, loops: list[SimLoop], seed: int) -> Iterator[None]:
    source = random.Random(f"ids-{seed}")
    state = random.getstate()
    random.seed(f"engine-{seed}")
    with ExitStack() as stack:
        for module, name in _modules():
            stack.enter_context(mock.patch.object(module, name, getattr(primitives, name)))
        stack.enter_context(mock.patch.object(futures, "threading", primitives.threading))
        stack.enter_context(mock.patch.object(services, "asyncio", _Asyncio(scheduler, loops)))
        stack.enter_context(mock.patch.object(detent.ids, "_bits", source))
        stack.enter_context(mock.patch.object(detent.ids, "os", _Os(source)))
        stack.enter_context(
            mock.patch.object(ClaimCursor.__init__, "__defaults__", (primitives.time.monotonic,))
        )
        try:
            yield
        finally:
            random.setstate(state)
