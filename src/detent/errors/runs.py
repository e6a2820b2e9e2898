"""What can be wrong with a run, and how waiting for one can end."""

from __future__ import annotations

from .facts import facts
from .roots import DetentError


class RunError(DetentError):
    """Something about one run."""


@facts
class RunNotFound(RunError):
    """There is no run with this id.

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
    """There is a run with this id already, and it is a run of something else.

    try:
        app.options(id="order-42").start(refund, 42)
    except detent.RunConflict as error:
        print(error.run_id, error.type)
    """

    run_id: str
    type: str
    parent: str = ""  # of the child run that was to get the id; empty where it was no child

    def __str__(self) -> str:
        if self.parent:
            return (
                f"run {self.parent} cannot start a child with the id {self.run_id!r}: "
                f"another run of {self.type} has it; choose another id"
            )
        return (
            f"run id {self.run_id!r} is taken by a run of {self.type} with another input; "
            f"the same id always means the same work: choose another id"
        )


@facts
class AlreadyRunning(RunError):
    """The hero has an active run of this workflow already; `allow_multiple=True` permits a second one.

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
    """The run is in a state in which this cannot be done.

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
    """The run was canceled.

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
    """The run is paused; `run.resume()` continues it.

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
    """A run's own error, where its class cannot be rebuilt."""

    run_id: str
    type: str
    message: str

    def __str__(self) -> str:
        return f"run {self.run_id} failed with {self.type}: {self.message}"


@facts
class ResultTimeout(RunError, TimeoutError):
    """The run did not end in time; it continues.

    try:
        run.result(timeout=30)
    except detent.ResultTimeout as error:
        print(error.run_id, error.state)
    """

    run_id: str
    state: str
    unserved: str = ""  # why no live worker executes the run; empty where one may

    def __str__(self) -> str:
        advice = f"{self.unserved}: start one that does" if self.unserved else "it goes on, ask again later"
        return f"run {self.run_id} has no result yet (it is {self.state}); {advice}"


@facts
class DeadlineExceeded(RunError):
    """The run was not done at its deadline.

    try:
        app.options(deadline=60).start(fulfil, 42).result()
    except detent.DeadlineExceeded as error:
        print(error.run_id, error.deadline)
    """

    run_id: str
    deadline: str

    def __str__(self) -> str:
        return f"run {self.run_id} was not done by its deadline, {self.deadline}"


@facts
class LeaseLost(RunError):
    run_id: str
    node: str
    worker: str

    def __str__(self) -> str:
        return (
            f"worker {self.worker} lost its lease on {self.node!r} of run {self.run_id}; "
            f"another worker goes on, this result is discarded"
        )


@facts
class StepFailed(RunError):
    """A step failed for good with an error that cannot be rebuilt from its record.

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
    """The traceback of a stored error, as text: the `__cause__` of the exception that is raised again."""

    text: str

    def __str__(self) -> str:
        return f'the traceback in the worker was\n"""\n{self.text.rstrip()}\n"""'


@facts
class StepTimeout(RunError, TimeoutError):
    """An attempt at a step took longer than its timeout.

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
    step: str

    def __str__(self) -> str:
        return f"step {self.step!r} killed the process that it ran in"


@facts
class ReceiveTimeout(RunError, TimeoutError):
    """No message came in time.

    try:
        approved = detent.receive("approval", timeout=3600)
    except detent.ReceiveTimeout as error:
        print(error.name)
    """

    name: str

    def __str__(self) -> str:
        return f"no message {self.name!r} came in time; receive(..., default=...) returns a value instead"


_DRIFT_HELP = (
    "Deploy the code that started the run, guard the change with detent.patched(), "
    "accept the difference with run.resume(accept_drift=True), or fork the run with app.fork()."
)


@facts
class StepMismatch(RunError):
    run_id: str
    step: str
    recorded: str
    asked: str

    def __str__(self) -> str:
        return (
            f"run {self.run_id} cannot continue: step {self.step!r} was recorded with {self.recorded}, "
            f"but the code now asks for {self.asked}. {_DRIFT_HELP}"
        )


@facts
class StepsNotAsked(RunError):
    run_id: str
    step: str
    recorded: list[str]

    def __str__(self) -> str:
        names = ", ".join(repr(key) for key in self.recorded)
        return (
            f"run {self.run_id} cannot continue: the code now asks for {self.step!r}, which is new, "
            f"before it has asked for {names}, which the run has recorded. {_DRIFT_HELP}"
        )


@facts
class StepOutsideRun(RunError):
    step: str
    where: str

    def __str__(self) -> str:
        return (
            f"step {self.step!r} was called from {self.where}, where it would not be recorded. "
            f"Carry the context along, contextvars.copy_context().run({self.step}, ...), "
            f"or use {self.step}.spawn(...)"
        )


@facts
class BlockingCall(RunError):
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.what!r} would block the event loop that this workflow runs on; write {self.instead}"


@facts
class NotAwaited(RunError):
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what} is async, and a call of it was not awaited: {self.advice}"


@facts
class NotInRun(RunError):
    what: str
    where: str = ""  # what is known of the place of the call

    def __str__(self) -> str:
        if self.where:
            return f"{self.what} cannot be recorded here: {self.where}"
        return (
            f"{self.what} works only in a running workflow (and not inside of a step); "
            f"begin one with app.start()"
        )


@facts
class TransactionMisused(RunError):
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
            return "this step has ended, and its transaction with it; use tx only inside the step"
        return (
            f"{self.verb} inside a transactional step is refused: it would not be part of the step's "
            f"transaction, and on SQLite it would wait for it for ever; call it before or after the step"
        )


@facts
class TransactionEnded(RunError):
    owner: str  # "step 'debit'"

    def __str__(self) -> str:
        return (
            f"{self.owner} ended its transaction inside its body: by COMMIT, ROLLBACK or BEGIN, by the "
            f"driver's commit(), or on MySQL and MariaDB by a statement that commits implicitly (CREATE, "
            f"ALTER, DROP, TRUNCATE, LOCK TABLES). The writes before it are committed (after a ROLLBACK: "
            f"undone), and the step was not recorded. It is not retried; remove that statement, then resume "
            f"runs it again"
        )


@facts
class CompensationFailed(RunError):
    step: str
    message: str

    def __str__(self) -> str:
        return f"the compensation of step {self.step!r} failed: {self.message}; run.resume() tries it again"


@facts
class TooManyRecoveries(RunError):
    node: str
    recoveries: int

    def __str__(self) -> str:
        return (
            f"{self.node!r} took its worker down {self.recoveries + 1} times without recording anything in "
            f"between, and is not tried again; run.resume() gives it a fresh budget"
        )


@facts
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
