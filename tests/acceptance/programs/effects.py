"""What bodies did in the outside world: a line each in one file, whichever process they ran in.

A line is one write to a file opened with O_APPEND, so lines of several processes do not mix, and what was
written before a SIGKILL stays.  The clock is the machine's monotonic one, the same for all processes.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "DETENT_ACCEPTANCE_EFFECTS"


@dataclass(frozen=True)
class Effect:
    """`begin` and `end` of a step's body; `returned`: the workflow has seen its result, so it is recorded."""

    kind: str
    run: str
    place: str
    value: str
    pid: int
    at: int


def note(kind: str, run: str, place: object, value: str = "") -> None:
    """Write a line; a disk that is full is waited for."""
    effect = Effect(kind, run, str(place), value, os.getpid(), time.monotonic_ns())
    line = json.dumps(asdict(effect)).encode() + b"\n"
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        while True:
            try:
                os.write(file, line)
                return
            except OSError:
                time.sleep(0.01)
    finally:
        os.close(file)


def read(path: Path) -> list[Effect]:
    """All lines so far."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [Effect(**json.loads(line)) for line in lines if line.endswith(b"\n")]
