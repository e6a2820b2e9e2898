"""The run and the step of the calling code, for log records."""

from __future__ import annotations

import logging
from typing import Any

from ..kernel.rows import MAIN
from .context import frame_var, step_var


def log_fields() -> dict[str, Any]:
    """The run, type, step and attempt of the calling code; empty outside runs.

    log.info("charging", extra=detent.log_fields())

    In the function of a workflow, the step is `main`.
    """
    step, frame = step_var.get(), frame_var.get()
    if step is not None:
        return step.facts
    if frame is not None:
        return {"run": frame.run_id, "type": frame.info.type, "step": MAIN, "attempt": frame.claimed.attempt}
    return {}


class LogFields(logging.Filter):
    """Gives every log record the attributes `run`, `type`, `step` and `attempt`.

        handler = logging.StreamHandler()
        handler.addFilter(detent.LogFields())
        handler.setFormatter(logging.Formatter("%(run)s %(step)s %(message)s"))

    They are None outside runs.  Add it to a handler: a filter of a logger does not see the records
    of its child loggers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = log_fields()
        for name in ("run", "type", "step", "attempt"):
            if not hasattr(record, name):
                setattr(record, name, fields.get(name))
        return True
