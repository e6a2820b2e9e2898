"""Log lines of user code inside of a run say which run, step and attempt they are from."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import LogFields, Retry, log_fields, step, workflow
from detent.cli.logs import JsonLines, Lines
from tests.functions.world import Apps, result

log = logging.getLogger("shop")


class Kept(logging.Handler):
    """Formats each record where it is written, as a stream does."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def attached() -> Iterator[Any]:
    added: list[logging.Handler] = []

    def attach(formatter: logging.Formatter) -> Kept:
        handler = Kept(formatter)
        log.addHandler(handler)
        added.append(handler)
        return handler

    level = log.level
    log.setLevel(logging.INFO)
    yield attach
    log.setLevel(level)
    for handler in added:
        log.removeHandler(handler)


@step(retry=Retry(attempts=2, first=timedelta(milliseconds=1)))
def charge(ctx: detent.Context) -> None:
    log.info("charging")
    if ctx.attempt == 1:
        raise ConnectionError


@step
async def acharge() -> None:
    await asyncio.sleep(0)
    log.info("charging")


@workflow
def flow() -> None:
    log.info("begins")
    charge()


@workflow
async def aflow() -> None:
    log.info("begins")
    await acharge()


@pytest.mark.parametrize("chosen", [flow, aflow], ids=["def", "async def"])
def test_a_filter_gives_log_records_the_fields_of_their_run(apps: Apps, attached: Any, chosen: Any) -> None:
    kept = attached(logging.Formatter("%(run)s %(type)s %(step)s %(attempt)s %(message)s"))
    kept.addFilter(LogFields())
    run = apps(chosen, charge, acharge).start(chosen)
    result(run)
    log.info("outside")
    charges = [f"charge {attempt}" for attempt in (1, 2)] if chosen is flow else ["acharge 1"]
    assert kept.lines == [
        f"{run.id} {chosen.name} main 1 begins",
        *(f"{run.id} {chosen.name} {charge} charging" for charge in charges),
        "None None None None outside",
    ]


def test_json_lines_have_the_fields_of_user_code_and_of_failures(apps: Apps, attached: Any) -> None:
    kept = attached(JsonLines())
    run = apps(flow, charge).start(flow)
    result(run)
    log.info("outside")
    lines = [json.loads(line) for line in kept.lines]
    assert [(line.get("run"), line.get("type"), line.get("step"), line.get("attempt")) for line in lines] == [
        (run.id, "flow", "main", 1),
        (run.id, "flow", "charge", 1),
        (run.id, "flow", "charge", 2),
        (None, None, None, None),
    ]
    assert not {"run", "step"} & lines[-1].keys()


def test_lines_for_people_name_the_run(apps: Apps, attached: Any) -> None:
    kept = attached(Lines())
    run = apps(flow, charge).start(flow)
    result(run)
    log.info("outside")
    assert kept.lines[0].endswith(f"begins  (run={run.id} step=main attempt=1)")
    assert kept.lines[-1].endswith("outside")


def test_there_are_no_fields_outside_of_runs() -> None:
    assert log_fields() == {}
