"""The roots of the tree: definitions, configuration, the database, payloads."""

from __future__ import annotations

from typing import Any

from .facts import facts


class DetentError(Exception):
    """Base of every error that Detent raises on purpose.

    try:
        run.result(timeout=30)
    except detent.DetentError as error:
        log.warning("the run did not succeed: %s", error)
    """

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
    """The definition of a step or workflow, or one of its options, is invalid.

    @step(retry=5)  # DefinitionError: write retry=detent.Retry(attempts=...)
    def charge(order_id: int) -> str: ...
    """


class ConfigurationError(DetentError):
    """The configuration of the app is invalid."""


@facts
class InvalidArgument(ConfigurationError, TypeError, ValueError):
    """A public function was called with a value that it does not accept.

        app.options(priority="high")  # InvalidArgument: priority must be a number

    It is also a TypeError and a ValueError, so code that expects those keeps working.
    """

    where: str
    argument: str
    given: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where}: {self.argument}={self.given} is not accepted: {self.advice}"


class InvalidOption(InvalidArgument, DefinitionError):
    """An option of a step, a workflow or a retry has a value that is not accepted."""


@facts
class UnknownScheme(ConfigurationError):
    """The URL has a scheme that is not a supported database."""

    scheme: str

    def __str__(self) -> str:
        return (
            f"{self.scheme!r} is not a supported database scheme; write sqlite:///file.db, "
            f"postgresql://user@host/name or mysql://user@host/name"
        )


@facts
class InvalidAddress(ConfigurationError, ValueError):
    """A part of the database URL is malformed, unknown or contradictory."""

    database: str
    reason: str

    def __str__(self) -> str:
        return f"the URL of the {self.database} database is invalid: {self.reason}"


@facts
class MissingDriver(ConfigurationError):
    """The driver for the database is not installed."""

    database: str
    extra: str

    def __str__(self) -> str:
        return f"the driver for {self.database} is not installed; run: pip install 'detent[{self.extra}]'"


@facts
class UnknownDefinition(ConfigurationError):
    """The app does not include the workflow or step, or includes another one with its name."""

    name: str
    included: str = ""  # the origin of the definition with this name that the app includes

    def __str__(self) -> str:
        if self.included:
            return (
                f"this app includes another definition of {self.name!r}, from {self.included}; "
                f"include the one that you start, or give one of them another id"
            )
        return f"{self.name!r} is not included in this app; add it: App(..., include=[{self.name}])"


@facts
class UnknownQueue(ConfigurationError):
    """The app does not declare the queue."""

    queue: str
    declared: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} is not declared by this app (it has {', '.join(self.declared)}); "
            f"declare it: App(..., queues=[{self.queue!r}, ...])"
        )


class DatabaseError(DetentError):
    """The database cannot do what Detent needs."""


@facts
class DatabaseUnavailable(DatabaseError):
    """The database could not be reached, or could not write, within `patience`."""

    database: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.database} is unavailable: {self.reason}. "
            f"Check that the server is running and the URL is right"
        )


@facts
class ForkedProcess(DatabaseError):
    """A forked process tried to use something that belongs to its parent process."""

    reason: str

    def __str__(self) -> str:
        return f"not possible in a forked process: {self.reason}"


@facts
class DatabaseReplaced(DatabaseUnavailable):
    """The file of a SQLite database was deleted, moved or replaced while an app had it open."""

    path: str = ""

    def __str__(self) -> str:
        return (
            f"{self.path} was deleted, moved or replaced while it was open: {self.reason}. Detent writes "
            f"nothing more to it. Put the file back, or close the app and open it again"
        )


@facts
class EncodingUnfit(DatabaseError):
    """The encoding of the database cannot store every text."""

    database: str
    encoding: str

    def __str__(self) -> str:
        return (
            f"the database {self.database!r} has the encoding {self.encoding}, which cannot store all text; "
            f"create it with the encoding UTF8: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


@facts
class SchemaTooOld(DatabaseError):
    """The database has no Detent tables yet, or those of an older version."""

    found: int
    needed: int

    def __str__(self) -> str:
        advice = "run `detent migrate MODULE:APP`, or open the app with App(..., migrate=True)"
        if not self.found:
            return f"the database has no Detent tables yet; {advice}"
        return f"the Detent tables have version {self.found}, but this package needs {self.needed}; {advice}"


@facts
class SchemaTooNew(DatabaseError):
    """The database has the tables of a newer version of Detent."""

    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"the Detent tables have version {self.found}, but this package supports up to {self.known}; "
            f"upgrade the package: pip install --upgrade detent"
        )


@facts
class MigrationChanged(DatabaseError):
    """A migration was applied with other content than this package has."""

    version: int

    def __str__(self) -> str:
        return (
            f"migration {self.version} was applied with other content than this version of Detent has; "
            f"install the version that created this database, or restore the database from a backup"
        )


class PayloadError(DetentError):
    """A value cannot be stored, read or passed to another process."""


@facts
class NotSerializable(PayloadError):
    """A value cannot be represented as JSON."""

    what: str
    type: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.what} cannot be stored: {self.type} cannot be represented as JSON ({self.reason}). "
            f"Use plain values, dataclasses, msgspec Structs or pydantic models"
        )


@facts
class NotPicklable(PayloadError):
    """A value cannot be pickled, to pass it between processes."""

    what: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.what} cannot be passed between processes: {self.reason}. "
            f"Use plain values, or remove executor='process'"
        )


@facts
class PayloadTooLarge(PayloadError):
    """A value is larger than `max_payload`."""

    what: str
    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"{self.what} has {self.size:,} bytes, but the limit is {self.limit:,}; "
            f"store it elsewhere and pass a reference, or raise App(..., max_payload=...)"
        )


@facts
class PacketTooLarge(PayloadTooLarge):
    """A value is larger than the database server accepts in one statement."""

    database: str

    def __str__(self) -> str:
        return (
            f"{self.what} has {self.size:,} bytes, but the {self.database} server accepts at most "
            f"{self.limit:,} in one statement; store it elsewhere and pass a reference, or raise the limit "
            f"of the server (max_allowed_packet on MySQL and MariaDB)"
        )


@facts
class NameUnfit(PayloadError):
    """An id or a name cannot be stored in every supported database."""

    what: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} {self.name!r} is invalid: it {self.reason}; choose another"


@facts
class CannotDecode(PayloadError):
    """A value does not fit its annotated type."""

    what: str
    type: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} does not fit {self.type}: {self.reason}"


@facts
class ExportUnfit(PayloadError):
    """A file is not an exported run that can be replayed."""

    source: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.source} cannot be replayed: {self.reason}; "
            f"export a run with: detent show MODULE:APP ID --export run.json"
        )
