"""Settling: what follows from one finished execution.

`settle` alone decides what an outcome means, for the execution and for its run.
It is a pure function, and the store obeys its plan inside one transaction:

    (execution, ending)  ->  SettlePlan

    1. An execution settles once; the store's guard is the delivery token.
    2. An outcome fixes the execution's state and what becomes of the run.
    3. A durable function is a graph of one node, `main`: it ends with its run.  What
       follows a node of another graph is planned by `advance`, in the transaction.
    4. Under a canceled run nothing follows: the end is recorded as canceled.

Nothing here reads a clock, opens a connection, or calls user code.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

import msgspec

from .operations import SettlePlan
from .policies import recovery_wait
from .rows import Claimed, ExecutionState, HistoryRow, NewExecution, RunEnd, RunState

_MICROSECOND = timedelta(microseconds=1)


class Outcome(StrEnum):
    SUCCESS = "success"
    FAILED = "failed"  # a durable function raised, or a spawned step did for the last time
    REATTEMPTED = "reattempted"
    REATTEMPTED_BY_EXCEPTION = "reattempted_by_exception"
    SKIPPED_BY_EXCEPTION = "skipped_by_exception"
    PAUSED_BY_EXCEPTION = "paused_by_exception"
    BRANCHED_BY_EXCEPTION = "branched_by_exception"  # it failed, and the run continues with its error branch
    CANCELED_BY_EXCEPTION = "canceled_by_exception"
    CANCELED_BY_OPERATOR = "canceled_by_operator"
    CANCELED_BY_FLOW_CONTROL = "canceled_by_flow_control"
    CANCELED_BY_CONDITION = "canceled_by_condition"
    CANCELED_BY_MISSING_HERO = "canceled_by_missing_hero"
    CANCELED_BY_FINISH = "canceled_by_finish"
    PAUSED_BY_FLOW_CONTROL = "paused_by_flow_control"
    SKIPPED_BY_FLOW_CONTROL = "skipped_by_flow_control"
    SKIPPED_BY_CONDITION = "skipped_by_condition"
    SKIPPED_BY_OPERATOR = "skipped_by_operator"
    BYPASSED_BY_DEPLOY = "bypassed_by_deploy"
    CONTINUED = "continued"  # the run has finished, and a new one continues it
    FINISHED_BY_FLOW_CONTROL = "finished"  # never stored: recorded as a success
    PAUSED_AFTER = "paused_after"  # never stored: recorded as a success
    RECOVERED = "recovered"
    DEAD_LETTER = "dead_letter"  # an effect, a timer or an inbox that was given up, until it is replayed
    REPLAYED = "replayed"  # a dead letter that was taken up again
    DISCARDED = "discarded"  # a dead letter that an operator has discarded
    CANCELED_BY_DECISION = "canceled_by_decision"  # a timer that was cancelled or replaced


class Then(StrEnum):
    """What becomes of the run."""

    GOES_ON = "goes_on"
    AGAIN = "again"
    FAILS = "fails"
    PAUSES = "pauses"
    CANCELS = "cancels"
    FINISHES = "finishes"
    PAUSES_AFTER = "pauses_after"
    STAYS = "stays"  # something else has become of it: this is only recorded


# Outcome -> (state of the execution, what becomes of the run).
TRANSITIONS: Mapping[Outcome, tuple[ExecutionState, Then]] = {
    Outcome.SUCCESS: (ExecutionState.COMPLETED, Then.GOES_ON),
    Outcome.FAILED: (ExecutionState.FAILED, Then.FAILS),
    Outcome.REATTEMPTED: (ExecutionState.COMPLETED, Then.AGAIN),
    Outcome.REATTEMPTED_BY_EXCEPTION: (ExecutionState.FAILED, Then.AGAIN),
    Outcome.SKIPPED_BY_EXCEPTION: (ExecutionState.SKIPPED, Then.GOES_ON),
    Outcome.PAUSED_BY_EXCEPTION: (ExecutionState.FAILED, Then.PAUSES),
    Outcome.BRANCHED_BY_EXCEPTION: (ExecutionState.FAILED, Then.GOES_ON),
    Outcome.CANCELED_BY_EXCEPTION: (ExecutionState.FAILED, Then.CANCELS),
    Outcome.CANCELED_BY_OPERATOR: (ExecutionState.CANCELED, Then.CANCELS),
    Outcome.CANCELED_BY_FLOW_CONTROL: (ExecutionState.CANCELED, Then.CANCELS),
    Outcome.CANCELED_BY_CONDITION: (ExecutionState.CANCELED, Then.CANCELS),
    Outcome.CANCELED_BY_MISSING_HERO: (ExecutionState.CANCELED, Then.CANCELS),
    Outcome.PAUSED_BY_FLOW_CONTROL: (ExecutionState.CANCELED, Then.PAUSES),
    Outcome.PAUSED_AFTER: (ExecutionState.COMPLETED, Then.PAUSES_AFTER),
    Outcome.SKIPPED_BY_FLOW_CONTROL: (ExecutionState.SKIPPED, Then.GOES_ON),
    Outcome.SKIPPED_BY_CONDITION: (ExecutionState.SKIPPED, Then.GOES_ON),
    Outcome.SKIPPED_BY_OPERATOR: (ExecutionState.SKIPPED, Then.GOES_ON),
    Outcome.CANCELED_BY_FINISH: (ExecutionState.CANCELED, Then.STAYS),
    Outcome.BYPASSED_BY_DEPLOY: (ExecutionState.CANCELED, Then.STAYS),
    Outcome.FINISHED_BY_FLOW_CONTROL: (ExecutionState.COMPLETED, Then.FINISHES),
    Outcome.CONTINUED: (ExecutionState.COMPLETED, Then.FINISHES),
    Outcome.RECOVERED: (ExecutionState.FAILED, Then.AGAIN),
    Outcome.DEAD_LETTER: (ExecutionState.FAILED, Then.STAYS),
    Outcome.REPLAYED: (ExecutionState.FAILED, Then.STAYS),
    Outcome.DISCARDED: (ExecutionState.FAILED, Then.STAYS),
    Outcome.CANCELED_BY_DECISION: (ExecutionState.CANCELED, Then.STAYS),
}


def has_settled(state: str, outcome: str | None) -> bool:
    """Whether an execution in this state settles its node: what follows it may begin."""
    done = state in (ExecutionState.COMPLETED, ExecutionState.SKIPPED)
    return (done and outcome != Outcome.REATTEMPTED) or outcome == Outcome.BRANCHED_BY_EXCEPTION


# Outcomes that only say what becomes of the run.
_STORED_AS = {Outcome.FINISHED_BY_FLOW_CONTROL: Outcome.SUCCESS, Outcome.PAUSED_AFTER: Outcome.SUCCESS}

# Kinds of executions beside `main`: steps of durable functions, nodes of graphs.
STEP, NODE = "step", "node"
# And what a decider's instance sends out or takes in: none of it ends or stops the instance.
EFFECT, TIMER, INBOX = "effect", "timer", "inbox"
LETTERS = frozenset({EFFECT, TIMER, INBOX})


class Ending(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an execution ended, as the worker saw it."""

    outcome: Outcome
    now: int
    result: str | None = None
    error: str | None = None
    wait: int = 0  # before the next attempt, where there is one


