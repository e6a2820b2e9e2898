"""`app.within(connection)` in async code: writing into a transaction that belongs to the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Unpack, cast

from ..app import keyed_starts, within
from ..app.deciders import enqueuing_of
from ..app.engine import Engine
from ..app.settings import START_DEFAULTS, Options, StartOptions, checked_options
from ..app.starters import calls_of
from ..app.user_connections import loop_tx
from ..app.within import join
from ..definitions.context import replaying
from ..definitions.deciders import Decider
from ..kernel.operations import Operation
from ..keywords import shows
from .run import AsyncRun
from .starters import AsyncStarts
from .threads import in_thread, opened

In = TypeVar("In")
E = TypeVar("E")


class AsyncWithin(AsyncStarts):
    """`app.within(connection)`: writes in your own transaction.

    async with connection.transaction():
        run = await app.within(connection).start(fulfil, 42)
    """

    def __init__(self, engine: Engine, connection: Any, options: Options) -> None:
        self._engine = engine
        self._connection = connection
        self._options = options

    @shows(StartOptions, defaults=START_DEFAULTS)
    def options(self, **options: Unpack[StartOptions]) -> AsyncWithin:
        """The same as `app.options(...).within(connection)`."""
        return AsyncWithin(
            self._engine, self._connection, checked_options({**self._options.given, **options})
        )

    async def _start_one(
        self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncRun[Any]:
        if self._options.keyed:
            engine = self._engine
            await opened(self._engine)
            verb = keyed_starts.start_within(engine, definition, [(args, kwargs)], self._options)
            return AsyncRun(engine, await self._join(verb))
        return (await self._start(definition, [(args, kwargs)]))[0]

    async def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[AsyncRun[Any]]:
        self._options.refuse_many()
        return await self._start(definition, calls_of(calls))

    async def _start(
        self, definition: Any, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> list[AsyncRun[Any]]:
        engine = self._engine
        await opened(self._engine)
        start = engine.planned(definition, calls, self._options)
        start.remote = True
        if replaying():
            return [AsyncRun(engine, row) for row in engine.fresh(start)]
        await self._join(start)
        return [AsyncRun(engine, row) for row in engine.fresh(start)]

    async def enqueue_input(
        self, decider: type[Decider[Any, In, Any, Any]], input: In, *, input_id: str | None = None
    ) -> bool:
        """Put an input into its instance's inbox, if and only if your transaction commits."""
        await opened(self._engine)
        operation = enqueuing_of(self._engine, decider, input, input_id, within=True)
        return cast(bool, (await self._join(operation)).created)

    async def send(
        self, run: AsyncRun[Any] | str, name: str, value: Any = None, *, id: str | None = None
    ) -> None:
        """Send a run a message, if and only if your transaction commits; see `AsyncRun.send`."""
        await opened(self._engine)
        await self._join(within.sending(self._engine, run, name, value, id))

    async def cancel(self, run: AsyncRun[Any] | str, *, reason: str | None = None) -> None:
        """End a run and its children, if and only if your transaction commits; see `AsyncRun.cancel`."""
        await opened(self._engine)
        await self._join(within.canceling(self._engine, run, reason))

    async def pause(self, run: AsyncRun[Any] | str, *, reason: str | None = None) -> None:
        """Stop new work of a run, if and only if your transaction commits; see `AsyncRun.pause`."""
        await opened(self._engine)
        await self._join(within.pausing(self._engine, run, reason))

    async def resume(self, run: AsyncRun[Any] | str, *, accept_drift: bool = False) -> None:
        """Continue a paused or failed run, if and only if your transaction commits; see `AsyncRun.resume`."""
        await opened(self._engine)
        engine = self._engine
        verb = await in_thread(lambda: within.resuming(engine, run, accept_drift))
        await self._join(verb)

    async def set_attributes(
        self, run: AsyncRun[Any] | str, attributes: Mapping[str, str | int | bool | None]
    ) -> None:
        """Set attributes of a run, if and only if your transaction commits; see `AsyncRun.set_attributes`."""
        await opened(self._engine)
        await self._join(within.changing_attributes(self._engine, run, attributes))

    async def publish(self, run: AsyncRun[Any] | str, name: str, value: Any) -> None:
        """Publish a value of a run, if and only if your transaction commits; see `AsyncRun.publish`."""
        await opened(self._engine)
        await self._join(within.publishing(self._engine, run, name, value))

    async def append(self, run: AsyncRun[Any] | str, name: str, value: Any) -> None:
        """Append to a stream, if and only if your transaction commits; see `Within.append`."""
        await opened(self._engine)
        await self._join(within.appending(self._engine, run, name, value))

    async def execute(
        self, decider: type[Decider[Any, In, E, Any]], input: In, *, input_id: str | None = None
    ) -> list[E]:
        """Give an input to its instance, if and only if your transaction commits; see `Within.execute`."""
        await opened(self._engine)
        operation = within.deciding_now(self._engine, decider, input, input_id)
        return cast(list[E], (await self._join(operation)).events)

    async def _join(self, operation: Operation | within.Verb) -> Any:
        store = self._engine.store
        target = await loop_tx(store, self._connection)
        if target is None:  # a sync connection blocks anyway, and may belong to this thread
            return join(store, self._connection, operation)
        return await in_thread(lambda: join(store, target, operation))
