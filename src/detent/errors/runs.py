"""Errors of runs and steps, and the ways in which waiting for a result can end."""

from __future__ import annotations

from .facts import facts
from .roots import DetentError


class RunError(DetentError):
    """Base of all errors about a run."""


@facts
class RunNotFound(RunError):
    """The database has no run with this id, or it was removed.

    try:
        app.run("order-42")
    except detent.RunNotFound as error:
        print(error.run_id)
    """

    run_id: str

    def __str__(self) -> str:
        return f"there is no run {self.run_id!r} in this database; `detent runs` lists them"


@facts
class RunConflict(RunError):
    """The id belongs to a run with another input.

    try:
        app.options(id="order-42").start(refund, 42)
    except detent.RunConflict as error:
        print(error.run_id, error.type)
    """

    run_id: str
    type: str
    parent: str = ""  # the parent of the child run that was started with the id; empty if it was no child

    def __str__(self) -> str:
        if self.parent:
            return (
                f"run {self.parent} cannot start a child with the id {self.run_id!r}: "
                f"another run of {self.type} has it; choose another id"
            )
        return (
            f"run id {self.run_id!r} belongs to a run of {self.type} with another input; "
            f"choose another id, or start it with the same input"
        )


@facts
class AlreadyRunning(RunError):
    """The hero (the subject of the run) already has an active run of this type.

    try:
        app.options(hero=user).start(Onboarding)
    except detent.AlreadyRunning as error:
        run = app.run(error.run_id)
    """

    run_id: str
    type: str
    hero: str

    def __str__(self) -> str:
        return (
            f"{self.hero} already has an active run of {self.type}: {self.run_id}; "
            f"wait for it, cancel it, or start with app.options(allow_multiple=True)"
        )


@facts
class InvalidState(RunError):
    """The operation is not possible in the current state of the run.

    try:
        run.resume()
    except detent.InvalidState as error:
        print(error.state, error.hint)
    """

    verb: str
    run_id: str
    state: str
    hint: str = ""

    def __str__(self) -> str:
        return f"cannot {self.verb} run {self.run_id}: it is {self.state}" + (
            f"; {self.hint}" if self.hint else ""
        )


@facts
class RunCanceled(RunError):
    """The run was canceled, so it has no result.

    try:
        run.result()
    except detent.RunCanceled as error:
        print(error.run_id)
    """

    run_id: str

    def __str__(self) -> str:
        return f"run {self.run_id} was canceled"


@facts
class RunPaused(RunError):
    """The run is paused, so its result has to wait for `run.resume()`.

    try:
        run.result()
    except detent.RunPaused as error:
        print(error.reason)
    """

    run_id: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run_id} is paused ({self.reason}); fix the cause, then run.resume()"


@facts
class RunFailed(RunError):
    """The run failed with an error whose class cannot be rebuilt."""

    run_id: str
    type: str
    message: str

    def __str__(self) -> str:
        return f"run {self.run_id} failed with {self.type}: {self.message}"


@facts
class ResultTimeout(RunError, TimeoutError):
    """`run.result(timeout=...)` ended before the run did.

    try:
        run.result(timeout=30)
    except detent.ResultTimeout as error:
        print(error.run_id, error.state)
    """

    run_id: str
    state: str
    unserved: str = ""  # why no live worker can execute the run; empty if one can

    def __str__(self) -> str:
        advice = f"{self.unserved}: start one that does" if self.unserved else "it continues; ask again later"
        return f"run {self.run_id} has no result yet (it is {self.state}); {advice}"


@facts
class DeadlineExceeded(RunError):
    """The run did not end before its deadline.

    try:
        app.options(deadline=60).start(fulfil, 42).result()
    except detent.DeadlineExceeded as error:
        print(error.run_id, error.deadline)
    """

    run_id: str
    deadline: str

    def __str__(self) -> str:
        return f"run {self.run_id} did not end before its deadline, {self.deadline}"


@facts
class LeaseLost(RunError):
    """The worker no longer owns the execution, so its result is discarded."""

    run_id: str
    node: str
    worker: str

    def __str__(self) -> str:
        return (
            f"worker {self.worker} lost its lease on {self.node!r} of run {self.run_id}; "
            f"another worker continues, and this result is discarded"
        )


@facts
class StepFailed(RunError):
    """The step failed with an error whose class cannot be rebuilt.

    try:
        charge(order_id)
    except detent.StepFailed as error:
        print(error.step, error.type, error.message)
    """

    step: str
    type: str
    message: str

    def __str__(self) -> str:
        return f"step {self.step!r} failed with {self.type}: {self.message}"


@facts
class WorkerTraceback(RunError):
    """The traceback of a stored error, as text: the `__cause__` of the exception that is raised."""

    text: str

    def __str__(self) -> str:
        return f'the traceback in the worker was\n"""\n{self.text.rstrip()}\n"""'


@facts
class StepTimeout(RunError, TimeoutError):
    """The step took longer than its `timeout`.

    try:
        charge(order_id)
    except detent.StepTimeout as error:
        print(error.step, error.seconds)
    """

    step: str
    seconds: float

    def __str__(self) -> str:
        return f"step {self.step!r} took longer than its timeout of {self.seconds:g} s"


