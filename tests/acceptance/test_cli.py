"""The command line as people and scripts use it: real processes, every database."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from detent.cli.find_app import place
from detent.kernel.rows import RunRow, Step
from detent.stores.addresses import shown
from tests.acceptance.shells import PATIENCE, Shell
from tests.acceptance.support import eventually

pytestmark = pytest.mark.acceptance


@pytest.fixture
def shell(database_url: str, tmp_path: Path) -> Iterator[Shell]:
    """On each of the three databases, with its tables."""
    shell = Shell(tmp_path, database_url)
    shell.migrate()
    yield shell
    shell.close()


@pytest.fixture
def small_shell(sqlite_url: str, tmp_path: Path) -> Iterator[Shell]:
    """On SQLite, for what is the same on all."""
    shell = Shell(tmp_path, sqlite_url)
    shell.migrate()
    yield shell
    shell.close()


# -- Beginning ---------------------------------------------------------------------------------------


def test_migrate_makes_the_tables_and_changes_nothing_when_they_are_there(
    database_url: str, tmp_path: Path
) -> None:
    with closing(Shell(tmp_path, database_url)) as shell:
        assert shell.detent("runs", shell.url).returncode != 0
        assert "applied " in shell.ok("migrate", shell.url)
        shell.ok("start", "shop:app", "fulfil", "42", "--id", "order-42")
        assert shell.json("migrate", shell.url)["applied"] == []
        assert [run["id"] for run in shell.json("runs", shell.url)] == ["order-42"]


# -- Working -----------------------------------------------------------------------------------------


def test_a_run_started_from_a_shell_is_done_by_a_worker_from_a_shell(shell: Shell) -> None:
    shell.ok("start", "shop:app", "fulfil", "42", "--id", "order-42")
    worker = shell.worker().at_work()

    run = shell.json("start", "shop:app", "fulfil", "42", "--id", "order-42", "--wait")

    assert (run["id"], run["state"], run["result"]) == ("order-42", "finished", "receipt-42")
    worker.drains()
    assert "drained" in worker.said()
    assert shell.json("workers", shell.url) == []


def test_a_worker_of_an_async_app_works_on_a_loop_of_its_own(shell: Shell) -> None:
    worker = shell.worker("shop:aapp").at_work()
    assert json.loads(shell.ok("start", "shop:aapp", "gather", "--wait")) == "fetched"
    assert json.loads(shell.ok("start", "shop:aapp", "fulfil", "1", "--wait")) == "receipt-1"
    worker.drains(signal.SIGINT)


def test_a_worker_says_what_it_serves(small_shell: Shell) -> None:
    worker = small_shell.worker("shop:app", "--queues", "high", "--concurrency", "3").at_work()
    said = worker.said()
    assert "shop:app" in said
    assert "SQLite" in said
    assert "queues high; 3 at a time" in said
    assert "fulfil" in said
    [row] = small_shell.json("workers", "shop:app")
    assert (row["queues"], row["concurrency"], row["pid"]) == (["high"], 3, worker.pid)


def test_a_worker_takes_only_from_its_queues(small_shell: Shell) -> None:
    small_shell.worker("shop:app", "--queues", "high").at_work()
    left = small_shell.json("start", "shop:app", "fulfil", "1")
    taken = small_shell.json("start", "shop:app", "fulfil", "2", "--queue", "high", "--wait")
    assert taken["state"] == "finished"
    assert small_shell.json("show", "shop:app", left["id"])["state"] == "ready"


@pytest.mark.parametrize("options", [["--json"], ["--log-format", "json"]], ids=" ".join)
def test_a_workers_log_can_be_json_lines(small_shell: Shell, options: list[str]) -> None:
    worker = small_shell.worker("shop:app", *options).at_work()
    worker.drains()
    lines = [json.loads(line) for line in worker.said().splitlines()]
    assert all({"time", "level", "logger", "message"} <= {*line} for line in lines)
    assert lines[0]["app"] == "shop:app"
    assert any(line.get("pid") == worker.pid for line in lines)


def test_a_second_signal_does_not_wait(small_shell: Shell) -> None:
    worker = small_shell.worker("shop:app", "--grace", "600").at_work()
    small_shell.ok("start", "shop:app", "stuck")
    eventually((small_shell.folder / "hangs").exists, "the step hangs", PATIENCE)

    worker.send(signal.SIGTERM)
    eventually(lambda: "draining" in worker.said(), "the worker drains", PATIENCE)
    worker.send(signal.SIGTERM)

    assert worker.ends() == 128 + signal.SIGTERM


def test_what_does_not_end_within_the_grace_goes_back_to_the_queue(small_shell: Shell) -> None:
    worker = small_shell.worker("shop:app", "--grace", "0.2").at_work()
    run = small_shell.json("start", "shop:app", "stuck")
    eventually((small_shell.folder / "hangs").exists, "the step hangs", PATIENCE)
    worker.drains()
    assert small_shell.json("show", "shop:app", run["id"])["state"] == "ready"


def test_a_worker_process_that_dies_is_replaced(shell: Shell) -> None:
    supervisor = shell.worker("shop:app", "--processes", "2")
    eventually(lambda: len(shell.alive()) == 2, "two workers begin", PATIENCE)
    before = shell.alive()
    assert supervisor.pid not in before

    os.kill(min(before), signal.SIGKILL)

    eventually(
        lambda: len(shell.alive()) == 2 and shell.alive() != before, "the dead one is replaced", PATIENCE
    )
    assert json.loads(shell.ok("start", "shop:app", "fulfil", "5", "--wait")) == "receipt-5"
    supervisor.drains()
    assert shell.alive() == set()


def test_worker_processes_do_not_outlive_their_supervisor(small_shell: Shell) -> None:
    supervisor = small_shell.worker("shop:app", "--processes", "2")
    eventually(lambda: len(small_shell.alive()) == 2, "two workers begin", PATIENCE)
    supervisor.send(signal.SIGKILL)
    supervisor.ends()
    eventually(lambda: small_shell.json("workers", "shop:app") == [], "they sign off", PATIENCE)


# -- Starting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (["7"], {"args": [7], "kwargs": {}}),
        (["7", "note=thanks"], {"args": [7], "kwargs": {"note": "thanks"}}),
        (["order=7", "note=5"], {"args": [], "kwargs": {"order": 7, "note": "5"}}),
        (["--", "-7"], {"args": [-7], "kwargs": {}}),
    ],
    ids=["json", "text", "as annotated", "negative"],
)
def test_arguments_are_json_or_text_as_the_workflow_wants_them(
    small_shell: Shell, arguments: list[str], call: dict[str, Any]
) -> None:
    started = json.loads(small_shell.ok("start", "--json", "shop:app", "fulfil", *arguments))
    assert started["input"] == call


def test_a_run_is_started_as_the_options_say(small_shell: Shell) -> None:
    options = ["--id", "o-1", "--queue", "high", "--priority", "3", "--delay", "1h", "--deadline", "2h"]
    run = small_shell.json("start", "shop:app", "fulfil", "1", *options)
    assert (run["id"], run["queue"], run["priority"], run["state"]) == ("o-1", "high", 3, "ready")
    assert run["deadline"] is not None
    again = small_shell.json("start", "shop:app", "fulfil", "1", *options)
    assert again["created_at"] == run["created_at"]


def test_waiting_for_a_run_that_fails_is_a_failure(small_shell: Shell) -> None:
    small_shell.worker().at_work()
    done = small_shell.detent("start", "shop:app", "fulfil", "13", "--wait")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ValueError: the card was declined" in done.stderr
    assert "Traceback" not in done.stderr


def test_waiting_may_have_an_end(small_shell: Shell) -> None:
    done = small_shell.detent("start", "shop:app", "fulfil", "1", "--wait", "--timeout", "100ms")
    assert done.returncode == 1
    assert "no result yet" in done.stderr


# -- Steering, without any code ----------------------------------------------------------------------


def test_a_run_is_paused_resumed_and_canceled_by_the_url_alone(shell: Shell) -> None:
    shell.ok("start", "shop:app", "ask", "--id", "q")
    assert shell.json("pause", shell.url, "q", "--reason", "lunch")["state"] == "paused"
    assert shell.json("resume", shell.url, "q")["state"] == "ready"
    assert shell.json("cancel", shell.url, "q", "--reason", "no more")["state"] == "canceled"
    history = shell.ok("history", shell.url, "q")
    assert "lunch" in history
    assert "no more" in history


def test_a_message_reaches_the_run_that_waits_for_it(shell: Shell) -> None:
    shell.worker().at_work()
    shell.ok("start", "shop:app", "ask", "--id", "q")
    sent = shell.json("send", shell.url, "q", "answer", '{"by": "Ada"}')
    assert sent == {"run": "q", "name": "answer", "value": {"by": "Ada"}}
    run = shell.json("start", "shop:app", "ask", "--id", "q", "--wait")
    assert run["result"] == {"by": "Ada"}


def test_a_failed_run_is_resumed_and_forked(shell: Shell) -> None:
    shell.worker().at_work()
    shell.detent("start", "shop:app", "fulfil", "13", "--id", "bad", "--wait")
    assert shell.json("show", shell.url, "bad")["state"] == "failed"
    (shell.folder / "card-works").touch()

    shell.ok("resume", shell.url, "bad")
    run = shell.json("start", "shop:app", "fulfil", "13", "--id", "bad", "--wait")
    assert run["result"] == "receipt-13"

    forked = shell.json("fork", "shop:app", "bad", "--from-step", "ship", "--id", "again")
    assert (forked["id"], forked["forked_from"]) == ("again", "bad")
    eventually(lambda: shell.json("show", shell.url, "again")["state"] == "finished", "it ends", PATIENCE)
    nodes = {item["node"] for item in shell.json("show", shell.url, "again")["executions"]}
    assert nodes == {"main", "charge", "ship"}


# -- Looking -----------------------------------------------------------------------------------------

RUN_KEYS = (
    "id type state queue priority input result error parent hero attributes drifted version versions"
    " pinned_to forked_from continues continued_as deadline"
    " created_at finished_at seconds"
).split()
EXECUTION_KEYS = (
    "node attempt kind state outcome worker scheduled_for started_at finished_at seconds input result error"
    " ancestry_hash"
).split()
WORKER_KEYS = "id host pid alive queues concurrency version started_at beat_at lease_until".split()


def test_many_runs_are_changed_by_a_filter_with_consent(shell: Shell) -> None:
    for number in range(3):
        shell.ok("start", "shop:app", "ask", "--id", f"ask-{number}")
    asked = shell.detent("cancel-all", "shop:app", "--type", "ask")
    assert asked.returncode == 1  # nobody said yes
    assert "3 runs to cancel" in asked.stdout
    assert shell.detent("cancel-all", "shop:app", "--type", "ask", "--json").returncode == 2
    assert shell.json("cancel-all", "shop:app", "--type", "ask", "--age", "1d", "--yes") == {
        "matching": 3,
        "changed": 3,
        "refused": {},
    }
    assert shell.json("resume-all", "shop:app", "--state", "failed", "--yes")["matching"] == 0
    assert "removed 1 run" in shell.ok("delete", "shop:app", "ask-1", "--yes")
    assert [run["id"] for run in shell.json("runs", shell.url)] == ["ask-2", "ask-0"]
    assert shell.json("fork", "shop:app", "ask-0", "--id", "again")["forked_from"] == "ask-0"


def test_json_has_the_keys_that_are_promised(shell: Shell) -> None:
    shell.worker().at_work()
    shell.detent("start", "shop:app", "fulfil", "13", "--id", "bad", "--wait")

    [run] = shell.json("runs", shell.url)
    assert list(run) == RUN_KEYS
    whole = shell.json("show", shell.url, "bad")
    assert list(whole) == [*RUN_KEYS, "waiting_for", "executions", "history"]
    assert [list(item) for item in whole["executions"]] == [EXECUTION_KEYS, EXECUTION_KEYS]
    assert list(whole["error"]) == ["type", "message", "traceback"]
    assert [list(item) for item in shell.json("history", shell.url, "bad")] == [
        ["at", "event", "detail"] for _ in whole["history"]
    ]
    assert [list(worker) for worker in shell.json("workers", shell.url)] == [WORKER_KEYS]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?\+00:00", run["created_at"])


def test_runs_are_found_by_state_type_and_queue(shell: Shell) -> None:
    shell.worker().at_work()
    shell.ok("start", "shop:app", "fulfil", "1", "--id", "done", "--wait")
    shell.ok("start", "shop:app", "stuck", "--id", "busy", "--queue", "high")
    shell.ok("start", "shop:app", "ask", "--id", "asks")
    eventually((shell.folder / "hangs").exists, "the step hangs", PATIENCE)
    eventually(lambda: _ids(shell, "--state", "ready") == ["asks"], "the asking run waits", PATIENCE)

    assert _ids(shell, "--state", "performing") == ["busy"]
    assert _ids(shell, "--state", "finished") == ["done"]
    assert _ids(shell, "--type", "ask") == ["asks"]
    assert _ids(shell, "--queue", "high") == ["busy"]
    assert _ids(shell, "--limit", "2") == ["asks", "busy"]


def _ids(shell: Shell, *filters: str) -> list[str]:
    return [run["id"] for run in shell.json("runs", shell.url, *filters)]


def test_people_see_steps_errors_and_history(small_shell: Shell) -> None:
    small_shell.worker().at_work()
    small_shell.detent("start", "shop:app", "fulfil", "13", "--id", "bad", "--wait")
    shown = small_shell.ok("show", "shop:app", "bad")
    assert "bad  fulfil  failed" in shown
    assert re.search(r"charge +1 +failed", shown)
    assert "ValueError: the card was declined" in shown
    assert 'raise ValueError("the card was declined")' in shown
    assert "bodies.py" not in shown  # our own frames tell the user nothing
    assert "bad" in small_shell.ok("runs", "shop:app")


def test_an_export_holds_all_that_is_stored(small_shell: Shell) -> None:
    small_shell.worker().at_work()
    small_shell.ok("start", "shop:app", "fulfil", "1", "--id", "o-1", "--wait")
    small_shell.ok("show", "shop:app", "o-1", "--export", "o-1.json")

    exported = json.loads((small_shell.folder / "o-1.json").read_text())

    assert exported["detent"] == 1
    assert msgspec.convert(exported["run"], RunRow).result == '"receipt-1"'
    steps = msgspec.convert(exported["journal"], list[Step])
    assert [(step.key, step.state) for step in steps] == [("charge", "completed"), ("ship", "completed")]
    assert {*exported} == {"detent", "exported_at", "run", "journal", "executions", "events", "history"}


def test_a_look_makes_no_database(small_shell: Shell) -> None:
    done = small_shell.detent("runs", "sqlite:///nowhere.db")
    assert done.returncode == 1
    assert "detent migrate sqlite:///nowhere.db" in done.stderr
    assert not (small_shell.folder / "nowhere.db").exists()


# -- The doctor --------------------------------------------------------------------------------------


def test_the_doctor_finds_a_healthy_app_well_and_leaves_it_so(shell: Shell) -> None:
    shell.worker().at_work()
    report = shell.json("doctor", "shop:app")
    assert report["ok"], report
    bad = [check for check in report["checks"] if check["status"] == "bad"]
    assert bad == []
    names = [check["name"] for check in report["checks"]]
    assert names == ("database schema durability commit wake-ups clock workers definitions overdue".split())
    assert len(shell.json("workers", shell.url)) == 1
    assert shell.json("runs", shell.url) == []


def test_the_doctor_says_what_is_wrong_and_what_to_do(shell: Shell) -> None:
    shell.ok("start", "shop:app", "ask")
    done = shell.detent("doctor", "shop:smaller", "--json")
    assert done.returncode == 1
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["workers"]["status"] == "bad"
    assert "detent worker shop:smaller" in checks["workers"]["advice"]
    assert checks["definitions"]["status"] == "bad"
    assert "ask (1)" in checks["definitions"]["found"]


def test_the_doctor_notices_tables_that_are_missing(database_url: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, database_url)
    (tmp_path / "detent.db").touch()
    done = shell.detent("doctor", database_url)
    assert done.returncode == 1
    assert "detent migrate" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_doctor_notices_a_database_that_is_away(small_shell: Shell) -> None:
    done = small_shell.detent("doctor", "postgresql://nobody@127.0.0.1:1/nothing")
    assert done.returncode == 1
    assert "is unavailable" in done.stdout
    assert "Traceback" not in done.stderr


# -- Mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs", "nowhere:app"], "no module 'nowhere'"),
        (["runs", "shop:nothing"], "it has shop:app and shop:aapp and shop:smaller"),
        (["runs", "shop:number"], "is an int, not a detent.App"),
        (["runs", "shop"], "it has shop:app"),
        (["runs", "shop.py:app"], "write the module: shop:app"),
        (["runs", "broken:app"], "ZeroDivisionError: division by zero (broken.py, line 3)"),
        (["runs", "oracle://somewhere"], "'oracle' is not a supported database scheme"),
        (["show", "shop:app", "nothing"], "there is no run 'nothing'"),
        (["pause", "shop:app", "nothing"], "there is no run 'nothing'"),
        (["start", "shop:app", "nothing"], "it has ask, fulfil, gather, stuck"),
        (["start", "shop:app", "fulfil", "1", "--queue", "low"], "queue 'low' is not declared"),
        (["worker", "shop:app", "--queues", "low"], "queue 'low' is not declared"),
        (["worker", "sqlite:///detent.db"], "give MODULE:APP"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said_in_one_line(small_shell: Shell, arguments: list[str], said: str) -> None:
    (small_shell.folder / "broken.py").write_text("import detent\n\n1 / 0\n")
    done = small_shell.detent(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs"], "DETENT_APP"),
        (["show", "shop:app"], "APP ID"),
        (["runs", "shop:app", "--state", "sleepy"], "'sleepy'"),
        (["start", "shop:app", "fulfil"], "missing a required argument: 'order'"),
        (["start", "shop:app", "fulfil", "many"], "does not fit int"),
        (["start", "shop:app", "fulfil", "1", "--delay", "soon"], "is not a duration"),
        (["start", "shop:app", "fulfil", "1", "--deadline", "2030-99-01"], "is not a moment"),
        (["worker", "shop:app", "--concurrency", "0"], "--concurrency"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_told_from_a_failure(
    small_shell: Shell, arguments: list[str], said: str
) -> None:
    done = small_shell.detent(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_without_tables_is_told_how_to_get_them(postgres_database: str, tmp_path: Path) -> None:
    done = Shell(tmp_path, postgres_database).detent("runs", "shop:app")
    assert done.returncode == 1
    assert "detent migrate" in done.stderr


def test_the_environment_names_the_app(small_shell: Shell) -> None:
    small_shell.environment["DETENT_APP"] = "shop:app"
    started = small_shell.json("start", "fulfil", "1", "note=x:y", "--id", "order:1")
    assert started["input"] == {"args": [1], "kwargs": {"note": "x:y"}}
    assert [run["id"] for run in small_shell.json("runs")] == ["order:1"]
    assert small_shell.json("show", "order:1")["id"] == "order:1"
    assert small_shell.json("pause", "--reason", "lunch", "order:1")["state"] == "paused"
    assert small_shell.json("show", "shop:smaller", "order:1")["state"] == "paused"


def test_passwords_are_not_shown() -> None:
    url = "postgresql://ada:secret@db.example:5432/shop"
    assert "secret" not in shown(url) + place(url)
    assert urlsplit(shown(url)).hostname == "db.example"


def test_the_library_needs_neither_click_nor_rich() -> None:
    source = "import sys, detent; sys.exit(bool({'click', 'rich', 'detent.cli'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
