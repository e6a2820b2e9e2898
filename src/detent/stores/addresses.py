"""Addresses: of which database, what PostgreSQL's library gets untouched, what MySQL's options mean.

No error of this module contains a password, nor a part of an address that could not be read.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..arguments import refuse
from ..errors import InvalidAddress, MissingDriver, UnknownScheme

if TYPE_CHECKING:  # 6 ms, for addresses of MySQL with certificates
    import ssl

HIDDEN = "***"
# By scheme: the database, the library that connects to it, and the extra that installs the library.
_POSTGRES, _MYSQL = ("PostgreSQL", "psycopg", "postgres"), ("MySQL", "pymysql", "mysql")
_SERVERS = {"postgresql": _POSTGRES, "postgres": _POSTGRES, "mysql": _MYSQL, "mariadb": _MYSQL}
_TRUE = ("true", "1", "yes", "on")
_SECRETS = ("password", "sslpassword")
# One setting of a "key=value" address, as libpq reads it.
_SETTING = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)")


def check_address(url: str) -> None:
    """Refuse an address of which we can tell that no database is there, before anything is loaded.

    What only libpq can tell about a PostgreSQL address is found out when the app is opened.
    """
    if is_sqlite(url):
        sqlite_path(url)
        return
    scheme = scheme_of(url)
    if scheme not in _SERVERS:
        raise UnknownScheme(scheme)
    name, module, extra = _SERVERS[scheme]
    if module not in sys.modules and find_spec(module) is None:
        raise MissingDriver(name, extra)
    if module == "pymysql":
        mysql_address(url)


def scheme_of(url: str) -> str:
    """The database that an address names; empty if it has no scheme, so that no password is shown."""
    if is_conninfo(url):
        return "postgresql"
    found = re.match(r"([A-Za-z][\w.-]*)(\+[\w.-]+)?:", url)
    return found[1].lower() if found else ""


def is_sqlite(url: str) -> bool:
    return url.partition(":")[0].partition("+")[0] == "sqlite"


def sqlite_path(url: str) -> str:
    from urllib.parse import unquote, urlsplit  # (not loaded by `import detent`: test_front_door.py)

    parts = urlsplit(url)
    if parts.netloc:
        # Without this, the file name would be taken for a host, and the database would be in memory.
        advice = f"a path has three slashes before it: sqlite:///{parts.netloc}{parts.path}"
        refuse("App()", "url", url, advice)
    return unquote(parts.path.removeprefix("/"))


def is_conninfo(address: str) -> bool:
    """Whether an address has libpq's other form: "host=db.example dbname=shop"."""
    return "://" not in address and re.match(r"\s*\w+\s*=", address) is not None


def postgres_address(address: str) -> tuple[str, bool]:
    """What libpq gets, and whether PgBouncer stands in between.

    Only our own parameter, `pgbouncer`, is taken out.  Everything else is libpq's: several hosts, sockets,
    `options`, `service`, `passfile`, certificates.
    """
    if is_conninfo(address):
        found = [setting for setting in _SETTING.finditer(address) if setting[1] == "pgbouncer"]
        for setting in reversed(found):
            address = address[: setting.start()] + address[setting.end() :]
        return address, any(_is_true(setting[2].strip("'")) for setting in found)
    rest = address.partition("://")[2]
    head, mark, query = _split_query(rest)
    parameters = query.split("&") if query else []
    own = [parameter for parameter in parameters if parameter.startswith("pgbouncer=")]
    if own:
        query = "&".join(parameter for parameter in parameters if parameter not in own)
        mark = "?" if query else ""
    return f"postgresql://{head}{mark}{query}", any(_is_true(one.partition("=")[2]) for one in own)


def _split_query(rest: str) -> tuple[str, str, str]:
    """Split at the question mark that begins the parameters; user and password may contain others."""
    credentials = re.match(r"[^@/]*@", rest)
    begin = credentials.end() if credentials else 0
    head, mark, query = rest[begin:].partition("?")
    return rest[:begin] + head, mark, query


def _is_true(text: str) -> bool:
    return text.lower() in _TRUE


def unreadable(database: str, reason: str) -> InvalidAddress:
    return InvalidAddress(
        database,
        f"{reason}; write special characters in the user name and the password as %XX "
        f"(urllib.parse.quote does that)",
    )


def shown(address: str) -> str:
    """An address without its password, for people to read."""
    if is_conninfo(address):
        return _SETTING.sub(lambda one: f"{one[1]}={HIDDEN}" if one[1] in _SECRETS else one[0], address)
    scheme, colon, rest = address.partition("://")
    if not colon or scheme.partition("+")[0] == "sqlite":
        return address
    rest = re.sub(rf"(?i)([?&](?:{'|'.join(_SECRETS)})=)[^&]*", rf"\1{HIDDEN}", rest)
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        credentials, _, host = authority.rpartition("@")
        return f"{scheme}://{credentials.partition(':')[0]}@{host}{slash}{path}"
    if "@" in path.partition("?")[0]:  # a password with a slash in it
        return f"{scheme}://{rest.partition(':')[0]}@{rest.rpartition('@')[2]}"
    return f"{scheme}://{rest}"


