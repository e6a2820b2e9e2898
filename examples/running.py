"""Shared by the examples: the database URL, and how a run is printed."""

import atexit
import os
import shutil
import sys
import tempfile
from typing import Any

import detent


def database_url() -> str:
    """The URL from the argument or DETENT_URL; by default a file that is removed at the end."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DETENT_URL")
    if given:
        return given
    folder = tempfile.mkdtemp(prefix="detent-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"sqlite:///{folder}/example.db"


def lines(run: detent.Run[Any]) -> list[str]:
    """Every attempt at every node of a run, in the order in which they began."""
    found: list[str] = []
    for execution in run.executions():
        found.append(f"{execution.node}: {execution.state} ({execution.outcome})")
        if execution.error is not None:
            found.append(f"  {execution.error.type.rpartition('.')[2]}: {execution.error.message}")
    return found


def show(run: detent.Run[Any]) -> None:
    print(f"{run.type} {run.refresh().state}:")
    for line in lines(run):
        print(f"  {line}")
