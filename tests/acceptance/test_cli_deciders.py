"""The command line on deciders: the state machine, an instance, its events, its state as it was."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.prefork import python

pytestmark = pytest.mark.acceptance
SHOP = """
import os

import detent
from tests.deciders.declared import Create, Order, Pay, Ship

app = detent.App(os.environ["SHOP_URL"], include=[Order], migrate=True)


def live() -> None:
    app.execute(Order, Create("o-1"))
    app.execute(Order, Pay("o-1", 5))
    app.execute(Order, Ship("o-1"))
    app.execute(Order, Create("o-2", "[red]ann@b"))
    app.execute(Order, Ship("o-2"))
    app.enqueue_input(Order, Pay("o-2", 7))
    app.close()
"""


class Shell:
    """One shop, in which an order was shipped and another waits for its payment; no worker runs."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "shop.py").write_text(SHOP)
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join([str(folder), root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.folder = folder
        self.environment = os.environ | {"SHOP_URL": url, "PYTHONPATH": paths}
        self._python("-c", "import shop; shop.live()")

    def _python(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return python(*argv, cwd=self.folder, env=self.environment, timeout=60)

    def fails(self, *argv: str) -> str:
        done = self._python("-m", "detent", "decider", *argv)
        assert done.returncode in (1, 2), done.stdout
        return done.stderr

    def __call__(self, *argv: str) -> str:
        done = self._python("-m", "detent", "decider", *argv)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *argv: str) -> Any:
        return json.loads(self(*argv, "--json"))


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


@pytest.fixture
def local(tmp_path: Path, sqlite_url: str) -> Shell:
    """The same on SQLite alone: for what no database has a part in."""
    return Shell(tmp_path, sqlite_url)


@pytest.mark.parametrize("source", ["history", "observations"])
def test_a_state_machine_is_shown_as_declared_and_as_seen(shell: Shell, source: str) -> None:
    document = shell.json("show", "shop:app", "order", "--source", source)
    counts = {(one["source"], one["input"], one["target"]): one["count"] for one in document["transitions"]}
    assert counts["new", "Create", "created"] == 2
    assert counts["created", "PaymentTimeout", "timed out"] == 0
    assert [one["input"] for one in document["transitions"] if not one["declared"]] == ["Ship"]
    assert [one["status"] for one in document["states"] if one["terminal"]] == ["timed out", "shipped"]
    text = shell("show", "shop:app", "order", "--source", source)
    assert "order  starts as new, ends as timed out or shipped" in text
    [line] = [line for line in text.splitlines() if "not declared" in line]
    assert line.split() == ["created", "Ship", "created", "1", "not", "declared"]


def test_a_state_machine_is_drawn(local: Shell) -> None:
    assert local("show", "shop:app", "order", "--mermaid").startswith("stateDiagram-v2\n")
    assert local("show", "shop:app", "order", "--dot").startswith('digraph "order" {\n')


def test_an_instance_is_shown_with_what_it_waits_for(shell: Shell) -> None:
    document = shell.json("show", "shop:app", "order", "o-2")
    assert (document["run"], document["status"], document["inbox"]) == ("order:o-2", "created", 1)
    assert document["state"] == {"status": "created", "paid": 0}
    assert [(one["key"], one["type"]) for one in document["timers"]] == [("payment", "PaymentTimeout")]
    assert [(one["type"], one["state"]) for one in document["effects"]] == [("SendEmail", "ready")]
    assert [one["cause"] for one in document["history"]] == ["Create", "Ship"]
    text = shell("show", "shop:app", "order", "o-2")
    assert "payment: PaymentTimeout" in text
    assert "SendEmail, ready, try 1" in text
    assert "1 waiting" in text


def test_the_events_of_an_instance_are_listed(shell: Shell) -> None:
    rows = shell.json("events", "shop:app", "order", "o-1")
    types = ["Created", "Paid", "detent.TimerCancelled", "Packed", "Shipped"]
    assert [row["type"] for row in rows] == types
    assert rows[1]["event"] == {"amount": 5}
    page = shell.json("events", "shop:app", "order", "o-1", "--after", "1", "--limit", "2")
    assert [row["sequence"] for row in page] == [2, 3]
    assert "[red]ann@b" in shell("events", "shop:app", "order", "o-2")


def test_a_state_is_printed_as_it_was(shell: Shell) -> None:
    document = shell.json("state", "shop:app", "order", "o-1", "--at", "2")
    assert (document["status"], document["terminal"], document["sequence"]) == ("paid", False, 2)
    assert document["state"] == {"status": "paid", "paid": 5}
    assert json.loads(shell("state", "shop:app", "order", "o-1"))["status"] == "shipped"


def test_what_is_not_there_is_told_in_one_line(local: Shell) -> None:
    for argv in (("show",), ("events",), ("state",)):
        told = local.fails(*argv, "shop:app", "order", "nobody")
        assert told.startswith("error: ")
        assert "order:nobody" in told
        assert "invoice" in local.fails(*argv, "shop:app", "invoice", "o-1")
    assert "at event 5, not 9" in local.fails("state", "shop:app", "order", "o-1", "--at", "9")


def test_a_database_alone_is_not_enough(local: Shell) -> None:
    url = local.environment["SHOP_URL"]
    assert "give MODULE:APP" in local.fails("show", url, "order", "o-1")


def test_an_instance_cannot_be_drawn(local: Shell) -> None:
    assert "--dot draws the decider" in local.fails("show", "shop:app", "order", "o-1", "--dot")


def test_the_app_may_come_from_the_environment(local: Shell) -> None:
    local.environment["DETENT_APP"] = "shop:app"
    assert local.json("show", "order", "o-1")["status"] == "shipped"
    assert local.json("show", "order")["decider"] == "order"


GIVE_UP = """
import shop
from tests.deciders.orders import change

change(
    shop.app.open(),
    "UPDATE detent_executions SET state = 'failed', outcome = 'dead_letter', finished_at = 1"
    " WHERE kind = 'effect'",
)
shop.app.run("order:o-2").cancel()
shop.app.close()
"""


def test_replaying_all_tells_what_was_replayed_and_what_was_skipped(local: Shell) -> None:
    done = local._python("-c", GIVE_UP)
    assert done.returncode == 0, done.stderr
    report = local.json("dead-letters", "shop:app", "--decider", "order", "--replay-all")
    assert (report["replayed"], report["discarded"]) == (1, 0)
    [skipped] = report["skipped"]
    assert skipped["letter"].startswith("order:o-2/effect:")
    assert "canceled" in skipped["reason"]
    text = local("dead-letters", "shop:app", "--replay-all")
    assert text.splitlines()[0] == "skipped 1"
    assert "order:o-2/effect:" in text


def test_recorded_inputs_are_listed(shell: Shell) -> None:
    rows = shell.json("observations", "shop:app", "order", "o-2")
    assert [(row["type"], row["state"]) for row in rows] == [
        ("Pay", "pending"),
        ("Ship", "applied"),
        ("Create", "applied"),
    ]
    assert (rows[0]["input"], rows[2]["from_status"], rows[2]["to_status"]) == (
        {"id": "o-2", "amount": 7},
        "new",
        "created",
    )
    page = shell.json("observations", "shop:app", "order", "--limit", "1", "--cursor", str(rows[0]["seq"]))
    assert [row["type"] for row in page] == ["Ship"]
    assert shell.json("observations", "shop:app", "order", "--before", "1h") == []
    text = shell("observations", "shop:app", "order", "--after", "1h")
    assert "[red]ann@b" in text
