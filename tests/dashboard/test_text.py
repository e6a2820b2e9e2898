"""Text for people: durations, times, and characters that cannot be seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.dashboard.rendering import Links, json_html
from detent.dashboard.text import ago, count, duration, visible


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.0042, "4.2 ms"),
        (0.85, "850 ms"),
        (2.42, "2.4 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@given(st.floats(0, 1e10))
@settings(max_examples=50, deadline=None)
def test_every_duration_has_words(seconds: float) -> None:
    assert duration(seconds)


def test_a_time_is_told_from_now() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert ago(now, now) == "now"
    assert ago(now - timedelta(minutes=3, seconds=20), now) == "3 min ago"
    assert ago(now + timedelta(hours=2), now) == "in 2 h"


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_a_visible_text_has_no_character_that_hides_or_turns(text: str) -> None:
    shown = visible(text)
    assert not set(shown) & {"\x00", "\x1b", "\u202e", "\u2066", "\u200b", "\ufeff"}


def test_a_count_that_reaches_its_limit_says_so() -> None:
    assert count(9_999, 10_000) == "9,999"
    assert count(10_000, 10_000) == "10,000+"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
        max_leaves=12,
    )
)
@settings(max_examples=50, deadline=None)
def test_json_as_html_has_no_tag_but_ours(value: object) -> None:
    html = str(json_html(value))
    assert html.count("<") == 2 * html.count("<span class=")


@given(st.text(min_size=1))
@settings(max_examples=50, deadline=None)
def test_the_address_of_a_run_stays_on_this_site(id: str) -> None:
    address = Links("/ops").run(id)
    assert address.startswith(("/ops/runs/", "/ops/run?id="))
    assert "/." not in address
    assert "//" not in address
