"""Every error that Detent raises on purpose, in one tree.

    DetentError
    ├── DefinitionError            the code that describes a workflow is wrong
    │   └── GraphInvalid           a graph that cannot be run
    ├── ConfigurationError         the app is set up wrongly
    │   ├── InvalidArgument        a value that a function does not accept (also TypeError, ValueError)
    │   │   └── InvalidOption      the same in a definition (also DefinitionError)
    │   ├── UnknownScheme          no database is known by that URL
    │   ├── InvalidAddress         a part of the URL is malformed, unknown or contradictory
    │   ├── MissingDriver          the extra for that database is not installed
    │   ├── UnknownDefinition      the app does not include what was asked for
    │   └── UnknownQueue           the app does not declare that queue
    ├── DatabaseError
    │   ├── DatabaseUnavailable    it could not be reached, after retries
    │   │   └── DatabaseReplaced   the file of a SQLite database was deleted, moved or replaced
    │   ├── EncodingUnfit          the database cannot store every text
    │   ├── ForkedProcess          something belongs to the process that this one was forked from
    │   ├── SchemaTooOld           run `detent migrate`
    │   ├── SchemaTooNew           upgrade the package
    │   └── MigrationChanged       an applied migration is not what it was
    ├── PayloadError
    │   ├── NotSerializable        a value has no JSON form
    │   ├── NotPicklable           a value cannot go to another process, or come from it
    │   ├── PayloadTooLarge        a value is larger than the app allows
    │   │   └── PacketTooLarge     a value is larger than the database server takes
    │   ├── NameUnfit              an id or a name that a database cannot store
    │   ├── CannotDecode           stored JSON does not fit the annotated type
    │   ├── ExportUnfit            a file is not the exported run that was asked for
    │   └── InvalidInput           an input that a decider does not take
    ├── PermanentError             raised by users: an effect that need not be tried again
    └── RunError
        ├── RunNotFound
        ├── RunConflict            the id is taken by a run with another input
        ├── AlreadyRunning         the hero has an active run of that type
        ├── InvalidState           the verb does not apply in this state
        │   └── CannotReattempt    the node may not be tried again
        ├── NodeNotFound           the run has no node of that name
        ├── StepNotDefined         a node that the code no longer has
        ├── AnonymousStepMoved     an anonymous step has another number than when the run did it
        ├── MissingJob             a frozen graph names a job that nobody includes
        ├── GraphTampered          a stored graph is not what was signed
        ├── ExpressionError  DeadEnd              what a graph computes has no value, or leads nowhere
        ├── RunCanceled  RunPaused  RunFailed     how waiting for a result can end
        ├── ResultTimeout          the result did not come in time
        ├── DeadlineExceeded       the run was not done by its deadline
        ├── LeaseLost              another worker owns the execution now
        ├── StepFailed             a step's error whose class cannot be rebuilt
        ├── StepTimeout  StepCrashed  ReceiveTimeout
        ├── WorkerTraceback        the cause of a stored error: its traceback in the worker
        ├── StepMismatch           a replay asks for a recorded step with other arguments
        ├── StepsNotAsked          a strict replay goes on without recorded steps
        ├── StepOutsideRun         a step was called where it cannot be recorded
        ├── BlockingCall           a blocking call would stop an event loop
        ├── NotAwaited             an async step was called, and the call was not awaited
        ├── NotInRun               what only a running workflow can do
        ├── TransactionMisused     a step's transaction ends with the step
        ├── TransactionEnded       a step has ended its transaction by itself
        ├── CompensationFailed     what was done could not be undone
        ├── TooManyRecoveries      the execution kept killing its worker
        ├── ReadinessOverflow      a bug: a node was settled too often
        ├── InvalidDecision        what a decider decided cannot be carried out
        ├── ReservedException      user code raised StopIteration or SystemExit
        ├── UnreadableEvent        a stored event that today's code does not know
        ├── NotADeadLetter         nothing that could be replayed
        ├── UnknownProjection  ProjectionNotBlocked
        └── ProjectionBlocked  ProjectionBehind   how waiting for a projection can end

Facts are fields, the message says what, which and what to do, and all of them
survive a pickle.
"""

