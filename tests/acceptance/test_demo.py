"""The demo proves what it says, on every database, and for people as for scripts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.acceptance


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detent", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "DETENT_APP"},
    )


def test_the_demo_survives_its_own_kill_on_every_database(database_url: str, tmp_path: Path) -> None:
    shown = demo("--json", "--url", database_url, "--dir", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    proof = json.loads(shown.stdout)
    assert proof["ok"]
    assert proof["ran"] == {"reserve_stock": 1, "charge_card": 1, "pack": 2, "ship": 1, "send_email": 1}
    assert proof["state"] == "finished"
    assert {*proof["result"]} == {"receipt", "parcel"}
    assert proof["seconds"] > 0


def test_what_was_finished_ran_in_the_worker_that_was_killed(sqlite_url: str, tmp_path: Path) -> None:
    proof = json.loads(demo("--json", "--url", sqlite_url, "--dir", str(tmp_path)).stdout)
    told = [line.split(" ", 1) for line in (tmp_path / f"{proof['run']}.txt").read_text().splitlines()]
    who = {text: int(pid) for pid, text in told}
    assert who["charge_card ran"] == proof["killed"]
    assert who["ship ran"] == proof["second"]
    assert len([text for _, text in told if text.startswith("packed")]) == 8


def test_without_a_terminal_the_demo_prints_plain_lines(tmp_path: Path) -> None:
    shown = demo("--dir", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert "kill -9" in shown.stdout
    assert "charge_card ran 1 time\n" in shown.stdout
    assert "pack ran 2 times" in shown.stdout

    [look] = [line.split() for line in shown.stdout.splitlines() if " show " in line]
    again = subprocess.run(
        [sys.executable, "-m", "detent", *look[look.index("show") :]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert "recovered" in again.stdout
