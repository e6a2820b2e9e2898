"""Writing into a transaction that belongs to the user.

All statements of one operation run behind a savepoint.  If the operation is refused (AlreadyRunning,
RunConflict), or a statement of it fails, nothing of it stays, and the user's transaction continues.

The user's commit makes it durable, so there has to be a transaction: on a connection in autocommit
mode each statement would commit by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack, cast

from ..arguments import check_message, check_reason
from ..definitions.context import Context, current_frame, current_step, replaying
from ..definitions.deciders import Decider
from ..errors import ConfigurationError, InvalidState
from ..ids import uuid7
from ..kernel.decide import Decide
from ..kernel.external_changes import Append, Cancel, Change, Pause, Publish, Resume, SetAttributes
from ..kernel.operations import Operation, Send
from ..keywords import shows
from ..stores.driver import Trouble, Tx
from ..stores.store import Store
from . import keyed_starts
from .attributes import checked_changes
from .deciders import decision_of, enqueuing_of
from .engine import Engine
from .run import Run
from .run_streams import entry_of, value_of
from .settings import START_DEFAULTS, Options, StartOptions, checked_options
from .starters import Starts, calls_of
from .user_connections import sync_tx
from .views import id_of

In = TypeVar("In")
E = TypeVar("E")
Verb = Callable[[Tx], Any]  # statements in one transaction
_SAVEPOINT = "detent_within"
_NO_TRANSACTION = "25P01"  # PostgreSQL: SAVEPOINT outside of a transaction
_NO_SAVEPOINT = 1305  # MySQL: outside of a transaction a savepoint is not kept
_UNIQUE_STATE, _UNIQUE_NUMBER = "23505", 1062


def join(store: Store, connection: Any, operation: Operation | Verb) -> Any:
    """Apply an operation or a verb in the transaction of `connection`, which we never end."""
    tx = connection if isinstance(connection, Tx) else sync_tx(store, connection)
    _save(store, tx)
    try:
        answer = store.apply_within(tx, operation) if isinstance(operation, Operation) else operation(tx)
    except BaseException as error:
        # On a lost connection this fails, too; then there is no transaction left to protect.
        try:
            _undo(tx)
        except Exception:
            raise error from None
        if not isinstance(error, Exception) or not isinstance(operation, Operation):
            raise
        if not _is_conflict(store, error):
            raise
        found = store.explain_conflict(operation, within=tx)
        if isinstance(found, Exception):
            raise found from error
        if found is None:
            raise
        return found
    tx.send(f"RELEASE SAVEPOINT {_SAVEPOINT}")
    return answer


def _save(store: Store, tx: Tx) -> None:
    """Set the savepoint; raise ConfigurationError if there is no transaction to set it in."""
    if store.dialect == "sqlite":
        _begin_sqlite(tx)
        store.become_writer(tx)
    try:
        tx.run(f"SAVEPOINT {_SAVEPOINT}")
        if store.dialect == "mysql":
            tx.run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")  # fails if it was not kept
    except Exception as error:
        if {_NO_TRANSACTION, _NO_SAVEPOINT} & set(_codes(error)):
            raise _autocommit() from error
        raise


def _begin_sqlite(tx: Tx) -> None:
    """Begin what sqlite3 begins by itself before the first INSERT.

    It does not do so before a SAVEPOINT, whose release would then be the commit.
    """
    connection = tx.connection
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise _autocommit()
    tx.run("BEGIN")


def _undo(tx: Tx) -> None:
    tx.run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
    tx.run(f"RELEASE SAVEPOINT {_SAVEPOINT}")


def _autocommit() -> ConfigurationError:
    return ConfigurationError(
        "within() needs a transaction, and this connection is in autocommit mode; begin one first "
        "(connection.transaction(), connection.begin(), BEGIN, django.db.transaction.atomic())"
    )


def _is_conflict(store: Store, error: BaseException) -> bool:
    if store.driver.trouble(error) is Trouble.UNIQUE:
        return True
    inner = getattr(error, "orig", None)  # SQLAlchemy wraps the driver's error
    if inner is not None and store.driver.trouble(inner) is Trouble.UNIQUE:
        return True
    return bool({_UNIQUE_STATE, _UNIQUE_NUMBER} & set(_codes(error)))


def _codes(error: BaseException) -> list[Any]:
    """The SQLSTATE or the number of a driver's error, in any of the libraries."""
    found: list[Any] = []
    for one in (error, getattr(error, "orig", None)):
        if one is not None:
            found += [getattr(one, name, None) for name in ("sqlstate", "pgcode")]
            found += [arg for arg in one.args[:1] if isinstance(arg, int)]
    return found


