"""What a worker knows of its limited queues."""

from types import SimpleNamespace
from typing import Any, cast

from detent.worker.limits import LimitedQueues


def queues() -> LimitedQueues:
    services = SimpleNamespace(store=SimpleNamespace(driver=SimpleNamespace(keyed=frozenset())))
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
