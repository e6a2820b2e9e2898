"""docs/architecture.md is the map: it names every file, and every folder."""

import re
from pathlib import Path

import detent

PACKAGE = Path(detent.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_page_names_every_file_of_the_package() -> None:
    named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", PAGE.read_text()))
    files = {path.name for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    assert files - named == set()
    assert named - files - {"test_architecture.py", "conftest.py"} == set()


def test_the_page_names_no_path_that_does_not_exist() -> None:
    root = PACKAGE.parents[1]
    paths = re.findall(r"`((?:[\w]+/)+\w+\.py)", PAGE.read_text())
    assert paths
    assert [path for path in paths if not (PACKAGE / path).exists() and not (root / path).exists()] == []
