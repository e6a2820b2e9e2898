"""The front door: every public name is there, and what nobody asked for is not loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import detent

DEFINITIONS = """
import sys
import detent
from detent import step, workflow

@step
def charge(order_id: int) -> str:
    return f"receipt-{order_id}"

@workflow
def fulfil(order_id: int) -> str:
    return charge(order_id)

assert fulfil(42) == "receipt-42"
print(*sys.modules)
"""


def named() -> dict[str, str]:
    """Each name that a type checker sees, with the module it comes from."""
    tree = ast.parse(Path(detent.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: f"detent.{node.module}"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def test_the_names_for_type_checkers_are_the_public_ones() -> None:
    assert {*named(), "aio", "events"} == set(detent.__all__)


@pytest.mark.parametrize("name", sorted(named()))
def test_a_public_name_is_what_type_checkers_take_it_for(name: str) -> None:
    assert getattr(detent, name) is getattr(import_module(named()[name]), name)


def test_dir_shows_what_can_be_asked_for() -> None:
    assert set(detent.__all__) <= set(dir(detent))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'wrokflow'"):
        detent.wrokflow  # type: ignore[attr-defined]


def test_parts_are_there_without_an_import_of_their_own() -> None:
    code = "import detent; detent.aio.sleep; detent.errors.RunNotFound; detent.app; detent.events"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_who_only_describes_workflows_loads_neither_the_engine_nor_asyncio() -> None:
    done = subprocess.run([sys.executable, "-c", DEFINITIONS], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "detent.definitions.functions" in loaded
    assert not loaded & {
        "asyncio",
        "sqlite3",
        "detent.app",
        "detent.stores",
        "detent.worker",
    }


ENGINE = {
    "sqlite3",
    "ssl",
    "psycopg",
    "pymysql",
    "detent.app.engine",
    "detent.app.run",
    "detent.commit",
    "detent.execution.services",
    "detent.stores.store",
    "detent.worker",
}


@pytest.mark.parametrize("address", ["sqlite:///shop.db", "postgresql://db/shop", "mysql://db/shop"])
def test_an_app_that_is_not_used_loads_neither_its_database_nor_workers_nor_asyncio(address: str) -> None:
    loaded = loaded_by(f"detent.App({address!r})")
    assert "detent.app.app" in loaded
    assert not loaded & {*ENGINE, "asyncio"}


def test_an_async_app_that_is_not_used_loads_neither_its_database_nor_workers() -> None:
    loaded = loaded_by("detent.AsyncApp('sqlite:///shop.db'); detent.aio.sleep")
    assert "asyncio" in loaded
    assert not loaded & (ENGINE - {"ssl"})  # which asyncio loads


def test_a_program_that_defines_an_app_loads_modules_of_python_only_when_it_needs_them() -> None:
    """Each of these takes milliseconds: hashlib loads OpenSSL, pathlib loads urllib.parse and ipaddress."""
    assert not loaded_by("detent.App, detent.step, detent.workflow") & {"hashlib", "pathlib", "urllib.parse"}


def test_the_help_of_the_command_line_loads_no_command() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "detent", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Durable workflows for Python" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "detent.cli.main" in loaded
    assert not loaded & {*ENGINE, "asyncio", "rich", "detent.cli.runs", "detent.cli.worker"}


def loaded_by(code: str) -> set[str]:
    """The modules that a program has loaded which does nothing else."""
    code = f"import sys, detent; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_an_app_on_sqlite_loads_no_driver_of_a_server() -> None:
    assert not loaded_by("detent.App('sqlite:///:memory:').open()") & {
        "psycopg",
        "pymysql",
        "detent.stores.postgres.driver",
        "detent.stores.mysql.driver",
    }
