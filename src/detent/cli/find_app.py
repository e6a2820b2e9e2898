"""Finds the app that the user named: `shop:app`, or a database URL."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from ..aio import AsyncApp
from ..app.app import App
from ..errors import UnknownDefinition
from ..stores.addresses import is_conninfo, shown
from .command import Failure

_PATIENCE = timedelta(seconds=3)  # a person waits
_KINDS = {
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
}


@dataclass(frozen=True)
class Target:
    """An app, and the reference by which the user named it."""

    app: App
    reference: str  # safe to print: without a password
    definitions: bool = True  # False for a bare URL: it says nothing about code
    own: AsyncApp | None = None  # where the app is one for asyncio


@contextmanager
def opened(reference: str) -> Iterator[App]:
    """The app, open without a worker for the duration of one command."""
    target = find(reference)
    app = target.app
    if not target.definitions:
        require_file(app.engine.url)
    app.engine.adjust(patience=_PATIENCE)
    try:
        yield app.open()
    except UnknownDefinition as error:
        if target.definitions:
            raise
        raise Failure(
            f"this needs the code of {error.name!r}; give MODULE:APP, not a database URL"
        ) from error
    finally:
        app.close()


def find(reference: str) -> Target:
    """The app of `MODULE:APP` or of a URL, not opened."""
    if "://" in reference or reference.startswith("sqlite:") or is_conninfo(reference):
        return _of_url(reference)
    module_name, colon, path = reference.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        better = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise Failure(f"{module_name!r} is a file; write the module: {better}:{path or 'app'}")
    module = _imported(module_name)
    if not colon or not path:
        raise Failure(f"{reference!r} does not name an app; {_apps_of(module)}")
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise Failure(f"module {module_name!r} has no {path!r}; {_apps_of(module)}")
        found = getattr(found, part)
    if isinstance(found, AsyncApp):
        return Target(found.sync, reference, own=found)
    if not isinstance(found, App):
        raise Failure(f"{reference} is {_a(type(found).__name__)}, not a detent.App; {_apps_of(module)}")
    return Target(found, reference)


def _of_url(url: str) -> Target:
    # A look must not create a database, nor change one: that is what `detent migrate` is for.
    return Target(App(url, migrate=False), shown(url), definitions=False)


def require_file(url: str) -> None:
    """Fail if the URL names a SQLite file that does not exist, because SQLite would create it."""
    path = sqlite_path(url)
    if path is not None and not path.exists():
        raise Failure(f"there is no database {path}; `detent migrate {shown(url)}` creates it")


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL."""
    if not url.startswith("sqlite:"):
        return None
    path = unquote(urlsplit(url).path.removeprefix("/"))
    return None if path in ("", ":memory:") else Path(path)


def kind(url: str) -> str:
    """The common name of the database of a URL."""
    if is_conninfo(url):
        return "PostgreSQL"
    return _KINDS.get(url.partition(":")[0].partition("+")[0], "database")


def place(url: str) -> str:
    """The location of the database of a URL, without a password."""
    if url.startswith("sqlite:"):
        path = sqlite_path(url)
        return "in memory" if path is None else str(path)
    if is_conninfo(url):
        return shown(url).strip()
    where = shown(url).partition("://")[2].partition("?")[0]
    return f"localhost{where}" if where.startswith("/") else where


def _imported(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Failure(
                f"there is no module {name!r} in this folder or among the installed packages; "
                f"run detent where {name.partition('.')[0]}.py is"
            ) from error
        raise Failure(f"importing {name!r} failed: {error}{_where(error)}") from error
    except Exception as error:
        raise Failure(f"importing {name!r} failed: {type(error).__name__}: {error}{_where(error)}") from error


def _where(error: BaseException) -> str:
    """The last line of the user's own code in a traceback."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _apps_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App | AsyncApp)]
    if not names:
        return f"{module.__name__} has no detent.App; create one: app = detent.App(url, include=[...])"
    return "it has " + " and ".join(f"{module.__name__}:{name}" for name in names)


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
