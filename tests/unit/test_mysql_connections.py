"""Connections to MySQL and MariaDB, before there is a server at the other end."""

from ssl import CERT_REQUIRED, SSLContext

import pymysql
import pytest

from detent.stores.mysql.connection import MySqlConnection


@pytest.fixture
def ours() -> SSLContext:
    context = MySqlConnection(defer_connect=True).ctx
    assert isinstance(context, SSLContext)
    return context


def test_connections_encrypt_as_the_driver_would_by_itself(ours: SSLContext) -> None:
    theirs = pymysql.connect(defer_connect=True).ctx  # type: ignore[attr-defined]

    def manner(context: SSLContext) -> tuple[object, ...]:
        protocols = context.minimum_version, context.maximum_version, context.options
        return context.verify_mode, context.check_hostname, protocols, context.get_ciphers()

    assert manner(ours) == manner(theirs)


def test_connections_read_no_certificates_that_they_would_not_check(ours: SSLContext) -> None:
    assert ours.cert_store_stats()["x509"] == 0


def test_connections_check_certificates_when_told_to() -> None:
    checked = MySqlConnection(defer_connect=True, ssl_verify_cert=True).ctx
    assert checked.verify_mode is CERT_REQUIRED
