"""The test kit: virtual time, an in-memory app, crash tests, replays of recorded runs, tests of deciders.

def test_fulfil(detent_app):
    run = detent_app.start(fulfil, 42)
    detent_app.speedrun(run)
    assert run.result() == "receipt"
"""

from ..kernel.drift import Difference, Replay
from .apps import TestingApp
from .clock import ManualClock
from .crashes import WorkflowNotCrashSafe, crash_everywhere
from .deciders import Story, given
from .differences import DecidedOtherwise
from .effects import EffectRecorder, record_effects
from .replays import WorkflowDrifted, replay

__all__ = [
    "DecidedOtherwise",
    "Difference",
    "EffectRecorder",
    "ManualClock",
    "Replay",
    "Story",
    "TestingApp",
    "WorkflowDrifted",
    "WorkflowNotCrashSafe",
    "crash_everywhere",
    "given",
    "record_effects",
    "replay",
]
