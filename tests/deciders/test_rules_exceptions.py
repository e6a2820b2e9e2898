"""What user code raises: recorded as a failure, whatever it is; no worker and no loop ends with it."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import detent
from detent import EffectContext
from detent.errors import ReservedException, UnreadableEvent
from tests.deciders.orders import (
    AT_ONCE,
    Fail,
    Log,
    Mail,
    Ring,
    Say,
    Undecidable,
    letters,
    log,
    pending_inputs,
    texts,
)
from tests.functions.world import Apps, eventually

DEAD = ("failed", "dead_letter")
AGAIN = ("failed", "reattempted_by_exception")
RESERVED = [StopIteration("no more"), StopAsyncIteration("no more"), SystemExit(3)]
METHODS = ["initial", "decide", "evolve", "is_terminal"]


def failing(method: str, error: BaseException, *, only: type | None = None) -> type[Log]:
    """A log in which a method raises; `only` for an input or an event of that class."""

    def raises(self: Log, *given: Any) -> Any:
        if only is None or any(isinstance(one, only) for one in given):
            raise error
        return getattr(Log, method)(self, *given)

    return type("Log", (Log,), {method: raises})


# -- Effects -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", RESERVED, ids=repr)
def test_an_effect_that_raises_what_python_reserves_is_tried_again_and_given_up(
    apps: Apps, error: BaseException
) -> None:
    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        raise error

    app = apps(decider := log(on_mail, retry=AT_ONCE))
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: letters(app, "log:l", "effect") == [AGAIN, AGAIN, DEAD], "it is a dead letter")
    [letter] = app.dead_letters()
    assert letter.error is not None
    assert letter.error.type.endswith("ReservedException")
    assert repr(error) in letter.error.message
    assert "handle of decider 'log'" in letter.error.message


@pytest.mark.parametrize("error", RESERVED, ids=repr)
def test_an_async_effect_that_raises_what_python_reserves_ends_no_loop(
    apps: Apps, error: BaseException
) -> None:
    class Failing(Log):
        type = "log"
        retry = AT_ONCE

        async def handle(self, effect: Mail, ctx: EffectContext) -> Any:
            await asyncio.sleep(0)
            if effect.text == "good":
                return Say(effect.log, "sent")
            raise error

    app = apps(Failing)
    app.execute(Failing, Say("l", "a", mails=["bad"]))
    eventually(lambda: letters(app, "log:l", "effect") == [AGAIN, AGAIN, DEAD], "it is a dead letter")
    [letter] = app.dead_letters()
    assert letter.error is not None
    assert repr(error) in letter.error.message
    app.execute(Failing, Say("m", "a", mails=["good"]))
    eventually(lambda: texts(app, Failing, "m") == ["a", "sent"], "the worker goes on")


# -- Decisions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", RESERVED, ids=repr)
@pytest.mark.parametrize("method", METHODS)
def test_the_caller_gets_an_error_where_a_decider_raises_what_python_reserves(
    apps: Apps, method: str, error: BaseException
) -> None:
    app = apps(decider := failing(method, error), worker=False)
    with pytest.raises(ReservedException) as caught:
        app.execute(decider, Say("l", "a"))
    assert repr(error) in str(caught.value)
    assert caught.value.__cause__ is error
    assert app.events(decider, "l") == []


@pytest.mark.parametrize("error", RESERVED, ids=repr)
def test_the_caller_gets_an_error_on_asyncio_too(url: str, error: BaseException) -> None:
    async def main() -> None:
        async with detent.AsyncApp(url, include=[decider := failing("decide", error, only=Fail)]) as app:
            good, bad = await asyncio.gather(
                app.execute(decider, Say("l", "a")), app.execute(decider, Fail("l")), return_exceptions=True
            )
            assert isinstance(good, list)
            assert isinstance(bad, ReservedException)

    asyncio.run(main())


@pytest.mark.parametrize("error", RESERVED, ids=repr)
def test_a_timer_and_an_inbox_whose_decision_raises_what_python_reserves_are_tried_again(
    apps: Apps, error: BaseException
) -> None:
    app = apps(decider := failing("decide", error, only=(Ring, Fail)))  # type: ignore[arg-type]
    app.execute(decider, Say("l", "a", timers={"k": 0.0}))
    app.enqueue_input(decider, Fail("m"))
    for run_id, kind in (("log:l", "timer"), ("log:m", "inbox")):
        eventually(lambda: len(letters(app, run_id, kind)) > 1, f"the {kind} is tried again")  # noqa: B023
        assert letters(app, run_id, kind)[0] == AGAIN
    assert pending_inputs(app) == 1
    assert app.execute(decider, Say("l", "the worker goes on"))


def test_an_upcaster_that_exits_makes_an_event_unreadable(apps: Apps) -> None:
    def leave(data: dict[str, Any]) -> dict[str, Any]:
        raise SystemExit(3)

    writer = apps(Log, worker=False)
    writer.execute(Log, Say("l", "a"))
    reader = apps(log(old=detent.upcaster("Said", version=1)(leave)), worker=False)
    with pytest.raises(UnreadableEvent, match="SystemExit"):
        reader.execute("log", Say("l", "b"))  # type: ignore[arg-type]


# -- The error hook ------------------------------------------------------------------------------------


@pytest.fixture
def errors_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.ERROR, logger="detent.worker"):
        yield caplog


@pytest.mark.parametrize("raised", [ValueError("the hook is broken"), SystemExit(1)], ids=repr)
def test_an_error_hook_that_raises_does_not_change_what_becomes_of_an_effect(
    apps: Apps, errors_logged: pytest.LogCaptureFixture, raised: BaseException
) -> None:
    seen: list[Any] = []

    def hook(error: BaseException, ctx: detent.Context) -> None:
        seen.append((type(error), ctx))
        raise raised

    def on_mail(effect: Mail, ctx: EffectContext) -> Any:
        raise Undecidable("no mail server")

    app = apps(decider := log(on_mail, retry=AT_ONCE), on_error=hook)
    app.execute(decider, Say("l", "a", mails=["one"]))
    eventually(lambda: letters(app, "log:l", "effect") == [AGAIN, AGAIN, DEAD], "it is a dead letter")
    eventually(lambda: len(seen) == 3, "the hook was told of each attempt")
    assert {error for error, _ in seen} == {Undecidable}
    assert [(ctx.decider, ctx.instance, ctx.attempt) for _, ctx in seen] == [
        ("log", "l", 1),
        ("log", "l", 2),
        ("log", "l", 3),
    ]
    eventually(
        lambda: sum("on_error hook failed" in record.message for record in errors_logged.records) == 3,
        "each failure of the hook was logged",
    )
    assert all(record.exc_info for record in errors_logged.records if "on_error" in record.message)
    assert not [record for record in errors_logged.records if "broke" in record.message]


def test_the_error_hook_hears_of_timers_and_inboxes(apps: Apps) -> None:
    seen: list[tuple[str, str]] = []

    def hook(error: BaseException, ctx: detent.Context) -> None:
        seen.append((ctx.run.id, ctx.name))

    app = apps(decider := failing("decide", Undecidable("no"), only=(Ring, Fail)), on_error=hook)  # type: ignore[arg-type]
    app.execute(decider, Say("l", "a", timers={"k": 0.0}))
    app.enqueue_input(decider, Fail("m"))
    eventually(lambda: {("log:l", "Ring"), ("log:m", "inbox")} <= set(seen), "it was told of both")
