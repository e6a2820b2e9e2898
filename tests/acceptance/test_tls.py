"""Encrypted connections, to servers with certificates of their own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from detent.errors import DatabaseUnavailable, InvalidAddress
from detent.stores.open import open_store
from tools import servers

pytestmark = pytest.mark.acceptance

ENCRYPTED = {
    "postgres": "SELECT ssl::int FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mysql": "SHOW STATUS LIKE 'Ssl_cipher'",
}


class Certificates:
    """An authority, certificates for 127.0.0.1 and for a client, and an authority that signed nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca = self._authority("ca")
        self.other = self._authority("other")
        self.server, self.server_key = self._signed("server", "subjectAltName=IP:127.0.0.1")
        self.client, self.client_key = self._signed("client", "extendedKeyUsage=clientAuth")

    def _authority(self, name: str) -> Path:
        self._new_key(name)
        options = ["-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        self._openssl("req", "-x509", "-key", f"{name}.key", "-out", f"{name}.pem", *options)
        return self._folder / f"{name}.pem"

    def _signed(self, name: str, extension: str) -> tuple[Path, Path]:
        self._new_key(name)
        self._openssl("req", "-new", "-key", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self._folder / f"{name}.ext").write_text(extension)
        sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext"]
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"

    def _new_key(self, name: str) -> None:
        curve = ["-pkeyopt", "ec_paramgen_curve:P-256"]
        self._openssl("genpkey", "-algorithm", "EC", *curve, "-out", f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    folder = Path(tempfile.mkdtemp(prefix="detent-tls-", dir="/tmp"))  # the server's user must reach it
    folder.chmod(0o711)
    yield Certificates(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["postgres", "mysql"])
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(database: str, certificates: Certificates) -> Iterator[str]:
    """A server of our own that speaks TLS."""
    kind = servers.KINDS[database]
    for file in (certificates.server, certificates.server_key, certificates.ca):
        file.chmod(0o600)
        servers.give_to(kind, file)
    own = {"cert": certificates.server, "key": certificates.server_key, "ca": certificates.ca}
    if database == "postgres":
        settings = ["ssl=on", *(f"ssl_{name}_file={file}" for name, file in own.items())]
        arguments = [part for setting in settings for part in ("-c", setting)]
    else:
        arguments = [f"--ssl-{name}={file}" for name, file in own.items()]
    with servers.running([database], arguments, private=True) as variables:
        yield variables[f"DETENT_TEST_{database.upper()}_URL"]


def _parameters(database: str, mode: str, **files: Path) -> str:
    """The parameters of an address, in the words of each database."""
    if database == "postgres":
        names = {"ca": "sslrootcert", "cert": "sslcert", "key": "sslkey"}
        mode = {"required": "require", "disabled": "disable"}.get(mode, mode)
        parts = [f"sslmode={mode}", *(f"{names[name]}={file}" for name, file in files.items())]
    else:
        parts = [f"ssl_mode={mode}", *(f"ssl_{name}={file}" for name, file in files.items())]
    return "&".join(parts)


def _encrypted(database: str, url: str) -> bool:
    """Connect, and ask the server whether it is."""
    with closing(open_store(url)) as store:
        [row] = store.read(lambda tx: tx.query(ENCRYPTED[database]))
    return row[-1] not in (0, "")


@pytest.fixture(scope="module")
def readable_ca(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority's certificate, as a client has it."""
    copy = tmp_path_factory.mktemp("client") / "ca.pem"
    copy.write_bytes(certificates.ca.read_bytes())
    return copy


@pytest.mark.parametrize("mode", ["required", "verify-ca", "verify-full"])
def test_a_server_is_reached_by_tls_when_asked(database: str, url: str, readable_ca: Path, mode: str) -> None:
    files = {"ca": readable_ca} if mode != "required" else {}
    assert _encrypted(database, f"{url}?{_parameters(database, mode, **files)}")


def test_tls_can_be_switched_off(database: str, url: str) -> None:
    assert not _encrypted(database, f"{url}?{_parameters(database, 'disabled')}")


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_a_certificate_of_another_authority_is_refused(
    database: str, url: str, certificates: Certificates, mode: str
) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"(?i)certificate"):
        _encrypted(database, f"{url}?{_parameters(database, mode, ca=certificates.other)}")


def test_the_name_of_the_host_is_checked_by_verify_full_only(
    database: str, url: str, readable_ca: Path
) -> None:
    elsewhere = url.replace("127.0.0.1", "localhost")  # the certificate is for 127.0.0.1
    assert _encrypted(database, f"{elsewhere}?{_parameters(database, 'verify-ca', ca=readable_ca)}")
    with pytest.raises(DatabaseUnavailable, match=r"(?i)localhost"):
        _encrypted(database, f"{elsewhere}?{_parameters(database, 'verify-full', ca=readable_ca)}")


def test_a_client_shows_its_own_certificate(
    database: str, url: str, certificates: Certificates, readable_ca: Path
) -> None:
    os.chmod(certificates.client_key, 0o600)
    files = {"ca": readable_ca, "cert": certificates.client, "key": certificates.client_key}
    assert _encrypted(database, f"{url}?{_parameters(database, 'verify-full', **files)}")


def test_a_client_certificate_that_cannot_be_read_is_refused(
    database: str, url: str, readable_ca: Path
) -> None:
    files = {"cert": readable_ca, "key": readable_ca}
    with pytest.raises((DatabaseUnavailable, InvalidAddress), match=r"(?i)key|cert"):
        _encrypted(database, f"{url}?{_parameters(database, 'required', **files)}")


def test_a_server_without_tls_is_refused_when_it_is_required(
    database: str, request: pytest.FixtureRequest
) -> None:
    plain: str = request.getfixturevalue(f"{database}_url")
    with pytest.raises(DatabaseUnavailable, match=r"(?i)ssl"):
        _encrypted(database, f"{plain}?{_parameters(database, 'required')}")
    assert urlsplit(plain).query == ""
