"""What a type checker must make of deciders and their test kit.  Never run; `make check` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type

import detent
from detent import Decider, Decision, EffectContext, Recorded, StateMachineView, Timer, TimerCancelled
from detent.aio import AsyncRun
from detent.testing import TestingApp, given, record_effects


@dataclass
class State:
    status: str = "new"


@dataclass
class Create:
    id: str


@dataclass
class Pay:
    id: str
    amount: int


@dataclass
class Created: ...


@dataclass
class Paid:
    amount: int


@dataclass
class SendEmail:
    to: str


Input = Create | Pay
Event = Created | Paid


class Order(Decider[State, Input, Event, SendEmail]):
    type = "order"

    def initial(self) -> State:
        return State()

    def decide(self, state: State, input: Input, now: datetime) -> Decision:
        return (
            Decision.event(Created())
            .with_effect(SendEmail("a@b"))
            .with_timer(after=timedelta(hours=1), input=Pay("o-1", 1), key="payment")
            .cancel_timer("reminder")
        )

    def evolve(self, state: State, event: Event) -> State:
        return state

    async def handle(self, effect: SendEmail, ctx: EffectContext) -> Input | None:
        assert_type(ctx.idempotency_key, str)
        assert_type(ctx.instance, str)
        return None


def sync_face(app: detent.App) -> None:
    assert_type(app.execute(Order, Create("o-1")), list[Event])
    assert_type(app.execute(Order, Pay("o-1", 5), input_id="x"), list[Event])
    assert_type(app.execute_dynamic("order", {"type": "Create", "id": "o-1"}), list[Any])
    assert_type(app.enqueue_input(Order, Create("o-1")), bool)
    assert_type(app.state_at(Order, "o-1"), State)
    assert_type(app.state_at(Order, "o-1", sequence=3), State)
    assert_type(app.events(Order, "o-1"), list[Recorded[Event | TimerCancelled]])
    assert_type(app.start(Order, Create("o-1")), detent.Run[None])
    app.execute(Order, Created())  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    app.execute(Order, "Create")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    app.enqueue_input(Order, SendEmail("a@b"))  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    app.start(Order, Created())  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.state_at(State, "o-1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def views(app: detent.App) -> None:
    view = app.deciders.machine(Order, source="observations", limit=10)
    assert_type(view, StateMachineView)
    assert_type(view.undeclared, tuple[detent.TransitionInfo, ...])
    assert_type(view.states, tuple[detent.StateInfo, ...])
    assert_type(view.to_mermaid(), str)
    assert_type(app.deciders.instance(Order, "o-1"), detent.InstanceView[State])
    assert_type(app.deciders.instance(Order, "o-1").state, State)


async def async_face(app: detent.AsyncApp) -> None:
    assert_type(await app.execute(Order, Create("o-1")), list[Event])
    assert_type(await app.enqueue_input(Order, Create("o-1")), bool)
    assert_type(await app.state_at(Order, "o-1"), State)
    assert_type(await app.events(Order, "o-1"), list[Recorded[Event | TimerCancelled]])
    assert_type(await app.deciders.machine(Order), StateMachineView)
    assert_type((await app.deciders.instance(Order, "o-1")).state, State)
    assert_type(await app.start(Order, Create("o-1")), AsyncRun[None])
    await app.execute(Order, Created())  # type: ignore[misc]  # pyright: ignore[reportArgumentType]


def kit(app: TestingApp) -> None:
    story = given(Order, [Created(), Paid(5)]).when(Pay("o-1", 5))
    story.then(
        events=[Paid(5)],
        effects=[SendEmail("a@b")],
        timers=[Timer(Pay("o-1", 1), after=timedelta(hours=1))],
        cancels=["payment"],
        state=lambda state: state.status == "paid",  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType, reportUnknownMemberType]
        terminal=False,
    )
    assert_type(story.state, State)
    assert_type(story.events, list[Event])
    given(Order()).when(Create("o-1")).then(events=[], state=State("new"))
    given(Order).when(Created())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    story.then(events=[Create("o-1")])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    story.then(colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    recorder = record_effects(app, Order, answers={SendEmail: None})
    assert_type(recorder.effects, list[SendEmail])
    assert_type(recorder.of(SendEmail), list[SendEmail])
    assert_type(app.speedrun(Order, "o-1"), detent.Run[Any])
    assert_type(app.execute(Order, Create("o-1")), list[Event])
