"""Which differences a recorded run would meet in today's code: what `detent check` asks."""

from __future__ import annotations

from ..errors import InvalidState
from ..kernel.drift import Difference, Recording
from ..replay.replayer import DEFAULT_TIMEOUT, replay
from .engine import Engine


def function_drift(engine: Engine, run_id: str, *, timeout: float = DEFAULT_TIMEOUT) -> list[Difference]:
    """Replay a run of a durable function against the code that the engine includes; executes nothing.

    Raises UnknownDefinition where the engine does not include the run's workflow.
    """
    row = engine.row(run_id)  # before its journal: a run that ends meanwhile must not seem to lack its end
    if row.kind != "function":
        raise InvalidState("replay", run_id, f"a {row.kind} run", "only durable functions have a journal")
    workflow = engine.registry.workflow(row.type)
    steps = engine.store.journal([run_id])[run_id]
    recording = Recording.of(row, steps, engine.store.history(run_id), engine.clock.now())
    services = engine.services
    found = replay(
        recording,
        workflow,
        codec=services.codec,
        registry=services.registry,
        queues=services.queues,
        timeout=timeout,
    )
    return list(found.differences)
