"""Addresses as people write them, against real servers."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pymysql
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from detent.stores.open import open_store

PASSWORD = "p@s:s/w?o#r%d [ü€]'\""
NOBODY = 1  # a port where no server listens


def _opens(url: str) -> None:
    """A store works on it."""
    with closing(open_store(url)) as store:
        store.migrate(now=1)
        store.check_schema()


def _postgres_forms(url: str, folder: Path) -> Iterator[tuple[str, str]]:
    parts = conninfo_to_dict(url)
    host, port, user = parts["host"], parts["port"], parts["user"]
    password, name = str(parts["password"]), parts["dbname"]
    passfile, services = folder / "passfile", folder / "services"
    passfile.write_text(f"*:*:*:*:{password}\n")
    passfile.chmod(0o600)
    settings = f"host={host}\nport={port}\nuser={user}\npassword={password}\ndbname={name}\n"
    services.write_text(f"[shop]\n{settings}")
    yield "key=value", make_conninfo("", **parts)
    yield "host=", f"postgresql:///{name}?host={host}&port={port}&user={user}&password={password}"
    yield "passfile=", f"postgresql://{user}@{host}:{port}/{name}?passfile={quote(str(passfile))}"
    yield "service=", "postgresql://?service=shop"
    several = f"{host}:{NOBODY},{host}:{port}"
    yield "hosts", f"postgresql://{user}:{password}@{several}/{name}?target_session_attrs=read-write"


@pytest.mark.parametrize("form", ["key=value", "host=", "passfile=", "service=", "hosts"])
def test_postgres_is_found_by_any_address_of_libpq(
    form: str, postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    _opens(dict(_postgres_forms(postgres_database, tmp_path))[form])


def test_the_options_of_an_address_reach_the_server(postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA tenant")
        _opens(f"{postgres_database}?options=-c%20search_path%3Dtenant")
        found = connection.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'detent_%'"
        )
        assert found.fetchall() == [("tenant",)]


def test_a_postgres_password_may_have_any_character(postgres_database: str) -> None:
    user = f"user_{urlsplit(postgres_database).path[-12:]}"
    with psycopg.connect(postgres_database, autocommit=True) as admin:
        admin.execute(
            psycopg.sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(
                psycopg.sql.Identifier(user), psycopg.sql.Literal(PASSWORD)
            )
        )
        try:
            where = postgres_database.rpartition("@")[2]
            _opens(f"postgresql://{user}:{quote(PASSWORD, safe='')}@{where}")
        finally:
            admin.execute(f"REASSIGN OWNED BY {user} TO CURRENT_USER; DROP OWNED BY {user}; DROP ROLE {user}")


def test_a_mysql_password_may_have_any_character(mysql_database: str) -> None:
    place = urlsplit(mysql_database)
    user = f"user_{place.path[-12:]}"
    admin = pymysql.connect(
        host=place.hostname, port=place.port or 3306, user=place.username, password=place.password or ""
    )
    with admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE USER {user}@'%%' IDENTIFIED BY %s", [PASSWORD])
        try:
            where = f"{place.hostname}:{place.port}/information_schema"  # which every user may read
            driver = open_store(f"mysql://{user}:{quote(PASSWORD, safe='')}@{where}").driver
            driver.connect().close()
        finally:
            cursor.execute(f"DROP USER {user}@'%'")