from .deciders import (
    InvalidDecision,
    InvalidInput,
    NotADeadLetter,
    PermanentError,
    ProjectionBehind,
    ProjectionBlocked,
    ProjectionNotBlocked,
    ReservedException,
    UnknownProjection,
    UnreadableEvent,
)
from .graphs import (
    AnonymousStepMoved,
    CannotReattempt,
    DeadEnd,
    ExpressionError,
    GraphInvalid,
    GraphTampered,
    MissingJob,
    NodeNotFound,
    StepNotDefined,
)
from .roots import (
    CannotDecode,
    ConfigurationError,
    DatabaseError,
    DatabaseReplaced,
    DatabaseUnavailable,
    DefinitionError,
    DetentError,
    EncodingUnfit,
    ExportUnfit,
    ForkedProcess,
    InvalidAddress,
    InvalidArgument,
    InvalidOption,
    MigrationChanged,
    MissingDriver,
    NameUnfit,
    NotPicklable,
    NotSerializable,
    PacketTooLarge,
    PayloadError,
    PayloadTooLarge,
    SchemaTooNew,
    SchemaTooOld,
    UnknownDefinition,
    UnknownQueue,
    UnknownScheme,
)
from .runs import (
    AlreadyRunning,
    BlockingCall,
    CompensationFailed,
    DeadlineExceeded,
    InvalidState,
    LeaseLost,
    NotAwaited,
    NotInRun,
    ReadinessOverflow,
    ReceiveTimeout,
    ResultTimeout,
    RunCanceled,
    RunConflict,
    RunError,
    RunFailed,
    RunNotFound,
    RunPaused,
    StepCrashed,
    StepFailed,
    StepMismatch,
    StepOutsideRun,
    StepsNotAsked,
    StepTimeout,
    TooManyRecoveries,
    TransactionEnded,
    TransactionMisused,
    WorkerTraceback,
)

__all__ = [
    "AlreadyRunning",
    "AnonymousStepMoved",
    "BlockingCall",
    "CannotDecode",
    "CannotReattempt",
    "CompensationFailed",
    "ConfigurationError",
    "DatabaseError",
    "DatabaseReplaced",
    "DatabaseUnavailable",
    "DeadEnd",
    "DeadlineExceeded",
    "DefinitionError",
    "DetentError",
    "EncodingUnfit",
    "ExportUnfit",
    "ExpressionError",
    "ForkedProcess",
    "GraphInvalid",
    "GraphTampered",
    "InvalidAddress",
    "InvalidArgument",
    "InvalidDecision",
    "InvalidInput",
    "InvalidOption",
    "InvalidState",
    "LeaseLost",
    "MigrationChanged",
    "MissingDriver",
    "MissingJob",
    "NameUnfit",
    "NodeNotFound",
    "NotADeadLetter",
    "NotAwaited",
    "NotInRun",
    "NotPicklable",
    "NotSerializable",
    "PacketTooLarge",
    "PayloadError",
    "PayloadTooLarge",
    "PermanentError",
    "ProjectionBehind",
    "ProjectionBlocked",
    "ProjectionNotBlocked",
    "ReadinessOverflow",
    "ReceiveTimeout",
    "ReservedException",
    "ResultTimeout",
    "RunCanceled",
    "RunConflict",
    "RunError",
    "RunFailed",
    "RunNotFound",
    "RunPaused",
    "SchemaTooNew",
    "SchemaTooOld",
    "StepCrashed",
    "StepFailed",
    "StepMismatch",
    "StepNotDefined",
    "StepOutsideRun",
    "StepTimeout",
    "StepsNotAsked",
    "TooManyRecoveries",
    "TransactionEnded",
    "TransactionMisused",
    "UnknownDefinition",
    "UnknownProjection",
    "UnknownQueue",
    "UnknownScheme",
    "UnreadableEvent",
    "WorkerTraceback",
]
