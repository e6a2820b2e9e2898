"""Retry and exception policies: attempts, waits, and actions.  Pure functions of their fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from ..arguments import check_count, check_duration, check_function, check_number, refuse
from ..errors import DefinitionError, InvalidOption, PayloadError, TransactionEnded

DEFAULT_MAX_RECOVERIES = 5

# What `on_exception` may say, beside raising (the default of a function's step).
ACTIONS = ("raise", "pause", "cancel", "skip", "reattempt")


# The same value cannot be stored next time either; writes that were committed early would happen twice.
NEVER_RETRIED = (PayloadError, TransactionEnded)

RETRY = "Retry()"
DEFAULT_LONGEST = timedelta(minutes=5)

# A class of exceptions, or a function that looks at one.
ErrorMatcher = type[BaseException] | Callable[[BaseException], bool]
ErrorMatchers = ErrorMatcher | Sequence[ErrorMatcher]
WaitFrom = Callable[[BaseException], timedelta | float | None]


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """The attempts and waits of a failing step.

        @step(retry=Retry(attempts=5, on=(ConnectionError, TimeoutError)))
        def charge(card: Card) -> Receipt: ...

    Waits grow by `factor` from `first` up to `longest` (5 minutes, or `first` if that is longer).
    The worker adds a random share of each wait, up to `jitter`.  `on` and `never_on`
    take exception classes and functions that get the exception; an error that `never_on` matches
    is not retried.  `wait_from` gets the exception and returns how long to wait, or None for the
    computed wait.  These functions must depend on the exception alone.
    """

    attempts: int
    first: timedelta
    factor: float
    longest: timedelta
    jitter: float
    on: tuple[ErrorMatcher, ...]
    never_on: tuple[ErrorMatcher, ...]
    wait_from: WaitFrom | None

    def __init__(
        self,
        *,
        attempts: int = 3,
        first: timedelta | float = timedelta(seconds=1),
        factor: float = 2.0,
        longest: timedelta | float | None = None,
        jitter: float = 0.0,
        on: ErrorMatchers = (Exception,),
        never_on: ErrorMatchers = (),
        wait_from: WaitFrom | None = None,
    ) -> None:
        if attempts == 0:
            advice = "it would never run the step; attempts=1 runs it once and does not retry"
            refuse(RETRY, "attempts", attempts, advice, InvalidOption)
        if wait_from is not None:
            check_function(RETRY, "wait_from", wait_from, takes="the exception", error=InvalidOption)
        start = check_duration(RETRY, "first", first, error=InvalidOption)
        share = check_number(RETRY, "jitter", jitter, least=0, most=1, example=0.1, error=InvalidOption)
        fields = {
            "attempts": check_count(RETRY, "attempts", attempts, example=3, error=InvalidOption),
            "first": start,
            "factor": check_number(RETRY, "factor", factor, least=1, example=2, error=InvalidOption),
            "longest": _longest(longest, start),
            "jitter": share,
            "on": _matchers("on", on),
            "never_on": _matchers("never_on", never_on),
            "wait_from": wait_from,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def wait_after(self, attempt: int, error: BaseException) -> timedelta | None:
        """The wait before the next attempt, or None to give up."""
        if attempt >= self.attempts or not _any_matches("on", self.on, error):
            return None
        if _any_matches("never_on", self.never_on, error):
            return None
        if isinstance(error, NEVER_RETRIED):
            return None
        given = None if self.wait_from is None else _given_wait(self.wait_from, error)
        if given is not None:
            return given
        try:
            return min(self.first * self.factor ** (attempt - 1), self.longest)
        except OverflowError:  # factor ** 1024: far beyond any `longest`
            return self.longest


def _longest(given: timedelta | float | None, first: timedelta) -> timedelta:
    """The longest wait: by default never shorter than the first one."""
    if given is None:
        return max(DEFAULT_LONGEST, first)
    longest = check_duration(RETRY, "longest", given, error=InvalidOption)
    if longest < first:
        advice = f"it is shorter than first={first!r}, so the first wait would exceed it"
        refuse(RETRY, "longest", given, advice, InvalidOption)
    return longest


def _matchers(name: str, given: Any) -> tuple[ErrorMatcher, ...]:
    found = tuple(given) if isinstance(given, tuple | list | set | frozenset) else (given,)
    for matcher in found:
        accepted = issubclass(matcher, BaseException) if isinstance(matcher, type) else callable(matcher)
        if not accepted:
            advice = (
                f"give exception classes, or functions that take the exception, "
                f"for example {name}=(ConnectionError, TimeoutError)"
            )
            refuse(RETRY, name, given, advice, InvalidOption)
    return found


def _any_matches(name: str, matchers: tuple[ErrorMatcher, ...], error: BaseException) -> bool:
    for matcher in matchers:
        if isinstance(matcher, type):
            if isinstance(error, matcher):
                return True
            continue
        try:
            if matcher(error):
                return True
        except Exception as broken:  # the user's function: the step's own error is what matters
            error.add_note(f"(a function in Retry({name}=...) raised {type(broken).__name__}: {broken})")
    return False


def _given_wait(wait_from: WaitFrom, error: BaseException) -> timedelta | None:
    """The wait that the error asks for; None for the computed one."""
    try:
        given = wait_from(error)
        return None if given is None else check_duration(RETRY, "wait_from", given, error=InvalidOption)
    except Exception as broken:
        error.add_note(f"(the function in Retry(wait_from=...) failed: {type(broken).__name__}: {broken})")
        return None


# What a policy does about an exception in a node of a graph.
NODE_ACTIONS = ("pause", "cancel", "skip", "reattempt")
MAX_REATTEMPTS = 100

Matcher = type[BaseException] | str | Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True)
class ExceptionPolicy:
    """What a node does about an exception.

        @step(on_exception=ExceptionPolicy("reattempt", on=("httpx.HTTPError",), max_reattempts=5))
        def charge(self) -> None: ...

    `on` takes classes, dotted names of classes (which need not be imported), and callables
    that get the error; without it the policy applies to every exception.  A reattempt
    follows after `wait` (a timedelta or seconds), or after growing waits (`backoff`).  After
    `max_reattempts`, `then` applies.  None means no limit.
    """

    action: str
    on: tuple[Matcher, ...] = ()
    max_reattempts: int | None = MAX_REATTEMPTS
    wait: timedelta | float | None = None
    backoff: Retry | None = None
    then: str = "pause"

    def __post_init__(self) -> None:
        given: object = self.on
        object.__setattr__(self, "on", tuple(given) if isinstance(given, tuple | list) else (given,))
        if self.action not in NODE_ACTIONS:
            raise DefinitionError(
                f"on_exception={self.action!r}: it is one of {', '.join(NODE_ACTIONS)}, or an ExceptionPolicy"
            )
        if self.then not in NODE_ACTIONS or self.then == "reattempt":
            raise DefinitionError(f"then={self.then!r}: it is one of pause, cancel, skip")
        for matcher in self.on:
            _check_matcher(matcher)
        self._check_reattempts()
        object.__setattr__(self, "wait", _checked_wait(self.wait))
        backoff: object = self.backoff
        if backoff is not None and not isinstance(backoff, Retry):
            raise DefinitionError(
                f"backoff={backoff!r}: write backoff=Retry(factor=2), which says how the waits grow"
            )
        if self.wait is not None and self.backoff is not None:
            raise DefinitionError("give either wait (the same each time) or backoff (growing), not both")

    def _check_reattempts(self) -> None:
        limit: object = self.max_reattempts
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise DefinitionError(
                f"max_reattempts={limit!r}: it is a whole number, such as 5; None sets no limit"
            )
        if isinstance(limit, int) and limit < 0:
            raise DefinitionError(f"max_reattempts={limit}: it cannot be negative")
        if self.action == "reattempt":
            return
        if self.wait is not None or self.backoff is not None:
            raise DefinitionError(
                f"action={self.action!r} does not wait: wait and backoff are for reattempts"
            )
        if limit != MAX_REATTEMPTS or self.then != "pause":
            raise DefinitionError(
                f"action={self.action!r} does not reattempt: max_reattempts and then are for 'reattempt'"
            )

    @property
    def blanket(self) -> bool:
        """Whether it is about every exception."""
        return not self.on

    def matches(self, error: BaseException) -> bool:
        """Whether this policy is for that error."""
        return self.blanket or any(_matches(matcher, error) for matcher in self.on)

    @property
    def label(self) -> str:
        """Which exceptions it is for, as a name for its budget of reattempts."""
        return ", ".join(_matcher_name(matcher) for matcher in self.on) or "any exception"

    def decide(self, error: BaseException, failures: int) -> tuple[str, Retry | None]:
        """What to do after so many reattempts by this policy; with a reattempt, how its wait is computed."""
        if self.action != "reattempt":
            return self.action, None
        used_up = self.max_reattempts is not None and failures >= self.max_reattempts
        if used_up or isinstance(error, NEVER_RETRIED):
            return self.then, None
        if isinstance(self.wait, timedelta):
            return "reattempt", Retry(attempts=failures + 2, first=self.wait, factor=1, longest=self.wait)
        backoff = self.backoff or Retry()
        return "reattempt", replace(backoff, attempts=failures + 2, on=(BaseException,), never_on=())


def _check_matcher(matcher: object) -> None:
    by_class = isinstance(matcher, type) and issubclass(matcher, BaseException)
    if not by_class and (isinstance(matcher, type) or not (isinstance(matcher, str) or callable(matcher))):
        raise DefinitionError(f"on={matcher!r}: give exception classes, their dotted names, or callables")
    if isinstance(matcher, str) and "." not in matcher:
        raise DefinitionError(
            f"on={matcher!r}: give the name with its module, such as 'httpx.HTTPError', or the class itself"
        )


def _checked_wait(wait: object) -> timedelta | None:
    """A wait as a timedelta; a number is in seconds."""
    if wait is None:
        return None
    if not isinstance(wait, timedelta):
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not math.isfinite(wait):
            raise DefinitionError(f"wait={wait!r}: write timedelta(minutes=5), or a number of seconds")
        try:
            wait = timedelta(seconds=wait)
        except OverflowError:
            raise DefinitionError(f"wait={wait!r}: it is too long") from None
    if wait < timedelta():
        raise DefinitionError(f"wait={wait}: a wait cannot be negative")
    return wait


def _matcher_name(matcher: Matcher) -> str:
    if isinstance(matcher, str):
        return matcher
    if isinstance(matcher, type):
        return class_name(matcher)
    return getattr(matcher, "__qualname__", type(matcher).__qualname__)


def class_name(cls: type) -> str:
    """The dotted name by which an exception class is matched and stored."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _matches(matcher: Matcher, error: BaseException) -> bool:
    if isinstance(matcher, str):
        # By name, through its ancestry: the module need not be imported, or exist, before it is raised.
        return any(class_name(cls) == matcher for cls in type(error).__mro__)
    if isinstance(matcher, type):
        return isinstance(error, matcher)
    try:
        return bool(matcher(error))
    except Exception as broken:
        error.add_note(f"(a matcher of on_exception raised {type(broken).__name__}: {broken})")
        return False


