"""Publishing and appending in steps, nodes and effects; outside of runs it does nothing."""

from __future__ import annotations

from typing import Any

from ..errors import NotInRun
from .context import Context, in_thread_of_step, step_var, unrecorded_var


def publish_here(name: str, value: Any) -> None:
    """Publish a value of the run."""
    step = _step("publish")
    if step is not None:
        step._backend.post_published(step, name, value)


def append_here(name: str, value: Any, keep: int | None) -> None:
    """Append to a stream of the run."""
    step = _step("append")
    if step is not None:
        step._backend.append_entry(step, name, value, keep)


async def aappend_here(name: str, value: Any, keep: int | None) -> None:
    """The same on an event loop."""
    step = _step("append")
    if step is not None:
        await step._backend.aappend_entry(step, name, value, keep)


def _step(what: str) -> Context | None:
    """The step that runs here; None outside of runs.  Refused where nothing knows the step."""
    step = step_var.get()
    if step is None and (where := unrecorded_var.get()) is not None:
        raise NotInRun(f"detent.{what}()", f"it was called in {where}")
    if in_thread_of_step():
        raise NotInRun(
            f"detent.{what}()",
            "it was called in a thread that a step started; copy the context: "
            f"contextvars.copy_context().run(detent.{what}, ...)",
        )
    return step
