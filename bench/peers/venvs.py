"""An environment for each peer, outside of the repository, made when it is first wanted.

What is installed is pinned in versions.txt.  What cannot be installed is not left out: the reason is kept,
and shown where its figures would be.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import servers

VERSIONS = Path(__file__).with_name("versions.txt")
INSTALL_SECONDS = 600


@dataclass(frozen=True)
class Pins:
    """What one peer consists of."""

    pip: tuple[str, ...]
    npm: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()

    @property
    def stamp(self) -> str:
        return "\n".join([*self.pip, *self.npm, sys.version])


class NotInstalled(Exception):
    """A peer that cannot be measured here; the message says why, in one line."""


def pins() -> dict[str, Pins]:
    """The peers of versions.txt."""
    found = {}
    for line in VERSIONS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, wanted = line.partition(": ")
            found[name] = _pins(wanted.split())
    return found


def _pins(parts: list[str]) -> Pins:
    def of(source: str) -> tuple[str, ...]:
        return tuple(part.removeprefix(source) for part in parts if part.startswith(source))

    return Pins(
        tuple(part for part in parts if not part.startswith(("npm:", "apt:"))), of("npm:"), of("apt:")
    )


def cache() -> Path:
    """The folder of all environments; BENCH_CACHE names another one."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BENCH_CACHE") or Path(base) / "detent-bench")


def python_of(name: str) -> Path:
    """The Python of a peer's environment, which is made if there is none for these pins."""
    wanted, folder = pins()[name], cache() / name
    for program in wanted.apt:
        _ensure_program(program)
    stamp = folder / "installed.txt"
    if stamp.is_file() and stamp.read_text() == wanted.stamp:
        return folder / "bin" / "python"
    print(f"making an environment for {name} in {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _run([sys.executable, "-m", "venv", str(folder)], "venv")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *wanted.pip], "pip")
    if wanted.npm:
        if shutil.which("npm") is None:
            raise NotInstalled("needs npm, which is not here")
        _run(["npm", "install", "--silent", "--prefix", str(folder / "npm"), *wanted.npm], "npm")
    stamp.write_text(wanted.stamp)
    return folder / "bin" / "python"


def _ensure_program(name: str) -> None:
    """A program of the machine; installed, but not started as a service, where we may."""
    if shutil.which(name):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotInstalled(f"needs {name}, which is not here (Debian: apt-get install {name})")
    with servers._services_kept_from_starting():
        _run(["apt-get", "-qq", "install", "-y", "--no-install-recommends", name], "apt-get")


def version_of(name: str) -> str:
    """The versions that its environment holds, as far as they are pinned exactly."""
    wanted = pins()[name]
    exact = [part for part in wanted.pip if "==" in part]
    return " ".join([part.replace("==", " ") for part in exact] + list(wanted.npm))


def _run(argv: list[str], what: str) -> None:
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
            env=os.environ | {"SCARF_ANALYTICS": "false"},
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{what} took more than {INSTALL_SECONDS} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        last = (errors or done.stderr.splitlines() or [f"{what} failed"])[-1]
        raise NotInstalled(f"{what}: {_short(last)} (here: {' '.join(platform.libc_ver())})")


def _short(line: str) -> str:
    line = line.removeprefix("ERROR: ").partition(" (from versions")[0]
    return line if len(line) <= 200 else f"{line[:197]}..."
