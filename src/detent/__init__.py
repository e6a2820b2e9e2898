"""Detent: durable workflows for Python.

import detent
from detent import step, workflow

A part of it is loaded when one of its names is first asked for: a program that only describes steps
and workflows need not wait for databases, workers and asyncio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import aio, events
    from .aio import AsyncApp, AsyncRun
    from .aio.app import AsyncStarter
    from .aio.deciders import AsyncDeadLetters, AsyncDeciders
    from .aio.queues import AsyncQueueHandle, AsyncQueues
    from .aio.run import AsyncRuns
    from .aio.run_streams import AsyncStream
    from .aio.schedules import AsyncSchedule, AsyncSchedules
    from .aio.within import AsyncWithin
    from .app.app import App, Starter
    from .app.bulk import Changed
    from .app.dead_letters import Backlog, DeadLetter, DeadLetters, ReplayReport
    from .app.graphs import NodeState
    from .app.machine import Deciders, InstanceView
    from .app.observations import Observation
    from .app.projections import (
        AsyncProjections,
        AsyncProjectionView,
        Projections,
        ProjectionStatus,
        ProjectionView,
    )
    from .app.queues import QueueHandle, Queues, QueueStatus
    from .app.run import Run, Runs
    from .app.run_streams import Stream, StreamEntry
    from .app.schedules import Schedule, Schedules
    from .app.values import Call
    from .app.views import Execution, HistoryEvent
    from .app.waiting import WaitReason
    from .app.within import Within
    from .dashboard import dashboard
    from .definitions.arrows import NodeGroup, NodeRef, Outputs
    from .definitions.callers import AsyncCaller, Handle, SyncCaller
    from .definitions.completion import as_completed, first
    from .definitions.context import Context, Cursor, RunInfo
    from .definitions.deciders import Decider, EffectContext, Transition, Upcaster, upcaster
    from .definitions.decisions import Decision, Recorded, Timer, TimerCancelled
    from .definitions.decorators import StepMaker, step, workflow
    from .definitions.durable import (
        append,
        continue_as_new,
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
    from .definitions.functions import Child, FunctionWorkflow, Step
    from .definitions.graphs import Graph
    from .definitions.log_fields import LogFields, log_fields
    from .definitions.node_options import PREVIOUS
    from .definitions.projections import Projection
    from .definitions.templates import Template, template
    from .definitions.workflows import Workflow, cancel_if, job_options, on_exception, task
    from .errors import (
        AlreadyRunning,
        CannotReattempt,
        DeadlineExceeded,
        DefinitionError,
        DetentError,
        GraphInvalid,
        GraphTampered,
        InvalidArgument,
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
    from .execution.projection_view import AsyncView, View
    from .execution.transactions import AsyncTransaction, Transaction
    from .kernel.ancestry import Broken
    from .kernel.expressions import Expression
    from .kernel.machine import StateInfo, StateMachineView, TransitionInfo
    from .kernel.policies import ExceptionPolicy, Retry
    from .kernel.queues import Queue, Rate
    from .kernel.rows import Error
    from .kernel.start_keys import Debounce

__version__ = "0.1.0"

__all__ = [
    "PREVIOUS",
    "AlreadyRunning",
    "App",
    "AsyncApp",
    "AsyncCaller",
    "AsyncDeadLetters",
    "AsyncDeciders",
    "AsyncProjectionView",
    "AsyncProjections",
    "AsyncQueueHandle",
    "AsyncQueues",
    "AsyncRun",
    "AsyncRuns",
    "AsyncSchedule",
    "AsyncSchedules",
    "AsyncStarter",
    "AsyncStream",
    "AsyncTransaction",
    "AsyncView",
    "AsyncWithin",
    "Backlog",
    "Broken",
    "Call",
    "CannotReattempt",
    "Changed",
    "Child",
    "Context",
    "Cursor",
    "DeadLetter",
    "DeadLetters",
    "DeadlineExceeded",
    "Debounce",
    "Decider",
    "Deciders",
    "Decision",
    "DefinitionError",
    "DetentError",
    "EffectContext",
    "Error",
    "ExceptionPolicy",
    "Execution",
    "Expression",
    "FunctionWorkflow",
    "Graph",
    "GraphInvalid",
    "GraphTampered",
    "Handle",
    "HistoryEvent",
    "InstanceView",
    "InvalidArgument",
    "InvalidDecision",
    "InvalidInput",
    "InvalidState",
    "LogFields",
    "MissingJob",
    "NodeGroup",
    "NodeRef",
    "NodeState",
    "Observation",
    "Outputs",
    "PermanentError",
    "Projection",
    "ProjectionStatus",
    "ProjectionView",
    "Projections",
    "Queue",
    "QueueHandle",
    "QueueStatus",
    "Queues",
    "Rate",
    "ReceiveTimeout",
    "Recorded",
    "ReplayReport",
    "ResultTimeout",
    "Retry",
    "Run",
    "RunCanceled",
    "RunConflict",
    "RunInfo",
    "RunNotFound",
    "RunPaused",
    "Runs",
    "Schedule",
    "Schedules",
    "Starter",
    "StateInfo",
    "StateMachineView",
    "Step",
    "StepFailed",
    "StepMaker",
    "StepNotDefined",
    "StepTimeout",
    "Stream",
    "StreamEntry",
    "SyncCaller",
    "Template",
    "Timer",
    "TimerCancelled",
    "Transaction",
    "Transition",
    "TransitionInfo",
    "UnreadableEvent",
    "Upcaster",
    "View",
    "WaitReason",
    "Within",
    "Workflow",
    "aio",
    "append",
    "as_completed",
    "cancel_if",
    "continue_as_new",
    "dashboard",
    "events",
    "first",
    "job_options",
    "log_fields",
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

# Where each name lives; type checkers read the same in the imports above.
_HOMES = {
    "app.waiting": "WaitReason",
    "aio.schedules": "AsyncSchedule AsyncSchedules",
    "app.schedules": "Schedule Schedules",
    "aio.queues": "AsyncQueueHandle AsyncQueues",
    "app.queues": "QueueHandle QueueStatus Queues",
    "aio": "AsyncApp AsyncRun",
    "aio.app": "AsyncStarter",
    "aio.within": "AsyncWithin",
    "aio.deciders": "AsyncDeadLetters AsyncDeciders",
    "aio.run": "AsyncRuns",
    "app.app": "App Starter",
    "app.within": "Within",
    "dashboard": "dashboard",
    "definitions.arrows": "NodeGroup NodeRef Outputs",
    "definitions.callers": "AsyncCaller Handle SyncCaller",
    "definitions.completion": "as_completed first",
    "definitions.context": "Context Cursor RunInfo",
    "definitions.log_fields": "LogFields log_fields",
    "definitions.deciders": "Decider EffectContext Transition Upcaster upcaster",
    "definitions.decisions": "Decision Recorded Timer TimerCancelled",
    "definitions.node_options": "PREVIOUS",
    "definitions.decorators": "StepMaker step workflow",
    "definitions.durable": (
        "append continue_as_new now patched publish random receive send sleep sleep_until step_guard uuid"
    ),
    "app.bulk": "Changed",
    "app.graphs": "NodeState",
    "app.dead_letters": "Backlog DeadLetter DeadLetters ReplayReport",
    "app.machine": "Deciders InstanceView",
    "app.observations": "Observation",
    "app.projections": "AsyncProjectionView AsyncProjections ProjectionStatus ProjectionView Projections",
    "app.values": "Call",
    "app.views": "Execution HistoryEvent",
    "errors": (
        "AlreadyRunning CannotReattempt DeadlineExceeded DefinitionError DetentError GraphInvalid "
        "GraphTampered InvalidArgument InvalidDecision InvalidInput InvalidState MissingJob "
        "PermanentError ReceiveTimeout ResultTimeout RunCanceled RunConflict RunNotFound RunPaused "
        "StepFailed StepNotDefined StepTimeout UnreadableEvent"
    ),
    "definitions.functions": "Child FunctionWorkflow Step",
    "definitions.graphs": "Graph",
    "definitions.templates": "Template template",
    "kernel.ancestry": "Broken",
    "kernel.expressions": "Expression",
    "kernel.machine": "StateInfo StateMachineView TransitionInfo",
    "kernel.rows": "Error",
    "kernel.policies": "ExceptionPolicy Retry",
    "kernel.queues": "Queue Rate",
    "kernel.start_keys": "Debounce",
    "definitions.projections": "Projection",
    "app.run": "Run Runs",
    "app.run_streams": "Stream StreamEntry",
    "aio.run_streams": "AsyncStream",
    "execution.transactions": "AsyncTransaction Transaction",
    "execution.projection_view": "AsyncView View",
    "definitions.workflows": "Workflow cancel_if job_options on_exception task",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_PARTS = {"events"} | {home.partition(".")[0] for home in _HOMES}


if not TYPE_CHECKING:  # a type checker must not believe that every name exists

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            value = getattr(import_module(f".{_HOME[name]}", __name__), name)
            globals()[name] = value  # so that this function is called once for a name
            return value
        if name in _PARTS:
            return import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
