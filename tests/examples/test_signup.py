"""The signup: waits of days, one run per hero, the history of its executions."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

import detent
import signup
from detent.testing import TestingApp
from running import lines


@pytest.fixture
def app(url: str) -> Iterator[TestingApp]:
    for world in (signup.USERS, signup.MAILS, signup.BUSY):
        world.clear()
    with signup.make_app(url) as app:
        yield app


def _sign_up(app: TestingApp, **facts: bool) -> tuple[signup.User, detent.Run[None]]:
    user = signup.USERS[1] = signup.User(1, "ada@example.org", **facts)
    return user, app.options(hero=user).start(signup.SignupWorkflow)


def test_each_mail_goes_out_on_its_day(app: TestingApp) -> None:
    user, run = _sign_up(app)
    app.settle_down()
    assert signup.MAILS == ["welcome to ada@example.org"]

    app.clock.advance(timedelta(days=2) - timedelta(seconds=1))
    app.poke()
    app.settle_down()
    assert len(signup.MAILS) == 1  # never early

    app.clock.advance(seconds=1)
    app.poke()
    app.settle_down()
    assert signup.MAILS[1:] == ["reminder to ada@example.org"]
    assert run.refresh().state == "ready"
    assert not user.onboarded

    app.clock.advance(days=7)
    app.poke()
    app.settle_down()
    assert user.onboarded
    assert run.refresh().state == "finished"


def test_the_history_tells_of_every_attempt(app: TestingApp) -> None:
    signup.BUSY.append("reminder")
    _, run = _sign_up(app, onboarded=True)
    begin = app.clock()
    app.speedrun(run)
    assert lines(run) == [
        "send_welcome_email: completed (success)",
        "send_reminder: completed (reattempted)",
        "send_reminder: completed (success)",
        "complete_onboarding: skipped (skipped_by_condition)",
    ]
    assert [item.attempt for item in run.executions() if item.node == "send_reminder"] == [1, 2]
    assert app.clock() - begin == timedelta(days=9, minutes=10)


def test_whether_to_skip_is_asked_when_the_node_runs(app: TestingApp) -> None:
    user, run = _sign_up(app)
    app.settle_down()
    user.onboarded = True  # days after the run was started
    app.speedrun(run)
    assert lines(run)[-1] == "complete_onboarding: skipped (skipped_by_condition)"


def test_a_user_signs_up_once_at_a_time(app: TestingApp) -> None:
    user, run = _sign_up(app)
    with pytest.raises(detent.AlreadyRunning):
        app.options(hero=user).start(signup.SignupWorkflow)
    second = app.options(hero=user, allow_multiple=True).start(signup.SignupWorkflow)
    app.speedrun(run)
    app.speedrun(second)
    assert app.options(hero=user).start(signup.SignupWorkflow).state in ("ready", "performing")


def test_a_user_who_is_deleted_ends_the_run(app: TestingApp) -> None:
    _, run = _sign_up(app)
    app.settle_down()
    del signup.USERS[1]
    app.speedrun(run)
    assert run.state == "canceled"
    assert lines(run)[-1] == "send_reminder: canceled (canceled_by_missing_hero)"
