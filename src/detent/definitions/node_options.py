"""How nodes of a workflow class are declared: the options that `step` and `task` take there."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, TypeVar, cast

import msgspec

from ..arguments import check_priority, check_queue
from ..clock import span_micros
from ..errors import DefinitionError, InvalidOption
from ..kernel.policies import ExceptionPolicy, Retry
from ..kernel.queues import check_queue_key

T = TypeVar("T")
NodeAction = Literal["pause", "cancel", "skip", "reattempt"]
Condition = Callable[[Any], Any] | str | bool


class _Previous:
    """`depends_on=[PREVIOUS, "fraud"]`: whatever comes before in the chain, when all is declared."""

    def __repr__(self) -> str:
        return "PREVIOUS"


class _Unset:
    """The default of an option that was not given, where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


PREVIOUS: Final = _Previous()
UNSET: Final[Any] = _Unset()


class JobKeywords(TypedDict, total=False):
    """The keywords of `g.fan_out(...)` and `g.spread(...)` that are about each of their nodes."""

    wait: timedelta | float | None
    queue: str | None
    priority: int | None
    on_exception: NodeAction | None
    retry: Retry | None
    timeout: timedelta | float | None


JOB_DEFAULTS: dict[str, Any] = dict.fromkeys(JobKeywords.__annotations__)


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is declared of a node, as it was written."""

    chained: bool = True  # a step: it has a place in the chain; a task has none
    wait: timedelta | float | None = None
    skip_if: Condition | None = None
    only_if: Condition | None = None
    before_step: Any = None
    after_step: Any = None
    depends_on: Any = UNSET
    also_depends_on: Any = ()
    job: Any = None
    args: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None
    on_exception: Any = None

    @property
    def given(self) -> list[str]:
        """The options that make sense only for a node."""
        plain = NodeOptions(chained=self.chained)
        names = [name for name in self.__struct_fields__ if name not in ("chained", "on_exception")]
        return [name for name in names if getattr(self, name) is not getattr(plain, name)]

    @property
    def needs(self) -> tuple[Any, ...]:
        """What the node depends on, as written: names, functions, PREVIOUS."""
        default = (PREVIOUS,) if self.chained else ()
        named = default if self.depends_on is UNSET else listed(self.depends_on)
        return (*named, *listed(self.also_depends_on))

    @property
    def policies(self) -> tuple[ExceptionPolicy, ...]:
        return policies_of(self.on_exception)

    @property
    def seconds(self) -> float | None:
        """The wait, in seconds."""
        if self.wait is None:
            return None
        if isinstance(self.wait, bool) or not isinstance(self.wait, timedelta | int | float):
            raise DefinitionError(f"wait={self.wait!r}: write timedelta(minutes=5), or a number of seconds")
        if not isinstance(self.wait, timedelta) and not math.isfinite(self.wait):
            raise DefinitionError(f"wait={self.wait!r}: a wait must be finite")
        span = span_micros(self.wait) / 1e6
        if span < 0:
            raise DefinitionError(f"wait={self.wait!r}: a wait cannot be negative")
        return span


def listed(value: Any) -> tuple[Any, ...]:
    """One thing, several, or None."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)


def policies_of(given: Any) -> tuple[ExceptionPolicy, ...]:
    """`on_exception=` as policies, in the order in which they are asked."""
    if given is None:
        return ()
    many: Sequence[Any] = given if isinstance(given, list | tuple) else (given,)
    return tuple(one if isinstance(one, ExceptionPolicy) else ExceptionPolicy(one) for one in many)


def check_condition(name: str, value: Any) -> str | None:
    """What is wrong with a condition; a method's name is looked up when the class is made."""
    if value is None or isinstance(value, bool | str) or callable(value):
        return None
    return f"{name}={value!r}: give a callable, a method's name, True or False"


def check_queue_and_priority(where: str, queue: Any, priority: Any) -> None:
    """Check the queue and the priority that a definition names."""
    if queue is not None:
        check_queue(where, "queue", queue, error=InvalidOption)
    if priority is not None:
        check_priority(where, priority, error=InvalidOption)


KeyOption = str | Callable[..., str | None] | None


def check_key_option(where: str, key: Any) -> KeyOption:
    """The key of a step: a text, or a function of its arguments."""
    if key is not None and not callable(key):
        check_queue_key(where, key, error=InvalidOption)
    return cast(KeyOption, key)


def made(cls: type[T]) -> T:
    """An object of a definition's class; if it needs arguments, include an object instead of the class."""
    missing = [p for p in inspect.signature(cls).parameters.values() if p.default is p.empty]
    if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in missing):
        raise DefinitionError(
            f"{cls.__qualname__} needs arguments to be made; include an object: {cls.__name__}(...)"
        )
    return cls()
