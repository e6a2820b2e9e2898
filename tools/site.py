"""The hook of `mkdocs.yml`: pages outside `docs/` become pages of the site.

README.md is the home page; the README of the examples and the changelog are pages, too.  Links between
these files and the pages in `docs/` are rewritten.  Links to source files are shown as plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    source = next((source for source, made in PAGES.items() if made == uri), f"docs/{uri}")

    def rewritten(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        if "://" in target or target.startswith("#"):
            return link[0]
        path, _, anchor = target.partition("#")
        found = (ROOT / source).parent.joinpath(path).resolve().relative_to(ROOT).as_posix()
        made = PAGES.get(found) or (found.removeprefix("docs/") if found.startswith("docs/") else None)
        if made is None:
            return text
        up = "../" * uri.count("/")
        return f"[{text}]({up}{made}{'#' * bool(anchor)}{anchor})"

    parts = CODE.split(markdown)  # text and code blocks in turn
    parts[::2] = [LINK.sub(rewritten, text) for text in parts[::2]]
    return "".join(parts)
