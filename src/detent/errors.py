"""Every error that Detent raises on purpose, in one tree.

    DetentError
    ├── DefinitionError            the code that describes a workflow is wrong
    │   └── GraphInvalid           a graph that cannot be run
    ├── ConfigurationError         the app is set up wrongly
    │   ├── UnknownScheme          no database is known by that URL
    │   ├── MissingDriver          the extra for that database is not installed
    │   ├── UnknownDefinition      the app does not include what was asked for
    │   └── UnknownQueue           the app does not declare that queue
    ├── DatabaseError
    │   ├── DatabaseUnavailable    it could not be reached, after retries
    │   ├── SchemaTooOld           run `detent migrate`
    │   ├── SchemaTooNew           upgrade the package
    │   └── MigrationChanged       an applied migration is not what it was
    ├── PayloadError
    │   ├── NotSerializable        a value has no JSON form
    │   ├── NotPicklable           a value cannot go to another process, or come from it
    │   ├── PayloadTooLarge        a value is larger than the app allows
    │   ├── NameUnfit              an id or a name that a database cannot store
    │   ├── CannotDecode           stored JSON does not fit the annotated type
    │   └── ExportUnfit            a file is not the exported run that was asked for
    └── RunError
        ├── RunNotFound
        ├── RunConflict            the id is taken by a run with another input
        ├── AlreadyRunning         the hero has an active run of that type
        ├── InvalidState           the verb does not apply in this state
        │   └── CannotReattempt    the node may not be tried again
        ├── NodeNotFound           the run has no node of that name
        ├── StepNotDefined         a node that the code no longer has
        ├── MissingJob             a frozen graph names a job that nobody includes
        ├── GraphTampered          a stored graph is not what was signed
        ├── ExpressionError  DeadEnd              what a graph computes has no value, or leads nowhere
        ├── RunCanceled  RunPaused  RunFailed     how waiting for a result can end
        ├── ResultTimeout          the result did not come in time
        ├── DeadlineExceeded       the run was not done by its deadline
        ├── LeaseLost              another worker owns the execution now
        ├── StepFailed             a step's error whose class cannot be rebuilt
        ├── StepTimeout  StepCrashed  ReceiveTimeout
        ├── StepMismatch           a strict replay met other arguments
        ├── StepOutsideRun         a step was called where it cannot be recorded
        ├── BlockingCall           a blocking call would stop an event loop
        ├── NotInRun               what only a running workflow can do
        ├── TransactionMisused     a step's transaction ends with the step
        ├── CompensationFailed     what was done could not be undone
        ├── TooManyRecoveries      the execution kept killing its worker
        └── ReadinessOverflow      a bug: a node was settled too often

Facts are fields, the message says what, which and what to do, and all of them
survive a pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class DetentError(Exception):
    """Base of every error that Detent raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls cls(*args), which fails for errors built from named
        # fields; these cross process boundaries, so rebuild from the fields.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[DetentError], args: tuple[Any, ...], fields: dict[str, Any]) -> DetentError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class DefinitionError(DetentError):
    """A step, a workflow or an option of one is described wrongly."""


class ConfigurationError(DetentError):
    """The app is set up wrongly."""


@dataclass(eq=False)
class UnknownScheme(ConfigurationError):
    scheme: str

    def __str__(self) -> str:
        return (
            f"no database is known by the scheme {self.scheme!r}; write sqlite:///file.db, "
            f"postgresql://user@host/name or mysql://user@host/name"
        )


@dataclass(eq=False)
class MissingDriver(ConfigurationError):
    database: str
    extra: str

    def __str__(self) -> str:
        return f"the driver for {self.database} is not installed; run: pip install 'detent[{self.extra}]'"


@dataclass(eq=False)
class UnknownDefinition(ConfigurationError):
    name: str

    def __str__(self) -> str:
        return f"{self.name!r} is not included in this app; add it: App(..., include=[{self.name}])"


@dataclass(eq=False)
class UnknownQueue(ConfigurationError):
    queue: str
    declared: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} is not declared by this app (it has {', '.join(self.declared)}); "
            f"declare it: App(..., queues=[{self.queue!r}, ...])"
        )


class DatabaseError(DetentError):
    """The database cannot do what Detent needs."""


@dataclass(eq=False)
class DatabaseUnavailable(DatabaseError):
    database: str
    reason: str

    def __str__(self) -> str:
        return f"{self.database} cannot be reached: {self.reason}. Is the server running, and the URL right?"


@dataclass(eq=False)
class SchemaTooOld(DatabaseError):
    found: int
    needed: int

    def __str__(self) -> str:
        return (
            f"the database has Detent's schema {self.found or 'nowhere'}, this version needs {self.needed}; "
            f"run `detent migrate MODULE:APP` (or open the app with App(..., migrate=True))"
        )


