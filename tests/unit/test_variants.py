"""Every variant of a test runs on SQLite and on a server, and every test runs on every database."""

from pathlib import Path

import pytest

from tests.variants import PER_DATABASE, SHARED, OnDatabase, left_to_the_soak

DATABASES = ("sqlite", "postgres", "mysql")


def variants(function: str, count: int, databases: tuple[str, ...] = DATABASES) -> list[OnDatabase]:
    """Of a function with two parameters, one of them with two values."""
    return [
        OnDatabase(f"{function}[{database}-{'async' if n % 2 else 'sync'}-{n // 2}]", database)
        for database in databases
        for n in range(count)
    ]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 30])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_each_variant_runs_on_sqlite_and_on_one_server(name: str, count: int) -> None:
    given = variants(f"tests/graphs/test_hooks.py::test_{name}", count)
    run = [each for each in given if each.nodeid not in left_to_the_soak(given)]
    assert len(run) == 2 * count
    for variant in {each.variant for each in given}:
        assert [each.variant for each in run if each.database == "sqlite"].count(variant) == 1
        assert [each.variant for each in run if each.database != "sqlite"].count(variant) == 1
    assert {each.database for each in run} == set(DATABASES)


def test_each_server_runs_every_value_of_every_parameter() -> None:
    given = variants("tests/graphs/test_hooks.py::test_a", 8)
    left = left_to_the_soak(given)
    for database in ("postgres", "mysql"):
        run = [each.variant for each in given if each.database == database and each.nodeid not in left]
        assert {style for style, _ in run} == {"sync", "async"}
        assert {number for _, number in run} == {"0", "1", "2", "3"}


def test_a_server_does_not_run_the_same_variant_of_every_test() -> None:
    given = [each for n in range(20) for each in variants(f"tests/graphs/test_hooks.py::test_{n}", 2)]
    left = left_to_the_soak(given)
    assert len({(each.database, each.variant) for each in given if each.nodeid in left}) == 4


def test_a_test_without_variants_runs_on_every_database() -> None:
    assert left_to_the_soak(variants("tests/graphs/test_hooks.py::test_a", 1)) == set()


def test_a_test_of_some_databases_runs_on_all_of_them() -> None:
    given = variants("tests/graphs/test_hooks.py::test_a", 4, ("postgres", "mysql"))
    assert left_to_the_soak(given) == set()


@pytest.mark.parametrize(
    "file",
    ["tests/conformance/test_settle.py", "tests/acceptance/test_cli.py", "tests/graphs/test_uniqueness.py"],
)
def test_what_depends_on_the_database_runs_in_every_variant_on_every_database(file: str) -> None:
    assert left_to_the_soak(variants(f"{file}::test_a", 4)) == set()


def test_every_file_that_is_named_exists() -> None:
    root = Path(__file__).parents[2]
    assert [file for file in (*PER_DATABASE, *SHARED) if not (root / file).exists()] == []