def settle(execution: Claimed, ending: Ending) -> SettlePlan:
    """Return what follows when `execution` ends like this."""
    if execution.kind in LETTERS:
        ending = _of_letter(ending)
    state, then = TRANSITIONS[ending.outcome]
    outcome = _STORED_AS.get(ending.outcome, ending.outcome)
    plan = SettlePlan(
        state=state, outcome=outcome, result=ending.result, error=ending.error, topic=execution.topic
    )
    if then is Then.STAYS:
        plan.topic = None
    elif then is Then.AGAIN:
        plan.topic = None  # runs that wait for it keep waiting
        plan.again = next_attempt(execution, ending)
        plan.history = [_event(execution, ending)]
    elif execution.kind in LETTERS:
        plan.topic = None  # a timer's key: no run waits for it
    elif execution.kind == STEP:
        if then in (Then.PAUSES, Then.CANCELS):
            plan.topic = None
            plan.run = RunEnd(state=_RUN_AFTER[then], error=ending.error)
    elif execution.kind == NODE:
        plan.goes_on = then in (Then.GOES_ON, Then.PAUSES_AFTER)
        if then is not Then.GOES_ON:
            result = ending.result if then is Then.FINISHES else None
            plan.run = RunEnd(state=_RUN_AFTER[then], result=result, error=ending.error)
    elif then is not Then.GOES_ON:
        plan.run = RunEnd(state=_RUN_AFTER[then], error=ending.error)
    else:
        plan.run = RunEnd(state=RunState.FINISHED, result=ending.result)
    return plan


def _of_letter(ending: Ending) -> Ending:
    """An error that would stop another run makes a letter a dead letter: its instance continues."""
    if TRANSITIONS[ending.outcome][1] in (Then.FAILS, Then.PAUSES):
        return msgspec.structs.replace(ending, outcome=Outcome.DEAD_LETTER)
    return ending


_RUN_AFTER = {
    Then.FAILS: RunState.FAILED,
    Then.PAUSES: RunState.PAUSED,
    Then.PAUSES_AFTER: RunState.PAUSED,
    Then.CANCELS: RunState.CANCELED,
    Then.FINISHES: RunState.FINISHED,
}