@dataclass(eq=False)
class SchemaTooNew(DatabaseError):
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"the database has Detent's schema {self.found}, this version knows up to {self.known}; "
            f"upgrade the package: pip install --upgrade detent"
        )


@dataclass(eq=False)
class MigrationChanged(DatabaseError):
    version: int

    def __str__(self) -> str:
        return (
            f"migration {self.version} was applied with another content than this version of Detent carries; "
            f"install the version that made this database, or restore the database from a backup"
        )


class PayloadError(DetentError):
    """A value cannot travel through the database."""


@dataclass(eq=False)
class NotSerializable(PayloadError):
    what: str
    type: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.what} cannot be stored: {self.type} has no JSON form ({self.reason}). "
            f"Use plain values, dataclasses, msgspec Structs or pydantic models"
        )


@dataclass(eq=False)
class NotPicklable(PayloadError):
    what: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.what} cannot go from one process to another: {self.reason}. "
            f"Use plain values, or leave executor='process' out"
        )


@dataclass(eq=False)
class PayloadTooLarge(PayloadError):
    what: str
    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"{self.what} takes {self.size:,} bytes, more than the {self.limit:,} allowed; "
            f"store it elsewhere and pass a reference, or raise App(..., max_payload=...)"
        )


@dataclass(eq=False)
class NameUnfit(PayloadError):
    what: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} {self.name!r} cannot be used: it {self.reason}; choose another"


@dataclass(eq=False)
class CannotDecode(PayloadError):
    what: str
    type: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} does not fit {self.type}: {self.reason}"


@dataclass(eq=False)
class ExportUnfit(PayloadError):
    source: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.source} cannot be replayed: {self.reason}; "
            f"write a run to a file with: detent show MODULE:APP ID --export run.json"
        )


class RunError(DetentError):
    """Something about one run."""


@dataclass(eq=False)
class RunNotFound(RunError):
    run_id: str

    def __str__(self) -> str:
        return f"there is no run {self.run_id!r} in this database; `detent runs` lists them"


@dataclass(eq=False)
class RunConflict(RunError):
    run_id: str
    type: str

    def __str__(self) -> str:
        return (
            f"run id {self.run_id!r} is taken by a run of {self.type} with another input; "
            f"the same id always means the same work: choose another id"
        )


@dataclass(eq=False)
class AlreadyRunning(RunError):
    run_id: str
    type: str
    hero: str

    def __str__(self) -> str:
        return (
            f"{self.hero} already has an active run of {self.type}: {self.run_id}; "
            f"wait for it, cancel it, or start with app.options(allow_multiple=True)"
        )


@dataclass(eq=False)
class InvalidState(RunError):
    verb: str
    run_id: str
    state: str
    hint: str = ""

    def __str__(self) -> str:
        return f"cannot {self.verb} run {self.run_id}: it is {self.state}" + (
            f"; {self.hint}" if self.hint else ""
        )


@dataclass(eq=False)
class RunCanceled(RunError):
    run_id: str

    def __str__(self) -> str:
        return f"run {self.run_id} was canceled"


@dataclass(eq=False)
class RunPaused(RunError):
    run_id: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run_id} is paused ({self.reason}); fix the cause, then run.resume()"


@dataclass(eq=False)
class RunFailed(RunError):
    """A run's own error, where its class cannot be rebuilt."""

    run_id: str
    type: str
    message: str

    def __str__(self) -> str:
        return f"run {self.run_id} failed with {self.type}: {self.message}"


@dataclass(eq=False)
class ResultTimeout(RunError, TimeoutError):
    run_id: str
    state: str

    def __str__(self) -> str:
        return f"run {self.run_id} has no result yet (it is {self.state}); it goes on, ask again later"


@dataclass(eq=False)
class DeadlineExceeded(RunError):
    run_id: str
    deadline: str

    def __str__(self) -> str:
        return f"run {self.run_id} was not done by its deadline, {self.deadline}"


@dataclass(eq=False)
class LeaseLost(RunError):
    run_id: str
    node: str
    worker: str

    def __str__(self) -> str:
        return (
            f"worker {self.worker} lost its lease on {self.node!r} of run {self.run_id}; "
            f"another worker goes on, this result is discarded"
        )


@dataclass(eq=False)
class StepFailed(RunError):
    step: str
    type: str
    message: str

    def __str__(self) -> str:
        return f"step {self.step!r} failed with {self.type}: {self.message}"


@dataclass(eq=False)
class StepTimeout(RunError, TimeoutError):
    step: str
    seconds: float

    def __str__(self) -> str:
        return f"step {self.step!r} took longer than its timeout of {self.seconds:g} s"


@dataclass(eq=False)
class StepCrashed(RunError):
    step: str

    def __str__(self) -> str:
        return f"step {self.step!r} killed the process that it ran in"


@dataclass(eq=False)
class ReceiveTimeout(RunError, TimeoutError):
    name: str

    def __str__(self) -> str:
        return f"no message {self.name!r} came in time; receive(..., default=...) returns a value instead"


