"""Addresses of databases: libpq gets its own syntax, MySQL's parameters are checked, no password is shown."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import detent
from detent.cli.find_app import place
from detent.errors import InvalidAddress, UnknownScheme
from detent.stores.addresses import mysql_address, postgres_address, shown
from detent.stores.mysql.connection import MySqlConnection
from detent.stores.mysql.driver import MySqlDriver
from detent.stores.open import open_store
from detent.stores.postgres.driver import PostgresDriver

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql:///shop?host=/tmp/sock", {"dbname": "shop", "host": "/tmp/sock"}),
        ("postgresql://%2Ftmp%2Fsock/shop", {"dbname": "shop", "host": "/tmp/sock"}),
        (
            "postgresql://h1,h2:5433/shop?target_session_attrs=read-write",
            {"host": "h1,h2", "port": ",5433", "dbname": "shop", "target_session_attrs": "read-write"},
        ),
        (
            "postgresql://h/shop?options=-c%20search_path%3Dx%20-c%20work_mem%3D8MB",
            {"host": "h", "dbname": "shop", "options": "-c search_path=x -c work_mem=8MB"},
        ),
        ("postgresql://?service=prod", {"service": "prod"}),
        (
            "postgresql://u@h/shop?passfile=/a/b",
            {"user": "u", "host": "h", "dbname": "shop", "passfile": "/a/b"},
        ),
        (
            "postgresql://h/shop?sslmode=verify-full&sslrootcert=/etc/ca%20one.pem",
            {"host": "h", "dbname": "shop", "sslmode": "verify-full", "sslrootcert": "/etc/ca one.pem"},
        ),
        (
            "postgresql+psycopg://u:p%40s%2Fs%3F@[::1]/shop",
            {"user": "u", "password": "p@s/s?", "host": "::1", "dbname": "shop"},
        ),
        ("host=h dbname=shop password='a \\'b'", {"host": "h", "dbname": "shop", "password": "a 'b"}),
    ],
)
def test_libpq_gets_its_own_syntax_untouched(address: str, expected: dict[str, str]) -> None:
    given, pgbouncer = postgres_address(address)
    assert (conninfo_to_dict(given), pgbouncer) == (expected, False)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://h/shop?pgbouncer=true", "postgresql://h/shop"),
        ("postgresql://h/shop?a=1&pgbouncer=1&b=%20", "postgresql://h/shop?a=1&b=%20"),
        ("postgres://u:a?pgbouncer=true@h/shop", "postgresql://u:a?pgbouncer=true@h/shop"),
        ("host=h pgbouncer=yes dbname=shop", "host=h  dbname=shop"),
    ],
)
def test_only_our_own_parameter_is_taken_out_of_an_address(address: str, expected: str) -> None:
    assert postgres_address(address) == (expected, "@" not in address)


def test_what_an_address_says_about_connecting_holds() -> None:
    driver = PostgresDriver("postgresql://h/shop?connect_timeout=9&keepalives_idle=7&application_name=mine")
    assert not {"connect_timeout", "keepalives_idle", "application_name"} & set(driver._defaults)
    assert driver._defaults["tcp_user_timeout"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("unix_socket=/run/my.sock", {"unix_socket": "/run/my.sock"}),
        ("read_timeout=7&write_timeout=8.5", {"read_timeout": 7.0, "write_timeout": 8.5}),
        ("connect_timeout=9&charset=utf8mb4", {"connect_timeout": 9.0}),
        ("ssl_mode=DISABLED", {"ssl_disabled": True}),
        ("ssl_mode=preferred", {}),
    ],
)
def test_a_mysql_address_takes_the_parameters_that_people_know(query: str, expected: dict[str, Any]) -> None:
    assert expected.items() <= mysql_address(f"mysql://u:p@h:1/shop?{query}").items()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sslmode=require", "there is no parameter 'sslmode'; the parameters are charset, connect_timeout,"),
        ("read_timeout=soon", "read_timeout=soon is not a number of seconds"),
        ("connect_timeout=0", "connect_timeout=0 is not a number of seconds"),
        ("charset=latin1", "always uses utf8mb4"),
        ("ssl_mode=yes", "is not one of disabled, preferred, required, verify-ca"),
        ("ssl_ca=/nowhere.pem", "ssl_ca=/nowhere.pem: there is no such file"),
        ("unix_socket=", "unix_socket is empty"),
    ],
)
def test_a_parameter_that_mysql_does_not_know_is_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidAddress, match=said):
        detent.App(f"mysql://u:{SECRET}@h/shop?{query}")


def test_a_certificate_that_would_not_be_checked_is_refused(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    for mode in ("disabled", "preferred", "required"):
        with pytest.raises(InvalidAddress, match=f"no effect with ssl_mode={mode}; write"):
            mysql_address(f"mysql://h/shop?ssl_mode={mode}&ssl_ca={ca}")
    with pytest.raises(InvalidAddress, match="ssl_key needs ssl_cert"):
        mysql_address(f"mysql://h/shop?ssl_key={ca}")
    with pytest.raises(InvalidAddress, match=f"ssl_ca={ca} is invalid: "):
        mysql_address(f"mysql://h/shop?ssl_ca={ca}")


def _context(mode: str) -> ssl.SSLContext:
    context = MySqlConnection(defer_connect=True, **mysql_address(f"mysql://h/shop?ssl_mode={mode}")).ctx
    assert isinstance(context, ssl.SSLContext)
    return context


@pytest.mark.parametrize("mode", ["verify-full", "VERIFY_IDENTITY", "verify_identity"])
def test_a_connection_checks_the_name_of_the_host_when_asked(mode: str) -> None:
    context = _context(mode)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_connection_checks_the_certificate_alone_when_asked() -> None:
    context = _context("verify-ca")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_encryption_can_be_required_without_a_check() -> None:
    connection: Any = MySqlConnection(defer_connect=True, **mysql_address("mysql://h/shop?ssl_mode=REQUIRED"))
    assert (connection.ctx.verify_mode, connection._ssl_required) == (ssl.CERT_NONE, True)


@pytest.mark.parametrize(
    "address",
    [
        f"mysql://u:{SECRET}#x@h/shop",
        f"mysql://u:{SECRET}/x@h/shop",
        f"mysql://u:[{SECRET}@h/shop",
        f"mysql://u@h:{SECRET}/shop",
        f"mysql://u@h/shop?password={SECRET}",
        f"postgresql://u:pw@h:{SECRET}/shop",
        f"postgresql://u:{SECRET}/x@h/shop?nothing=1",
        f"postgresql://u:%{SECRET}@h/shop",
        f"password={SECRET} port=x nothing=y",
        f"password='{SECRET}",
        f"{SECRET}@h",
        f"u:{SECRET}@h/shop",
    ],
)
def test_an_address_that_is_refused_does_not_show_its_password(address: str) -> None:
    with pytest.raises((InvalidAddress, UnknownScheme)) as caught:
        open_store(address)
    assert SECRET not in str(caught.value) + repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (f"postgresql://u:{SECRET}@h:1/shop", "postgresql://u@h:1/shop"),
        (f"postgresql://h1,h2/shop?user=u&password={SECRET}", "postgresql://h1,h2/shop?user=u&password=***"),
        (f"postgresql://u:a/{SECRET}@h/shop", "postgresql://u@h/shop"),
        (f"mysql://u:{SECRET}#x@h/shop", "mysql://u@h/shop"),
        (f"mysql://u:a@{SECRET}@h/shop", "mysql://u@h/shop"),
        (f"host=h password='{SECRET} x' user=u", "host=h password=*** user=u"),
        ("postgresql:///shop?host=/tmp/a@b", "postgresql:///shop?host=/tmp/a@b"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
    ],
)
def test_addresses_are_shown_without_their_passwords(address: str, expected: str) -> None:
    assert shown(address) == expected
    assert SECRET not in place(address)


def test_passwords_may_have_special_characters() -> None:
    driver = MySqlDriver("mysql://a%40b:p%40s%2Fs%23%C3%BC%E2%82%AC@h/shop")
    assert (driver._connect["user"], driver._connect["password"]) == ("a@b", "p@s/s#ü€".encode())
