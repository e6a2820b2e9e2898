"""From a claimed execution to the object that executes it, and what to write when that breaks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..execution.failures import encode_error
from ..execution.letter import letter
from ..execution.main import context_of, key_of
from ..execution.node_kinds import node_work
from ..execution.services import Services
from ..execution.spawned_step import SpawnedStep
from ..execution.work import Work
from ..execution.workflow_frames import Frame
from ..kernel.decide import DECIDER
from ..kernel.operations import Settle
from ..kernel.rows import Claimed, Step
from ..kernel.settle import LETTERS, Ending, Outcome, settle
from ..kernel.versions import is_new

SHOW_AFTER = 1_000_000  # microseconds: a step that runs longer is written as executing


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


def show_long_steps(works: Sequence[Frame | Work], now: int) -> None:
    """Make steps visible that have been running for a while."""
    for frame in works:
        if isinstance(frame, Frame):
            for key, (_, started) in list(frame.running.items()):
                if now - started >= SHOW_AFTER:
                    frame.show(key)


def work_of(services: Services, item: Claimed, steps: Sequence[Step]) -> Frame | Work:
    """What executes a claimed execution."""
    registry = services.registry
    if item.kind == "main":
        return Frame(services, item, registry.workflow(item.job), steps)
    if item.kind == "node":
        return node_work(services, item, list(steps))
    if item.kind in LETTERS:
        return letter(services, item)
    return SpawnedStep(services, item, registry.step(item.job), steps)


def break_off(services: Services, work: Frame | Work, error: BaseException) -> None:
    """Pause the run of an execution that ended by an error of ours, and report it."""
    context = context_of(work) if isinstance(work, Frame) else work.context
    settled = broken_off(work.claimed, error, services.clock.now())
    services.committer.post(settled, forever=True)
    text = f"executing {work.claimed.node!r} failed inside Detent; the run is paused"
    services.failed(error, context, text, level=logging.ERROR)


def broken_off(claimed: Claimed, error: BaseException, now: int) -> Settle:
    """The end of an execution by an error of ours, or one like SystemExit: it pauses the run."""
    ending = Ending(outcome=Outcome.PAUSED_BY_EXCEPTION, now=now, error=encode_error(error))
    return Settle(
        worker=claimed.worker,
        key=key_of(claimed),
        token=claimed.token,
        now=now,
        plan=settle(claimed, ending),
        about=claimed,
    )
