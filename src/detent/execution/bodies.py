"""Calling user functions: in this thread, in another, on the loop, in a process, in a transaction."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..definitions.context import Abandoned, Canceled, Context, FlowControl, step_var
from ..definitions.functions import Step
from ..errors import StepFailed, StepTimeout, TransactionEnded
from ..kernel.operations import Verdict
from ..kernel.rows import RunState
from ..process_forks import Lineage, OneProcess, end_child
from ..stores.batch.apply import Applied
from ..stores.driver import Trouble, UserTx, user_transaction
from .carried_errors import Carried, acarry
from .requests import Body, TransactionalBody
from .services import Services
from .transactions import AsyncTransaction, Transaction

log = logging.getLogger("detent.worker")
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 2.0
CLEANUP = 5.0  # seconds that an async body may take to end after its timeout has cancelled it
MOST_CONFLICTS = 20  # calls of a transactional body that may end in a conflict or a lost connection


def call(services: Services, body: Body) -> Any:
    """Call a step's function and wait for it, whatever it is."""
    step = body.step
    if isinstance(body, TransactionalBody):
        return _in_transaction(services, body)
    if step.executor == "process":
        return services.processes.call(step, body.args, body.kwargs)
    if step.is_async:
        return _on_loop(services, body)
    if step.timeout is not None:
        return _with_timeout(services, body)
    return _inside(body.context, lambda: step.function(*given(step, body.context, body.args), **body.kwargs))


async def awaited(body: Body, args: tuple[Any, ...], tx: Any = None) -> Any:
    """Await the function of an async step, on its loop."""
    step, began = body.step, Lineage.count
    token = step_var.set(body.context)
    try:
        if step.wants_context or step.transactional:
            args = given(step, body.context, args, tx)
        coroutine = step.function(*args, **body.kwargs)
        if step.timeout is not None:
            # The body of a transactional step is always waited for: it must not use the connection later.
            return await _limited(body, coroutine, step.timeout, CLEANUP if tx is None else None)
        try:  # as `with OneProcess()`, which takes two calls for each step
            value = await coroutine
        except BaseException as error:
            if Lineage.count != began:
                end_child(error)
            raise
        if Lineage.count != began:
            end_child(None)
        return value
    except SystemExit as error:
        raise exited(step.name, error) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The step was not cancelled: it awaited something that was.
        raise RuntimeError(f"step {step.name!r} awaited something that was cancelled") from error
    finally:
        step_var.reset(token)


def acall(services: Services, body: Body) -> Awaitable[Any]:
    """The same from the loop: what to await for it."""
    if services.shuffle is not None:
        return _shuffled(services, body, services.shuffle)
    return _begun(services, body)


async def _shuffled(services: Services, body: Body, shuffle: Callable[[], Awaitable[None]]) -> Any:
    await shuffle()
    return await _begun(services, body)


def _begun(services: Services, body: Body) -> Awaitable[Any]:
    if body.step.is_async and not isinstance(body, TransactionalBody):
        return awaited(body, body.args)
    context = contextvars.copy_context()
    return services.threads.run(lambda: context.run(_in_thread, services, body))


def _in_thread(services: Services, body: Body) -> Any:
    try:
        return call(services, body)
    except StopIteration as error:
        # No future of asyncio takes it; a coroutine that raises it comes out with this, too.
        raise RuntimeError(f"step {body.step.name!r} raised StopIteration") from error


def given(step: Step[Any, Any], context: Context, args: tuple[Any, ...], tx: Any = None) -> tuple[Any, ...]:
    """The arguments with what the engine gives: the context, the transaction."""
    if step.transactional:
        args = (args[0], tx, *args[1:]) if step.is_method else (tx, *args)
    return (context, *args) if step.wants_context else args


def _inside(context: Context, function: Callable[[], Any]) -> Any:
    token = step_var.set(context)
    try:
        with OneProcess():
            return function()
    except SystemExit as error:
        raise exited(context.name, error) from error
    finally:
        step_var.reset(token)


def exited(name: str, error: SystemExit) -> StepFailed:
    """The failure that `sys.exit()` in user code is recorded as: it must not end the worker."""
    return StepFailed(name, "builtins.SystemExit", str(error))


