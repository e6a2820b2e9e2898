"""Templates: everything is escaped, nothing is inline, and live parts are known by their ids.

A template marks a part that may change with `{% call live("header") %}…{% endcall %}`; the part is one
element with that id.  Parts may contain parts.  Rendering a page notes them all, so that the feed can compare
two renderings and send the smallest parts that differ.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from . import text

HERE = Path(__file__).parent
STATIC = {
    "detent.css": "text/css; charset=utf-8",
    "detent.js": "text/javascript; charset=utf-8",
    "theme.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_SAFE_ID = re.compile(r"(?=.*[^.])[A-Za-z0-9_.:@-]{1,200}")
_TIME = re.compile(r"(<time [^>]*>)[^<]*</time>")  # its words change while nothing happens


@dataclass(slots=True)
class Part:
    """A live part of a page."""

    html: str
    skeleton: str  # the same with marks for the parts inside, and without the words of times
    parent: str | None = None  # the part that it is inside of


class Parts:
    """The live parts of one rendering."""

    def __init__(self) -> None:
        self.found: dict[str, Part] = {}
        self._inside: list[list[str]] = []
        # A mark stands for a part until the part around it is complete.  No text of a user can contain one.
        self._nonce = secrets.token_hex(8)
        self._mark = re.compile(f"<{self._nonce} ([a-z0-9-]+)>")

    def live(self, name: str, caller: Callable[[], str]) -> Markup:
        """Note a part; called by templates."""
        self._inside.append([])
        marked = str(caller())
        children = self._inside.pop()
        html = self._mark.sub(lambda match: self.found[match[1]].html, marked)
        skeleton = _TIME.sub(r"\1</time>", marked.replace(self._nonce, ""))
        self.found[name] = Part(html, skeleton)
        for child in children:
            self.found[child].parent = name
        if not self._inside:
            return Markup(html)
        self._inside[-1].append(name)
        return Markup(f"<{self._nonce} {name}>")

    @property
    def version(self) -> str:
        """Differs if a part differs."""
        whole = "\0".join(f"{name}\0{part.skeleton}" for name, part in self.found.items())
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    def whole(self) -> dict[str, str]:
        """All parts that are not inside of others."""
        return {name: part.html for name, part in self.found.items() if part.parent is None}

    def changes(self, before: Parts) -> dict[str, str]:
        """The smallest parts that differ from an earlier rendering of the same page."""
        changed = {
            name
            for name, part in self.found.items()
            if name not in before.found or before.found[name].skeleton != part.skeleton
        }
        return {
            name: self.found[name].html
            for name in self.found
            if name in changed and not self._in(name, changed)
        }

    def _in(self, name: str, changed: set[str]) -> bool:
        """Whether a part is inside of one that is sent as a whole."""
        parent = self.found[name].parent
        return parent is not None and (parent in changed or self._in(parent, changed))


class Renderer:
    """Renders pages."""

    def __init__(self) -> None:
        self._environment = _environment()
        self._versions = {
            name: hashlib.sha256((HERE / "static" / name).read_bytes()).hexdigest()[:10] for name in STATIC
        }

    def page(
        self, template: str, context: Mapping[str, Any], *, root: str, now: datetime
    ) -> tuple[str, Parts]:
        """The HTML of a page, and its live parts."""
        parts = Parts()
        links = Links(root)
        html = self._environment.get_template(template).render(
            **context,
            live=parts.live,
            links=links,
            root=root,
            now=now,
            static=lambda name: f"{root}/static/{name}?v={self._versions[name]}",
            time=lambda moment: time_html(moment, now),
        )
        return html.replace("@@VERSION@@", parts.version, 1), parts


@cache
def _environment() -> Environment:
    """The templates of this process.  Each is compiled when it is first used: 2 to 50 ms of CPU."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,  # a template does not change while the process runs
    )
    environment.filters |= {
        "visible": text.visible,
        "block": text.block,
        "duration": text.duration,
        "number": text.number,
        "short_type": text.short_type,
        "json": json_html,
        "line": line_html,
        "name": name_html,
    }
    environment.globals |= {"count": text.count, "spark": spark}
    return environment