@dataclass(eq=False)
class StepMismatch(RunError):
    run_id: str
    step: str
    recorded: str
    asked: str

    def __str__(self) -> str:
        return (
            f"run {self.run_id} cannot go on: step {self.step!r} was recorded with {self.recorded}, "
            f"and the code now asks for {self.asked}. Finish the run with the code that began it, "
            f"or guard the change with detent.patched()."
        )


@dataclass(eq=False)
class StepOutsideRun(RunError):
    step: str
    where: str

    def __str__(self) -> str:
        return (
            f"step {self.step!r} was called from {self.where}, where it would not be recorded. "
            f"Carry the context along, contextvars.copy_context().run({self.step}, ...), "
            f"or use {self.step}.spawn(...)"
        )


@dataclass(eq=False)
class BlockingCall(RunError):
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.what!r} would block the event loop that this workflow runs on; write {self.instead}"


@dataclass(eq=False)
class NotInRun(RunError):
    what: str

    def __str__(self) -> str:
        return (
            f"{self.what} works only in a running workflow (and not inside of a step); "
            f"begin one with app.start()"
        )


@dataclass(eq=False)
class TransactionMisused(RunError):
    verb: str

    def __str__(self) -> str:
        if self.verb in ("commit", "rollback", "close"):
            return (
                f"a transactional step must not {self.verb}: its writes and its record commit together "
                f"when it returns, and roll back when it raises"
            )
        return (
            f"{self.verb} inside of a transactional step would wait for itself; "
            f"write app.within(tx).{self.verb}(...)"
        )


@dataclass(eq=False)
class CompensationFailed(RunError):
    step: str
    message: str

    def __str__(self) -> str:
        return f"the compensation of step {self.step!r} failed: {self.message}; run.resume() tries it again"


@dataclass(eq=False)
class TooManyRecoveries(RunError):
    node: str
    recoveries: int

    def __str__(self) -> str:
        return (
            f"{self.node!r} took its worker down {self.recoveries} times without getting anywhere; "
            f"run.resume() gives it a fresh budget"
        )


@dataclass(eq=False)
class ReadinessOverflow(RunError):
    run_id: str
    node: str
    settled: int
    required: int

    def __str__(self) -> str:
        return (
            f"node {self.node!r} of run {self.run_id} was settled {self.settled} times of {self.required}; "
            f"this is a bug in Detent, please report it"
        )


@dataclass(eq=False)
class GraphInvalid(DefinitionError):
    what: str
    problem: str

    def __str__(self) -> str:
        return f"{self.what} is no graph that can be run: {self.problem}"


@dataclass(eq=False)
class CannotReattempt(InvalidState):
    """`state` says what stands in the way."""

    node: str = ""

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"cannot reattempt node {self.node!r} of run {self.run_id}: {self.state}{hint}"


@dataclass(eq=False)
class NodeNotFound(RunError):
    run_id: str
    node: str

    def __str__(self) -> str:
        return f"run {self.run_id} has no node {self.node!r}; run.nodes() lists them"


@dataclass(eq=False)
class StepNotDefined(RunError):
    run_id: str
    type: str
    node: str

    def __str__(self) -> str:
        return (
            f"run {self.run_id} is to execute {self.node!r}, which {self.type} does not define any more. "
            f"Deploy code that has it and run.resume(), or run.skip({self.node!r}) to go on without it"
        )


@dataclass(eq=False)
class MissingJob(RunError):
    run_id: str
    job: str
    node: str
    frozen_at: str

    def __str__(self) -> str:
        return (
            f'Dynamic run {self.run_id} references job "{self.job}" which no longer exists.\n\n'
            f"Node: {self.node}\n"
            f"Frozen at: {self.frozen_at}\n\n"
            f"Dynamic runs cannot be healed by code changes.\n\n"
            f"Options:\n"
            f'1. Restore the step "{self.job}", include it, and run.resume()\n'
            f"2. Cancel this run and start a new one\n"
            f"3. Edit its graph: run.export_graph(), run.import_graph(...) (last resort)"
        )


@dataclass(eq=False)
class GraphTampered(RunError):
    what: str
    signature: str
    actual: str

    def __str__(self) -> str:
        return (
            f"{self.what} is not the graph that was frozen: it was signed {self.signature[:16]}…, "
            f"its content is {self.actual[:16]}…. Nothing of it is executed; restore it from a backup, "
            f"or look at it and run.import_graph(...)"
        )


@dataclass(eq=False)
class ExpressionError(RunError):
    expression: str
    reason: str

    def __str__(self) -> str:
        return f"cannot evaluate {self.expression}: {self.reason}"


@dataclass(eq=False)
class DeadEnd(RunError):
    node: str
    condition: str

    def __str__(self) -> str:
        return (
            f"{self.node!r} leads nowhere: {self.condition} is false, and there is no otherwise; "
            f"add `with g.otherwise():`, if only with `pass`"
        )
