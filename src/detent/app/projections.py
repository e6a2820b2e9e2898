"""`app.projections`: the status of projections, their live read models, and operations on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from ..clock import span_micros
from ..definitions.context import ask_database
from ..definitions.projections import Projection, ProjectionPlan
from ..errors import ConfigurationError, ProjectionBehind, ProjectionBlocked
from ..execution.failures import decode_error
from ..execution.projection_view import table_name
from ..execution.services import Threads
from ..kernel.projections import LIVE, RETIRED, ProjectionRow
from ..stores.driver import Tx
from ..stores.verbs import projections as stored
from .engine import Engine

T = TypeVar("T")
Asked = type[Projection] | Projection | str
FIRST_LOOK, LONGEST_LOOK = 0.002, 0.1  # seconds between two looks at what is waited for


@dataclass(frozen=True, slots=True)
class ProjectionStatus:
    """The status of one generation of a projection.

    for status in app.projections.status():
        print(status.name, status.position, status.head)
    """

    name: str
    generation: int
    version: int  # of the code that builds it
    state: str  # live, or rebuilding
    position: int  # the last event that it has seen
    head: int  # the newest event that there is
    age: timedelta | None  # how long ago the first event happened that it has not seen
    blocked_at: int | None  # the position of the event that cannot be applied
    failures: int
    error: str | None

    @property
    def blocked(self) -> bool:
        """Whether an event failed, and the projection waits there."""
        return self.failures > 0

    @property
    def lag(self) -> int:
        """The number of events that it has not seen."""
        return max(0, self.head - self.position)


class Projections:
    """`app.projections`.

    app.projections.wait(Totals, timeout=5)
    print(app.projections.view(Totals).get("paid"))
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def status(self) -> list[ProjectionStatus]:
        """The status of each projection; one that is being rebuilt is listed twice."""
        engine = self._engine
        found, head = self._read(stored.overview)
        shown = [
            _status(row, head, oldest, engine.clock.now()) for row, oldest in found if row.state != RETIRED
        ]
        begun = {one.name for one in shown}
        plans = engine.registry.projections
        return shown + [_unbegun(plan, head) for plan in plans if plan.name not in begun]

    def rebuild(self, projection: Asked, *, restart: bool = False) -> int:
        """Rebuild from the first event, next to the live generation; return the number of the new one.

        Workers fill it, and it replaces the live generation when it has caught up.  During a rebuild,
        another one is refused; `restart=True` gives up the first.
        """
        plan = self._plan(projection)
        now = self._engine.clock.now()
        number: int | None = None
        while number is None:
            number = self._write(
                lambda tx: stored.rebuild(tx, plan.name, plan.version, restart=restart, now=now)
            )
        return number

    def skip(self, projection: Asked, *, position: int | None = None) -> int:
        """Continue after the event that blocks a projection, and return its position.

        With `position`, only if that event blocks it.  Raises ProjectionNotBlocked otherwise.
        """
        plan = self._plan(projection)
        now = self._engine.clock.now()
        return self._write(lambda tx: stored.skip(tx, plan.name, position, now))

    def view(self, projection: Asked) -> ProjectionView:
        """The live read model."""
        return ProjectionView(self._engine, self._plan(projection))

    def wait(
        self, projection: Asked, *, position: int | None = None, timeout: timedelta | float | None = None
    ) -> None:
        """Wait until a projection has seen the event at `position`; by default, all events stored so far.

        Raises ProjectionBlocked at once if an event blocks it, and ProjectionBehind after `timeout`.
        """
        for seconds in self.waiting(projection, position, timeout):
            time.sleep(seconds)

    def waiting(
        self, projection: Asked, position: int | None, timeout: timedelta | float | None
    ) -> Iterator[float]:
        """The looks at a projection that is waited for: how long to wait before each next one."""
        plan = self._plan(projection)
        goal = self._read(stored.head_of) if position is None else position
        deadline = None if timeout is None else time.monotonic() + span_micros(timeout) / 1e6
        pause = FIRST_LOOK
        while True:
            row = self._read(lambda tx: stored.live(tx, plan.name))
            reached = 0 if row is None else row.position
            if reached >= goal:
                return
            if row is not None and row.blocked:
                raise ProjectionBlocked(plan.name, row.position + 1, _line(row) or "")
            if deadline is not None and time.monotonic() >= deadline:
                raise ProjectionBehind(plan.name, goal, reached)
            yield pause
            pause = min(pause * 1.5, LONGEST_LOOK)

    def _plan(self, projection: Asked) -> ProjectionPlan:
        return self._engine.registry.projection(projection)

    def _read(self, verb: Callable[[Tx], T]) -> T:
        return read(self._engine, verb)

    def _write(self, verb: Callable[[Tx], T]) -> T:
        ask_database("projections")
        _ = self._engine.services
        answer = self._engine.store.write(verb)
        if self._engine.worker is not None:
            self._engine.worker.projector.poke()
        return answer


