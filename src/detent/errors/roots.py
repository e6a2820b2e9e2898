"""The roots of the tree: wrong code, wrong set-up, the database, payloads."""

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
    """A step, a workflow or an option of one is described wrongly.

    @step(retry=5)  # DefinitionError: write retry=detent.Retry(attempts=...)
    def charge(order_id: int) -> str: ...
    """


class ConfigurationError(DetentError):
    """The app is set up wrongly."""


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
    scheme: str

    def __str__(self) -> str:
        return (
            f"no database is known by the scheme {self.scheme!r}; write sqlite:///file.db, "
            f"postgresql://user@host/name or mysql://user@host/name"
        )


@facts
class InvalidAddress(ConfigurationError, ValueError):
    """The URL of a database has a part that is malformed, unknown or contradictory."""

    database: str
    reason: str

    def __str__(self) -> str:
        return f"the address of the {self.database} database is not accepted: {self.reason}"


@facts
class MissingDriver(ConfigurationError):
    database: str
    extra: str

    def __str__(self) -> str:
        return f"the driver for {self.database} is not installed; run: pip install 'detent[{self.extra}]'"


@facts
class UnknownDefinition(ConfigurationError):
    name: str
    included: str = ""  # where a definition of the same name comes from that the app includes

    def __str__(self) -> str:
        if self.included:
            return (
                f"this app includes another definition of {self.name!r}, from {self.included}; "
                f"create the app with the one that you start, or give one of them another id"
            )
        return f"{self.name!r} is not included in this app; add it: App(..., include=[{self.name}])"


@facts
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


@facts
class DatabaseUnavailable(DatabaseError):
    database: str
    reason: str

    def __str__(self) -> str:
        return f"{self.database} cannot be reached: {self.reason}. Is the server running, and the URL right?"


@facts
class ForkedProcess(DatabaseError):
    """This process was forked, and what it uses belongs to the process that it was forked from."""

    reason: str

    def __str__(self) -> str:
        return f"not possible in a forked process: {self.reason}"


@facts
class DatabaseReplaced(DatabaseUnavailable):
    """The file of a SQLite database was deleted, moved or replaced while an app had it open."""

    path: str = ""

    def __str__(self) -> str:
        return (
            f"{self.path} was deleted, moved or replaced while it was open: {self.reason}. Nothing more is "
            f"written to it. Put the file back, or close the app and open it again"
        )


@facts
class EncodingUnfit(DatabaseError):
    """A database that cannot store all text."""

    database: str
    encoding: str

    def __str__(self) -> str:
        return (
            f"the database {self.database!r} has the encoding {self.encoding}, which cannot store all text; "
            f"create it with the encoding UTF8: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )


@facts
class SchemaTooOld(DatabaseError):
    found: int
    needed: int

    def __str__(self) -> str:
        return (
            f"the database has Detent's schema {self.found or 'nowhere'}, this version needs {self.needed}; "
            f"run `detent migrate MODULE:APP` (or open the app with App(..., migrate=True))"
        )


@facts
class SchemaTooNew(DatabaseError):
    found: int
    known: int

    def __str__(self) -> str:
        return (
            f"the database has Detent's schema {self.found}, this version knows up to {self.known}; "
            f"upgrade the package: pip install --upgrade detent"
        )


@facts
class MigrationChanged(DatabaseError):
    version: int

    def __str__(self) -> str:
        return (
            f"migration {self.version} was applied with another content than this version of Detent carries; "
            f"install the version that made this database, or restore the database from a backup"
        )


class PayloadError(DetentError):
    """A value cannot travel through the database."""


@facts
class NotSerializable(PayloadError):
    what: str
    type: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.what} cannot be stored: {self.type} has no JSON form ({self.reason}). "
            f"Use plain values, dataclasses, msgspec Structs or pydantic models"
        )


@facts
class NotPicklable(PayloadError):
    what: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.what} cannot go from one process to another: {self.reason}. "
            f"Use plain values, or leave executor='process' out"
        )


@facts
class PayloadTooLarge(PayloadError):
    what: str
    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"{self.what} takes {self.size:,} bytes, more than the {self.limit:,} allowed; "
            f"store it elsewhere and pass a reference, or raise App(..., max_payload=...)"
        )


@facts
class PacketTooLarge(PayloadTooLarge):
    """More than the database server takes in one statement."""

    database: str

    def __str__(self) -> str:
        return (
            f"{self.what} takes {self.size:,} bytes, more than the {self.limit:,} that the {self.database} "
            f"server takes in one statement; store it elsewhere and pass a reference, or raise the server's "
            f"limit (max_allowed_packet on MySQL and MariaDB)"
        )


@facts
class NameUnfit(PayloadError):
    what: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} {self.name!r} cannot be used: it {self.reason}; choose another"


@facts
class CannotDecode(PayloadError):
    what: str
    type: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} does not fit {self.type}: {self.reason}"


@facts
class ExportUnfit(PayloadError):
    source: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.source} cannot be replayed: {self.reason}; "
            f"write a run to a file with: detent show MODULE:APP ID --export run.json"
        )