# What can be done within a transaction, apart from starting runs


def sending(engine: Engine, run: Any, name: str, value: Any, id: str | None) -> Send:
    """The operation that sends a message to a run."""
    where = "within().send()"
    run_id = id_of(where, "run", run)
    check_message(where, name, id)
    step = _outside_workflows("send", run_id)
    message_id = id or (uuid7() if step is None else step.next_start_id())
    return Send(
        run_id=run_id,
        message_id=message_id,
        name=name,
        value=engine.services.codec.encode(value, f"the message {name!r}"),
        sent_at=engine.clock.now(),
    )


def canceling(engine: Engine, run: Any, reason: str | None) -> Verb:
    """The verb that cancels a run and its children."""
    where = "within().cancel()"
    run_id = id_of(where, "run", run)
    check_reason(where, reason)
    _outside_workflows("cancel", run_id)
    _ = engine.services
    return _verb(engine, Cancel(run_id, reason))


def pausing(engine: Engine, run: Any, reason: str | None) -> Verb:
    """The verb that stops new work of a run."""
    where = "within().pause()"
    run_id = id_of(where, "run", run)
    check_reason(where, reason)
    _outside_workflows("pause", run_id)
    _ = engine.services
    return _verb(engine, Pause(run_id, reason))


def resuming(engine: Engine, run: Any, accept_drift: bool) -> Verb:
    """The verb that lets a paused or failed run continue."""
    run_id = id_of("within().resume()", "run", run)
    _outside_workflows("resume", run_id)
    resume = _verb(engine, Resume(run_id, engine.run_graph(run_id), accept_drift))

    def verb(tx: Tx) -> None:
        try:
            resume(tx)
        except Exception as error:
            if not _is_conflict(engine.store, error):
                raise
            taken = engine.store.hero_taken(run_id)
            if taken is None:
                raise
            raise taken from error

    return verb


def changing_attributes(engine: Engine, run: Any, attributes: Any) -> Verb:
    """The verb that sets attributes of a run."""
    run_id, changes = id_of("within().set_attributes()", "run", run), checked_changes(attributes)
    _outside_workflows("set_attributes", run_id)
    _ = engine.services
    return _verb(engine, SetAttributes(run_id, changes))


def publishing(engine: Engine, run: Any, name: str, value: Any) -> Verb:
    """The verb that publishes a value of a run."""
    where = "within().publish()"
    run_id = id_of(where, "run", run)
    _outside_workflows("publish", run_id)
    return _verb(engine, Publish(value_of(engine, run_id, name, value, where)))


def appending(engine: Engine, run: Any, name: str, value: Any) -> Verb:
    """The verb that appends to a stream of a run."""
    where = "within().append()"
    run_id = id_of(where, "run", run)
    _outside_workflows("append", run_id)
    return _verb(engine, Append(entry_of(engine, run_id, name, value, where)))


def _verb(engine: Engine, change: Change[Any]) -> Verb:
    """The verb that makes a change."""
    return lambda tx: engine.store.change(change, now=engine.clock.now(), within=tx)


def deciding_now(engine: Engine, decider: Any, input: Any, input_id: str | None) -> Decide:
    """The operation that gives an input to its instance."""
    operation = decision_of(engine, decider, input, input_id, within=True)
    _outside_workflows("execute", operation.run_id)
    return operation


def _outside_workflows(verb: str, run_id: str) -> Context | None:
    """The step that we are in; raises in the body of a workflow, where a replay would do it again."""
    if current_frame(f"within().{verb}()") is not None:
        raise InvalidState(
            f"{verb} within a transaction to", run_id, "called by a workflow", "do it in a step"
        )
    return current_step()


