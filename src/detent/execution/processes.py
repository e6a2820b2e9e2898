"""Steps in other processes: one step at a time in each, so that ending one ends nothing else.

    here                            there
    the call                 ->     imports the function
                             <-     BEGUN: the step's timeout counts from here
                             <-     RETURNED or RAISED, and what

A process serves one step after the other; one that dies, or is killed because its
step takes too long, is replaced when needed.  Signals that end a worker do not end
what it waits for: these processes leave Ctrl-C and SIGTERM to their parent, and end
when it closes the pipe or is gone.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import threading
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..definitions.context import Abandoned, unrecorded_var
from ..definitions.functions import Definition, Step
from ..errors import NotPicklable, StepCrashed, StepTimeout
from .failures import encode_error, raisable

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

BEGUN, RETURNED, RAISED = b"begun", b"returned", b"raised"
PATIENCE = 2.0  # seconds that an idle process may take to end by itself
_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


class Processes:
    """Other processes for CPU-bound steps, as many as there are processors, started when first needed."""

    def __init__(self, size: int | None = None) -> None:
        self._slots = threading.BoundedSemaphore(size or os.cpu_count() or 1)
        self._guard = threading.Lock()
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._started = self._closed = False

    def call(self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the step's function there; a process that dies is StepCrashed."""
        function = step.function
        place = (step.name, function.__module__, function.__qualname__)
        call = _pickled((*place, args, kwargs), f"the arguments of step {step.name!r}")
        with self._slots:
            child = self._begin(step, call)
            try:
                kind, value = child.answer(step.timeout)
            except BaseException as error:
                self._end(child)
                if isinstance(error, EOFError):
                    raise self._gone(step) from None
                if isinstance(error, TookTooLong):
                    raise StepTimeout(step.name, step.timeout or 0) from None
                raise
            self._give_back(child)
        if kind == RETURNED:
            return pickle.loads(value)
        raise _unpacked(step.name, value)

    def _begin(self, step: Step[Any, Any], call: bytes) -> Child:
        """A process in which the step has begun."""
        while True:
            child = self._take()
            try:
                child.begin(call)
            except BaseException as error:
                self._end(child)
                if not isinstance(error, EOFError | OSError):
                    raise
                if not child.used:
                    raise self._gone(step) from None
                # It died some time after its last step: nothing has begun, so another one will do.
            else:
                return child

    def _take(self) -> Child:
        with self._guard:
            if self._closed:
                raise Abandoned
            child = self._idle.pop() if self._idle else Child()
            if not self._started:
                # Goes before multiprocessing's own, which would wait for the idle ones forever.
                atexit.register(self.close)
                self._started = True
            self._busy.add(child)
            return child

    def _give_back(self, child: Child) -> None:
        with self._guard:
            self._busy.discard(child)
            if not self._closed:
                child.used = True
                self._idle.append(child)

    def _end(self, child: Child) -> None:
        child.kill()
        with self._guard:
            self._busy.discard(child)

    def _gone(self, step: Step[Any, Any]) -> BaseException:
        return Abandoned() if self._closed else StepCrashed(step.name)

    def close(self) -> None:
        """End all of them; what still runs is given up."""
        with self._guard:
            self._closed = True
            idle, busy = self._idle, list(self._busy)
            self._idle = []
        atexit.unregister(self.close)
        for child in busy:
            child.kill()
        for child in idle:
            child.dismiss()
        for child in idle:
            child.join()

    def forked(self) -> None:
        """In a forked child: forget the parent's processes, and send them nothing."""
        atexit.unregister(self.close)
        self._guard = threading.Lock()
        self._closed = True
        children = [*self._idle, *self._busy]
        self._idle, self._busy = [], set()
        for child in children:
            child.disown()


class TookTooLong(Exception):
    """No answer within the step's timeout."""


class Child:
    """One other process."""

    def __init__(self) -> None:
        # Imported here: few apps need it, and it is slow to load.
        from multiprocessing import connection, get_context

        context = get_context("spawn")
        self.used = False
        self._wait = connection.wait
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), name="detent-step")
        # They are inherited: a Ctrl-C while it starts must not end it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PARENT)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def begin(self, call: bytes) -> None:
        """Return when the step has begun; EOFError or OSError: the process is gone."""
        self._pipe.send_bytes(call)
        kind = self._receive(None)
        assert kind == BEGUN

    def answer(self, timeout: float | None) -> tuple[bytes, bytes]:
        """RETURNED or RAISED, and what; EOFError: the process is gone."""
        kind = self._receive(timeout)
        return kind, self._receive(None)

    def _receive(self, timeout: float | None) -> bytes:
        # The pipe may outlive the process in a process that it has started.
        ready = self._wait([self._pipe, self._process.sentinel], timeout)
        if not ready:
            raise TookTooLong
        if self._pipe in ready or self._pipe.poll():
            try:
                return self._pipe.recv_bytes()
            except OSError:
                raise EOFError from None
        raise EOFError

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def dismiss(self) -> None:
        """Ask it to end."""
        self._pipe.close()

    def disown(self) -> None:
        """In a forked child: it is the parent's process, and ends when the parent closes the pipe."""
        from multiprocessing import process

        self._pipe.close()
        # multiprocessing would wait for it when this process ends, and find that it must not.
        process._children.discard(self._process)  # type: ignore[attr-defined]

    def join(self) -> None:
        self._process.join(PATIENCE)
        self.kill()


# In the other process


def serve(pipe: Connection) -> None:
    """Answer calls until the parent closes the pipe."""
    for number in _FOR_THE_PARENT:
        # Not SIG_IGN, which programs that a step starts would inherit.
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_PARENT)
    unrecorded_var.set("a step with executor='process': return the value, and publish it in the workflow")
    threading.Thread(target=_end_with_parent, name="detent-parent", daemon=True).start()
    try:
        while True:
            kind, value = _answer(pipe, pipe.recv_bytes())
            pipe.send_bytes(kind)
            pipe.send_bytes(value)
    except (EOFError, OSError):
        return


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # at once: nothing waits for this process any more


def _answer(pipe: Connection, call: bytes) -> tuple[bytes, bytes]:
    begun = False
    try:
        name, module, qualname, args, kwargs = pickle.loads(call)
        function = _find(module, qualname)
        pipe.send_bytes(BEGUN)
        begun = True
        value = function(*args, **kwargs)
        return RETURNED, _pickled(value, f"the result of step {name!r}")
    except BaseException as error:
        if not begun:
            pipe.send_bytes(BEGUN)
        return RAISED, _packed(error)


def _find(module: str, qualname: str) -> Any:
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found.function if isinstance(found, Definition) else found


# What crosses


def _pickled(value: Any, what: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:  # each type has its own way to refuse
        raise NotPicklable(what, str(error)) from None


def _packed(error: BaseException) -> bytes:
    """The exception itself where a pickle gives it back, else what a journal would store of it."""
    trace = "".join(traceback.format_exception(error))
    try:
        text = pickle.dumps(error)
        again = pickle.loads(text)
        if type(again) is type(error) and str(again) == str(error):
            return pickle.dumps((text, None, trace))
    except Exception:
        pass
    return pickle.dumps((None, encode_error(error), trace))


def _unpacked(step: str, packed: bytes) -> BaseException:
    text, stored, trace = pickle.loads(packed)
    try:
        error: BaseException = raisable(step, stored) if text is None else pickle.loads(text)
    except Exception as broken:
        error = broken
    error.__cause__ = There(trace)
    return error


class There(Exception):
    """Shows the traceback of the other process."""

    def __str__(self) -> str:
        return f"in the other process:\n{self.args[0]}"
