"""Runs whose code differs from their record, on the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shells import PATIENCE, Shell
from tests.acceptance.support import eventually

pytestmark = pytest.mark.acceptance
# What it asks for depends on a file beside it, as if it was deployed anew.
CHANGING = """
import os
import pathlib

import detent
from detent import step, workflow

HERE = pathlib.Path(__file__).parent


def deployed() -> bool:
    return (HERE / "deployed").exists()


@step
def quote(order: int) -> int:
    return order


@step
def pay(order: int) -> None: ...


@step
def take_payment(order: int) -> None: ...


@workflow
def fulfil(order: int) -> int:
    price = quote(order + 1 if deployed() else order)
    if deployed():
        take_payment(order)
    else:
        pay(order)
    detent.receive("go")
    return price


@workflow
def steady(order: int) -> int:
    price = quote(order)
    detent.receive("go")
    return price


ALL = [fulfil, steady, quote, pay, take_payment]
app = detent.App(os.environ["SHOP_URL"], include=ALL)
tolerant = detent.App(os.environ["SHOP_URL"], include=ALL, on_drift="warn")
"""


@pytest.fixture
def shell(database_url: str, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, database_url)
    (tmp_path / "changing.py").write_text(CHANGING)
    shell.migrate()
    yield shell
    shell.close()


def replayed(shell: Shell, app: str, state: str) -> None:
    """Run `changed` and `same`, deploy other code while they wait, and let them go on."""
    shell.worker(app).at_work()
    for workflow, run in (("fulfil", "changed"), ("steady", "same")):
        shell.ok("start", app, workflow, "1", "--id", run, "--attribute", "customer=acme")
    eventually(lambda: waits(shell, "changed") and waits(shell, "same"), "both wait", PATIENCE)
    (shell.folder / "deployed").touch()
    for run in ("changed", "same"):
        shell.ok("send", shell.url, run, "go")
    ends = {"changed": state, "same": "finished"}
    eventually(
        lambda: {run["id"]: run["state"] for run in shell.json("runs", shell.url)} == ends,
        "both have been replayed",
        PATIENCE,
    )


def waits(shell: Shell, run: str) -> bool:
    shown = shell.json("show", shell.url, run)
    return shown["state"] == "ready" and "receive/go" in {item["node"] for item in shown["executions"]}


def test_a_drifted_run_is_listed_and_shown_with_what_differed(shell: Shell) -> None:
    replayed(shell, "changing:tolerant", "finished")

    [run] = shell.json("runs", shell.url, "--drifted")
    assert (run["id"], run["drifted"], run["attributes"]) == ("changed", True, {"customer": "acme"})
    assert {run["id"]: run["drifted"] for run in shell.json("runs", shell.url)} == {
        "changed": True,
        "same": False,
    }
    assert shell.json("runs", shell.url, "--drifted", "--state", "failed") == []
    listed = shell.ok("runs", shell.url, "--drifted", "--type", "fulfil")
    assert "changed" in listed
    assert "same" not in listed
    assert "no runs match" in shell.ok("runs", shell.url, "--drifted", "--type", "steady")

    shown = " ".join(shell.ok("show", shell.url, "changed").split())
    assert "drifted quote was recorded with (1), the code requested (2)" in shown
    assert "recorded, but not requested: pay" in shown
    assert "drifted" not in shell.ok("show", shell.url, "same")
    assert shell.json("show", shell.url, "changed")["drifted"] is True


def test_a_run_that_drift_has_paused_is_listed_and_shown(shell: Shell) -> None:
    replayed(shell, "changing:app", "paused")
    assert [run["id"] for run in shell.json("runs", shell.url, "--drifted")] == ["changed"]
    shown = " ".join(shell.ok("show", shell.url, "changed").split())
    assert "drifted paused: run changed cannot continue: step 'quote' was recorded with" in shown


def test_a_reserved_attribute_is_refused(shell: Shell) -> None:
    done = shell.detent("start", "changing:app", "steady", "1", "--attribute", "detent.drifted=true")
    assert done.returncode == 1
    assert "reserved" in done.stderr
    assert "Traceback" not in done.stderr
