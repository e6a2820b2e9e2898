"""Durations and limits as people type them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.app.limit_texts import limit_text, parse_limit
from detent.durations import duration_text, parse_duration


@pytest.mark.parametrize("text", ["90s", "5m", "2h", "1d", "1.5s", "0s"])
def test_a_duration_is_written_as_it_was_read(text: str) -> None:
    assert duration_text(parse_duration(text)) == text


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 1_000, 1_000_000, 60_000_000, 3_600_000_000]))
def test_every_duration_is_read_as_it_was_written(count: int, unit: int) -> None:
    duration = timedelta(microseconds=count * unit)
    assert parse_duration(duration_text(duration)) == duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), (" 90 S ", 90), ("250ms", 0.25), ("5min", 300), ("1w", 604_800)]
)
def test_a_duration_takes_units_in_any_case_and_seconds_without_one(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "soon", "5x", "-5m", "1 2", "٣s", "1e3s", "9" * 400, "999999999w"])
def test_what_is_not_a_duration_is_refused_with_a_message(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [("concurrency", "10"), ("rate", "100/1m"), ("fair", "yes"), ("aging", "5m"), ("rate", "")],
)
def test_a_limit_is_written_as_it_was_read(name: str, text: str) -> None:
    assert limit_text(parse_limit(name, text)) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [("concurrency", "ten"), ("rate", "100"), ("rate", "0/1m"), ("fair", "maybe"), ("aging", "x")],
)
def test_what_is_not_a_limit_is_refused_with_an_example(name: str, text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_limit(name, text)
