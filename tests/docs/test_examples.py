"""Every Python block of the README and of the docs runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from detent.app.settings import Options, Settings
from tests.prefork import python

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


ONE_PROGRAM = "<!-- the blocks of this page are one program -->"


def _blocks() -> list[tuple[str, str]]:
    """Each block is a program; on pages that say so, all of them together are one."""
    found = []
    for page in PAGES:
        text, name = page.read_text(), str(page.relative_to(ROOT))
        blocks = [match[1] for match in BLOCK.finditer(text)]
        if ONE_PROGRAM in text:
            found.append((name, "\n".join(blocks)))
        else:
            found += [(f"{name}-{number}", code) for number, code in enumerate(blocks, start=1)]
    return found


@pytest.mark.parametrize(("name", "code"), _blocks(), ids=[name for name, _ in _blocks()])
def test_a_documented_example_runs_as_written(name: str, code: str, tmp_path: Path) -> None:
    example = tmp_path / "test_example.py"
    example.write_text(code)
    if "def test_" in code:
        command = [sys.executable, "-m", "pytest", "-q", str(example)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    else:
        done = python(str(example), cwd=tmp_path, env=os.environ, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readmes_first_example_runs_on_every_database(database_url: str, tmp_path: Path) -> None:
    code = BLOCK.search((ROOT / "README.md").read_text())
    assert code is not None
    example = tmp_path / "shop.py"
    options = "" if database_url.startswith("sqlite") else ", migrate=True"
    example.write_text(code[1].replace('"sqlite:///shop.db"', repr(database_url) + options))
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["shipped 42 receipt-42", "receipt-42"]


def test_every_setting_and_option_is_documented() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    names = [*Settings.__struct_fields__, *Options.__struct_fields__]
    assert [name for name in names if f"| `{name}` |" not in page] == []
