"""replay: runs the current code against a recorded run, without executing any step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ..app.exports import read_export
from ..app.includes import collect
from ..definitions.functions import FunctionWorkflow
from ..errors import DefinitionError, ExportUnfit
from ..execution.registry import Registry
from ..kernel.drift import Difference, Recording, Replay
from ..replay import replayer
from ..serialization.codec import Codec, Transform


class WorkflowDrifted(AssertionError):
    """The code differs from a recorded run; the message lists the differences.

    with pytest.raises(WorkflowDrifted) as drifted:
        replay("run.json", fulfil)
    print(drifted.value.differences)
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        lines = "\n  ".join(str(difference) for difference in replay.differences)
        super().__init__(
            f"{replay.workflow} differs from the recorded run {replay.run_id}:\n  {lines}\n"
            f"Guard a change with detent.patched('...'), so that runs which have passed it keep the old "
            f"behaviour, or let these runs end before you deploy."
        )

    @property
    def differences(self) -> tuple[Difference, ...]:
        """What the code asks for, and what was recorded instead."""
        return self.replay.differences


def replay(
    run: str | os.PathLike[str] | Mapping[str, Any],
    workflow: FunctionWorkflow[Any, Any],
    *,
    include: Sequence[Any] = (),
    transform: Transform | None = None,
    timeout: float = replayer.DEFAULT_TIMEOUT,
) -> Replay:
    """Run the current code against a recorded run, and fail if it makes other requests.

        replay("run.json", fulfil)      # written by: detent show shop:app ID --export run.json

    Nothing is executed: no step, no message, no child, no wait.  A run in flight is replayed
    as far as it was recorded.  Takes a path, or a loaded document.  `transform` is that of
    the app, for encrypted payloads.  `timeout` is for code that hangs: seconds of real time.
    """
    if not isinstance(workflow, FunctionWorkflow):
        raise DefinitionError(f"replay() takes a workflow, not {workflow!r}; decorate it with @workflow")
    recording = _at_home(_read(run), workflow)
    source = f"run {recording.row.id}" if isinstance(run, Mapping) else os.fspath(run)
    if (recording.row.kind, recording.row.type) != ("function", workflow.name):
        raise ExportUnfit(source, f"it is a run of {recording.row.type!r}, not of {workflow.name!r}")
    found = replayer.replay(
        recording,
        workflow,
        codec=Codec(transform=transform),
        registry=Registry(collect([workflow, *include])),
        timeout=timeout,
    )
    if found.differences:
        raise WorkflowDrifted(found)
    return found


def _read(run: str | os.PathLike[str] | Mapping[str, Any]) -> Recording:
    if isinstance(run, Mapping):
        return read_export("the given document", run)
    path = Path(run)
    try:
        document = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ExportUnfit(str(path), f"it is not JSON: {error}") from None
    return read_export(str(path), document)


def _at_home(recording: Recording, workflow: FunctionWorkflow[Any, Any]) -> Recording:
    """Errors of a program that was started as a script are those of its module here."""
    there, here = '{"type":"__main__.', f'{{"type":"{workflow.__module__}.'

    def moved(error: str | None) -> str | None:
        return here + error.removeprefix(there) if error and error.startswith(there) else error

    steps = tuple(replace(step, error=moved(step.error)) for step in recording.steps)
    row = replace(recording.row, error=moved(recording.row.error))
    return replace(recording, row=row, steps=steps)
