"""Forked children for tests: run something in one, and get back what it returned."""

import gc
import os
import pickle
import select
import traceback
from collections.abc import Callable
from typing import Any

from tests.functions.world import PATIENCE


def in_child(work: Callable[[], Any]) -> Any:
    """Do it in a forked child, and return its result or raise its error."""
    return Child(work).result()


class Child:
    """A forked process that does one thing, and ends without leaving this function."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._pipe, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            _work(work, theirs)
        os.close(theirs)

    def result(self) -> Any:
        answer = b""
        while select.select([self._pipe], [], [], PATIENCE)[0]:
            piece = os.read(self._pipe, 1 << 16)
            if not piece:
                break
            answer += piece
        else:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
            raise AssertionError("the child hangs")
        os.close(self._pipe)
        os.waitpid(self.pid, 0)
        value, error, trace = pickle.loads(answer)
        if error is not None:
            error.add_note(trace)
            raise error
        return value


def _work(work: Callable[[], Any], pipe: int) -> None:
    answer: tuple[Any, BaseException | None, str]
    try:
        try:
            answer = (work(), None, "")
        except BaseException as error:
            answer = (None, error, traceback.format_exc())
        gc.collect()  # finalizers of what was inherited
        with os.fdopen(pipe, "wb") as file:
            file.write(pickle.dumps(answer))
    finally:
        os._exit(0)
