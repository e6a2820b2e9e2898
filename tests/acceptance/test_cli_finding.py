"""Finding and removing runs from the command line: attributes, pages, what is overdue, what is old."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import detent
from tests.acceptance.shells import PATIENCE, Shell
from tests.acceptance.support import eventually

pytestmark = pytest.mark.acceptance
KEEPER = """
from datetime import timedelta

import detent
from shop import ALL, URL

app = detent.App(URL, include=ALL, queues=["default", "high"], retention=timedelta(0))
"""


@pytest.fixture
def shell(database_url: str, tmp_path: Path) -> Iterator[Shell]:
    yield from _shell(tmp_path, database_url)


@pytest.fixture
def small_shell(sqlite_url: str, tmp_path: Path) -> Iterator[Shell]:
    yield from _shell(tmp_path, sqlite_url)


def _shell(folder: Path, url: str) -> Iterator[Shell]:
    shell = Shell(folder, url)
    (folder / "keeper.py").write_text(KEEPER)
    shell.migrate()
    yield shell
    shell.close()


def ids(shell: Shell, *filters: str) -> list[str]:
    return [run["id"] for run in shell.json("runs", shell.url, *filters)]


def test_runs_are_found_by_their_attributes_page_by_page(shell: Shell) -> None:
    for number in range(3):
        facts = ["--attribute", "customer=acme", "--attribute", f"number={number}"]
        started = shell.json("start", "shop:app", "fulfil", "1", "--id", f"order-{number}", *facts)
        assert started["attributes"] == {"customer": "acme", "number": number}
    shell.ok("start", "shop:app", "fulfil", "2", "--attribute", "customer=other", "--attribute", "rush=true")

    assert ids(shell, "--attribute", "customer=acme") == ["order-2", "order-1", "order-0"]
    assert ids(shell, "--attribute", "customer=acme", "--attribute", "number=1") == ["order-1"]
    assert ids(shell, "--attribute", "customer=acme", "--state", "active", "--limit", "1") == ["order-2"]
    assert ids(shell, "--attribute", "customer=acme", "--cursor", "order-2") == ["order-1", "order-0"]
    [rush] = shell.json("runs", shell.url, "--attribute", "rush=true")
    assert rush["attributes"] == {"customer": "other", "rush": True}
    assert "customer=acme, number=1" in shell.ok("show", shell.url, "order-1")
    assert "no runs match" in shell.ok("runs", shell.url, "--attribute", "customer=nobody")


def test_it_is_said_what_is_overdue_since_when_and_who_could_take_it(shell: Shell) -> None:
    shell.ok("start", "shop:app", "fulfil", "1", "--id", "slow", "--queue", "high")
    shell.ok("start", "shop:app", "ask", "--id", "later", "--delay", "1h")
    assert ids(shell, "--overdue") == []
    [late] = shell.json("runs", shell.url, "--overdue", "0s")
    assert (late["id"], late["overdue"]["job"], late["overdue"]["queue"]) == ("slow", "fulfil", "high")
    assert late["overdue"]["since"] == late["created_at"]
    assert late["overdue"]["taker"] == "none"
    assert "no worker is alive" in shell.ok("runs", shell.url, "--overdue", "0s")

    shell.worker("shop:app", "--queues", "default").at_work()
    assert "no worker takes from high" in shell.ok("runs", shell.url, "--overdue", "0s")


def test_a_worker_that_is_busy_is_told_from_one_that_does_not_know_the_job(small_shell: Shell) -> None:
    small_shell.worker("shop:smaller").at_work()
    small_shell.ok("start", "shop:app", "ask", "--id", "unknown")
    [run] = small_shell.json("runs", small_shell.url, "--overdue", "0s")
    assert run["overdue"]["taker"] == "free"
    assert "does it include ask?" in small_shell.ok("runs", small_shell.url, "--overdue", "0s")

    small_shell.worker("shop:app", "--queues", "high", "--concurrency", "1").at_work()
    small_shell.ok("start", "shop:app", "stuck", "--queue", "high")
    eventually((small_shell.folder / "hangs").exists, "the step hangs", PATIENCE)
    small_shell.ok("start", "shop:app", "fulfil", "1", "--id", "waits", "--queue", "high")
    [waits] = small_shell.json("runs", small_shell.url, "--overdue", "0s", "--type", "fulfil")
    assert waits["overdue"]["taker"] == "busy"


def _yesterday(shell: Shell) -> None:
    app = detent.App(shell.url)
    with app.engine.store.transaction() as tx:
        tx.run("UPDATE detent_executions SET scheduled_for = scheduled_for - 86400000000")
    app.close()


def test_the_doctor_points_to_what_is_overdue(small_shell: Shell) -> None:
    """As of yesterday: a doctor waits ten seconds before it is worried."""
    small_shell.ok("start", "shop:app", "ask", "--id", "unknown")
    _yesterday(small_shell)
    worker = small_shell.worker("shop:smaller").at_work()
    checks = json.loads(small_shell.detent("doctor", "shop:app", "--json").stdout)["checks"]
    report = {check["name"]: check for check in checks}
    assert report["overdue"]["status"] == "warning"
    assert "detent runs shop:app --overdue" in report["overdue"]["advice"]
    worker.drains()


def test_an_option_whose_value_is_left_out_takes_nothing_else_for_it(small_shell: Shell) -> None:
    small_shell.ok("start", "shop:app", "fulfil", "1", "--id", "order")
    assert small_shell.ok("runs", "--overdue", "shop:app") == small_shell.ok("runs", "shop:app", "--overdue")
    small_shell.environment["DETENT_APP"] = "shop:app"
    assert small_shell.json("runs", "--overdue", "--limit", "5") == []
    assert [run["id"] for run in small_shell.json("runs", "--overdue", "0s")] == ["order"]
    assert [run["id"] for run in small_shell.json("runs", "--limit", "5", "--overdue=0s")] == ["order"]


def test_old_runs_are_removed_and_counted_beforehand(shell: Shell) -> None:
    shell.worker().at_work()
    for number in range(3):
        shell.ok("start", "shop:app", "fulfil", str(number), "--attribute", "customer=acme", "--wait")
    shell.ok("start", "shop:app", "ask", "--id", "asks")

    assert shell.json("gc", shell.url, "--older-than", "30d", "--dry-run")["removed"] == 0
    assert shell.json("gc", shell.url, "--older-than", "0s", "--dry-run")["removed"] == 3
    assert "3 runs would be removed" in shell.ok("gc", shell.url, "--older-than", "0s", "--dry-run")
    assert "removed 1 run," in shell.ok("gc", shell.url, "--older-than", "0s", "--limit", "1")
    answer = shell.json("gc", shell.url, "--older-than", "0s")
    assert (answer["removed"], answer["dry_run"]) == (2, False)
    assert ids(shell) == ["asks"]
    shell.ok("cancel", shell.url, "asks")
    assert shell.json("gc", "keeper:app")["removed"] == 1  # by the app's own retention


def test_a_worker_keeps_to_the_apps_retention(small_shell: Shell) -> None:
    small_shell.ok("start", "shop:app", "ask", "--id", "asks")
    small_shell.ok("cancel", "shop:app", "asks")
    small_shell.worker("keeper:app").at_work()
    eventually(lambda: ids(small_shell) == [], "it is removed", PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["runs", "shop:app", "--attribute", "customer"], 2, "write NAME=VALUE"),
        (["runs", "shop:app", "--overdue=soon"], 2, "is not a duration"),
        (["gc", "shop:app"], 2, "--older-than 30d"),
        (["gc", "shop:app", "--older-than", "long"], 2, "is not a duration"),
        (["runs", "shop:app", "--cursor", "nowhere"], 1, "neither a run's id nor its cursor"),
        (["runs", "shop:app", "--overdue", "--state", "failed"], 1, "never overdue"),
        (["start", "shop:app", "fulfil", "1", "--attribute", f"{'n' * 101}=1"], 1, "100 are allowed"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_what_cannot_be_asked_is_said(small_shell: Shell, arguments: list[str], code: int, said: str) -> None:
    done = small_shell.detent(*arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
