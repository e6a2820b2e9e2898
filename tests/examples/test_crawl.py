"""Data that flows: a spread, a condition with two sides, a result."""

from collections.abc import Iterator

import pytest

import crawl
import detent


@pytest.fixture
def app(url: str) -> Iterator[detent.App]:
    with crawl.make_app(url) as app:
        yield app


def _states(run: detent.Run[None]) -> dict[str, str]:
    return {node.name: node.state for node in run.nodes()}


def test_the_side_of_the_condition_that_holds_is_taken(app: detent.App) -> None:
    run = app.start(crawl.crawl("/", limit=5))
    assert run.result(timeout=30) == {"where": "archive of 8 words", "pages": 4}
    states = _states(run)
    assert [states[f"fetch[{number}]"] for number in range(4)] == ["completed"] * 4
    assert states["archive"] == "completed"
    assert run.verify() == []


def test_the_other_side_is_taken_otherwise(app: detent.App) -> None:
    run = app.start(crawl.crawl("/", limit=50))
    assert run.result(timeout=30) == {"where": None, "pages": 4, "first": "INDEX NEWS"}
    assert _states(run)["archive"] == "skipped"


def test_results_of_a_spread_come_in_the_order_of_its_items(app: detent.App) -> None:
    run = app.start(crawl.crawl("/", limit=50))
    run.result(timeout=30)
    [pages] = [node.result for node in run.nodes() if node.name == "fetch"]
    assert pages == ["INDEX NEWS", "ONE TWO THREE", "FOUR", "FIVE SIX"]


def test_a_spread_over_nothing_goes_on_at_once(app: detent.App) -> None:
    run = app.start(crawl.crawl("/nowhere", limit=-1))
    assert run.result(timeout=30) == {"where": "archive of 0 words", "pages": 0}


def test_a_value_that_is_not_there_pauses_the_run_and_says_so(app: detent.App) -> None:
    run = app.start(crawl.crawl("/nowhere", limit=5))  # the first of no pages
    with pytest.raises(detent.RunPaused, match=r"IndexError|out of range"):
        run.result(timeout=30)
