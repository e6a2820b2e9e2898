"""Names that every database can store: keys are short, and free of NUL and lone surrogates.

PostgreSQL refuses NUL, MySQL refuses long keys, SQLite takes anything and cuts it
off when read.  So it is looked at before any of them sees it, and refused alike.
Payloads are JSON text that the codec has made, and need no look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...errors import NameUnfit
from ...kernel.decide import Decide, Enqueue
from ...kernel.operations import Operation, Record, Send, Settle, Start
from ...kernel.rows import Attribute, NewEntry, NewExecution, NewRun, Step, attribute_text

LONGEST_NAME = 255
LONGEST_ATTRIBUTE = 100  # with its value and its run's id it is one key of an index
LONGEST_KEY = 500  # of a step, of a message: made of other names


def unfit_operation(op: Operation) -> NameUnfit | None:
    """What is wrong with the names in an operation."""
    return next((found for found in _look(op) if found is not None), None)


def unfit(step: Step) -> NameUnfit | None:
    if _is_plain(f"{step.key}{step.name}"):
        return None
    return _first(("step", step.key, LONGEST_KEY), ("step", step.name, LONGEST_NAME))


def unfit_entry(entry: NewEntry) -> NameUnfit | None:
    return _first(("stream", entry.name, LONGEST_NAME), ("step", entry.entry_id, LONGEST_KEY))


def unfit_key(key: str) -> NameUnfit | None:
    """What is wrong with a key of a projection's view."""
    return _first(("view key", key, LONGEST_NAME))


def _look(op: Operation) -> Iterator[NameUnfit | None]:
    if isinstance(op, Record):
        yield from map(unfit, op.steps)
        yield from map(_execution, op.executions)
        if op.children is not None:
            yield from _start(op.children)
        yield from map(unfit_entry, op.appends)
    elif isinstance(op, Start):
        yield from _start(op)
    elif isinstance(op, Send):
        yield _first(("message", op.name, LONGEST_NAME), ("message id", op.message_id, LONGEST_KEY))
    elif isinstance(op, Settle):
        yield from map(unfit, op.steps)
    elif isinstance(op, Decide):
        yield _first(("instance", op.run_id, LONGEST_NAME))
        yield from (_first(("input id", one.input_id or "", LONGEST_KEY)) for one in op.inputs)
    elif isinstance(op, Enqueue):
        yield _first(
            ("instance", op.run_id, LONGEST_NAME), ("input id", op.input.input_id or "", LONGEST_KEY)
        )


def _start(op: Start) -> Iterable[NameUnfit | None]:
    yield from map(unfit_run, op.runs)
    yield from map(_execution, op.executions)


def unfit_run(run: NewRun) -> NameUnfit | None:
    names = f"{run.id}{run.type}{run.queue}{run.hero_id or ''}{run.hero_type or ''}"
    if not run.attributes and _is_plain(names):
        return None
    return _first(
        ("run id", run.id, LONGEST_NAME),
        ("workflow", run.type, LONGEST_NAME),
        ("queue", run.queue, LONGEST_NAME),
        ("hero", run.hero_id or "", LONGEST_NAME),
        ("hero type", run.hero_type or "", LONGEST_NAME),
    ) or unfit_attributes(run.attributes)


def unfit_attributes(attributes: Mapping[str, Attribute]) -> NameUnfit | None:
    for name, value in attributes.items():
        found = _first(
            ("attribute", name, LONGEST_ATTRIBUTE),
            (f"the value of attribute {name!r},", attribute_text(value), LONGEST_NAME),
        )
        if found is not None:
            return found
    return None


def _execution(row: NewExecution) -> NameUnfit | None:
    return _first(("step", row.node, LONGEST_NAME), ("queue", row.queue, LONGEST_NAME))


def _is_plain(names: str) -> bool:
    """Whether nothing can be wrong with any of these names.  So it is for nearly every row."""
    return len(names) <= LONGEST_NAME and names.isascii() and " " not in names and "\x00" not in names


def _first(*names: tuple[str, str, int]) -> NameUnfit | None:
    for what, text, longest in names:
        if len(text) > longest:
            return NameUnfit(what, text[:60], f"has {len(text)} characters, {longest} are allowed")
        if text.endswith(" ") and not what.startswith("hero"):
            return NameUnfit(what, text, "ends with a space, which MySQL ignores")
        if "\x00" in text:
            return NameUnfit(what, text, "contains NUL, which PostgreSQL cannot store")
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            return NameUnfit(what, text, "contains a lone surrogate, which is not text")
    return None
