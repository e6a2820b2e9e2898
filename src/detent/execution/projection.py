"""Moving a generation of a projection on, a batch at a time.

    take its row  ->  the events behind its checkpoint  ->  apply each  ->  items, checkpoint  ->  commit

The row's lock makes this the only consumer, and one transaction makes it once.  An event that
cannot be applied ends its batch: the batch is rolled back and gone through again up to that
event, and the row says what is wrong.  A lost database, or a deadlock, is not the fault of the event: the
same again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Any

from ..definitions.context import Abandoned
from ..definitions.decisions import Recorded
from ..definitions.projections import ProjectionPlan
from ..errors import DefinitionError, ReservedException, TransactionEnded, UnknownDefinition
from ..errors.deciders import RESERVED
from ..kernel.decide import EventRow
from ..kernel.projections import REBUILDING, RETIRED, ProjectionRow, blocked_by, may_take_over, moved_to
from ..stores.driver import Trouble, Tx, UserTx, user_transaction
from ..stores.verbs import projections as stored
from .bodies import MOST_CONFLICTS
from .failures import encode_error, message_of
from .projection_view import AsyncView, Items, View
from .services import Services
from .transactions import AsyncTransaction

log = logging.getLogger("detent.projections")
BUDGET = 0.05  # seconds of applying after which a batch ends: on SQLite no other process can write meanwhile
NEAR = 500  # events before the end, from where on a rebuild tries to take over
BREATH = 0.005  # seconds after which others on the loop have their turn


class Progress(Enum):
    """How it went."""

    MORE = "more"  # something was done, and more is left
    REACHED = "reached"  # something was done, as much as there was
    DONE = "done"  # nothing is left to do
    BUSY = "busy"  # another process has it
    WAITS = "waits"  # for the time to be tried again


class _Poisoned(Exception):
    """The event at `position` could not be applied."""

    def __init__(self, position: int, error: BaseException) -> None:
        super().__init__(position)
        self.position = position
        self.error = error


class Runner:
    """Moves generations on, for one worker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.store
        self._items: dict[tuple[str, int], Items] = {}
        self._first: int | None = None  # the first event of the batch under way
        self.ending = threading.Event()  # commit what is applied, and stop
        self.crashed = threading.Event()  # commit nothing more

    # Events

    def advance(self, plan: ProjectionPlan, generation: int, head: int) -> Progress:
        """Apply a batch of events; `head` is the newest that is known to be there."""
        limit, conflicts = plan.projection.batch, 0
        poison: _Poisoned | None = None
        while True:
            try:
                return self._batch(plan, generation, head, limit, poison)
            except _Poisoned as found:
                self._abandon_if_ending()
                poison = found
            except Exception as error:
                self._abandon_if_ending()
                trouble = self._store.driver.trouble(error)
                if trouble is Trouble.RETRY and conflicts < MOST_CONFLICTS:
                    conflicts += 1
                elif trouble in (Trouble.RETRY, Trouble.GONE) or self._first is None:
                    raise
                elif limit > 1:
                    limit, poison = 1, None  # its writes failed at the end: find out whose they were
                else:
                    poison = _Poisoned(self._first, error)

    def _abandon_if_ending(self) -> None:
        """An error while the app closes does not block the event: the next process tries it again."""
        if self.ending.is_set() or self.crashed.is_set():
            raise Abandoned

    def _batch(
        self, plan: ProjectionPlan, generation: int, head: int, limit: int, poison: _Poisoned | None
    ) -> Progress:
        self._first = None
        with self._store.transaction(f"projection {plan.name!r}", isolation="read committed") as tx:
            row = stored.take(tx, plan.name, generation)
            if row is None or row.state == RETIRED or row.begun_at is None:
                return Progress.BUSY
            now = self._services.clock.now()
            if poison is None and row.waits(now):
                return Progress.WAITS
            if poison is not None and poison.position <= row.position:
                return Progress.MORE  # another process got past it meanwhile
            near = poison is None and self._is_near(tx, row, limit)
            # Under its lock the live one does not move on: so what is rebuilt catches up with it here and
            # now, however many events come in.
            live = stored.lock_live(tx, row.name) if near else None
            if live is not None and limit > 1:
                limit = max(limit, live.position - row.position)
            if poison is not None:
                limit = max(limit, poison.position - row.position)  # all that is before it
            events = stored.events_behind(tx, row.position, limit)
            self._first = events[0].position if events else None
            items = self._items_of(row)
            if poison is not None:
                self._apply(plan, tx, items, [e for e in events if e.position < poison.position], None)
                self._block(plan, row, poison, now)
            elif events:
                moved_to(row, self._apply(plan, tx, items, events, BUDGET), now)
            else:  # there are no events up to the head: they were removed by hand
                moved_to(row, max(row.position, head), now)
            try:
                tx.check()
            except TransactionEnded as error:
                raise DefinitionError(
                    f"projection {plan.name!r} has ended the transaction of its batch: "
                    f"do not commit or roll back, and create tables in `setup` (on MySQL that commits)"
                ) from error
            items.write(tx, row.position)
            if near and (live is None or may_take_over(row, live)):
                stored.take_over(tx, row, live, now)
            else:
                stored.save(tx, row)
            if self.crashed.is_set():
                raise Abandoned
        self._items[plan.name, generation] = items
        whole = len(events) < limit and (not events or row.position >= events[-1].position)
        return Progress.REACHED if whole or poison is not None else Progress.MORE

    def _is_near(self, tx: Tx, row: ProjectionRow, limit: int) -> bool:
        """Whether a generation that is rebuilt may take over at the end of this batch."""
        return row.state == REBUILDING and stored.head_of(tx) - row.position <= max(limit, NEAR)

    def _items_of(self, row: ProjectionRow) -> Items:
        """The items in memory, if no other process has moved it on since; taken out while it changes."""
        items = self._items.pop((row.name, row.generation), None)
        if items is not None and items.position == row.position:
            return items
        return Items(row.name, row.generation, row.position)

    def _block(self, plan: ProjectionPlan, row: ProjectionRow, poison: _Poisoned, now: int) -> None:
        error = poison.error
        blocked_by(row, poison.position, error, encode_error(error), plan.projection.retry, now)
        log.error(
            "projection %s (generation %d) is blocked by the event at position %d, attempt %d: %s: %s",
            row.name,
            row.generation,
            poison.position,
            row.failures,
            type(error).__name__,
            message_of(error),
        )

    def _apply(
        self,
        plan: ProjectionPlan,
        tx: UserTx,
        items: Items,
        events: Sequence[EventRow],
        budget: float | None,
    ) -> int:
        """Apply events in order, as many as time allows; return the position of the last one."""
        until = math.inf if budget is None else time.perf_counter() + budget
        each = _Each(self._services, plan, tx, until, self.ending, self.crashed)
        if inspect.iscoroutinefunction(plan.projection.apply):
            user_tx = AsyncTransaction(tx, self._services.threads)
            view = AsyncView(items, self._services.codec, tx, user_tx)
            position: int = self._on_loop(tx, lambda: each.aapply(events, view))
            return position
        token = user_transaction.set(tx)
        try:
            return each.apply(events, View(items, self._services.codec, tx, tx))
        finally:
            user_transaction.reset(token)

    def _on_loop(self, tx: UserTx, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            user_transaction.set(tx)  # of this task alone
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._services.loop.get()).result()

    # Generations

    def forget(self, known: Collection[tuple[str, int]]) -> None:
        """Keep in memory only the items of generations that there are."""
        for gone in self._items.keys() - known:
            del self._items[gone]

    def set_up(self, plan: ProjectionPlan, generation: int) -> Progress:
        """Prepare a generation for its first event."""

        def verb(tx: Tx, user_tx: UserTx, row: ProjectionRow) -> None:
            items = Items(row.name, row.generation, row.position)
            self._call(plan.projection.setup, items, tx, user_tx)
            now = self._services.clock.now()
            row.begun_at = now
            moved_to(row, row.position, now)
            items.write(tx, row.position)
            stored.save(tx, row)

        return self._define(plan, generation, verb, lambda row: row.begun_at is None and row.state != RETIRED)

    def drop(self, plan: ProjectionPlan, generation: int) -> Progress:
        """Remove a retired generation and all that belongs to it."""

        def verb(tx: Tx, user_tx: UserTx, row: ProjectionRow) -> None:
            if not stored.drop_items(tx, row.name, row.generation):
                return  # the rest in another transaction
            items = Items(row.name, row.generation, row.position)
            if row.begun_at is not None:
                self._call(plan.projection.teardown, items, tx, user_tx)
            stored.delete(tx, row)

        self._items.pop((plan.name, generation), None)
        return self._define(plan, generation, verb, lambda row: row.state == RETIRED)

    def _define(
        self,
        plan: ProjectionPlan,
        generation: int,
        verb: Callable[[Tx, UserTx, ProjectionRow], None],
        wanted: Callable[[ProjectionRow], bool],
    ) -> Progress:
        try:
            with self._store.defining(f"projection {plan.name!r}") as (tx, user_tx):
                row = stored.take(tx, plan.name, generation)
                if row is None:
                    return Progress.BUSY
                if not wanted(row):
                    return Progress.MORE
                if row.waits(self._services.clock.now()):
                    return Progress.WAITS
                verb(tx, user_tx, row)
            return Progress.MORE
        except Exception as error:
            if self._store.driver.trouble(error) in (Trouble.GONE, Trouble.RETRY):
                raise
            self._failed(plan, generation, error)
            return Progress.WAITS

    def _failed(self, plan: ProjectionPlan, generation: int, error: Exception) -> None:
        """A setup or a teardown raised: it is tried again later."""

        def mark(tx: Tx) -> None:
            row = stored.take(tx, plan.name, generation)
            if row is not None:
                now, text = self._services.clock.now(), encode_error(error)
                blocked_by(row, row.position + 1, error, text, plan.projection.retry, now)
                stored.save(tx, row)

        self._store.write(mark)
        log.error(
            "projection %s: %s for generation %d failed",
            plan.name,
            "setup or teardown",
            generation,
            exc_info=error,
        )

    def _call(self, method: Callable[[Any], Any], items: Items, tx: Tx, user_tx: UserTx) -> None:
        """Call a setup or a teardown; whatever it raises is an error that can be recorded."""
        try:
            self._call_method(method, items, tx, user_tx)
        except RESERVED as error:
            raise ReservedException(method.__qualname__, repr(error)) from error

    def _call_method(self, method: Callable[[Any], Any], items: Items, tx: Tx, user_tx: UserTx) -> None:
        if inspect.iscoroutinefunction(method):
            view = AsyncView(
                items, self._services.codec, tx, AsyncTransaction(user_tx, self._services.threads)
            )
            self._on_loop(user_tx, lambda: _contained(method, view))
            return
        token = user_transaction.set(user_tx)
        try:
            method(View(items, self._services.codec, tx, user_tx))
        finally:
            user_transaction.reset(token)


