"""Making and changing schedules: their form, its preview, and the actions; see actions.py.

The form asks for the workflow first, because the other fields depend on its parameters.  The API takes the
arguments as one JSON object, `arguments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from ..app import schedule_control as verbs
from ..app.settings import SCHEDULE_DEFAULTS, ScheduleKeywords
from ..clock import from_micros
from ..definitions.blueprint import Blueprint
from ..definitions.functions import Definition
from ..durations import duration_text, parse_duration
from ..errors import CannotDecode, InvalidArgument, UnknownDefinition
from ..kernel import schedules as rules
from ..kernel.schedules import CATCH_UPS, OVERLAPS, ScheduleRow
from .documents.source import Document, Source
from .forms import Action, BadAction, Field, Values
from .typed_fields import PREFIX, described_call, fields_of, payload_of, texts_of

SHOWN = 5  # firings that a preview shows
_WHERE = "schedule"

NAME = Field("name", "Name", "Such as nightly-report")
WORKFLOW = Field("workflow", "Workflow", "What each firing starts", "choice")
ARGUMENTS = Field("arguments", "Arguments", 'A JSON object, such as {"region": "eu"}', "json", required=False)
TIMING = (
    Field("cron", "Cron", "Such as 0 3 * * *", "limit", required=False),
    Field("every", "Or every", "Such as 30s, 5m, 2h, 1d", "limit", required=False),
    Field("tz", "Time zone", "Such as Europe/Paris", "limit", required=False),
    Field("jitter", "Jitter", "Fire up to so much later", "limit", required=False),
    Field(
        "overlap",
        "Overlap",
        "If the last run is still active",
        "limit",
        required=False,
        choices=OVERLAPS,
    ),
    Field(
        "catch_up",
        "After downtime",
        "Which missed firings happen",
        "limit",
        required=False,
        choices=CATCH_UPS,
    ),
)
SCHEDULE = Field("schedule", "Schedule", kind="hidden")
DEFAULTS = {"tz": "UTC", "overlap": "allow", "catch_up": "latest"}

# -- Fields --------------------------------------------------------------------------------------------


def _new_fields(source: Source, values: Values) -> tuple[Field, ...]:
    """The workflow alone until one is chosen; then everything, with a field for each of its parameters."""
    served = tuple(source.engine.registry.workflows)
    if "arguments" in values:
        return (NAME, WORKFLOW, ARGUMENTS, *TIMING)
    if values.get("workflow") not in served:
        return (Field("workflow", "Workflow", "What each firing starts", "choice", choices=served),)
    found = described_call(_definition(source, values["workflow"]))
    arguments = (ARGUMENTS,) if found is None else fields_of(found)
    return (Field("workflow", "Workflow", kind="hidden"), NAME, *arguments, *TIMING)


def _changed_fields(source: Source, values: Values) -> tuple[Field, ...]:
    """The timing, and the arguments where they are given.

    `_present` gives them unless the mask hides a part of them.  What is not given stays.
    """
    if "arguments" in values:
        return (SCHEDULE, ARGUMENTS, *TIMING)
    row = verbs.find(source.engine, values.get("schedule", ""))
    found = _shown_arguments(source, row) if _has_arguments(values) else None
    return (SCHEDULE, *(() if found is None else fields_of(found[0])), *TIMING)


def _has_arguments(values: Values) -> bool:
    return any(name.startswith(PREFIX) for name in values)


def _shown_arguments(source: Source, row: ScheduleRow) -> tuple[Any, Mapping[str, Any]] | None:
    """The parameters of the schedule's workflow and its arguments; None if they cannot be edited."""
    definition = source.engine.registry.find(row.job)
    found = described_call(definition) if isinstance(definition, Definition | Blueprint) else None
    if found is None:
        return None
    call = source.engine.codec.decode(row.input)
    names = [one.encode_name for one in found]
    payload = {**dict(zip(names, call.get("args", ()), strict=False)), **call.get("kwargs", {})}
    return (found, payload) if source.mask(payload) == payload else None


def _present_new(source: Source, values: Values) -> Mapping[str, str]:
    served = source.engine.registry.workflows
    return {**DEFAULTS, **({"workflow": served[0]} if len(served) == 1 else {})}


def _present(source: Source, values: Values) -> Mapping[str, str]:
    row = verbs.find(source.engine, values.get("schedule", ""))
    when = row.when
    found = _shown_arguments(source, row)
    return {
        "cron": when.cron or "",
        "every": "" if when.every is None else _micros_text(when.every),
        "tz": when.tz,
        "jitter": _micros_text(when.jitter) if when.jitter else "",
        "overlap": when.overlap,
        "catch_up": when.catch_up,
        **({} if found is None else texts_of(*found)),
    }


def _micros_text(micros: int) -> str:
    return duration_text(from_micros(micros) - from_micros(0))


# -- Values --------------------------------------------------------------------------------------------