async def _limited(
    body: Body, coroutine: Coroutine[Any, Any, Any], limit: float, cleanup: float | None
) -> Any:
    """Await a body for `limit` seconds; after that it has failed, whatever it does with its cancellation.

    It runs in a task of its own, so that a body which ignores the cancellation can be left behind.
    The task is made directly: the loop's factory would number it as a branch of the workflow.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.Task(_guarded(body.step.name, coroutine), loop=loop, context=contextvars.copy_context())
    await _ended(task, limit)
    if task.done():
        return task.result()
    task.cancel()
    await _ended(task, cleanup)
    if not task.done():
        log.warning(
            "run %s: step %r ignores the cancellation by its timeout; its result will be discarded",
            body.context.run.id,
            body.context.key,
            extra=body.context.facts,
        )
        task.add_done_callback(_discard)
    cause = None if not task.done() or task.cancelled() else task.exception()
    raise StepTimeout(body.step.name, limit) from cause


async def _guarded(name: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """A task must not end with SystemExit: asyncio would raise it out of the loop."""
    try:
        with OneProcess():
            return await coroutine
    except SystemExit as error:
        raise exited(name, error) from error


async def _ended(task: asyncio.Task[Any], limit: float | None) -> None:
    """Wait until the task has ended, at most `limit` seconds; a cancel of the caller reaches it, too."""
    loop = asyncio.get_running_loop()
    until = None if limit is None else loop.time() + limit
    while not task.done():
        left = None if until is None else until - loop.time()
        if left is not None and left <= 0:
            return
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            task.cancel()


def _discard(task: asyncio.Task[Any]) -> None:
    """Take the outcome of a body that was left behind, or asyncio would complain about it."""
    if not task.cancelled():
        task.exception()


def _on_loop(services: Services, body: Body, tx: Any = None) -> Any:
    """Call an async body for a sync caller: on the app's loop, in the caller's context."""
    context = contextvars.copy_context()

    async def run() -> Any:
        # The task is made directly: the loop's factory would number it as a branch of the workflow.
        loop = asyncio.get_running_loop()
        return await asyncio.Task(acarry(awaited(body, body.args, tx)), loop=loop, context=context)

    try:
        # In an empty context, for the same reason.
        loop = services.loop.get()
        return contextvars.Context().run(asyncio.run_coroutine_threadsafe, run(), loop).result()
    except Carried as carried:
        raise carried.error from None


def _with_timeout(services: Services, body: Body) -> Any:
    """A thread cannot be stopped: after the timeout its result is no longer waited for."""
    step = body.step
    context = contextvars.copy_context()
    arguments = given(step, body.context, body.args)
    future = services.threads.submit(
        lambda: context.run(_inside, body.context, lambda: step.function(*arguments, **body.kwargs))
    )
    try:
        return future.result(step.timeout)
    except TimeoutError:
        if future.done():
            raise  # the step's own
        raise StepTimeout(step.name, step.timeout or 0) from None


class _Outdated(Exception):
    """Nothing of it was written: the same again, by the graph that the run has now."""


class _Own(Exception):
    """An error of the user's own database, which must not be taken for one of Detent's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _in_transaction(services: Services, body: TransactionalBody) -> Any:
    """The user's writes and the record of the step: one transaction.

    Where the connection is lost, the journal tells whether the commit went through.  If not, the body is
    called again: a limited number of times, after a wait, and not for a run that was canceled meanwhile.
    """
    tries = _Tries(services, body)
    while True:
        try:
            return _attempt(services, body, tries)
        except _Outdated:
            assert body.look_again is not None
            body.look_again()
        except _Own as own:
            if tries.lost and tries.was_recorded():
                return tries.value
            raise own.error from None
        except Exception as error:
            trouble = services.store.driver.trouble(error)
            if tries.may_be_recorded(trouble) and tries.was_recorded():
                return tries.value
            if trouble not in (Trouble.GONE, Trouble.RETRY):
                raise
            # RETRY: rolled back whole, in favour of another transaction.
            tries.count(error)