def compile_templates() -> None:
    """Compile all templates now, so that no viewer waits for it; `detent dashboard` does this."""
    for name in _environment().list_templates():
        _environment().get_template(name)


class Links:
    """Addresses of pages, below the path that the dashboard is mounted at."""

    def __init__(self, root: str) -> None:
        self._root = root

    def to(self, path: str, **query: Any) -> str:
        """The address of a page."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self._root}/{path}" + (f"?{urlencode(given)}" if given else "")

    def run(self, id: str, **query: Any) -> str:
        """The page of a run.  An id that a browser would take for a part of the path stands in the query."""
        if _SAFE_ID.fullmatch(id):
            return self.to(f"runs/{quote(id, safe=':@')}", **query)
        return self.to("run", id=id, **query)

    def act(self, verb: str, **query: Any) -> str:
        return self.to(f"act/{verb}", **query)

    def runs(self, given: Mapping[str, str], **changed: Any) -> str:
        """The list of runs with these filters, some of them changed; back on the first page."""
        return self.to("runs", **{**{k: v for k, v in given.items() if k != "cursor"}, **changed})


def time_html(moment: datetime | None, now: datetime) -> Markup:
    """A time in words; the exact one is shown on hover, in the zone of the viewer."""
    if moment is None:
        return Markup('<span class="none">–</span>')
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        text.iso(moment), text.exact(moment), text.ago(moment, now)
    )


def name_html(value: Any, longest: int = 120) -> Markup:
    """A name from user data: isolated, so that it cannot change the direction of the text around it."""
    return Markup("<bdi>{}</bdi>").format(text.visible(value, longest))


def spark(values: Sequence[float | None]) -> list[tuple[int, float]]:
    """Bars of a sparkline: place and height, in percent of the largest."""
    known = [value for value in values if value is not None]
    most = max(known, default=0) or 1
    return [(at, round((value or 0) / most * 100, 1)) for at, value in enumerate(values)]


# -- JSON as HTML --------------------------------------------------------------------------------------


def json_html(value: Any) -> Markup:
    """A JSON value, indented and coloured, cut where it becomes too long for a page."""
    length, pieces = 0, []
    for kind, piece in _tokens(value, 0):
        length += len(piece)
        if length > text.LONGEST:
            pieces.append(Markup('<span class="cut">… cut; the API has all of it</span>'))
            break
        pieces.append(Markup('<span class="{}">{}</span>').format(kind, piece) if kind else escape(piece))
    return Markup("").join(pieces)


def line_html(value: Any) -> Markup:
    """A value in a list: a text as it is, anything else as JSON on one line; cut after 1,000 characters."""
    if not isinstance(value, str):
        value = msgspec.json.encode(value, enc_hook=str).decode()
    return Markup("<bdi>{}</bdi>").format(text.visible(value, 1_000))


def _tokens(value: Any, depth: int) -> Iterator[tuple[str, str]]:
    inner, outer = "\n" + "  " * (depth + 1), "\n" + "  " * depth
    if depth > 40:
        yield "cut", "…"
    elif isinstance(value, dict) and value:
        for number, (key, item) in enumerate(value.items()):
            yield "", ("{" if number == 0 else ",") + inner
            yield "k", _quoted(str(key))
            yield "", ": "
            yield from _tokens(item, depth + 1)
        yield "", outer + "}"
    elif isinstance(value, list | tuple) and value:
        for number, item in enumerate(value):
            yield "", ("[" if number == 0 else ",") + inner
            yield from _tokens(item, depth + 1)
        yield "", outer + "]"
    elif isinstance(value, dict | list | tuple):
        yield "", "{}" if isinstance(value, dict) else "[]"
    elif isinstance(value, str):
        yield "s", _quoted(value)
    elif value is None or isinstance(value, bool):
        yield "w", {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, datetime):
        yield "s", f'"{text.iso(value)}"'
    else:
        yield "n", str(value)


def _quoted(value: str) -> str:
    """A string as JSON writes it, but with line ends kept, as people read it."""
    return '"' + text.visible(value.replace("\\", "\\\\").replace('"', '\\"'), 4_000) + '"'
