"""Whether the code of a workflow asks for what its record holds: other arguments, and steps left out."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..clock import from_micros
from ..definitions.context import PauseRun
from ..definitions.functions import Definition, FunctionWorkflow, Step
from ..errors import StepMismatch, StepsNotAsked
from ..events import Drifted
from ..kernel import rows
from ..kernel.journal import Journal, line_of
from ..kernel.rows import Claimed, StepState
from .calls import same_call
from .services import Services

LONGEST_SHOWN = 200  # characters of a value in a message


class DriftChecks:
    """What a frame compares with its journal."""

    services: Services
    claimed: Claimed
    definition: FunctionWorkflow[Any, Any]
    run_id: str
    journal: Journal

    def check_drift(self, step: Definition[Any, Any], entry: rows.Step, text: str | None) -> None:
        """Other arguments than recorded: the code, or what it saw, has changed."""
        if text == entry.input or text is None or entry.input is None or entry.kind == "undo":
            return
        if same_call(self.services.codec, step, entry.input, text):
            return
        self.drifted(entry, text, strict=isinstance(step, Step | FunctionWorkflow) and step.strict)

    def check_message(self, entry: rows.Step, call: str) -> None:
        """The same for a message that was sent; older records do not hold what it said."""
        if entry.input is not None and entry.input != call:
            decode = self.services.codec.decode
            if decode(entry.input) != decode(call):
                self.drifted(entry, call)

    def drifted(self, entry: rows.Step, text: str, *, strict: bool = False) -> None:
        """Pause the run, unless an operator has accepted that the record is of another call."""
        accepted = entry.seq < self.journal.accepted
        strict = strict or self.definition.strict or not self.services.lenient
        if strict and not accepted:
            recorded = self.brief(entry.input)
            raise PauseRun(StepMismatch(self.run_id, entry.key, recorded, self.brief(text)))
        event = self.drift("mismatch", entry.key, recorded=self.brief(entry.input), asked=self.brief(text))
        detail = {"step": entry.key, "recorded": entry.input, "asked": text}
        self.services.drifted(event, ("drift", detail))

    def drift(self, kind: Literal["mismatch", "unasked"], *steps: str, **facts: Any) -> Drifted:
        """The event that says how the code and the record of this run differ."""
        time, queue = from_micros(self.services.clock.now()), self.claimed.run_queue or self.claimed.queue
        return Drifted(
            time=time,
            run_id=self.run_id,
            type=self.claimed.type,
            queue=queue,
            kind=kind,
            steps=steps,
            **facts,
        )

    def begin_new(self, key: str, kind: str, name: str) -> None:
        """Something new is asked for: a strict workflow must have asked for all that it recorded before."""
        if self.definition.strict and self.claimed.deliveries > 1:
            asked = rows.Step(
                run_id="", key=key, seq=0, kind=kind, name=name, state=StepState.WAITING, written_by=0
            )
            skipped = [step.key for step in self.journal.skipped(line_of(asked))]
            if skipped:
                raise PauseRun(StepsNotAsked(self.run_id, key, skipped))

    def brief(self, text: str | None) -> str:
        """A stored value for people, and not too much of it."""
        if text is None:
            return "nothing"
        try:
            plain = msgspec.json.encode(self.services.codec.decode(text)).decode()
        except Exception:  # a transform may raise anything
            plain = text
        return plain if len(plain) <= LONGEST_SHOWN else f"{plain[:LONGEST_SHOWN]}…"