def preview(source: Source, values: Values) -> Document:
    """The next firings with this timing, without jitter.  BadAction names the field that is wrong."""
    given = _timing(values)
    now = source.engine.clock.now()
    try:
        timing = verbs.timing_of(_WHERE, now, {**SCHEDULE_DEFAULTS, **given})
    except InvalidArgument as error:
        raise _refused(error) from None
    times = [from_micros(time) for time in islice(rules.upcoming(timing, now), SHOWN)]
    local = rules.zone(timing.tz)
    return {
        "next": times,
        "tz": timing.tz,
        "local": [f"{time.astimezone(local):%a %Y-%m-%d %H:%M:%S %Z}" for time in times],
    }


def _timing(values: Values) -> ScheduleKeywords:
    """The keywords of the timing that are in the form; an empty text is the default."""
    given: dict[str, Any] = {}
    for name in ("cron", "tz", "overlap", "catch_up"):
        if name in values:
            given[name] = values[name].strip() or DEFAULTS.get(name)
    for name in ("every", "jitter"):
        if name in values:
            text = values[name].strip()
            try:
                given[name] = parse_duration(text) if text else None if name == "every" else 0
            except ValueError as error:
                raise BadAction(f"{error}.", field=name) from None
    if given.get("cron") and given.get("every"):
        raise BadAction("Give a cron expression or an interval, not both.", field="every")
    terms: Any = given
    return terms  # type: ignore[no-any-return]


def _refused(error: InvalidArgument) -> BadAction:
    """The error beside its field."""
    if error.argument == "cron" and error.given == "None":
        return BadAction("Give a cron expression or an interval.", field="cron")
    return BadAction(f"{error.given} is not accepted: {error.advice}.", field=error.argument)


def _definition(source: Source, name: str) -> Definition[Any, Any] | Blueprint:
    found = source.engine.registry.find(name)
    if not isinstance(found, Definition | Blueprint) or name not in source.engine.registry.workflows:
        raise UnknownDefinition(name)
    return found


def _call(source: Source, job: str, values: Values) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the form, each checked against its annotation."""
    definition = _definition(source, job)
    found = None if "arguments" in values else described_call(definition)
    payload = _object(values.get("arguments", "")) if found is None else payload_of(found, values)
    args, kwargs = _bound(definition, payload)
    try:
        definition.check_arguments(tuple(args), kwargs)
    except TypeError as error:
        raise BadAction(f"{error}.", field="arguments") from None
    types = dict(zip(payload, definition.argument_types(len(args), ())[0], strict=False))
    types |= definition.argument_types(0, tuple(kwargs))[1]
    for name, value in payload.items():
        try:
            source.engine.codec.convert(msgspec.Raw(msgspec.json.encode(value)), types[name], name)
        except CannotDecode as error:
            raise BadAction(f"{error}.", field="arguments" if found is None else PREFIX + name) from None
    return args, kwargs


def _bound(
    definition: Definition[Any, Any] | Blueprint, payload: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by name; those that can only be given by their place come first."""
    if isinstance(definition, Blueprint):
        return [], dict(payload)
    first = [one.name for one in definition.own_parameters if one.kind is one.POSITIONAL_ONLY]
    args = [payload[name] for name in first if name in payload]
    return args, {name: value for name, value in payload.items() if name not in first}


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise BadAction(f"The arguments are not a JSON object: {error}.", field="arguments") from None


# -- Actions -------------------------------------------------------------------------------------------


def _create(source: Source, values: Values, name: str, reason: str) -> Document:
    if "name" not in values:
        raise BadAction("Choose one of the workflows that this app includes.", field="workflow")
    terms = _timing(values)
    terms["args"], terms["kwargs"] = _call(source, values["workflow"], values)
    try:
        made = source.app.schedules.create(values["name"], values["workflow"], **terms)
    except InvalidArgument as error:
        raise _refused(error) from None
    return {"schedule": made.name, "next": made.upcoming(SHOWN)}


def _change(source: Source, values: Values, name: str, reason: str) -> Document:
    schedule = source.app.schedules[values["schedule"]]
    terms = _timing(values)
    if "arguments" in values or _has_arguments(values):
        terms["args"], terms["kwargs"] = _call(source, schedule.type, values)
    try:
        schedule.change(**terms)
    except InvalidArgument as error:
        raise _refused(error) from None
    return {"schedule": schedule.name, "next": schedule.upcoming(SHOWN)}


SCHEDULING = (
    Action(
        "create-schedule", "New schedule", "Create",
        "It starts a run at given times until it is deleted. Give a cron expression or an interval.",
        "schedule", _create, (NAME, WORKFLOW, ARGUMENTS, *TIMING),
        present=_present_new, typed=_new_fields, preview=preview, first="workflow",
        done="The schedule is made.",
    ),
    Action(
        "change-schedule", "Change this schedule", "Change",
        "The new times apply from now on. Its counts, its history and its runs stay.",
        "schedule", _change, (SCHEDULE, ARGUMENTS, *TIMING),
        present=_present, typed=_changed_fields, preview=preview,
        done="The schedule is changed.",
    ),
)  # fmt: skip
