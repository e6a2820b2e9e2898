"""Actions: what an operator does, each with a reason that is written into the history with their name.

An action is a row of ACTIONS: its words, its fields, and the function that performs it.  Pages and the API
use the same rows.  Those of queues, schedules and workers are in operating.py and schedule_forms.py.  Control
verbs write the name and the reason in the transaction of the verb itself (`stores.operators`).  A fork and a
message are committed first, and noted right after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..app.bulk import Changed
from ..app.deciders import dynamic_input
from ..app.listing import Filters, Walk
from ..app.run import Run
from ..errors import DetentError
from ..kernel.external_changes import Note
from ..stores.operators import acting
from .documents.runs import RunFilters, parse_filters
from .documents.source import Document, Source
from .forms import Action, BadAction, Field, Values, check_reason, fill_in
from .operating import OPERATING
from .schedule_forms import SCHEDULING
from .typed_fields import described, fields_of, payload_of

AT_ONCE = 500  # runs that one bulk action changes


def act(source: Source, action: Action, values: Values, *, name: str, reason: str) -> Document:
    """Perform an action for a person; the answer says what was done."""
    given = fill_in(action, source, values)
    why = check_reason(reason)
    with acting(name, why):
        return action.perform(source, given, name, why)


# -- Runs ----------------------------------------------------------------------------------------------


def _run(source: Source, values: Values) -> Run[Any]:
    return source.app.run(values["run"])


def _pause(source: Source, values: Values, name: str, reason: str) -> Document:
    _run(source, values).pause(reason=reason)
    return {"run": values["run"]}


def _resume(source: Source, values: Values, name: str, reason: str) -> Document:
    _run(source, values).resume()
    return {"run": values["run"]}


def _cancel(source: Source, values: Values, name: str, reason: str) -> Document:
    _run(source, values).cancel(reason=reason)
    return {"run": values["run"]}


def _skip(source: Source, values: Values, name: str, reason: str) -> Document:
    _run(source, values).skip(values["node"])
    return {"run": values["run"]}


def _reattempt(source: Source, values: Values, name: str, reason: str) -> Document:
    _run(source, values).reattempt(values["node"])
    return {"run": values["run"]}


def _fork(source: Source, values: Values, name: str, reason: str) -> Document:
    made: Run[Any] = source.app.fork(values["run"], from_step=values["node"] or None)
    facts = {"fork": made.id, "from_step": values["node"] or None}
    _note(source, values["run"], "forked", facts)
    _note(source, made.id, "forked from", {"run": values["run"], "from_step": values["node"] or None})
    return {"run": made.id}


def _send(source: Source, values: Values, name: str, reason: str) -> Document:
    try:
        value = msgspec.json.decode(values["value"] or "null")
    except msgspec.DecodeError as error:
        raise BadAction(f"The value is not JSON: {error}. Put a text in quotes.") from None
    _run(source, values).send(values["name"], value)
    _note(source, values["run"], "message sent", {"name": values["name"]})
    return {"run": values["run"]}


def _note(source: Source, run_id: str, event: str, detail: Document) -> None:
    engine = source.engine
    engine.store.change(Note(run_id, event, detail), now=engine.clock.now())


# -- Many runs -----------------------------------------------------------------------------------------


def bulk_walk(source: Source, verb: str, values: Values) -> Walk:
    """The runs that a bulk action is about, at most `AT_ONCE`."""
    state, filters = parse_filters(source, RunFilters.of({k: v for k, v in values.items() if k != "q"}))
    allowed = (
        ("paused", "failed") if verb == "resume-all" else (None, "active", "ready", "performing", "paused")
    )
    if state not in allowed:
        wanted = " or ".join(str(one) for one in allowed if one)
        raise BadAction(f"Filter by state first: {wanted}.")
    limited: Filters = {**filters, "limit": AT_ONCE}
    return Walk(source.engine, state or "active", limited)


def _bulk(source: Source, verb: str, values: Values, change: Callable[[str], Any]) -> Document:
    walk, number, refused = bulk_walk(source, verb, values), 0, {}
    while not walk.over:
        for row in walk.next_page():
            try:
                change(row.id)
            except DetentError as error:  # it has changed since it was listed
                refused[row.id] = str(error)
            else:
                number += 1
    changed = Changed(number, refused)
    return {"changed": changed.count, "refused": changed.refused}


def _resume_all(source: Source, values: Values, name: str, reason: str) -> Document:
    return _bulk(source, "resume-all", values, source.engine.resume)


def _cancel_all(source: Source, values: Values, name: str, reason: str) -> Document:
    return _bulk(source, "cancel-all", values, lambda run: source.engine.cancel(run, reason))


# -- Deciders and projections --------------------------------------------------------------------------


def _replay(source: Source, values: Values, name: str, reason: str) -> Document:
    source.app.dead_letters.replay(values["letter"])
    return {"letter": values["letter"]}


def _discard(source: Source, values: Values, name: str, reason: str) -> Document:
    source.app.dead_letters.discard(values["letter"])
    return {"letter": values["letter"]}


def _replay_all(source: Source, values: Values, name: str, reason: str) -> Document:
    report = source.app.dead_letters.replay_all(values["decider"] or None)
    return {"changed": report.replayed, "refused": {one.letter: one.reason for one in report.skipped}}


def _execute(source: Source, values: Values, name: str, reason: str) -> Document:
    plan = source.engine.registry.decider(values["decider"])
    if values["input"] not in plan.inputs:
        raise BadAction(f"{plan.name} takes {', '.join(sorted(plan.inputs))}.")
    try:
        payload = (
            msgspec.json.decode(values["payload"], type=dict[str, Any])
            if "payload" in values
            else payload_of(described(plan.inputs[values["input"]]) or (), values)
        )
    except msgspec.MsgspecError as error:
        raise BadAction(f"The input is not a JSON object: {error}") from None
    input = dynamic_input(source.engine, plan.name, {**payload, "type": values["input"]})
    events: list[Any] = source.app.execute(plan.cls, input)
    run_id = plan.address(input)
    _note(source, run_id, "input executed", {"type": values["input"], "events": len(events)})
    return {"run": run_id, "decider": plan.name, "events": len(events)}


def _input_fields(source: Source, values: Values) -> tuple[Field, ...]:
    """Typed fields, once the class of the input is chosen; else its name, and its fields as JSON."""
    static = (DECIDER, INPUT, PAYLOAD)
    plan = source.engine.registry.decider(values.get("decider", ""))
    chosen = plan.inputs.get(values.get("input", ""))
    found = described(chosen) if chosen is not None and "payload" not in values else None
    if found is None:
        return static
    return (DECIDER, Field("input", "Input", kind="hidden"), *fields_of(found))


def _rebuild(source: Source, values: Values, name: str, reason: str) -> Document:
    return {"generation": source.app.projections.rebuild(values["projection"])}


def _skip_event(source: Source, values: Values, name: str, reason: str) -> Document:
    position = values["position"]
    if not (position.isascii() and position.isdigit()):
        raise BadAction("The position of the event is a number.")
    skipped = source.app.projections.skip(values["projection"], position=int(position))
    _note(source, f"projection:{values['projection']}", "event skipped", {"position": skipped})
    return {"position": skipped}


DECIDER = Field("decider", "Decider", kind="hidden")
INPUT = Field("input", "Input", "The name of its class")
PAYLOAD = Field("payload", "Fields", 'A JSON object, such as {"id": "o-1"}', "json")
RUN = Field("run", "Run", kind="hidden")
NODE = Field("node", "Step or node", kind="hidden")
FILTERS = tuple(
    Field(name, name.title(), kind="hidden", required=False)
    for name in ("state", "type", "hero", "queue", "attribute", "parent", "after", "before")
)
LIVING = ("queued", "waiting", "retrying", "performing")

ACTIONS = {
    action.verb: action
    for action in (
        Action(
            "pause", "Pause this run", "Pause",
            "Nothing new begins. What executes now ends and is recorded.",
            "run", _pause, (RUN,), phases=LIVING,
            done="The run is paused.",
        ),
        Action(
            "resume", "Resume this run", "Resume",
            "A paused run continues where it stopped. A failed run tries its failed step again.",
            "run", _resume, (RUN,), phases=("paused", "failed"),
            done="The run continues.",
        ),
        Action(
            "cancel", "Cancel this run", "Cancel run",
            "The run and its children end, and what can be undone is undone. This cannot be taken back.",
            "run", _cancel, (RUN,), danger=True, phases=(*LIVING, "paused"),
            done="The run is canceled.",
        ),
        Action(
            "fork", "Fork this run", "Fork",
            "A new run begins. It keeps what was recorded before this step, and continues from there.",
            "run", _fork,
            (RUN, Field("node", "From step", "Empty: keep everything that holds.", required=False)),
            phases=(*LIVING, "paused", "finished", "failed", "canceled"),
            done="This is the new run.",
        ),
        Action(
            "send", "Send a message", "Send",
            "The run receives it with detent.receive(name), now or later.",
            "run", _send,
            (
                RUN,
                Field("name", "Name", "For example approval"),
                Field("value", "Value", "JSON", "json", required=False),
            ),
            phases=(*LIVING, "paused"),
            done="The message is sent.",
        ),
        Action(
            "skip", "Skip this step", "Skip",
            "The run continues as if this step were done.",
            "step", _skip, (RUN, NODE), danger=True,
            done="The step is skipped.",
        ),
        Action(
            "reattempt", "Try this step again", "Try again",
            "A new attempt begins, with a fresh budget.",
            "step", _reattempt, (RUN, NODE),
            done="A new attempt begins.",
        ),
        Action(
            "resume-all", "Resume these runs", "Resume all",
            f"Every run that fits the filter is resumed, at most {AT_ONCE} at a time.",
            "runs", _resume_all,
            FILTERS,
        ),
        Action(
            "cancel-all", "Cancel these runs", "Cancel all",
            f"Every active run that fits ends, at most {AT_ONCE} at a time. This cannot be taken back.",
            "runs", _cancel_all,
            FILTERS,
            danger=True,
        ),
        Action(
            "replay", "Replay a dead letter", "Replay",
            "It is tried again, with a fresh budget.",
            "letter", _replay, (Field("letter", "Letter", kind="hidden"),),
            done="The dead letter is tried again.",
        ),
        Action(
            "discard", "Discard a dead letter", "Discard",
            "It is thrown away. An inbox continues behind the input that blocked it.",
            "letter", _discard, (Field("letter", "Letter", kind="hidden"),), danger=True,
            done="The dead letter is discarded.",
        ),
        Action(
            "replay-all", "Replay all dead letters", "Replay all",
            "Every dead letter of this decider is tried again, each once.",
            "decider", _replay_all, (Field("decider", "Decider", kind="hidden", required=False),),
        ),
        Action(
            "execute", "Execute an input", "Execute",
            "The decider decides at once. The events that it appends cannot be taken back.",
            "decider", _execute,
            (DECIDER, INPUT, PAYLOAD),
            typed=_input_fields,
            done="The input is decided.",
        ),
        Action(
            "rebuild", "Rebuild this projection", "Rebuild",
            "It is built again from the first event on, and replaces the live one when it has caught up.",
            "projection", _rebuild, (Field("projection", "Projection", kind="hidden"),),
            done="The projection is being rebuilt.",
        ),
        Action(
            "skip-event", "Skip the event that blocks", "Skip event",
            "The projection continues behind this event, and never sees it.",
            "projection", _skip_event,
            (Field("projection", "Projection", kind="hidden"), Field("position", "Position", kind="hidden")),
            danger=True,
            done="The projection continues behind the event.",
        ),
        *OPERATING,
        *SCHEDULING,
    )
}  # fmt: skip
