"""A PostgreSQL with a streaming standby that takes its place, again and again.

One failover: the primary is shut down without a checkpoint and never comes back, the standby is promoted,
and a new standby is made from it at the address of the old primary.  The URL names both addresses.
"""

import ctypes
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tools import servers

from .faults import Fault
from .places import Admin, Place, ServerPlace, fresh_name, with_database

READY_WITHIN = 60.0  # seconds
STREAMING = "SELECT COUNT(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '{}'"


class Instance:
    """One PostgreSQL process, primary or standby."""

    def __init__(self, home: Path, user: str | None, password: str) -> None:
        self.home = home
        self.port = servers._free_port()
        self._user = user
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"postgresql://detent:{self._password}@{self.address}/postgres"

    def create(self) -> None:
        """Begin as an empty primary."""
        self._empty()
        servers.KINDS["postgres"].prepare(self.home, self._user, self.port, self._password)
        self._start()

    def follow(self, primary: "Instance") -> None:
        """Begin as a standby."""
        self._empty()
        # Beside the server: what Debian has on the PATH is a script that goes by its own name.
        copy = str(Path(servers.find_program("postgres")).with_name("pg_basebackup"))
        into = str(self.home / "data")
        argv = [copy, "-d", primary.url, "-D", into, "-R", "-X", "stream", "-c", "fast"]
        servers._tool(argv, self.home, self._user)
        self._start()

    def promote(self) -> None:
        self.ask("SELECT pg_promote(true, 60)")

    def crash(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.crash()

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _empty(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(mode=0o700)
        servers._give_to(self._user, self.home)

    def _start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.home,
            "port": self.port,
            "max_connections": servers.MAX_CONNECTIONS,
        }
        argv = [servers.find_program("postgres"), "-D", str(self.home / "data")]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=servers._environment(str(self.home)),
                user=self._user,
                group=servers._group(self._user),
                extra_groups=None if self._user is None else [],
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - we start it from the only thread that forks
            )
        wait_for(self._answers, f"PostgreSQL at {self.address}")

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            self.ask("SELECT 1")
            return True
        return False


@dataclass(frozen=True)
class ClusterPlace(ServerPlace):
    """A primary and its standby; the first is the primary."""

    pair: list[Instance]


class Failover(Fault):
    """The primary dies, and an asynchronous standby takes its place: the last commits may be lost."""

    name = "failover-async"
    databases = ("postgres",)
    mean = 3.0
    lossy = True
    kind = "async"
    place: ClusterPlace

    @classmethod
    @contextmanager
    def open_place(cls, database: str, folder: Path) -> Iterator[Place]:
        base = servers._temporary_folder()
        user = servers._server_user(servers.KINDS["postgres"])
        password = secrets.token_hex(8)
        pair = [Instance(base / name, user, password) for name in ("one", "two")]
        try:
            pair[0].create()
            addresses = ",".join(instance.address for instance in pair)
            server = f"postgresql://detent:{password}@{addresses}/postgres?target_session_attrs=read-write"
            admin = Admin(server, fresh_name())
            admin.create()
            cls.attach(pair)
            yield ClusterPlace("postgres", with_database(server, admin.database), folder, admin, "", pair)
            admin.close()
        finally:
            for instance in pair:
                instance.close()
            shutil.rmtree(base, ignore_errors=True)

    @classmethod
    def attach(cls, pair: list[Instance]) -> None:
        """Give the primary a standby."""
        primary, standby = pair
        standby.follow(primary)
        if cls.kind == "sync":
            primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.ask("SELECT pg_reload_conf()")
        wait_for(lambda: primary.ask(STREAMING.format(cls.kind)) == [(1,)], "the standby streams")

    def inject(self) -> str:
        primary, standby = self.place.pair
        primary.crash()
        standby.promote()
        self.restored = time.monotonic_ns()
        promoted = f"{standby.address} took the place of {primary.address}"
        self.place.pair.reverse()
        self.attach(self.place.pair)
        return promoted


class SynchronousFailover(Failover):
    """The same with a synchronous standby: nothing that was committed may be lost."""

    name = "failover-sync"
    lossy = False
    kind = "sync"


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {READY_WITHIN:.0f} s in vain: {what}")
        time.sleep(0.1)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
