"""How tests declare classes of workflows, and read what they became."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

import detent
from detent import DefinitionError, Retry, Workflow, step
from detent.definitions.blueprint import blueprint


class Maker(Protocol):
    """`step` and `task` with options that no type checker would accept."""

    def __call__(self, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...


step_ = cast(Maker, step)


def edges(cls: Any) -> set[tuple[str, str]]:
    """Who comes before whom."""
    return {(needed, name) for name, needs in blueprint(cls).graph.needs.items() for needed in needs}


def chain(*names: str) -> set[tuple[str, str]]:
    return set(pairwise(names))


def refusal(declare: Callable[[], Any]) -> str:
    with pytest.raises(DefinitionError) as caught:
        declare()
    return str(caught.value)


def assert_names_its_line(message: str, node: str) -> None:
    """A refusal says which node, and where it stands in the file of the test."""
    assert node in message
    place = re.search(r"\((.+):(\d+)\)", message)
    assert place, f"no source line in {message!r}"
    assert place[1] == inspect.stack()[1].filename
    lines = Path(place[1]).read_text().splitlines()
    around = lines[int(place[2]) - 1 : int(place[2]) + 8]
    assert any(line.strip().startswith(("@step", "@task", "def", "async def")) for line in around)


class Parent(Workflow):
    detent.job_options(queue="parents", priority=1)
    detent.on_exception(ValueError, action="skip")

    @step(wait=timedelta(minutes=5), retry=Retry(attempts=7), timeout=3.0)
    def first(self) -> str:
        return "the parent's"

    @step
    def second(self) -> None: ...

    @detent.cancel_if
    def closed(self) -> bool:
        return False
