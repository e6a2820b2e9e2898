"""What `detent worker` does with Python's collector of cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from detent.cli.worker import YOUNGEST, tune_collector


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_a_worker_leaves_alone_what_is_loaded_and_collects_less_often() -> None:
    gc.set_threshold(700, 10, 10)
    tune_collector()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == (YOUNGEST, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (50_000, 20, 20)], ids=["turned off", "higher"])
def test_a_worker_keeps_the_threshold_of_an_app_that_wants_fewer_collections(
    own: tuple[int, int, int],
) -> None:
    gc.set_threshold(*own)
    tune_collector()
    assert gc.get_threshold() == own
