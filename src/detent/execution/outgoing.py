"""What a workflow has spawned and what is not durable yet."""

from __future__ import annotations

from ..kernel.rows import NewExecution, NewRun


class Outgoing:
    """What was spawned and is not durable yet."""

    __slots__ = ("chosen", "executions", "mains", "runs")

    def __init__(self) -> None:
        self.executions: list[NewExecution] = []
        self.runs: list[NewRun] = []
        self.mains: list[NewExecution] = []
        self.chosen = False  # whether the code has chosen the id of one of the runs

    def __bool__(self) -> bool:
        return bool(self.executions or self.runs)

    def put_back(self, earlier: Outgoing) -> None:
        """Take over what was not made durable after all."""
        self.executions[:0] = earlier.executions
        self.runs[:0] = earlier.runs
        self.mains[:0] = earlier.mains
        self.chosen = self.chosen or earlier.chosen
