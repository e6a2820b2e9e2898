"""`detent schedules`: what operators type."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from detent.cli.main import detent as cli

SHOP = """
import detent

@detent.workflow
def report(region: str, copies: int = 1) -> str:
    return region * copies

app = detent.App({url!r}, include=[report])
app.schedule("nightly", report, args=("eu",), cron="0 3 * * *", tz="Europe/Paris")
"""


@pytest.fixture
def shop(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "scheduled_shop.py").write_text(SHOP.format(url=url))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("scheduled_shop", None)
    yield "scheduled_shop:app"
    sys.modules.pop("scheduled_shop", None)


def run(*args: str, fails: bool = False) -> str:
    done = CliRunner().invoke(cli, ["schedules", *args], catch_exceptions=False)
    assert (done.exit_code != 0) == fails, done.output
    return done.output


def read(*args: str) -> Any:
    return json.loads(run(*args, "--json"))


def test_schedules_are_operated_from_a_shell(shop: str) -> None:
    [nightly] = read("list", shop)
    assert (nightly["name"], nightly["source"], nightly["tz"]) == ("nightly", "code", "Europe/Paris")
    assert len(nightly["next"]) == 3
    created = read("create", shop, "poll", "report", "us", "copies=2", "--every", "5m", "--jitter", "30s")
    assert (created["every_seconds"], created["jitter_seconds"]) == (300, 30)
    assert read("pause", shop, "poll", "--reason", "enough")["state"] == "paused"
    assert "enough" in run("list", shop)
    assert read("resume", shop, "poll")["state"] == "active"
    assert len(read("next", shop, "nightly", "--count", "4")) == 4
    assert read("trigger", shop, "poll")["run"].startswith("poll@")
    filled = read("backfill", shop, "nightly", "2026-03-28T12:00Z", "2026-03-30T00:00Z", "--yes")
    assert filled == {"runs": ["nightly@2026-03-29T01:00:00Z"]}
    assert read("delete", shop, "poll", "--yes") == {"deleted": "poll"}
    assert [one["name"] for one in read("list", shop)] == ["nightly"]


def test_what_cannot_be_done_is_one_line(shop: str) -> None:
    assert "there is no schedule 'gone'" in run("pause", shop, "gone", fails=True)
    assert "declared in the code" in run("delete", shop, "nightly", "--yes", fails=True)
    assert "not a cron expression" in run(
        "create", shop, "x", "report", "us", "--cron", "0 0 31 2 *", fails=True
    )
    assert "add --yes" in run("delete", shop, "nightly", "--json", fails=True)
    assert "has no workflow 'sweep'" in run("create", shop, "x", "sweep", "--every", "5m", fails=True)


def test_people_see_tables_and_are_asked_first(shop: str, url: str) -> None:
    assert "0 3 * * * Europe/Paris" in run("list", shop)
    assert "here, in" in run("next", shop, "nightly", "--count", "1")
    asked = CliRunner().invoke(
        cli, ["schedules", "backfill", shop, "nightly", "2026-03-01", "2026-03-03"], input="n\n"
    )
    assert "start 2 runs of report?" in asked.output
    assert [one["name"] for one in read("list", url)] == ["nightly"]  # by the address of the database
