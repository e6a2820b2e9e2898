"""From a claimed execution to the object that executes it, and what to write when that breaks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..execution.failures import encode_error
from ..execution.letter import letter
from ..execution.main import MainFrame, key_of
from ..execution.node_kinds import node_work
from ..execution.services import Services
from ..execution.spawned_step import SpawnedStep
from ..execution.work import Work
from ..kernel.decide import DECIDER
from ..kernel.operations import Settle
from ..kernel.rows import Claimed, Step
from ..kernel.settle import LETTERS, Ending, Outcome, settle
from ..kernel.versions import is_new


def prepare(services: Services, claimed: Sequence[Claimed]) -> dict[str, list[Step]]:
    """Note our version in runs that it has not executed before; return the journals that are needed.

    Those are the recorded steps of runs that were delivered before, or that are forks.
    """
    version = services.version
    new = {
        item.run_id
        for item in claimed
        if item.versions != version and item.run_kind != DECIDER and is_new(item.versions, version)
    }
    if new:
        services.store.note_version(sorted(new), version, now=services.clock.now())
    known = sorted({item.run_id for item in claimed if item.deliveries > 1 or item.forked_from})
    return services.store.journal(known) if known else {}


def work_of(services: Services, item: Claimed, steps: Sequence[Step]) -> MainFrame | Work:
    """What executes a claimed execution."""
    registry = services.registry
    if item.kind == "main":
        return MainFrame(services, item, registry.workflow(item.job), steps)
    if item.kind == "node":
        return node_work(services, item, list(steps))
    if item.kind in LETTERS:
        return letter(services, item)
    return SpawnedStep(services, item, registry.step(item.job), steps)


def break_off(services: Services, work: MainFrame | Work, error: BaseException) -> None:
    """Pause the run of an execution that ended with an error of Detent, and report it."""
    settled = broken_off(work.claimed, error, services.clock.now())
    services.committer.post(settled, forever=True)
    text = f"executing {work.claimed.node!r} failed inside Detent; the run is paused"
    services.failed(error, work.context, text, level=logging.ERROR)


def broken_off(claimed: Claimed, error: BaseException, now: int) -> Settle:
    """The end of an execution by an error of Detent, or one like SystemExit: it pauses the run."""
    ending = Ending(outcome=Outcome.PAUSED_BY_EXCEPTION, now=now, error=encode_error(error))
    return Settle(
        worker=claimed.worker,
        key=key_of(claimed),
        token=claimed.token,
        now=now,
        plan=settle(claimed, ending),
        about=claimed,
    )