# MySQL


def mysql_address(url: str) -> dict[str, Any]:
    """The arguments of a connection of PyMySQL, from a URL."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its message repeats what it could not read
        raise unreadable("MySQL", "its host or port is malformed") from None
    if parts.fragment or ("@" in url.partition("?")[0] and "@" not in parts.netloc):
        raise unreadable("MySQL", "it has a # or a / in the wrong place")
    given: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": port or 3306,
        "user": unquote(parts.username or ""),
        # (PyMySQL would write a text in Latin-1, and servers keep passwords in UTF-8.)
        "password": unquote(parts.password or "").encode(),
        "database": unquote(parts.path.lstrip("/")),
        "charset": "utf8mb4",
    }
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in options.items():
        if name not in _OPTIONS:  # (its value is not shown: it may be a password)
            known = ", ".join(sorted(_OPTIONS))
            raise InvalidAddress("MySQL", f"there is no parameter {name!r}; the parameters are {known}")
        if read := _OPTIONS[name]:
            given[name] = read(name, value)
    return {**given, **_tls(options)}


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 31_536_000:
        raise InvalidAddress("MySQL", f"{name}={value} is not a number of seconds; write {name}=10")
    return seconds


def _text(name: str, value: str) -> str:
    if not value:
        raise InvalidAddress("MySQL", f"{name} is empty")
    return value


def _only_utf8mb4(name: str, value: str) -> str:
    if value.lower() != "utf8mb4":
        raise InvalidAddress("MySQL", f"charset={value}: Detent stores all text and always uses utf8mb4")
    return "utf8mb4"


_OPTIONS: dict[str, Callable[[str, str], Any] | None] = {
    "unix_socket": _text,
    "connect_timeout": _seconds,
    "read_timeout": _seconds,
    "write_timeout": _seconds,
    "charset": _only_utf8mb4,
    "ssl_mode": None,  # these are read together
    "ssl_ca": None,
    "ssl_cert": None,
    "ssl_key": None,
}
_MODES = {
    "disabled": "disabled",
    "preferred": "preferred",
    "required": "required",
    "verify-ca": "verify-ca",
    "verify-identity": "verify-full",
    "verify-full": "verify-full",
}
_FILES = ("ssl_ca", "ssl_cert", "ssl_key")


def _tls(options: dict[str, str]) -> dict[str, Any]:
    """The arguments that say how a connection is encrypted, and what it checks."""
    files = {name: _file(name, options[name]) for name in _FILES if name in options}
    mode = _mode(options.get("ssl_mode"), files)
    if "ssl_ca" in files and mode not in ("verify-ca", "verify-full"):
        raise InvalidAddress(
            "MySQL",
            f"ssl_ca has no effect with ssl_mode={mode}; write ssl_mode=verify-full "
            f"(or verify-ca, which does not check the name of the host)",
        )
    if ("ssl_cert" in files or "ssl_key" in files) and mode in ("disabled", "preferred"):
        raise InvalidAddress("MySQL", "ssl_cert and ssl_key need ssl_mode=required or stricter")
    if "ssl_key" in files and "ssl_cert" not in files:
        raise InvalidAddress("MySQL", "ssl_key needs ssl_cert, the certificate of that key")
    if mode == "disabled":
        return {"ssl_disabled": True}
    if mode == "preferred":
        return {}
    return {"ssl": _context(mode, files)}


def _mode(given: str | None, files: dict[str, str]) -> str:
    if given is None:
        return "verify-ca" if "ssl_ca" in files else "required" if files else "preferred"
    mode = _MODES.get(given.lower().replace("_", "-"))
    if mode is None:
        raise InvalidAddress("MySQL", f"ssl_mode={given} is not one of {', '.join(_MODES)}")
    return mode


def _file(name: str, value: str) -> str:
    if not os.path.isfile(value):
        raise InvalidAddress("MySQL", f"{name}={value}: there is no such file")
    return value


def _context(mode: str, files: dict[str, str]) -> ssl.SSLContext:
    import ssl

    context = unchecked() if mode == "required" and not files else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if mode == "required":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.check_hostname = mode == "verify-full"
        context.verify_mode = ssl.CERT_REQUIRED
    try:
        if "ssl_ca" in files:
            context.load_verify_locations(cafile=files["ssl_ca"])
        elif mode != "required":
            context.load_default_certs()
        if "ssl_cert" in files:
            context.load_cert_chain(files["ssl_cert"], files.get("ssl_key"))
    except (ssl.SSLError, OSError) as error:
        named = ", ".join(f"{name}={file}" for name, file in files.items())
        raise InvalidAddress("MySQL", f"{named} is invalid: {error}") from error
    return context


@cache
def unchecked() -> ssl.SSLContext:
    """Encrypts, and checks no certificate; so it reads none of those that the machine trusts."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