def next_attempt(execution: Claimed, ending: Ending) -> NewExecution:
    """The execution that follows a failed, reattempted or orphaned one."""
    orphaned = ending.outcome is Outcome.RECOVERED
    failed = ending.outcome is Outcome.REATTEMPTED_BY_EXCEPTION
    return NewExecution(
        run_id=execution.run_id,
        node=execution.node,
        attempt=execution.attempt + 1,
        kind=execution.kind,
        job=execution.job,
        queue=execution.queue,
        precedence=execution.precedence,
        state=waiting_state(ending.now + ending.wait, ending.now),
        created_at=ending.now,
        scheduled_for=ending.now + ending.wait,
        topic=execution.topic,
        input=execution.input,
        # A replay needs the journal: an execution that continues another is never "fresh".
        deliveries=1,
        recoveries=execution.recoveries + 1 if orphaned else 0,
        failures=execution.failures + 1 if failed else execution.failures,
        queue_key=execution.queue_key,
        pin=execution.pin,
    )


def waiting_state(due: int | None, now: int) -> ExecutionState:
    """How an execution waits for `due`."""
    if due is None:
        return ExecutionState.PARKED
    return ExecutionState.READY if due <= now else ExecutionState.TIMER


def under(run_state: str, plan: SettlePlan) -> SettlePlan:
    """Return the plan as it holds for a run that is in `run_state` by now."""
    if run_state == RunState.CANCELED:
        return SettlePlan(
            state=ExecutionState.CANCELED,
            outcome=Outcome.CANCELED_BY_OPERATOR,
            result=plan.result,
            error=plan.error,
            again=None,
            history=plan.history,
        )
    # A new plan, for the same one is asked again when its transaction has to be repeated.
    if run_state in (RunState.FINISHED, RunState.FAILED):
        # A node does not begin again either.  A spawned step does: the function may still read its result.
        again = None if plan.again is not None and plan.again.kind == NODE else plan.again
        return msgspec.structs.replace(plan, run=None, goes_on=False, again=again)
    if run_state == RunState.PAUSED:
        again = plan.again
        if again is not None:
            again = msgspec.structs.replace(again, state=ExecutionState.HELD)
        # It is paused already; another error is news, a mere pause is not.
        stays = plan.run is not None and plan.run.state == RunState.PAUSED and plan.run.error is None
        run = None if stays else plan.run
        return msgspec.structs.replace(plan, again=again, run=run)
    return plan


def recover(
    execution: Claimed,
    *,
    progressed: bool,
    counted: bool,
    max_recoveries: int,
    error: str,
    now: int,
    turn: int = 0,
) -> SettlePlan:
    """Return what follows when the worker of `execution` is dead, or (not `counted`) leaves in good order.

    An attempt that wrote something into the journal got somewhere, so the
    count begins anew: only what dies again and again at one place is stopped.
    """
    if progressed:
        execution.recoveries = 0
    if not counted:
        execution.recoveries -= 1
    if execution.run_state == RunState.CANCELED and execution.kind in {STEP, NODE, *LETTERS}:
        return SettlePlan(state=ExecutionState.CANCELED, outcome=Outcome.CANCELED_BY_OPERATOR)
    if execution.run_state == RunState.FINISHED and execution.kind == NODE:
        return SettlePlan(state=ExecutionState.FAILED, outcome=Outcome.RECOVERED)  # no longer needed
    if execution.recoveries >= max_recoveries and execution.kind in LETTERS:
        return SettlePlan(state=ExecutionState.FAILED, outcome=Outcome.DEAD_LETTER, error=error)
    if execution.recoveries >= max_recoveries and execution.run_state != RunState.PAUSED:
        # Not tried again.  That pauses the run, unless it has ended already: a final state stays.
        plan = SettlePlan(state=ExecutionState.FAILED, outcome=Outcome.RECOVERED, error=error)
        if execution.run_state == RunState.READY:
            plan.run = RunEnd(state=RunState.PAUSED, error=error)
        return plan
    wait = recovery_wait(execution.recoveries + 1, turn) // _MICROSECOND
    ending = Ending(outcome=Outcome.RECOVERED, now=now, wait=wait)
    plan = settle(execution, ending)
    if execution.run_state == RunState.PAUSED and plan.again is not None:
        plan.again.state = ExecutionState.HELD
    return plan


def _event(execution: Claimed, ending: Ending) -> HistoryRow:
    detail = (
        f'{{"node":{_quoted(execution.node)},"attempt":{execution.attempt},"error":{ending.error or "null"}}}'
    )
    return HistoryRow(
        run_id=execution.run_id, happened_at=ending.now, event=str(ending.outcome), detail=detail
    )


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