def choose(
    error: BaseException,
    own: Sequence[ExceptionPolicy],
    inherited: Sequence[ExceptionPolicy],
) -> ExceptionPolicy:
    """The policy for an error: the node's own, then the class's for that error, then its blanket, then pause.

    `inherited` is in the order of precedence: the latest first, a subclass before its parent.
    """
    for policy in own:
        if policy.matches(error):
            return policy
    for policy in inherited:
        if not policy.blanket and policy.matches(error):
            return policy
    return next((policy for policy in inherited if policy.blanket), PAUSE)


PAUSE = ExceptionPolicy("pause")

NO_RETRY = Retry(attempts=1)
# `on_exception="reattempt"` without a policy of its own.
REATTEMPT = Retry(attempts=100)


BETWEEN_TURNS = 0.2  # seconds: a step that does not crash is mostly done after that, and clears its run
TURNS = 100


def recovery_wait(recoveries: int, turn: int = 0) -> timedelta:
    """How long an execution that was found orphaned waits before it runs again.

    The first time not at all: a killed worker is the usual reason.  Then ever
    longer, and one after the other (`turn`) with those that died beside it, so that
    what kills its process does not take the same neighbours along every time.
    """
    if recoveries <= 1:
        return timedelta()
    return timedelta(seconds=min(0.25 * 2 ** min(recoveries - 2, 10), 30) + turn % TURNS * BETWEEN_TURNS)
