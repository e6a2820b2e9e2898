"""What the tests of graphs share: small workflows, and what was recorded of their nodes."""

from collections.abc import Callable
from typing import Any

import pytest

import detent
from detent import Workflow, step

both_kinds = pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])


def one_node(body: Callable[[Any], Any], is_async: bool = False, **options: Any) -> Any:
    """A workflow whose node `work` does this, and whose next one is `after`."""
    maker: Any = step
    flow: Any
    if is_async:

        class AsyncFlow(Workflow, name="flow"):
            @maker(**options)  # type: ignore[untyped-decorator]
            async def work(self) -> Any:
                return body(self)

            @step
            async def after(self) -> str:
                return "after"

        flow = AsyncFlow
    else:

        class Flow(Workflow, name="flow"):
            @maker(**options)  # type: ignore[untyped-decorator]
            def work(self) -> Any:
                return body(self)

            @step
            def after(self) -> str:
                return "after"

        flow = Flow
    return flow


def attempts(run: detent.Run[Any], node: str = "work") -> list[tuple[str, str | None]]:
    """State and outcome of every attempt at a node, in their order."""
    rows = [item for item in run.executions() if item.node == node]
    rows.sort(key=lambda item: item.attempt)
    assert [item.attempt for item in rows] == list(range(1, len(rows) + 1))
    return [(item.state, item.outcome) for item in rows]


def last(run: detent.Run[Any], node: str = "work") -> Any:
    """The latest attempt at a node."""
    return max((item for item in run.executions() if item.node == node), key=lambda item: item.attempt)


def states(run: detent.Run[Any]) -> dict[str, str]:
    """The state of the latest attempt at each node that was reached."""
    return {item.node: last(run, item.node).state for item in run.executions()}


def assert_error(run: detent.Run[Any], cls: type[BaseException], message: str, node: str = "work") -> None:
    """The latest attempt holds class, message and traceback of what was raised."""
    error = last(run, node).error
    assert error is not None
    assert error.type == f"{cls.__module__}.{cls.__qualname__}"
    assert message in error.message
    assert "Traceback" in error.traceback
    assert message in error.traceback
