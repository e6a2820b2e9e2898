"""What differs between what a test expects and what a decider decided, for people to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import msgspec


class DecidedOtherwise(AssertionError):
    """A decider did not decide as a test expects; the message shows where.

    with pytest.raises(DecidedOtherwise):
        given(Order).when(Create("o-1")).then(events=[])
    """


@dataclass(frozen=True)
class Aspect:
    """One side of a decision: what is expected of it, and what there is."""

    name: str
    expected: Sequence[Any]
    actual: Sequence[Any]


def same(aspect: Aspect) -> bool:
    return len(aspect.expected) == len(aspect.actual) and all(map(_equal, aspect.expected, aspect.actual))


def _equal(expected: Any, actual: Any) -> bool:
    if expected == actual:
        return True
    # Classes that do not compare by value: by what they hold.
    names = _fields(actual) if type(expected) is type(actual) else ()
    return bool(names) and all(getattr(expected, name) == getattr(actual, name) for name in names)


def report(told: str, wrong: Sequence[Aspect]) -> str:
    """The message: what was given, what differs first, and each differing side in full."""
    lines = [told, _first(wrong[0])]
    for aspect in wrong:
        lines += ["", f"{aspect.name} (- expected, + decided):", *_lines(aspect)]
    return "\n".join(lines)


def _first(aspect: Aspect) -> str:
    """The first difference, in a sentence."""
    pairs = zip(aspect.expected, aspect.actual, strict=False)
    for number, (expected, actual) in enumerate(pairs, start=1):
        if not _equal(expected, actual):
            place = f"{aspect.name} {number}" if aspect.name.endswith("s") else aspect.name
            return f"{place} {_how(expected, actual)}"
    shorter = min(len(aspect.expected), len(aspect.actual))
    if len(aspect.expected) > shorter:
        return f"{aspect.name} lacks {aspect.expected[shorter]!r}"
    return f"{aspect.name} has {aspect.actual[shorter]!r}, which was not expected"


def _how(expected: Any, actual: Any) -> str:
    if type(expected) is type(actual):
        for name in _fields(actual):
            wanted, found = getattr(expected, name), getattr(actual, name)
            if wanted != found:
                return f"differs in {name}: expected {wanted!r}, not {found!r}"
    return f"is {actual!r}, and {expected!r} was expected"


def _fields(value: Any) -> Sequence[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return list(getattr(type(value), "model_fields", ()))


def _lines(aspect: Aspect) -> list[str]:
    expected, actual = [[repr(value) for value in side] for side in (aspect.expected, aspect.actual)]
    lines = []
    matcher = SequenceMatcher(a=expected, b=actual, autojunk=False)
    for kind, a, to_a, b, to_b in matcher.get_opcodes():
        if kind == "equal":
            lines += [f"    {text}" for text in expected[a:to_a]]
        else:
            lines += [f"  - {text}" for text in expected[a:to_a]]
            lines += [f"  + {text}" for text in actual[b:to_b]]
    return lines
