"""record_effects: records the effects of a decider instead of carrying them out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ..app.app import App
from ..definitions.deciders import Decider
from ..definitions.functions import Step
from ..errors import DefinitionError
from ..execution.bound_decider import LoadedDecider
from .apps import TestingApp

Effect = TypeVar("Effect")
F = TypeVar("F")


class EffectRecorder(Generic[Effect]):
    """The effects of a decider, in the order in which they were handled; each attempt counts.

        with record_effects(app, Order) as recorder:
            app.execute(Order, Create("o-1"))
            app.speedrun(Order, "o-1")
        assert recorder.effects == [SendEmail("a@b.example")]

    As a context manager it ends with its block; `stop()` ends it by hand.
    """

    def __init__(self, bound: LoadedDecider, answers: Mapping[type, Any]) -> None:
        unknown = [kind for kind in answers if kind not in bound.plan.effects.values()]
        if unknown:
            known = ", ".join(sorted(bound.plan.effects)) or "none"
            raise DefinitionError(
                f"decider {bound.name!r} has no effect {unknown[0].__name__!r}; it declares {known}"
            )
        self._bound = bound
        self._answers = dict(answers)
        self._taken: dict[type, int] = {}
        self._effects: list[Effect] = []
        self._guard = threading.Lock()
        self._real = bound.handler
        bound.handler = Step(self._handler(), id=bound.name)

    def _handler(self) -> Callable[[Any, Any], Any]:
        def effect(effect: Any, ctx: Any) -> Any:
            return self._answer(effect)

        return effect

    @property
    def effects(self) -> list[Effect]:
        """All effects so far."""
        with self._guard:
            return list(self._effects)

    def of(self, kind: type[F]) -> list[F]:
        """The effects of one class."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def stop(self) -> None:
        """Let the decider handle its effects again; recorded effects stay."""
        self._bound.handler = self._real

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, effect: Any) -> Any:
        with self._guard:
            self._effects.append(effect)
            answer = self._next(type(effect))
        if isinstance(answer, BaseException) or (
            isinstance(answer, type) and issubclass(answer, BaseException)
        ):
            raise answer
        return answer(effect) if callable(answer) else answer

    def _next(self, kind: type) -> Any:
        """The answer to this one: of a list one after the other, and the last one from then on."""
        answer = self._answers.get(kind)
        if not isinstance(answer, list):
            return answer
        place = self._taken.get(kind, 0)
        self._taken[kind] = place + 1
        return answer[min(place, len(answer) - 1)] if answer else None


def record_effects(
    app: App,
    decider: type[Decider[Any, Any, Any, Effect]],
    answers: Mapping[type, Any] | None = None,
) -> EffectRecorder[Effect]:
    """Record the effects of a decider instead of carrying them out.

        recorder = record_effects(app, Order, answers={SendEmail: lambda effect: MailSent(effect.id)})
        app.execute(Order, Create(id="o-1", email="a@b"))
        app.settle_down()
        assert recorder.of(SendEmail) == [SendEmail(to="a@b", id="o-1")]

    An answer is an input, None, a function of the effect, or an exception to raise; a list is
    used one by one: `[ConnectionError("down"), None]` fails once.  The default
    answer is None.
    """
    if isinstance(app, TestingApp):
        app.include(decider)
    return EffectRecorder(app.engine.services.bound(decider), answers or {})
