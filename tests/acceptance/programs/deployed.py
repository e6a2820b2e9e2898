"""One class in two versions: what a process has depends on its environment."""

import os
import time

import detent
from detent import step, task

from . import effects

VERSION = "DETENT_ACCEPTANCE_VERSION"


def _note(workflow: detent.Workflow, node: str) -> None:
    effects.note("begin", workflow.run.id, node)
    time.sleep(float(os.environ.get("DETENT_ACCEPTANCE_PAUSE", "0.005")))
    effects.note("end", workflow.run.id, node)


if os.environ.get(VERSION) == "2":

    class Delivery(detent.Workflow):
        number: int

        @step
        def pick(self) -> None:
            _note(self, "pick")

        @step
        def weigh(self) -> None:
            _note(self, "weigh")

        @step
        def pack(self) -> None:
            _note(self, "pack")

        @task(depends_on="pick")
        def announce(self) -> None:
            _note(self, "announce")

        @step(also_depends_on="announce")
        def send(self) -> None:
            _note(self, "send")

else:

    class Delivery(detent.Workflow):  # type: ignore[no-redef]
        number: int

        @step
        def pick(self) -> None:
            _note(self, "pick")

        @step
        def pack(self) -> None:
            _note(self, "pack")

        @step
        def send(self) -> None:
            _note(self, "send")
