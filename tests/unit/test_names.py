"""Names of steps: the quick look at plain names agrees with the rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.kernel.rows import Step
from detent.stores.batch.names import LONGEST_KEY, LONGEST_NAME, unfit

TEXTS = st.text(st.sampled_from("ab #/:é\x00\ud800"), max_size=4)
LENGTHS = st.sampled_from([0, 1, 100, LONGEST_NAME - 4, LONGEST_NAME, LONGEST_KEY - 4, LONGEST_KEY])


def step(key: str, name: str) -> Step:
    return Step(run_id="r", key=key, seq=1, kind="step", name=name, state="completed", written_by=1)


def is_unfit(text: str, longest: int) -> bool:
    return (
        len(text) > longest
        or text.endswith(" ")
        or "\x00" in text
        or any("\ud800" <= char <= "\udfff" for char in text)
    )


@given(key=st.tuples(LENGTHS, TEXTS), name=st.tuples(LENGTHS, TEXTS))
def test_a_step_is_refused_exactly_if_one_of_its_names_is_unfit(
    key: tuple[int, str], name: tuple[int, str]
) -> None:
    key_, name_ = ("x" * length + text for length, text in (key, name))
    refused = is_unfit(key_, LONGEST_KEY) or is_unfit(name_, LONGEST_NAME)
    assert (unfit(step(key_, name_)) is not None) == refused


@pytest.mark.parametrize("text", ["a ", "a\x00", "\udc80"])
def test_both_names_of_a_step_are_looked_at(text: str) -> None:
    assert unfit(step(text, "a")) is not None
    assert unfit(step("a", text)) is not None
