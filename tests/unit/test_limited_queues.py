"""What a worker knows of its limited queues."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from detent.kernel.rows import Claimed
from detent.worker.limits import LimitedQueues

NOTHING = SimpleNamespace(claimed=[], wait=None, start_within={})


def queues(**verbs: Any) -> LimitedQueues:
    """Those of a worker whose store has these verbs."""
    services = SimpleNamespace(
        store=SimpleNamespace(driver=SimpleNamespace(keyed=frozenset()), **verbs),
        clock=SimpleNamespace(now=lambda: 0),
        registry=SimpleNamespace(names=()),
        version="",
    )
    return LimitedQueues(cast(Any, services), ["mail", "bulk"])


def test_a_heartbeat_that_read_before_a_pause_does_not_undo_it() -> None:
    limited = queues()
    before = limited.learned
    limited.learn({"mail": False})  # the pause, by this process
    limited.learn({}, since=before)  # the heartbeat had read the queues before it
    assert limited.names == {"mail"}


def test_a_heartbeat_that_read_after_a_pause_is_believed() -> None:
    limited = queues()
    limited.learn({"mail": False})
    limited.learn({"bulk": False}, since=limited.learned)
    assert limited.names == {"bulk"}


@pytest.mark.parametrize("others", [{}, {"bulk": False}], ids=["none limited", "another limited"])
def test_what_was_claimed_while_its_queue_was_paused_is_handed_back(others: dict[str, bool]) -> None:
    released: list[Any] = []
    limited = queues(release=released.extend, claim_limited=lambda *_, **__: NOTHING)
    limited.learn(others)
    mail, rest = (cast(Any, SimpleNamespace(queue=name)) for name in ("mail", "news"))

    def claim(queues: Sequence[str], tokens: Sequence[str]) -> list[Claimed]:
        limited.learn(others | {"mail": False})  # a pause, while the claim is on its way
        return [mail, rest]

    assert limited.claim("w", ["mail", "bulk", "news"], ["t1", "t2"], list, claim) == [rest]
    assert released == [mail]
