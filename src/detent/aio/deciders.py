"""`app.deciders` and `app.dead_letters` for asyncio."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from ..app.dead_letters import Backlog, DeadLetter, DeadLetters, ReplayReport
from ..app.machine import DECISIONS, HISTORY, INSTANCES, Deciders, InstanceView
from ..app.observations import AT_ONCE, Observation
from ..definitions.deciders import Decider
from ..kernel.machine import StateMachineView
from .threads import in_thread

S = TypeVar("S")


class AsyncDeciders:
    """`app.deciders` for asyncio: inspects deciders; see `App.deciders`.

    view = await app.deciders.instance(Order, "o-1")
    """

    def __init__(self, deciders: Deciders) -> None:
        self._deciders = deciders

    async def machine(
        self,
        decider: type[Decider[Any, Any, Any, Any]] | str,
        *,
        source: str = HISTORY,
        limit: int | None = INSTANCES,
    ) -> StateMachineView:
        """The state machine of a decider; see `Deciders.machine`."""
        return await in_thread(lambda: self._deciders.machine(decider, source=source, limit=limit))

    async def instance(
        self, decider: type[Decider[S, Any, Any, Any]], instance: str, *, history: int | None = DECISIONS
    ) -> InstanceView[S]:
        """One instance with its state; see `Deciders.instance`."""
        return await in_thread(lambda: self._deciders.instance(decider, instance, history=history))

    async def observations(
        self,
        decider: type[Decider[Any, Any, Any, Any]] | str,
        instance: str | None = None,
        *,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int = AT_ONCE,
        cursor: Observation | int | None = None,
    ) -> list[Observation]:
        """Inputs that were recorded; see `Deciders.observations`."""
        return await in_thread(
            lambda: self._deciders.observations(
                decider, instance, after=after, before=before, limit=limit, cursor=cursor
            )
        )

    async def inboxes(self) -> list[Backlog]:
        """How much waits in the inboxes; see `Deciders.inboxes`."""
        return await in_thread(self._deciders.inboxes)

    async def forget_snapshots(self, decider: type[Decider[Any, Any, Any, Any]] | str) -> int:
        """Remove the snapshots of a decider; see `Deciders.forget_snapshots`."""
        return await in_thread(lambda: self._deciders.forget_snapshots(decider))


class AsyncDeadLetters:
    """`app.dead_letters` for asyncio; see `App.dead_letters`.

    for letter in await app.dead_letters(Order, limit=10):
        await app.dead_letters.replay(letter)
    """

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    async def __call__(
        self, decider: Any = None, instance: str | None = None, *, limit: int | None = None
    ) -> list[DeadLetter]:
        return await in_thread(lambda: self._letters(decider, instance, limit=limit))

    async def count(self, decider: Any = None) -> int:
        """How many dead letters there are; see `DeadLetters.count`."""
        return await in_thread(lambda: self._letters.count(decider))

    async def replay(self, letter: DeadLetter | str) -> None:
        """Try one again; see `DeadLetters.replay`."""
        await in_thread(lambda: self._letters.replay(letter))

    async def replay_all(self, decider: Any = None, instance: str | None = None) -> ReplayReport:
        """Try all of them again; see `DeadLetters.replay_all`."""
        return await in_thread(lambda: self._letters.replay_all(decider, instance))

    async def discard(self, letter: DeadLetter | str) -> None:
        """Remove one without trying again; see `DeadLetters.discard`."""
        await in_thread(lambda: self._letters.discard(letter))
