"""Deciders as the store sees them: operations that a test applies by hand, in the batch that it wants."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import detent
from detent.app import deciders
from detent.ids import turn_id
from detent.kernel.decide import Decide, Enqueue, Given
from detent.kernel.operations import Operation
from detent.kernel.rows import Claimed
from detent.kernel.settle import Outcome
from detent.stores.driver import Tx
from tests.conformance.builders import enlist, settling

_tokens = itertools.count()


def deciding_of(app: detent.App, decider: Any, input: Any, input_id: str | None = None) -> Decide:
    """The operation of `app.execute`."""
    return deciders.decision_of(app.engine, decider, input, input_id)


def enqueuing_of(app: detent.App, decider: Any, input: Any, input_id: str | None = None) -> Enqueue:
    """The operation of `app.enqueue_input`."""
    return deciders.enqueuing_of(app.engine, decider, input, input_id)


def applied(app: detent.App, *operations: Operation) -> list[Any]:
    """Apply operations in one batch, and return their answers."""
    done = app.engine.store.apply(operations)
    app.engine.services.committer.on_commit(operations, done)
    return done.answers


def claimed(app: detent.App, decider: Any, kind: str, worker: str = "w1") -> Claimed:
    """Claim what is due of an app without a worker; there must be one such thing, of that kind."""
    engine = app.engine
    enlist(engine.store, worker)
    plan = engine.registry.decider(decider)
    jobs = [job for job in plan.jobs if {"effect": "!", "timer": "@", "inbox": "<"}[kind] in job]
    token = f"{worker}-{next(_tokens)}"
    [found] = engine.store.claim(
        worker, queues=engine.services.queues, jobs=jobs, tokens=[token], now=engine.clock.now()
    )
    assert found.kind == kind
    return found


def bringing(app: detent.App, decider: Any, letter: Claimed, input: Any) -> Decide:
    """The operation by which an effect or a timer brings its input."""
    operation = deciding_of(app, decider, input)
    operation.inputs = [
        Given(
            input=input,
            type=type(input).__name__,
            turn=turn_id(),
            text=app.engine.services.bound(decider).encode_input(input),
        )
    ]
    operation.timer = letter.topic if letter.kind == "timer" else None
    operation.ends = settling(letter, Outcome.SUCCESS, now=operation.now)
    return operation


def draining(app: detent.App, decider: Any, letter: Claimed) -> Decide:
    """The operation that empties an inbox."""
    bound = app.engine.services.bound(decider)
    rows = app.engine.store.pending_inputs(letter.run_id, limit=100)
    now = app.engine.clock.now()
    return Decide(
        bound=bound,
        run_id=letter.run_id,
        instance=letter.run_id.partition(":")[2],
        inputs=[
            Given(
                input=bound.input_of(row.type, row.data or "null"),
                type=row.type,
                turn=turn_id(),
                text=row.data,
                input_id=row.input_id,
                seq=row.seq,
            )
            for row in rows
        ],
        now=now,
        ends=settling(letter, Outcome.SUCCESS, now=now),
        drain=True,
    )


def remembered(app: detent.App, decider: Any, instance: str = "l") -> Any:
    """The state that the process keeps of an instance; None where it keeps none."""
    bound = app.engine.services.bound(decider)
    known = bound.recall(f"{bound.name}:{instance}")
    if known is None:
        return None
    bound.remember(f"{bound.name}:{instance}", *known)
    return known[1]


# -- Crashes between two statements --------------------------------------------------------------------


class Torn(Exception):
    """The connection is gone between two statements, and the transaction with it."""


@contextmanager
def torn_at(place: int | str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a statement of this thread fail: the one with that number, or that contains such a text.

    The main thread's operations are committed by the committer's thread.
    """
    mine = threading.get_ident()
    left = itertools.count(place if isinstance(place, int) else -1, -1)

    def counted(verb: Any) -> Any:
        def wrapped(self: Tx, statement: str, **params: Any) -> Any:
            named = isinstance(place, str) and place in statement
            ours = threading.get_ident() == mine or threading.current_thread().name == "detent-committer"
            if ours and (named or next(left) == 0):
                raise Torn
            return verb(self, statement, **params)

        return wrapped

    with monkeypatch.context() as patched:
        patched.setattr(Tx, "run", counted(Tx.run))
        patched.setattr(Tx, "query", counted(Tx.query))
        yield
