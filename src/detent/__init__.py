"""Detent: durable workflows for Python.

import detent
from detent import step, workflow
"""

from . import aio
from .aio import AsyncApp, AsyncRun
from .app import App, Run
from .context import Context
from .durable import (
    now,
    patched,
    publish,
    random,
    receive,
    send,
    sleep,
    sleep_until,
    step_guard,
    uuid,
)
from .errors import (
    AlreadyRunning,
    DeadlineExceeded,
    DefinitionError,
    DetentError,
    InvalidState,
    ReceiveTimeout,
    ResultTimeout,
    RunCanceled,
    RunConflict,
    RunNotFound,
    RunPaused,
    StepFailed,
    StepTimeout,
)
from .functions import FunctionWorkflow, Handle, Step, step, workflow
from .kernel.policies import Retry
from .runtime.transactions import AsyncTransaction, Transaction

__version__ = "0.1.0"

__all__ = [
    "AlreadyRunning",
    "App",
    "AsyncApp",
    "AsyncRun",
    "AsyncTransaction",
    "Context",
    "DeadlineExceeded",
    "DefinitionError",
    "DetentError",
    "FunctionWorkflow",
    "Handle",
    "InvalidState",
    "ReceiveTimeout",
    "ResultTimeout",
    "Retry",
    "Run",
    "RunCanceled",
    "RunConflict",
    "RunNotFound",
    "RunPaused",
    "Step",
    "StepFailed",
    "StepTimeout",
    "Transaction",
    "aio",
    "now",
    "patched",
    "publish",
    "random",
    "receive",
    "send",
    "sleep",
    "sleep_until",
    "step",
    "step_guard",
    "uuid",
    "workflow",
]
