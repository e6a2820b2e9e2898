"""Detent: durable workflows for Python.

import detent
from detent import step, workflow
"""

from . import aio
from .aio import AsyncApp, AsyncRun
from .app import App, Run
from .context import Context
from .deciders import Decider, EffectContext, Transition, upcaster
from .decisions import Decision, Recorded, Timer, TimerCancelled
from .declaring import PREVIOUS
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
from .engine.machines import InstanceView
from .errors import (
    AlreadyRunning,
    CannotReattempt,
    DeadlineExceeded,
    DefinitionError,
    DetentError,
    GraphInvalid,
    GraphTampered,
    InvalidDecision,
    InvalidInput,
    InvalidState,
    MissingJob,
    PermanentError,
    ReceiveTimeout,
    ResultTimeout,
    RunCanceled,
    RunConflict,
    RunNotFound,
    RunPaused,
    StepFailed,
    StepNotDefined,
    StepTimeout,
    UnreadableEvent,
)
from .functions import FunctionWorkflow, Handle, Step, step, workflow
from .graphs import Graph, Template, template
from .kernel.machine import StateInfo, StateMachineView, TransitionInfo
from .kernel.policies import ExceptionPolicy, Retry
from .projections import Projection
from .runtime.transactions import AsyncTransaction, Transaction
from .runtime.views import AsyncView, View
from .workflows import Workflow, cancel_if, job_options, on_exception, task

__version__ = "0.1.0"

__all__ = [
    "PREVIOUS",
    "AlreadyRunning",
    "App",
    "AsyncApp",
    "AsyncRun",
    "AsyncTransaction",
    "AsyncView",
    "CannotReattempt",
    "Context",
    "DeadlineExceeded",
    "Decider",
    "Decision",
    "DefinitionError",
    "DetentError",
    "EffectContext",
    "ExceptionPolicy",
    "FunctionWorkflow",
    "Graph",
    "GraphInvalid",
    "GraphTampered",
    "Handle",
    "InstanceView",
    "InvalidDecision",
    "InvalidInput",
    "InvalidState",
    "MissingJob",
    "PermanentError",
    "Projection",
    "ReceiveTimeout",
    "Recorded",
    "ResultTimeout",
    "Retry",
    "Run",
    "RunCanceled",
    "RunConflict",
    "RunNotFound",
    "RunPaused",
    "StateInfo",
    "StateMachineView",
    "Step",
    "StepFailed",
    "StepNotDefined",
    "StepTimeout",
    "Template",
    "Timer",
    "TimerCancelled",
    "Transaction",
    "Transition",
    "TransitionInfo",
    "UnreadableEvent",
    "View",
    "Workflow",
    "aio",
    "cancel_if",
    "job_options",
    "now",
    "on_exception",
    "patched",
    "publish",
    "random",
    "receive",
    "send",
    "sleep",
    "sleep_until",
    "step",
    "step_guard",
    "task",
    "template",
    "upcaster",
    "uuid",
    "workflow",
]
