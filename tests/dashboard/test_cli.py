"""`detent dashboard` and `detent demo --dashboard`, as processes of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import detent
from detent.cli.dashboard import TOKEN_VARIABLE, is_loopback
from detent.cli.main import detent as cli
from tests.dashboard.client import TOKEN
from tests.dashboard.world import parrot


@contextmanager
def running(*arguments: str, folder: Path) -> Iterator[str]:
    """A command that serves; gives the address that it prints."""
    command = [sys.executable, "-m", "detent", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        seen = []
        for line in process.stdout:
            seen.append(line)
            found = re.search(r"http://\S+/", line)
            if found:
                yield found[0]
                break
        else:
            pytest.fail("".join(seen))
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.stdout.close()
        process.wait(timeout=30)


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_the_command_serves_an_existing_database(tmp_path: Path) -> None:
    app = detent.App(f"sqlite:///{tmp_path / 'shop.db'}", include=[parrot])
    with app:
        app.options(id="order-7").start(parrot, "x").result()
    with running("dashboard", f"sqlite:///{tmp_path / 'shop.db'}", folder=tmp_path) as address:
        assert "order-7" in fetched(f"{address}runs")


def test_the_demo_shop_has_runs_from_the_first_moment(tmp_path: Path) -> None:
    with running("demo", "--dashboard", "--dir", str(tmp_path), folder=tmp_path) as address:
        assert "order-1001" in fetched(f"{address}runs/order-1001")


def test_another_address_than_the_loopback_needs_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    done = CliRunner().invoke(cli, ["dashboard", f"sqlite:///{tmp_path}/x.db", "--host", "0.0.0.0"])
    assert done.exit_code == 1
    assert "--token" in done.output


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["dashboard", f"sqlite:///{tmp_path}/x.db", "--token", TOKEN])
    assert done.exit_code == 1
    assert "there is no database" in done.output
    assert list(tmp_path.iterdir()) == []


def test_loopback_addresses_are_known() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))