@facts
class StepCrashed(RunError):
    """The step ended the process in which it ran (`executor="process"`)."""

    step: str

    def __str__(self) -> str:
        return f"step {self.step!r} killed the process in which it ran"


@facts
class ReceiveTimeout(RunError, TimeoutError):
    """No message arrived before the timeout of `detent.receive`.

    try:
        approved = detent.receive("approval", timeout=3600)
    except detent.ReceiveTimeout as error:
        print(error.name)
    """

    name: str

    def __str__(self) -> str:
        return f"no message {self.name!r} arrived in time; receive(..., default=...) returns a value instead"


_DRIFT_HELP = (
    "Deploy the code that started the run, guard the change with detent.patched(), "
    "accept the difference with run.resume(accept_drift=True), or fork the run with app.fork()."
)


@facts
class StepMismatch(RunError):
    """A replay called a recorded step with other arguments than recorded."""

    run_id: str
    step: str
    recorded: str
    asked: str

    def __str__(self) -> str:
        return (
            f"run {self.run_id} cannot continue: step {self.step!r} was recorded with {self.recorded}, "
            f"but the code now calls it with {self.asked}. {_DRIFT_HELP}"
        )


@facts
class StepsNotAsked(RunError):
    """A strict replay reached a new step before it had called all recorded steps."""

    run_id: str
    step: str
    recorded: list[str]

    def __str__(self) -> str:
        names = ", ".join(repr(key) for key in self.recorded)
        return (
            f"run {self.run_id} cannot continue: the code now calls {self.step!r}, which is not recorded, "
            f"but has not called {names}, which the run has recorded. {_DRIFT_HELP}"
        )


@facts
class StepOutsideRun(RunError):
    """A step was called where it cannot be recorded."""

    step: str
    where: str

    def __str__(self) -> str:
        return (
            f"step {self.step!r} was called from {self.where}, where it would not be recorded. "
            f"Copy the context, contextvars.copy_context().run({self.step}, ...), "
            f"or use {self.step}.spawn(...)"
        )


@facts
class BlockingCall(RunError):
    """A blocking call was made in an async workflow."""

    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.what!r} would block the event loop of this workflow; write {self.instead}"


@facts
class NotAwaited(RunError):
    """An async step or durable call was not awaited."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what} is async, and a call was not awaited: {self.advice}"


@facts
class NotInRun(RunError):
    """The call works only in a running workflow."""

    what: str
    where: str = ""  # where it was called, if known

    def __str__(self) -> str:
        if self.where:
            return f"{self.what} cannot be recorded here: {self.where}"
        return f"{self.what} works only in a running workflow, outside its steps; start one with app.start()"


@facts
class TransactionMisused(RunError):
    """A transactional step made a call that would not be part of its transaction, or would end it."""

    verb: str

    def __str__(self) -> str:
        if self.verb in ("commit", "rollback", "close"):
            return (
                f"a transactional step must not {self.verb}: its writes and its record commit together "
                f"when it returns, and roll back when it raises"
            )
        if self.verb in ("start", "start_many", "enqueue_input"):
            return (
                f"{self.verb} inside a transactional step is refused: it would not be part of the step's "
                f"transaction; write app.within(tx).{self.verb}(...)"
            )
        if self.verb == "tx":
            return "the step and its transaction have ended; use tx only inside the step"
        return (
            f"{self.verb} inside a transactional step is refused: it would not be part of the step's "
            f"transaction, and on SQLite it would wait for it forever; call it before or after the step"
        )


@facts
class TransactionEnded(RunError):
    """A transactional step ended its own transaction."""

    owner: str  # "step 'debit'"

    def __str__(self) -> str:
        return (
            f"{self.owner} ended its transaction inside its body: by COMMIT, ROLLBACK or BEGIN, by the "
            f"driver's commit(), or on MySQL and MariaDB by a statement that commits implicitly (CREATE, "
            f"ALTER, DROP, TRUNCATE, LOCK TABLES). The writes before it are committed (after a ROLLBACK: "
            f"undone), and the step was not recorded. It is not retried; remove that statement, then "
            f"run.resume() runs it again"
        )


@facts
class CompensationFailed(RunError):
    """A compensation failed for good."""

    step: str
    message: str

    def __str__(self) -> str:
        return f"the compensation of step {self.step!r} failed: {self.message}; run.resume() tries it again"


@facts
class TooManyRecoveries(RunError):
    """The execution crashed its worker more than `max_recoveries` times in a row."""

    node: str
    recoveries: int

    def __str__(self) -> str:
        return (
            f"{self.node!r} crashed its worker {self.recoveries + 1} times without recording anything in "
            f"between, and is not tried again; run.resume() allows the same number again"
        )


@facts
class ReadinessOverflow(RunError):
    """More predecessors of a node settled than it has: a bug in Detent."""

    run_id: str
    node: str
    settled: int
    required: int

    def __str__(self) -> str:
        return (
            f"node {self.node!r} of run {self.run_id} has {self.settled} settled predecessors of "
            f"{self.required}; this is a bug in Detent, please report it"
        )
