"""The faults of servers and of the way to them.  All need a server of their own."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from unittest import mock

from tools import servers

from . import places
from .faults import Fault
from .places import Place, ProxiedPlace, ServerPlace, fresh_name

SQLITE_DISK = 48  # MiB
POSTGRES_DISK = 400  # MiB; a fresh PostgreSQL takes 60, and its log grows
SECRET = "chaos"  # of a user on a private server that exists for minutes


class ServerFault(Fault):
    mean = 3.0
    place: ServerPlace

    @classmethod
    def open_place(cls, database: str, folder: Path) -> AbstractContextManager[Place]:
        return places.private(database, folder)


class Restarts(ServerFault):
    """The server crashes (PostgreSQL: an immediate shutdown, MariaDB: SIGKILL) and is started again."""

    name = "restarts"

    def inject(self) -> str:
        away = self.chance.uniform(0, 2)
        servers.stop(self.place.control, crash=True)
        time.sleep(away)
        servers.start(self.place.control)
        return f"restarted after {away:.2f} s"


class Freezes(ServerFault):
    """All processes of the server are stopped for seconds, and go on."""

    name = "freezes"

    def inject(self) -> str:
        seconds = self.chance.uniform(1, 6)
        stopped = _family(self.place.pid)
        for pid in stopped:
            _signal(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in reversed(stopped):
            _signal(pid, signal.SIGCONT)
        return f"froze {len(stopped)} processes for {seconds:.1f} s"


class ReadOnly(ServerFault):
    """The server refuses writes for seconds, as a standby does, or one in maintenance."""

    name = "read-only"

    @classmethod
    @contextmanager
    def open_place(cls, database: str, folder: Path) -> Iterator[Place]:
        with places.private(database, folder) as here:
            if database == "postgres":
                yield here
                return
            # The user of the tests may write to a read-only server.
            user = fresh_name()
            here.admin.ask(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{SECRET}'")
            here.admin.ask(f"GRANT ALL PRIVILEGES ON {here.admin.database}.* TO '{user}'@'%'")
            server = here.url.rpartition("@")[2]
            yield ServerPlace(
                here.kind, f"mysql://{user}:{SECRET}@{server}", here.folder, here.admin, here.control
            )

    def inject(self) -> str:
        seconds = self.chance.uniform(0.5, 4)
        self._set("on")
        time.sleep(seconds)
        self._set("off")
        return f"read-only for {seconds:.1f} s"

    def close(self) -> None:
        self._set("off")

    def _set(self, value: str) -> None:
        admin = self.place.admin
        if admin.is_mysql:
            admin.ask(f"SET GLOBAL read_only = {value}")
        else:
            admin.ask(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            admin.ask("SELECT pg_reload_conf()")


class FullDisk(Fault):
    """The disk under the database is full for seconds.

    PostgreSQL ends when it cannot extend its log; then it is started again, as an operator would do.
    """

    name = "full-disk"
    databases = ("sqlite", "postgres")
    mean = 3.0

    @classmethod
    def impossible(cls) -> str | None:
        return None if os.geteuid() == 0 else "a small disk is a tmpfs, and only root may mount one"

    @classmethod
    @contextmanager
    def open_place(cls, database: str, folder: Path) -> Iterator[Place]:
        size = SQLITE_DISK if database == "sqlite" else POSTGRES_DISK
        with _small_disk(size) as disk:
            if database == "sqlite":
                yield Place(database, f"sqlite:///{disk / 'detent.db'}", disk)
                return
            # The process that keeps the servers makes its folder there.
            with mock.patch.dict(os.environ, TMPDIR=str(disk)), places.private(database, disk) as here:
                assert Path(servers.Control.read(here.control).folder).is_relative_to(disk)
                yield here

    def inject(self) -> str:
        seconds = self.chance.uniform(1, 4)
        ballast = self.place.folder / "ballast"
        _fill(ballast)
        time.sleep(seconds)
        ballast.unlink()
        if isinstance(self.place, ServerPlace):
            servers.start(self.place.control)
        return f"the disk was full for {seconds:.1f} s"


class Bouncer(ServerFault):
    """PgBouncer is killed and started again."""

    name = "pgbouncer"
    databases = ("postgres",)
    mean = 2.0

    @classmethod
    def open_place(cls, database: str, folder: Path) -> AbstractContextManager[Place]:
        return places.bounced(folder)

    def inject(self) -> str:
        away = self.chance.uniform(0, 1.5)
        servers.stop(self.place.control, crash=True)
        time.sleep(away)
        servers.start(self.place.control)
        return f"PgBouncer was away for {away:.2f} s"


class Network(Fault):
    """Connections are cut, delayed, held up, or lose the answers of the server."""

    name = "network"
    mean = 1.0
    place: ProxiedPlace

    @classmethod
    def open_place(cls, database: str, folder: Path) -> AbstractContextManager[Place]:
        return places.proxied(database, folder)

    def inject(self) -> str:
        proxy = self.place.proxy
        kind = self.chance.choice(["cut", "delay", "hold", "swallow"])
        seconds = self.chance.uniform(0.2, 2.5)
        match kind:
            case "cut":
                proxy.cut()
            case "delay":
                proxy.delay(0.1)
            case "hold":
                proxy.hold()
            case "swallow":
                proxy.swallow()
        time.sleep(seconds)
        if kind == "swallow":
            proxy.cut()  # an answer that was lost does not come later
        proxy.pass_through()
        return f"{kind} for {seconds:.1f} s"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # a session that has ended meanwhile
        os.kill(pid, number)


def _family(pid: int) -> list[int]:
    """A process and all that it started, itself first; nothing where it has ended meanwhile."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(one for child in children for one in _family(int(child)))]


@contextmanager
def _small_disk(size: int) -> Iterator[Path]:
    disk = Path(tempfile.mkdtemp(prefix="chaos-"))
    options = f"size={size}m,mode=0755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
        disk.rmdir()


def _fill(file: Path) -> None:
    """Write until nothing more fits."""
    with file.open("wb", buffering=0) as ballast:
        size = 1 << 20
        while size:
            try:
                ballast.write(bytes(size))
            except OSError:
                size //= 2
