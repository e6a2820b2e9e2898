"""Each example is a script that a newcomer can run, and is listed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "running.py")


def _run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**{name: value for name, value in os.environ.items() if name != "DETENT_URL"}, **environment},
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_without_any_set_up(script: str) -> None:
    done = _run(script, DOCUMENTS="20")  # for those that would take long
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_a_script_takes_another_database(database_url: str) -> None:
    for done in (_run("crawl.py", database_url), _run("crawl.py", DETENT_URL=database_url)):
        assert (done.returncode, done.stderr) == (0, "")


def test_every_script_is_listed() -> None:
    page = (FOLDER / "README.md").read_text()
    assert [name for name in SCRIPTS if f"({name})" not in page] == []
