"""Every error that Detent raises on purpose, in one tree.

    DetentError
    ├── DefinitionError            a definition is invalid
    │   └── GraphInvalid           a graph cannot be run
    ├── ConfigurationError         the configuration of the app is invalid
    │   ├── InvalidArgument        a function does not accept a value (also TypeError, ValueError)
    │   │   └── InvalidOption      the same in a definition (also DefinitionError)
    │   ├── UnknownScheme          the URL is not of a supported database
    │   ├── InvalidAddress         a part of the URL is malformed, unknown or contradictory
    │   ├── MissingDriver          the driver of the database is not installed
    │   ├── UnknownDefinition      the app does not include the definition
    │   └── UnknownQueue           the app does not declare that queue
    ├── DatabaseError
    │   ├── DatabaseUnavailable    it could not be reached, after retries
    │   │   └── DatabaseReplaced   the file of a SQLite database was deleted, moved or replaced
    │   ├── EncodingUnfit          the database cannot store every text
    │   ├── ForkedProcess          a forked process used something of its parent
    │   ├── SchemaTooOld           run `detent migrate`
    │   ├── SchemaTooNew           upgrade the package
    │   └── MigrationChanged       an applied migration has other content
    ├── PayloadError
    │   ├── NotSerializable        a value cannot be represented as JSON
    │   ├── NotPicklable           a value cannot be passed between processes
    │   ├── PayloadTooLarge        a value is larger than the app allows
    │   │   └── PacketTooLarge     a value is larger than the database server accepts
    │   ├── NameUnfit              a database cannot store an id or a name
    │   ├── CannotDecode           a value does not fit the annotated type
    │   ├── ExportUnfit            a file is not an exported run that can be replayed
    │   └── InvalidInput           a decider does not accept an input
    ├── ScheduleError
    │   ├── UnknownSchedule        the database has no schedule of that name
    │   ├── ScheduleConflict       the name is taken by another schedule
    │   ├── InvalidScheduleState   the verb does not apply in this state
    │   └── TooManyFirings         a backfill over too long a time
    ├── PermanentError             raised by users: an effect is not tried again
    └── RunError
        ├── RunNotFound
        ├── RunConflict            the id belongs to a run with another input
        ├── AlreadyRunning         the hero has an active run of that type
        ├── InvalidState           the operation is not possible in this state
        │   └── CannotReattempt    the node cannot be attempted again
        ├── NodeNotFound           the run has no node with that name
        ├── StepNotDefined         the code no longer has a node
        ├── AnonymousStepMoved     a completed anonymous step has another number now
        ├── MissingJob             a frozen graph names a job that no app includes
        ├── GraphTampered          a stored graph does not match its signature
        ├── ExpressionError  DeadEnd              an expression has no value, a branch is missing
        ├── RunCanceled  RunPaused  RunFailed     how waiting for a result can end
        ├── ResultTimeout          the result did not come in time
        ├── DeadlineExceeded       the run did not end before its deadline
        ├── LeaseLost              another worker owns the execution now
        ├── StepFailed             a step's error whose class cannot be rebuilt
        ├── StepTimeout  StepCrashed  ReceiveTimeout
        ├── WorkerTraceback        the cause of a stored error: its traceback in the worker
        ├── StepMismatch           a replay calls a recorded step with other arguments
        ├── StepsNotAsked          a strict replay continues without recorded steps
        ├── StepOutsideRun         a step was called where it cannot be recorded
        ├── BlockingCall           a blocking call would block an event loop
        ├── NotAwaited             a call of an async step was not awaited
        ├── NotInRun               the call works only in a running workflow
        ├── TransactionMisused     a call does not fit into a step's transaction
        ├── TransactionEnded       a step has ended its own transaction
        ├── CompensationFailed     a compensation failed for good
        ├── TooManyRecoveries      the execution crashed its worker too often
        ├── ReadinessOverflow      a bug: a node was settled too often
        ├── InvalidDecision        a decider returned an invalid decision
        ├── ReservedException      user code raised StopIteration or SystemExit
        ├── UnreadableEvent        the current code cannot read a stored event
        ├── NotADeadLetter         the letter is not a dead letter
        ├── UnknownProjection  ProjectionNotBlocked
        └── ProjectionBlocked  ProjectionBehind   how waiting for a projection can end

Every error has its facts as fields, and can be pickled. Its message says what
happened, to which object, and what to do.
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
from .schedules import InvalidScheduleState, ScheduleConflict, ScheduleError, TooManyFirings, UnknownSchedule

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
    "InvalidScheduleState",
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
    "ScheduleConflict",
    "ScheduleError",
    "SchemaTooNew",
    "SchemaTooOld",
    "StepCrashed",
    "StepFailed",
    "StepMismatch",
    "StepNotDefined",
    "StepOutsideRun",
    "StepTimeout",
    "StepsNotAsked",
    "TooManyFirings",
    "TooManyRecoveries",
    "TransactionEnded",
    "TransactionMisused",
    "UnknownDefinition",
    "UnknownProjection",
    "UnknownQueue",
    "UnknownSchedule",
    "UnknownScheme",
    "UnreadableEvent",
    "WorkerTraceback",
]
