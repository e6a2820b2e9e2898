"""What an action of an operator is: its words, its fields, its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .documents.source import Document, Source

Values = Mapping[str, str]
LONGEST_REASON = 1_000


REASON_HINT = "It is written into the history, with your name."


class BadAction(ValueError):
    """A form that is not accepted; the message says why, `field` names the field if it is one."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form, beside the reason."""

    name: str
    label: str
    hint: str = ""
    kind: str = "text"  # text, json, hidden, choice, limit (not given: it stays; empty: it is removed)
    required: bool = True
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What an operator can do."""

    verb: str
    title: str
    button: str
    explains: str  # what it does, for the form
    target: str  # run, step, runs, letter, decider, projection, queue, schedule, worker
    perform: Callable[[Source, Values, str, str], Document]
    fields: tuple[Field, ...] = ()
    danger: bool = False
    phases: tuple[str, ...] = ()  # of runs to which it applies
    # What the form shows at first, beside what the link says.
    present: Callable[[Source, Values], Mapping[str, str]] | None = None
    done: str = ""  # what the page says afterwards
    # Its fields, where they depend on what was chosen.
    typed: Callable[[Source, Values], tuple[Field, ...]] | None = None
    # What the form shows before it is performed, where people can ask for that.
    preview: Callable[[Source, Values], Document] | None = None
    # The field that is chosen first: the other fields depend on it.
    first: str = ""

    def fields_for(self, source: Source, values: Values) -> tuple[Field, ...]:
        """The fields of the form for what was chosen so far."""
        return self.fields if self.typed is None else self.typed(source, values)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


REASON = Field("reason", "Reason", REASON_HINT)


def fill_in(action: Action, source: Source, values: Values) -> Values:
    """The values of the action's fields; BadAction if a required one is empty."""
    fields = action.fields_for(source, values)
    given = {
        field.name: values.get(field.name, "").strip()
        for field in fields
        if field.name in values or field.kind != "limit"
    }
    missing = [field for field in fields if field.required and not given[field.name]]
    if missing:
        raise BadAction(f"Fill in: {', '.join(field.label for field in missing)}.", field=missing[0].name)
    return given


def check_reason(text: str) -> str:
    """The reason of an action: one line or more, not empty."""
    reason = text.strip()
    if not reason:
        raise BadAction(f"Give a reason. {REASON_HINT}", field="reason")
    if len(reason) > LONGEST_REASON:
        raise BadAction(
            f"The reason has {len(reason):,} characters; {LONGEST_REASON:,} are the most.", field="reason"
        )
    return reason