async def _contained(method: Callable[[Any], Any], view: Any) -> Any:
    """Await a method inside of its task: a SystemExit that leaves a task stops its loop."""
    try:
        return await method(view)
    except SystemExit as error:
        raise ReservedException(method.__qualname__, repr(error)) from error


class _Each:
    """Applies the events of one batch."""

    def __init__(
        self,
        services: Services,
        plan: ProjectionPlan,
        tx: Tx,
        until: float,
        ending: threading.Event,
        crashed: threading.Event,
    ) -> None:
        self._apply = plan.projection.apply
        self._driver = services.store.driver
        self._tx = tx
        self._until = until
        self._ending = ending
        self._crashed = crashed
        self._wanted = plan.deciders
        self._bound_deciders = {
            decider.name: services.bound(decider.name) for decider in services.registry.deciders
        }

    def apply(self, events: Sequence[EventRow], view: View) -> int:
        position = 0
        for row in events:
            if self._wanted is None or row.decider in self._wanted:
                try:
                    self._apply(self._recorded(row), view)
                except BaseException as error:
                    self._judge(row, error)
                    raise
            position = row.position
            if self._over():
                break
        return position

    async def aapply(self, events: Sequence[EventRow], view: AsyncView) -> int:
        position = 0
        breath = time.perf_counter() + BREATH
        for row in events:
            if self._wanted is None or row.decider in self._wanted:
                try:
                    await self._apply(self._recorded(row), view)
                except BaseException as error:
                    self._judge(row, error)
                    raise
            position = row.position
            if self._over():
                break
            if time.perf_counter() > breath:
                await asyncio.sleep(0)
                breath = time.perf_counter() + BREATH
        return position

    def _recorded(self, row: EventRow) -> Recorded[Any]:
        """An event as a value.  One of a decider that we do not have blocks: to pass it over would lose it
        for good, should another version of the app know it."""
        bound = self._bound_deciders.get(row.decider)
        if bound is None:
            raise UnknownDefinition(row.decider)
        return bound.recorded(row)

    def _over(self) -> bool:
        if self._crashed.is_set():
            raise Abandoned
        return time.perf_counter() > self._until or (self._ending.is_set() and self._until < math.inf)

    def _judge(self, row: EventRow, error: BaseException) -> None:
        """Raise `_Poisoned` where it is the event that is to blame."""
        trouble = self._driver.trouble(error)
        if trouble is Trouble.RETRY:
            return
        # A disk that is full, or a server that is read-only, answers what only reads.
        if trouble is Trouble.GONE and (error is self._tx.refusal or not self._answers()):
            return
        raise _Poisoned(row.position, error) from error

    def _answers(self) -> bool:
        """Whether our own database is there: what is gone may be another one, that `apply` talks to."""
        try:
            stored.head_of(self._tx)
        except Exception as error:
            return self._driver.trouble(error) is not Trouble.GONE
        return True
