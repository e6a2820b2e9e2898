"""The command line on runs that go by a graph: start, draw, skip, reattempt, verify, repair."""

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
from detent import step, task


@step
def part(n: int) -> int:
    return n


@step
def total(numbers: list[int]) -> int:
    return sum(numbers)


class Order(detent.Workflow):
    number: int
    note: str = ""

    @step
    def validate(self) -> None: ...

    @task(depends_on=validate)
    def check(self) -> None:
        if self.number == 13:
            raise ValueError("unlucky")

    @step
    def ship(self) -> str:
        return f"shipped {self.number}{self.note} for {self.hero}"


@detent.template
def books(g, count: int) -> None:
    parts = g.fan_out(range(count), name=lambda n: f"part_{n}", job=part, args=lambda n: {"n": n})
    g.node("total", job=total, args={"numbers": parts.outputs})


app = detent.App(os.environ["SHOP_URL"], include=[Order, books, part, total], migrate=True)


def work(*runs: str) -> None:
    with app:
        for run in runs:
            try:
                app.run(run).result()
            except detent.DetentError:
                pass
"""


class Shell:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        (folder / "shop.py").write_text(SHOP)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._python("-m", "detent", *arguments)

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def work(self, *runs: str) -> None:
        done = self._python("-c", f"import shop; shop.work(*{runs!r})")
        assert done.returncode == 0, done.stderr

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return python(*arguments, cwd=self.folder, env={**os.environ, "SHOP_URL": self.url}, timeout=60)


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


def test_a_class_is_started_with_its_fields_and_a_hero(shell: Shell) -> None:
    started = shell.json("start", "shop:app", "Order", "7", "note=!", "--id", "o", "--hero", "User:ada")
    assert (started["type"], started["hero"]) == ("Order", {"type": "User", "id": "ada"})
    again = shell.run("start", "shop:app", "Order", "8", "--hero", "User:ada")
    assert again.returncode == 1
    assert "already has an active run of Order: o" in again.stderr
    shell.ok("start", "shop:app", "Order", "8", "--hero", "User:ada", "--allow-multiple")
    assert shell.run("start", "shop:app", "Order", "many").returncode == 2
    assert shell.run("start", "shop:app", "Order", "7", "colour=red").returncode == 2
    shell.work("o")
    [ship] = [node for node in shell.json("graph", shell.url, "o") if node["name"] == "ship"]
    assert ship["result"] == "shipped 7! for Hero(type='User', id='ada')"


def test_a_template_is_started_drawn_and_verified(shell: Shell) -> None:
    shell.ok("start", "shop:app", "books", "count=5", "--id", "b")
    shell.work("b")
    assert "part_… × 5" in shell.ok("graph", shell.url, "b")
    assert "part_3" in shell.ok("graph", shell.url, "b", "--all")
    assert shell.ok("graph", shell.url, "b", "--mermaid").startswith("graph TD")
    assert shell.ok("graph", shell.url, "b", "--dot").startswith("digraph")
    assert shell.json("verify", shell.url, "b") == {"run": "b", "intact": True, "settled": 6, "broken": []}


def test_a_node_that_failed_is_skipped_and_tried_again(shell: Shell) -> None:
    shell.ok("start", "shop:app", "Order", "13", "--id", "o")
    shell.work("o")
    assert shell.json("show", shell.url, "o")["state"] == "paused"
    assert shell.json("reattempt", "shop:app", "o", "check")["state"] == "ready"
    shell.work("o")
    assert shell.json("skip", "shop:app", "o", "check")["state"] == "finished"
    early = shell.run("skip", "shop:app", "o", "check")
    assert early.returncode == 1
    assert "it is finished" in early.stderr


def test_what_needs_the_code_of_a_class_says_so_when_only_the_database_is_known(shell: Shell) -> None:
    shell.ok("start", "shop:app", "Order", "13", "--id", "o")
    shell.work("o")
    for command in (["resume", shell.url, "o"], ["skip", shell.url, "o", "check"]):
        done = shell.run(*command)
        assert done.returncode == 1
        assert "needs the code of 'Order'; give MODULE:APP" in done.stderr


def test_a_graph_is_exported_edited_and_imported(shell: Shell) -> None:
    shell.ok("start", "shop:app", "books", "count=2", "--id", "b")
    shell.ok("pause", shell.url, "b")
    shell.ok("graph", shell.url, "b", "--export", "b.json")
    file = shell.folder / "b.json"
    document = json.loads(file.read_text())
    for node in document["nodes"].values():
        if node["name"].startswith("part_"):
            node["args"]["n"] += 100
    file.write_text(json.dumps(document))
    shell.ok("graph", "shop:app", "b", "--import", "b.json")
    shell.ok("resume", "shop:app", "b")
    shell.work("b")
    assert shell.json("show", shell.url, "b")["result"] == 201
