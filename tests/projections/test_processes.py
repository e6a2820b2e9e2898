"""Projections in several processes, some of which die."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.functions.world import Apps
from tests.projections.program import Seen
from tests.projections.world import PATIENCE, Account, add, rows, status

ROOT = Path(__file__).parents[2]


@contextmanager
def process(url: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a worker; it ends with the block, if it did not before."""
    command = [sys.executable, "-m", "tests.projections.program", url, *argv]
    started = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdin=subprocess.PIPE)
    try:
        yield started
    finally:
        started.communicate(timeout=PATIENCE * 3)


def positions(apps: Apps) -> list[int]:
    found = rows(apps(Account, worker=False).engine.store, "SELECT position FROM seen_g1 ORDER BY position")
    return [row[0] for row in found]


@pytest.mark.parametrize("position", ["1", "7", "60"])
def test_a_crash_in_the_middle_of_a_batch_applies_nothing_twice(apps: Apps, url: str, position: str) -> None:
    client = apps(Account, Seen, worker=False)
    add(client, *[1] * 80)
    with process(url, "crash", position) as dying:
        assert dying.wait(PATIENCE * 3) == 9
    done = status(client).position
    assert done < int(position)  # whole batches, which also end by time; none of the one in which it died
    assert positions(apps) == list(range(1, done + 1))
    with process(url, "work"):
        client.projections.wait(Seen, timeout=PATIENCE * 3)
    assert positions(apps) == list(range(1, 81))
    assert client.projections.view(Seen).get("count") == 80


def test_processes_share_a_projection_and_apply_each_event_once(apps: Apps, url: str) -> None:
    client = apps(Account, Seen, worker=False)
    with process(url, "work"), process(url, "work"), process(url, "work"):
        for _ in range(5):
            add(client, *[1] * 20)
            client.projections.wait(Seen, timeout=PATIENCE * 3)
    assert positions(apps) == list(range(1, 101))
    assert client.projections.view(Seen).get("count") == 100
