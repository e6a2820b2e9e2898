"""Templates: graphs with parameters, built when a run is started."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec

from .functions import Definition
from .graphs import Graph

P = ParamSpec("P")


class Template(Definition[P, None], Generic[P]):
    """A graph with parameters: `app.start(month_end, user_id=7)` builds and freezes it.

    run = app.start(month_end, user_id=7)
    """

    kind = "template"

    def __init__(self, function: Callable[Concatenate[Graph, P], None], name: str | None = None) -> None:
        super().__init__(function, name)  # type: ignore[arg-type]
        if self.is_async:
            raise self._error("is async; a template only builds a graph, so it must be a def")
        if not self._parameters:
            raise self._error("needs a first parameter, the graph")
        self.queue: str | None = None
        self.priority: int | None = None
        self._parameters_checked = True  # they are used at once; what is stored of them is only shown

    @property
    def _stored(self) -> list[str]:
        return []

    @cached_property
    def given_by_engine(self) -> int:
        return 1

    @cached_property
    def wants_context(self) -> bool:
        return False

    def build(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
        """The graph for these arguments."""
        g = Graph(self.name)
        function: Callable[..., Any] = self.function
        made = function(g, *args, **kwargs)
        if inspect.isawaitable(made) or made is not None:
            raise self._error(
                "returned a value; a template adds nodes to the graph that it gets, and returns None"
            )
        return g


def template(function: Callable[Concatenate[Graph, P], None]) -> Template[P]:
    """Make a function a template: a graph with parameters.

    @detent.template
    def month_end(g, user_id: int) -> None:
        g.node("close", job=close_books, args={"user_id": user_id})
    """
    return Template(function)
