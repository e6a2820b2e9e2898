"""Chains of runs and maps with a limit, while workers are killed."""

import pytest

from tests.acceptance.programs import accounts
from tests.acceptance.support import World, begin, query

pytestmark = pytest.mark.acceptance

MESSAGES = 36
KILLED_BEFORE = (6, 14, 23, 31)  # messages
ITEMS = 120


def test_a_chain_receives_every_message_once_however_often_its_workers_are_killed(world: World) -> None:
    app = world.app(accounts)
    workers = begin(world, app, 2, module="accounts")
    chains = [
        app.options(id="plain").start(accounts.account, []),
        app.options(id="async").start(accounts.aaccount, []),
    ]
    squares = app.start(accounts.squares, ITEMS)
    for number in range(MESSAGES):
        if number in KILLED_BEFORE:
            victim = KILLED_BEFORE.index(number) % 2
            workers[victim].kill()
            workers[victim] = world.worker(module="accounts")
        for chain in chains:
            chain.send("amount", number)
    for chain in chains:
        chain.send("amount", None)
        assert chain.result(timeout=120) == list(range(MESSAGES))
    assert squares.result(timeout=120) == [number * number for number in range(ITEMS)]
    links = query(app, "SELECT continues, COUNT(*) FROM detent_runs GROUP BY continues HAVING COUNT(*) > 1")
    assert [link for link in links if link[0] is not None] == []
    members = query(app, "SELECT COUNT(*) FROM detent_runs WHERE chain IS NOT NULL")
    assert members == [(2 * (MESSAGES // accounts.ROUNDS + 1),)]
