"""What a transactional step may declare."""

from __future__ import annotations

from typing import Any, Literal, Protocol

Isolation = Literal["read committed", "repeatable read", "serializable"]
ISOLATIONS: tuple[Isolation, ...] = ("read committed", "repeatable read", "serializable")
# The end of a node or a spawned step wakes what waits for it, and must see the newest state of the run.
NO_ISOLATION = (
    "its transaction is always 'read committed': it takes no isolation=; call the step directly in a "
    "workflow function instead"
)


class Declared(Protocol):
    """What this module needs to know of a step."""

    is_async: bool
    is_method: bool
    timeout: float | None


def problem_of(step: Declared, parameters: int, transactional: bool, isolation: Any) -> str | None:
    """What is wrong with the declaration of a step, if anything."""
    if isolation is not None and isolation not in ISOLATIONS:
        names = ", ".join(repr(name) for name in ISOLATIONS)
        return f"has isolation={isolation!r}; it is one of {names}"
    if not transactional:
        return "has isolation= but is not transactional; add transactional=True" if isolation else None
    if isolation is not None and step.is_method:
        return f"is a node of a graph: {NO_ISOLATION}"
    if step.timeout is not None and not step.is_async:
        return (
            "is transactional and a `def`: its thread cannot be stopped in the middle of a transaction, "
            "so it takes no timeout; make it `async def`, or set a statement timeout in it"
        )
    if parameters <= step.is_method:
        return "is transactional, so its first parameter must be the transaction, tx"
    return None