class Within(Starts):
    """`app.within(connection)`: writes in your own transaction.

    with connection.transaction():
        run = app.within(connection).start(fulfil, 42)
    """

    def __init__(self, engine: Engine, connection: Any, options: Options) -> None:
        self._engine = engine
        self._connection = connection
        self._options = options

    @shows(StartOptions, defaults=START_DEFAULTS)
    def options(self, **options: Unpack[StartOptions]) -> Within:
        """The same as `app.options(...).within(connection)`."""
        return Within(self._engine, self._connection, checked_options({**self._options.given, **options}))

    def _start_one(self, definition: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[Any]:
        if self._options.keyed:
            engine = self._engine
            verb = keyed_starts.start_within(engine, definition, [(args, kwargs)], self._options)
            return Run(engine, join(engine.store, self._connection, verb))
        return self._join(definition, [(args, kwargs)])[0]

    def _start_each(self, definition: Any, calls: Iterable[tuple[Any, ...]]) -> list[Run[Any]]:
        self._options.refuse_many()
        return self._join(definition, calls_of(calls))

    def enqueue_input(
        self, decider: type[Decider[Any, In, Any, Any]], input: In, *, input_id: str | None = None
    ) -> bool:
        """Put an input into its instance's inbox, if and only if your transaction commits."""
        engine = self._engine
        operation = enqueuing_of(engine, decider, input, input_id, within=True)
        return cast(bool, join(engine.store, self._connection, operation).created)

    def send(self, run: Run[Any] | str, name: str, value: Any = None, *, id: str | None = None) -> None:
        """Send a run a message, if and only if your transaction commits; see `Run.send`."""
        engine = self._engine
        join(engine.store, self._connection, sending(engine, run, name, value, id))

    def cancel(self, run: Run[Any] | str, *, reason: str | None = None) -> None:
        """End a run and its children, if and only if your transaction commits; see `Run.cancel`."""
        engine = self._engine
        join(engine.store, self._connection, canceling(engine, run, reason))

    def pause(self, run: Run[Any] | str, *, reason: str | None = None) -> None:
        """Stop new work of a run, if and only if your transaction commits; see `Run.pause`."""
        engine = self._engine
        join(engine.store, self._connection, pausing(engine, run, reason))

    def resume(self, run: Run[Any] | str, *, accept_drift: bool = False) -> None:
        """Continue a paused or failed run, if and only if your transaction commits; see `Run.resume`."""
        engine = self._engine
        join(engine.store, self._connection, resuming(engine, run, accept_drift))

    def set_attributes(self, run: Run[Any] | str, attributes: Mapping[str, str | int | bool | None]) -> None:
        """Set attributes of a run, if and only if your transaction commits; see `Run.set_attributes`."""
        engine = self._engine
        join(engine.store, self._connection, changing_attributes(engine, run, attributes))

    def publish(self, run: Run[Any] | str, name: str, value: Any) -> None:
        """Publish a value of a run, if and only if your transaction commits; see `Run.publish`."""
        engine = self._engine
        join(engine.store, self._connection, publishing(engine, run, name, value))

    def append(self, run: Run[Any] | str, name: str, value: Any) -> None:
        """Append to a stream of a run, if and only if your transaction commits; see `Run.append`.

        Until then other writers of that run wait: commit soon.
        """
        engine = self._engine
        join(engine.store, self._connection, appending(engine, run, name, value))

    def execute(
        self, decider: type[Decider[Any, In, E, Any]], input: In, *, input_id: str | None = None
    ) -> list[E]:
        """Give an input to its instance, if and only if your transaction commits; see `App.execute`.

        Until then no other process appends events: commit soon, or use `enqueue_input`.
        """
        engine = self._engine
        operation = deciding_now(engine, decider, input, input_id)
        return cast(list[E], join(engine.store, self._connection, operation).events)

    def _join(
        self, definition: Any, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> list[Run[Any]]:
        engine = self._engine
        start = engine.planned(definition, calls, self._options)
        start.remote = True
        if not replaying():
            join(engine.store, self._connection, start)
        return [Run(engine, row) for row in engine.fresh(start)]