class ProjectionView:
    """Reads the live generation of a projection.

    view = app.projections.view(Totals)
    print(view.get("paid", 0), view.items(prefix="customer/"))
    """

    def __init__(self, engine: Engine, plan: ProjectionPlan) -> None:
        self._engine = engine
        self._name = plan.name

    def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """The value under a key, as `type`."""
        text = read(self._engine, lambda tx: stored.live_item(tx, self._name, key))
        return default if text is None else self._decoded(key, text, type)

    def items(
        self, *, prefix: str = "", after: str = "", limit: int = 1000, type: Any = Any
    ) -> list[tuple[str, Any]]:
        """Keys and values in the order of keys: those that begin with `prefix`, after the key `after`."""
        if limit < 1:
            raise ConfigurationError(f"limit={limit!r}: must be at least 1")
        rows = read(self._engine, lambda tx: stored.live_items(tx, self._name, prefix, after, limit))
        return [(key, self._decoded(key, text, type)) for key, text in rows]

    def table(self, name: str) -> str:
        """The current name of a table of the projection; a rebuild changes it.

        The old table stays for half a minute.
        """
        row = read(self._engine, lambda tx: stored.live(tx, self._name))
        return table_name(name, 1 if row is None else row.generation)

    def _decoded(self, key: str, text: str, type: Any) -> Any:
        what = f"view key {key!r} of projection {self._name!r}"
        return self._engine.services.codec.decode(text, type, what)


def read(engine: Engine, verb: Callable[[Tx], T]) -> T:
    """Query the database; open it first if it is not open."""
    ask_database("projections")
    _ = engine.services
    return engine.store.read(verb)


class AsyncProjections:
    """`app.projections` for asyncio: calls that query the database are awaited.

    await app.projections.wait(Totals, timeout=5)
    print(await app.projections.view(Totals).get("paid"))
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sync = Projections(engine)

    async def status(self) -> list[ProjectionStatus]:
        """How far each projection has come; see `Projections.status`."""
        return await in_thread(self._sync.status)

    async def rebuild(self, projection: Asked, *, restart: bool = False) -> int:
        """Build a projection again from the first event; see `Projections.rebuild`."""
        return await in_thread(lambda: self._sync.rebuild(projection, restart=restart))

    async def skip(self, projection: Asked, *, position: int | None = None) -> int:
        """Leave out an event that fails; see `Projections.skip`."""
        return await in_thread(lambda: self._sync.skip(projection, position=position))

    def view(self, projection: Asked) -> AsyncProjectionView:
        """What a projection has made of the events; see `Projections.view`."""
        return AsyncProjectionView(self._sync.view(projection))

    async def wait(
        self, projection: Asked, *, position: int | None = None, timeout: timedelta | float | None = None
    ) -> None:
        """Wait until a projection has seen what is stored now; see `Projections.wait`."""
        looks = self._sync.waiting(projection, position, timeout)
        while (seconds := await in_thread(lambda: next(looks, None))) is not None:
            await asyncio.sleep(seconds)


class AsyncProjectionView:
    """Reads the live generation of a projection; see `ProjectionView`.

    view = app.projections.view(Totals)
    print(await view.get("paid", 0))
    """

    def __init__(self, view: ProjectionView) -> None:
        self._sync = view

    async def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """The value of a key; see `ProjectionView.get`."""
        return await in_thread(lambda: self._sync.get(key, default, type=type))

    async def items(
        self, *, prefix: str = "", after: str = "", limit: int = 1000, type: Any = Any
    ) -> list[tuple[str, Any]]:
        """Keys and values in the order of the keys; see `ProjectionView.items`."""
        return await in_thread(lambda: self._sync.items(prefix=prefix, after=after, limit=limit, type=type))

    async def table(self, name: str) -> str:
        """The name of a table of its own; see `ProjectionView.table`."""
        return await in_thread(lambda: self._sync.table(name))


async def in_thread(job: Callable[[], T]) -> T:
    """Run blocking work in a thread of Detent."""
    ask_database("projections")
    answer: T = await Threads.shared().run(job)
    return answer


def _status(row: ProjectionRow, head: int, oldest: int | None, now: int) -> ProjectionStatus:
    return ProjectionStatus(
        name=row.name,
        generation=row.generation,
        version=row.version,
        state=row.state,
        position=row.position,
        head=max(head, row.position),
        age=None if oldest is None else timedelta(microseconds=max(0, now - oldest)),
        blocked_at=row.position + 1 if row.blocked and row.begun_at is not None else None,
        failures=row.failures,
        error=_line(row),
    )


def _unbegun(plan: ProjectionPlan, head: int) -> ProjectionStatus:
    """A projection that no worker has looked at yet."""
    return ProjectionStatus(
        name=plan.name,
        generation=1,
        version=plan.version,
        state=LIVE,
        position=0,
        head=head,
        age=None,
        blocked_at=None,
        failures=0,
        error=None,
    )


def _line(row: ProjectionRow) -> str | None:
    if row.error is None:
        return None
    stored_error = decode_error(row.error)
    return f"{stored_error.type.rpartition('.')[2]}: {stored_error.message}"
