"""Stored values as people read them: decoded on access, to the types of the code where it is known."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..definitions.blueprint import Blueprint
from ..definitions.functions import FunctionWorkflow, Step
from ..execution.calls import decode_call
from ..execution.fields import decode_fields
from .engine import Engine


class Call(NamedTuple):
    """The arguments of a run or a step; the fields of a workflow class are its `kwargs`.

    print(run.input.args, run.input.kwargs)
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Reader:
    """Decodes what runs and executions have stored; raises CannotDecode where it does not fit."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def result(self, job: str | None, text: str | None) -> Any:
        """The value that a step or a workflow of that name returned."""
        if text is None:
            return None
        found = self._engine.registry.find(job or "")
        kind = found.returns if isinstance(found, Step | FunctionWorkflow) else Any
        return self._engine.codec.decode(text, kind, f"the result of {job!r}")

    def call(self, job: str | None, text: str | None) -> Call | None:
        """The arguments of a step or a workflow of that name."""
        if text is None:
            return None
        codec, found = self._engine.codec, self._engine.registry.find(job or "")
        if isinstance(found, Step | FunctionWorkflow):
            return Call(*decode_call(codec, found, text))
        if isinstance(found, Blueprint):
            return Call((), decode_fields(codec, found, text))
        stored = codec.decode(text, dict[str, Any], f"the input of {job!r}")
        return Call(tuple(stored.get("args", ())), stored.get("kwargs", {}))
