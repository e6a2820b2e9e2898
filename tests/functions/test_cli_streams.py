"""`detent stream`, `detent publish` and `--follow`: what operators type."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

import detent
from detent import step, workflow
from detent.cli.main import detent as cli
from detent.errors import InvalidState, RunNotFound
from tests.functions.world import Apps, eventually, failure, result, wait_parked


@step
def speak() -> None:
    for word in ("to ", "be"):
        detent.append("words", word)


@workflow(id="cli-streams")
def flow() -> None:
    speak()
    detent.publish("progress", {"done": 1})
    detent.receive("go on")
    detent.append("words", {"the": "end"})
    detent.publish("progress", "done")


def cli_run(*args: str, fails: bool = False) -> str:
    done = CliRunner().invoke(cli, args, catch_exceptions=False)
    assert (done.exit_code != 0) == fails, done.output
    return done.output


@pytest.fixture
def run(apps: Apps) -> detent.Run[Any]:
    """A run that waits, after it has appended and published."""
    found = apps(flow, speak).options(id="r-1").start(flow)
    wait_parked(found)
    return found


def test_a_stream_is_printed_as_it_is(run: detent.Run[Any], url: str) -> None:
    assert cli_run("stream", url, "r-1", "words") == "to \nbe\n"
    assert cli_run("stream", url, "r-1", "words", "--raw") == "to be"
    assert cli_run("stream", url, "r-1", "words", "--after", "1") == "be\n"
    assert cli_run("stream", url, "r-1") == "words: entries 1 to 2\n"
    assert json.loads(cli_run("stream", url, "r-1", "--json")) == [{"name": "words", "first": 1, "last": 2}]
    [first, _] = [json.loads(line) for line in cli_run("stream", url, "r-1", "words", "--json").splitlines()]
    assert (first["position"], first["value"], first["step"], first["attempt"]) == (1, "to ", "speak", 1)


@pytest.mark.parametrize(
    ("args", "last"),
    [
        (("stream", "r-1", "words", "--follow"), '{"the":"end"}'),
        (("publish", "r-1", "progress", "--follow"), "done"),
        (("history", "r-1", "--follow"), "run finished"),
    ],
)
def test_following_ends_with_the_run(
    run: detent.Run[Any], url: str, args: tuple[str, ...], last: str
) -> None:
    printed: list[str] = []
    reader = threading.Thread(target=lambda: printed.append(cli_run(args[0], url, *args[1:])))
    reader.start()
    run.send("go on")
    reader.join(60)
    assert last in printed[0].splitlines()[-1]


def test_a_value_is_published_from_a_shell(run: detent.Run[Any], url: str) -> None:
    assert json.loads(cli_run("publish", url, "r-1", "progress")) == {"done": 1}
    cli_run("publish", url, "r-1", "progress", '{"done": 2}')
    assert run.published("progress") == {"done": 2}
    document = json.loads(cli_run("publish", url, "r-1", "words", "!", "--append", "--json"))
    assert document == {"run": "r-1", "name": "words", "value": "!", "appended": True}
    assert list(run.stream("words", follow=False)) == ["to ", "be", "!"]
    run.send("go on")
    result(run)
    assert run.published("progress") == "done"


@pytest.mark.parametrize(
    "args",
    [
        ("publish", "r-1", "unknown"),
        ("publish", "r-1", "progress", "1", "--follow"),
        ("publish", "r-1", "words", "--append"),
        ("publish", "r-2", "progress", "1"),
        ("stream", "r-2", "words"),
    ],
)
def test_what_cannot_be_done_is_a_failure(run: detent.Run[Any], url: str, args: tuple[str, ...]) -> None:
    cli_run(args[0], url, *args[1:], fails=True)


WRITES: list[Callable[[detent.Run[Any]], None]] = [
    lambda run: run.publish("progress", 1),
    lambda run: run.append("words", 1),
]


@pytest.mark.parametrize("write", WRITES, ids=["publish", "append"])
def test_a_run_that_is_over_takes_no_values(
    run: detent.Run[Any], write: Callable[[detent.Run[Any]], None]
) -> None:
    run.send("go on")
    result(run)
    with pytest.raises(InvalidState):
        write(run)
    run.delete()
    with pytest.raises(RunNotFound):
        write(run)


@pytest.mark.parametrize("write", WRITES, ids=["publish", "append"])
def test_a_workflow_cannot_write_for_another_run(
    apps: Apps, run: detent.Run[Any], write: Callable[[detent.Run[Any]], None]
) -> None:
    @workflow
    def meddling() -> None:
        write(run)

    error = failure(apps(meddling).start(meddling))
    assert isinstance(error, InvalidState)
    assert "in a step" in str(error)


def test_async_code_publishes_from_outside(run: detent.Run[Any], url: str) -> None:
    async def main() -> None:
        app = await detent.AsyncApp(url).open(worker=False)
        other = await app.run("r-1")
        await other.publish("progress", 7)
        await other.append("words", "?")
        await app.close()

    asyncio.run(main())
    eventually(lambda: run.published("progress") == 7)
    assert list(run.stream("words", follow=False))[-1] == "?"
