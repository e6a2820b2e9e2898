"""What a routine asks its driver to do.

Routines are generators: they hold the rules of durable operations once, and yield
what has to be done.  A sync driver does it blocking, an async one awaits it; so
there is one engine, and no sync/async twins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ..definitions.context import Context
from ..definitions.functions import Definition, Step
from ..kernel.operations import Operation
from ..kernel.rows import Await


class Commit(msgspec.Struct, gc=False):
    """Make an operation durable; the reply is the store's answer."""

    operation: Operation


class Read(msgspec.Struct, gc=False):
    """Ask the store; the reply is what the function returns."""

    read: Callable[[], Any]


class Ask(msgspec.Struct, gc=False):
    """Call a function of the user's that may block; the reply is what it returns."""

    function: Callable[[], Any]


@dataclass(slots=True)
class Body:
    """Call a step's function; the reply is what it returns."""

    step: Step[Any, Any]
    context: Context
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class TransactionalBody(Body):
    """Call it inside a transaction that also carries the operation made from its result."""

    finish: Callable[[Any], Operation]
    recorded: Callable[[], bool]  # whether it is durable, after a commit that was cut off
    isolation: str | None = "read committed"  # None: the database's default
    look_again: Callable[[], None] | None = None  # where the run was given another graph meanwhile


class MainBody(msgspec.Struct, gc=False):
    """Call the workflow's function."""

    definition: Definition[Any, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Wait(msgspec.Struct, gc=False):
    """Wait for a time or an event.  A sync driver suspends the run instead of replying."""

    wake_at: int | None = None
    awaits: tuple[Await, ...] = ()


class Pause(msgspec.Struct, gc=False):
    """A wait that is too short to free the worker."""

    seconds: float