def _attempt(services: Services, body: TransactionalBody, tries: _Tries) -> Any:
    with services.store.transaction(f"step {body.step.name!r}", isolation=body.isolation) as tx:
        tries.begin()
        value = tries.value = _with_tx(services, body, tx)
        tx.check()
        operation = body.finish(value)
        tries.finishing = True
        answer = services.store.apply_within(tx, operation)
        verdict = getattr(answer, "verdict", answer)
        if verdict is Verdict.OUTDATED and body.look_again is not None:
            raise _Outdated
        if verdict is not Verdict.APPLIED:
            raise Abandoned
        if getattr(answer, "run_state", None) == RunState.CANCELED:
            raise Canceled  # what is recorded as canceled has written nothing
    # Our listener hears only of what others commit.
    services.committer.on_commit([operation], Applied([answer], made_ready=tx.made_ready, changed=tx.changed))
    return value


class _Tries:
    """How often a transactional body had to be repeated, and the waits in between."""

    def __init__(self, services: Services, body: TransactionalBody) -> None:
        self._services = services
        self._body = body
        self._wait = _FIRST_WAIT
        self.begun = 0  # calls of the body, or about to be
        self.finishing = False  # whether the body has returned, this time
        self.lost = False  # whether a try ended without an answer
        self.value: Any = None

    def begin(self) -> None:
        self.begun += 1
        self.finishing = False

    def may_be_recorded(self, trouble: Trouble) -> bool:
        """Whether this try, or one before it, may have been committed.

        A server that was frozen can execute the commit of a lost try after the next try has begun.
        The record of that next try then fails, because there is one, and its writes with it.
        """
        self.lost = self.lost or trouble is Trouble.GONE
        return self.lost or (self.finishing and trouble is not Trouble.RETRY)

    def was_recorded(self) -> bool:
        """Ask until the database is back."""
        while True:
            self._sleep()
            try:
                return self._body.recorded()
            except Exception as error:
                if self._services.store.driver.trouble(error) is not Trouble.GONE:
                    raise

    def count(self, error: Exception) -> None:
        """Get ready for another try, or raise."""
        if self.begun > MOST_CONFLICTS:
            raise error
        step, run = self._body.step.name, self._body.context.run.id
        log.warning("run %s: the transaction of step %r was lost, retrying (%s)", run, step, error)
        self._sleep()
        if self._body.context.cancel_requested:  # (nothing of it was committed)
            raise Canceled

    def _sleep(self) -> None:
        if self._services.committer.closing:
            raise Abandoned
        time.sleep(self._wait * random.uniform(0.5, 1.0))
        self._wait = min(self._wait * 2, _LONGEST_WAIT)


def _with_tx(services: Services, body: TransactionalBody, tx: UserTx) -> Any:
    step = body.step
    given_tx = AsyncTransaction(tx, services.threads) if step.is_async else Transaction(tx)
    token = user_transaction.set(tx)
    try:
        if step.is_async:
            return _on_loop(services, body, given_tx)
        arguments = given(step, body.context, body.args, given_tx)
        return _inside(body.context, lambda: step.function(*arguments, **body.kwargs))
    except (Exception, FlowControl) as error:
        given_tx.leave()
        meant = _meaning(services, tx, error)
        if meant is error:
            raise
        raise meant from error
    finally:
        given_tx.leave()
        user_transaction.reset(token)


def _meaning(services: Services, tx: UserTx, error: BaseException) -> BaseException:
    """What to raise for a body's exception: the transaction was lost, or ended by the body, or is well."""
    driver = services.store.driver
    lost = driver.trouble(error) in (Trouble.GONE, Trouble.RETRY)
    # A disk that is full, or a server that is read-only, refuses a statement and keeps the connection.
    if lost and not tx.ended and (error is tx.refusal or driver.broke(tx.connection, error)):
        return error
    if not isinstance(error, TransactionEnded) and _was_ended(tx):
        return TransactionEnded(tx.owner)  # another try would repeat what was committed
    return _Own(error) if lost and isinstance(error, Exception) else error


def _was_ended(tx: UserTx) -> bool:
    try:
        tx.check(surely=True)
    except TransactionEnded:
        return True
    except Exception as error:  # the connection is lost, and the transaction rolled back with it
        log.debug("could not check whether %s ended its transaction: %s", tx.owner, error)
    return False
