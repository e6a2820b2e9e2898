"""The test kit: virtual time, an app in memory, crashes on purpose, recorded runs.

def test_fulfil(detent_app):
    run = detent_app.start(fulfil, 42)
    detent_app.speedrun(run)
    assert run.result() == "receipt"
"""

from .apps import TestingApp
from .clock import ManualClock
from .crashes import WorkflowNotCrashSafe, crash_everywhere
from .replays import WorkflowDrifted, replay

__all__ = [
    "ManualClock",
    "TestingApp",
    "WorkflowDrifted",
    "WorkflowNotCrashSafe",
    "crash_everywhere",
    "replay",
]
