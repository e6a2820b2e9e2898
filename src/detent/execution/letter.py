"""What an instance of a decider sends out and takes in: effects, timers, its inbox.

Each is an execution like any other: claimed, leased, rescued, retried.  What it
brings as an input is decided in the very transaction that settles it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from ..clock import span_micros
from ..definitions.context import Abandoned, Canceled, Routine, RunInfo, Suspended
from ..definitions.deciders import TIMERS, EffectContext, instance_of
from ..errors import PayloadError, PermanentError
from ..ids import turn_id
from ..kernel.decide import Decide, Decided, Given, InputRow
from ..kernel.operations import Settled, Verdict
from ..kernel.policies import Retry
from ..kernel.rows import Claimed
from ..kernel.settle import EFFECT, INBOX, TIMER, Ending, Outcome
from .bound_decider import LoadedDecider
from .carried_errors import Carried, carry, performed
from .failures import encode_error
from .frame import jittered
from .requests import Body, Commit, Read
from .services import Services
from .work import Work

DRAINED = 200  # inputs of an inbox that share a commit


class Letter(Work):
    """One attempt at something that belongs to an instance."""

    retry: Retry = TIMERS

    def __init__(self, services: Services, claimed: Claimed, bound: LoadedDecider, name: str) -> None:
        super().__init__(services, claimed, name)
        self.bound = bound

    def _execute(self) -> Routine[None]:
        if self.interrupt == "canceled":
            yield from self._settled(self._end(Outcome.CANCELED_BY_OPERATOR))
        elif self.interrupt is not None:
            raise Suspended
        else:
            yield from self._tried()

    def _tried(self) -> Routine[None]:
        try:
            yield from self._perform()
        except Canceled:
            yield from self._settled(self._end(Outcome.CANCELED_BY_OPERATOR))
        except asyncio.CancelledError:
            if self.interrupt != "canceled":
                raise Abandoned from None
            yield from self._settled(self._end(Outcome.CANCELED_BY_OPERATOR))
        except Exception as raised:
            error = raised.error if isinstance(raised, Carried) else raised
            yield from self._settled(self._failure(error))
            self._raised = error

    def _perform(self) -> Routine[None]:
        """From here to its settling."""
        raise NotImplementedError

    def _failure(self, error: BaseException) -> Ending:
        """Once more, later; or given up, until an operator replays it."""
        stored, failures = encode_error(error), self.claimed.failures + 1
        wait = self._wait(failures, error)
        if wait is None:
            return Ending(outcome=Outcome.DEAD_LETTER, now=self._now(), error=stored)
        pause = jittered(span_micros(wait), self.retry.jitter)
        return Ending(outcome=Outcome.REATTEMPTED_BY_EXCEPTION, now=self._now(), error=stored, wait=pause)

    def _wait(self, failures: int, error: BaseException) -> timedelta | None:
        """How long until the next attempt; None if another attempt cannot succeed."""
        return None if isinstance(error, PermanentError) else self.retry.wait_after(failures, error)

    def _failure_text(self) -> str:
        return f"{self.claimed.kind} {self.claimed.node!r} (attempt {self.claimed.attempt}) failed"

    def _settled(self, ending: Ending) -> Routine[None]:
        answer: Settled = yield Commit(self._settle(ending))
        if answer.verdict is Verdict.STALE:
            raise Abandoned

    def _decided(self, given: list[Given], *, drain: bool = False) -> Routine[Decided]:
        """Give inputs to the instance that they are for, and settle with that."""
        if drain:
            instance = instance_of(self.claimed.run_id)
        else:
            instance = carry(self.bound.plan.instance, given[0].input)
        answer: Decided = yield Commit(
            Decide(
                bound=self.bound,
                run_id=self.bound.plan.run_id(instance),
                instance=instance,
                inputs=given,
                now=self._now(),
                ends=self._settle(self._end(Outcome.SUCCESS)),
                timer=self.claimed.topic if self.claimed.kind == TIMER else None,
                drain=drain,
            )
        )
        if answer.stale:
            raise Abandoned
        return answer


class EffectLetter(Letter):
    """One attempt at an effect.  Its answer, if there is one, is decided as it settles."""

    def __init__(self, services: Services, claimed: Claimed, bound: LoadedDecider) -> None:
        kind = claimed.job.partition("!")[2]
        super().__init__(services, claimed, bound, kind)
        self._kind = kind
        self.is_async = bound.handler.is_async
        self.retry = bound.plan.decider.retry
        info = RunInfo(claimed.run_id, claimed.type, claimed.parent, claimed.forked_from)
        context = EffectContext(info, kind, claimed.node, claimed.attempt, self)
        self.context = context.of(bound.name, instance_of(claimed.run_id))

    def _perform(self) -> Routine[None]:
        effect = carry(self.bound.effect_of, self._kind, self.claimed.input or "null")
        body = Body(self.bound.handler, self.context, (effect, self.context), {})
        answer = yield from performed(body)
        if answer is None:
            yield from self._settled(self._end(Outcome.SUCCESS))
            return
        name = self.bound.plan.input_name(answer)
        text = self.bound.encode_input(answer)
        given = Given(input=self.bound.input_of(name, text), type=name, turn=turn_id(), text=text)
        yield from self._decided([given])


class TimerLetter(Letter):
    """A timer that is due: its input is decided as it settles, so that it fires once."""

    is_async = True

    def __init__(self, services: Services, claimed: Claimed, bound: LoadedDecider) -> None:
        kind = claimed.job.partition("@")[2]
        super().__init__(services, claimed, bound, kind)
        self._kind = kind

    def _perform(self) -> Routine[None]:
        text = self.claimed.input or "null"
        input = self.bound.input_of(self._kind, text)
        yield from self._decided([Given(input=input, type=self._kind, turn=turn_id(), text=text)])


class InboxLetter(Letter):
    """Empties an inbox, in the order of arrival; what cannot be decided holds up what is behind it."""

    is_async = True

    def __init__(self, services: Services, claimed: Claimed, bound: LoadedDecider) -> None:
        super().__init__(services, claimed, bound, INBOX)

    def _wait(self, failures: int, error: BaseException) -> timedelta | None:
        # What we cannot read the next worker may know, in a rolling deploy: it is tried like all else.
        return self.retry.wait_after(failures, Exception())

    def _perform(self) -> Routine[None]:
        more = True
        while more:
            rows: list[InputRow] = yield Read(self._waiting)
            given: list[Given] = []
            unfit: Exception | None = None
            for row in rows:
                try:
                    given.append(self._given(row))
                except PayloadError as error:  # the inputs before it are given anyway
                    unfit = error
                    break
            if given or unfit is None:  # nothing left: it settles, unless an input has arrived meanwhile
                answer = yield from self._decided(given, drain=True)
                unfit = answer.error or unfit
                more = answer.more
                if answer.held:
                    raise Suspended  # parked until the resume
            if unfit is not None:
                raise unfit

    def _waiting(self) -> list[InputRow]:
        return self.services.store.pending_inputs(self.claimed.run_id, limit=DRAINED)

    def _given(self, row: InputRow) -> Given:
        text = row.data or "null"
        input = self.bound.input_of(row.type, text)
        return Given(
            input=input, type=row.type, turn=turn_id(), text=text, input_id=row.input_id, seq=row.seq
        )


_KINDS: dict[str, Any] = {EFFECT: EffectLetter, TIMER: TimerLetter, INBOX: InboxLetter}


def letter(services: Services, claimed: Claimed) -> Letter:
    """What carries out such an execution."""
    made: Letter = _KINDS[claimed.kind](services, claimed, services.bound(claimed.type))
    return made
