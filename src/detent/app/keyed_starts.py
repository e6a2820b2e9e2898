"""Starts with `app.options(debounce=...)`, or `dedup_key` and `within`.

Such a start may belong to a run that exists.  Only the database can tell, under the lock of the key, so the
run is planned inside of that transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from ..definitions.context import current_frame, current_step
from ..errors import ConfigurationError
from ..kernel.operations import Start
from ..kernel.rows import RunRow
from ..kernel.start_keys import StartKey, debounce_key, dedup_key
from ..stores.driver import Tx
from ..stores.verbs.listing import to_runs
from ..stores.verbs.start_keys import KeyedStart, Planner, start_by_key
from .engine import Engine
from .settings import Options
from .starting import included

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


def start(engine: Engine, definition: Any, calls: Calls, options: Options) -> RunRow:
    """Start a run, or find the one that the start belongs to; it is durable when this returns."""
    return prepared(engine, definition, calls, options)()


def prepared(engine: Engine, definition: Any, calls: Calls, options: Options) -> Callable[[], RunRow]:
    """The same in two parts: the second waits for the database, and may be called in another thread."""
    engine.store.refuse_inside("start")
    key, plan = _planned(engine, definition, calls, options)
    return lambda: _start(engine, key, plan)


def _start(engine: Engine, key: StartKey, plan: Planner) -> RunRow:
    found: KeyedStart = engine.control(lambda now: engine.store.start_by_key(key, plan, now=now))
    if found.begun is not None:
        engine.begun(found.begun, new=found.new)
    return engine.row(found.run_id)


def start_within(engine: Engine, definition: Any, calls: Calls, options: Options) -> Callable[[Tx], RunRow]:
    """The verb that does the same in a transaction of the user."""
    key, plan = _planned(engine, definition, calls, options)

    def starting(tx: Tx) -> RunRow:
        found = start_by_key(tx, key, plan, engine.clock.now())
        if found.new:
            engine.waiters.expect([found.run_id])
        return to_runs(tx.query(tx.sql.run, id=found.run_id))[0]

    return starting


def _planned(engine: Engine, definition: Any, calls: Calls, options: Options) -> tuple[StartKey, Planner]:
    if current_frame("start") is not None and current_step() is None:
        what = "debounce" if options.debounce is not None else "dedup_key"
        raise ConfigurationError(
            f"a workflow cannot start runs with {what}: a replay would start them again; do it in a step"
        )
    plain = msgspec.structs.replace(options, debounce=None, dedup_key=None, within=None)
    # The id is chosen once: the transaction may be tried again.  In a step it is the same on each attempt.
    fresh_id = engine.planned(definition, calls, plain).runs[0].id
    name = included(engine.services.registry, definition).name
    if options.debounce is not None:
        key = debounce_key(name, options.debounce)
    else:
        assert options.dedup_key is not None
        assert options.within is not None
        key = dedup_key(name, options.dedup_key, options.within)

    def plan(run_id: str | None, due: int) -> Start:
        delay = options.delay
        if options.debounce is not None:
            delay = timedelta(microseconds=max(0, due - engine.clock.now()))
        again = msgspec.structs.replace(plain, id=run_id or fresh_id, delay=delay)
        return engine.planned(definition, calls, again)

    return key, plan
