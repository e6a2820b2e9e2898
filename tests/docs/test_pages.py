"""The pages are listed, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "adr").glob("0*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_lists_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in sorted(DOCS.glob("*.md")) if f"](docs/{page.name})" not in readme] == []


def test_the_list_of_decisions_is_complete_and_has_their_titles() -> None:
    listed = (DOCS / "adr" / "README.md").read_text()
    titles = {page: page.read_text().splitlines()[0].removeprefix("# ") for page in DECISIONS}
    rows = {page: title.split(". ", 1) for page, title in titles.items()}
    missing = [
        title
        for page, (number, title) in rows.items()
        if f"| {number} | [{title}]({page.name}) |" not in listed
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    broken = [
        link for link in LINK.findall(CODE.sub("", page.read_text())) if not _leads_somewhere(page, link)
    ]
    assert broken == []


def _leads_somewhere(page: Path, link: str) -> bool:
    if "://" in link:
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = HEADING.findall(CODE.sub("", page.read_text()))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}
