"""A decider with effects, timers and an inbox, that counts what has come of them."""

import os
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from detent import Decider, Decision, EffectContext

from . import effects

TICK = 0.02  # seconds


@dataclass
class Books:
    lines: list[str] = field(default_factory=list)


@dataclass
class Add:
    id: str
    line: str
    post: bool = False
    ticks: int = 0
    deadly: bool = False


@dataclass
class Tick:
    id: str
    left: int


@dataclass
class Posted:
    id: str
    line: str


@dataclass
class Added:
    line: str


@dataclass
class Post:
    line: str
    deadly: bool


class Ledger(Decider[Books, Add | Tick | Posted, Added, Post]):
    type = "ledger"
    snapshot_every = 20

    def initial(self) -> Books:
        return Books()

    def decide(self, state: Books, input: Add | Tick | Posted, now: datetime) -> Decision:
        match input:
            case Add():
                decision = Decision.event(Added(input.line))
                if input.post or input.deadly:
                    decision = decision.with_effect(Post(input.line, input.deadly))
                return _ticking(decision, input.id, input.ticks)
            case Tick(id, left):
                return _ticking(Decision.event(Added(f"tick {left}")), id, left - 1)
            case Posted(_, line):
                return Decision.event(Added(f"posted {line}"))

    def evolve(self, state: Books, event: Added) -> Books:
        state.lines.append(event.line)
        return state

    def handle(self, effect: Post, ctx: EffectContext) -> Posted:
        effects.note("begin", ctx.run.id, ctx.idempotency_key, effect.line)
        if effect.deadly:
            os._exit(1)
        return Posted(ctx.instance, effect.line)


def _ticking(decision: Decision, id: str, left: int) -> Decision:
    if left < 1:
        return decision
    return decision.with_timer(after=timedelta(seconds=TICK), input=Tick(id, left), key="tick")
