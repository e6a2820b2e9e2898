"""What was committed although nobody heard of it: a connection cut between the commit and its answer."""

from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from detent import App
from detent.errors import DatabaseUnavailable
from detent.stores.store import Store
from tests.acceptance.programs import crowd, sleeping
from tests.acceptance.support import World, all_finish, settled_once

pytestmark = pytest.mark.acceptance

RUNS = 20
CUT = DatabaseUnavailable("the database", "the connection was cut before the answer came")


@pytest.mark.parametrize("verb", ["claim", "journal"])
def test_what_was_claimed_unheard_is_executed(world: World, verb: str) -> None:
    """Leased to a worker that does not know of it, it would wait for that worker's end."""
    app = world.app(sleeping)
    calls = [(0.2,)] * RUNS
    runs = [*app.start_many(sleeping.sleeps, calls), *app.start_many(sleeping.asleeps, calls)]
    real = getattr(Store, verb)
    cut: list[Any] = []

    def cut_off_once(store: Store, *args: Any, **kwargs: Any) -> Any:
        answer = real(store, *args, **kwargs)
        if answer and not cut:
            cut.append(answer)
            raise CUT
        return answer

    with mock.patch.object(Store, verb, cut_off_once), App(world.url, include=[sleeping]):
        all_finish(world, app, len(runs))
    assert cut
    settled_once(app, len(runs))


def test_what_was_started_unheard_is_executed(world: World) -> None:
    """Who started it ran out of patience, and was told that the database is away: it was not."""
    app = world.app(crowd)
    real = Store.apply

    def cut_off(store: Store, *args: Any, **kwargs: Any) -> Any:
        real(store, *args, **kwargs)
        raise CUT

    impatient = App(world.url, include=[crowd], patience=timedelta(seconds=0.1))
    with impatient:
        with (
            mock.patch.object(Store, "apply", cut_off),
            mock.patch.object(Store, "already_applied", side_effect=CUT),
            pytest.raises(DatabaseUnavailable),
        ):
            impatient.start(crowd.one_step, 1)
        all_finish(world, app, 1)
    settled_once(app, 1)
