"""Retries and recoveries: how often, and how patiently."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import DefinitionError, NotSerializable
from detent.kernel.policies import NO_RETRY, REATTEMPT, ExceptionPolicy, Retry, recovery_wait

SECOND = timedelta(seconds=1)
retries = st.builds(
    Retry,
    attempts=st.integers(1, 5000),
    first=st.timedeltas(timedelta(), timedelta(days=200)),
    factor=st.floats(1, 1e6, allow_nan=False),
    longest=st.none() | st.timedeltas(timedelta(days=200), timedelta(days=400)),
)


def test_waits_grow_from_the_first_to_the_longest() -> None:
    retry = Retry(attempts=6, first=SECOND, factor=2, longest=timedelta(seconds=5))
    found = [retry.wait_after(attempt, ValueError()) for attempt in range(1, 7)]
    assert found == [SECOND, 2 * SECOND, 4 * SECOND, 5 * SECOND, 5 * SECOND, None]


@given(retries, st.integers(1, 5000))
def test_waits_are_monotone_and_bounded(retry: Retry, attempt: int) -> None:
    wait, following = retry.wait_after(attempt, ValueError()), retry.wait_after(attempt + 1, ValueError())
    if wait is not None:
        assert timedelta() <= wait <= retry.longest
    if wait is not None and following is not None:
        assert wait <= following


@given(retries)
def test_as_many_attempts_as_asked_for_and_no_more(retry: Retry) -> None:
    assert retry.wait_after(retry.attempts, ValueError()) is None
    if retry.attempts > 1:
        assert retry.wait_after(retry.attempts - 1, ValueError()) is not None


@given(retries, st.integers(1, 100))
def test_the_same_attempt_always_waits_alike(retry: Retry, attempt: int) -> None:
    assert retry.wait_after(attempt, ValueError()) == retry.wait_after(attempt, KeyError())


def test_only_what_is_listed_is_retried() -> None:
    retry = Retry(on=(ConnectionError,), never_on=(ConnectionRefusedError,))
    assert retry.wait_after(1, ConnectionResetError()) == SECOND
    assert retry.wait_after(1, ConnectionRefusedError()) is None
    assert retry.wait_after(1, ValueError()) is None


def test_a_single_class_may_stand_for_a_tuple_of_one() -> None:
    retry = Retry(on=OSError, never_on=TimeoutError)
    assert (retry.on, retry.never_on) == ((OSError,), (TimeoutError,))


def test_what_cannot_be_stored_is_not_tried_again() -> None:
    assert Retry().wait_after(1, NotSerializable("it", "object", "no")) is None


def test_the_last_attempt_of_no_retry_is_the_first() -> None:
    assert NO_RETRY.wait_after(1, ValueError()) is None
    assert REATTEMPT.wait_after(99, ValueError()) is not None
    assert REATTEMPT.wait_after(100, ValueError()) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": 2.5},
        {"attempts": True},
        {"attempts": None},
        {"first": "1s"},
        {"first": float("nan")},
        {"longest": float("inf")},
        {"longest": 0.5},
        {"factor": "2"},
        {"jitter": True},
        {"wait_from": 5},
        {"first": -SECOND},
        {"longest": -SECOND},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
        {"on": (ValueError(),)},
        {"on": ("ValueError",)},
        {"never_on": (int,)},
    ],
    ids=str,
)
def test_a_retry_that_makes_no_sense_cannot_be_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        Retry(**wrong)


def test_durations_may_be_numbers_of_seconds() -> None:
    retry = Retry(first=1, longest=2.5)
    assert (retry.first, retry.longest) == (SECOND, 2.5 * SECOND)


def test_the_longest_wait_is_never_shorter_than_the_first() -> None:
    assert Retry().longest == timedelta(minutes=5)
    patient = Retry(first=timedelta(minutes=10))
    assert patient.wait_after(1, ValueError()) == timedelta(minutes=10)
    assert patient.longest == timedelta(minutes=10)
    with pytest.raises(DefinitionError, match="longest=5 is not accepted: it is shorter than first="):
        Retry(first=10, longest=5)


class Busy(Exception):
    def __init__(self, code: int, retry_after: Any = None) -> None:
        super().__init__(code)
        self.code = code
        self.retry_after = retry_after


def test_a_function_may_say_what_is_retried() -> None:
    retry = Retry(on=(ConnectionError, lambda error: getattr(error, "code", 0) >= 500))
    assert retry.wait_after(1, ConnectionResetError()) == SECOND
    assert retry.wait_after(1, Busy(503)) == SECOND
    assert retry.wait_after(1, Busy(404)) is None
    never = Retry(never_on=lambda error: getattr(error, "code", 0) == 404)
    assert never.wait_after(1, Busy(503)) == SECOND
    assert never.wait_after(1, Busy(404)) is None


def test_a_function_that_raises_matches_nothing_and_is_noted_on_the_error() -> None:
    error = ValueError("no code")
    assert Retry(on=lambda error: error.code).wait_after(1, error) is None
    assert "Retry(on=...) raised AttributeError" in error.__notes__[0]


def test_an_error_may_say_how_long_to_wait() -> None:
    retry = Retry(attempts=2, wait_from=lambda error: getattr(error, "retry_after", None))
    assert retry.wait_after(1, Busy(429, 3600)) == timedelta(hours=1)  # `longest` limits computed waits only
    assert retry.wait_after(1, Busy(429, timedelta(minutes=2))) == timedelta(minutes=2)
    assert retry.wait_after(1, Busy(429, 0)) == timedelta()
    assert retry.wait_after(1, Busy(429)) == SECOND
    assert retry.wait_after(2, Busy(429, 1)) is None


@pytest.mark.parametrize("given", ["soon", -1, float("nan"), timedelta.max], ids=str)
def test_a_wait_that_makes_no_sense_is_replaced_by_the_computed_one(given: Any) -> None:
    error = Busy(429, given)
    retry = Retry(wait_from=lambda error: error.retry_after)  # type: ignore[attr-defined]
    assert retry.wait_after(1, error) == SECOND
    assert "Retry(wait_from=...) failed: InvalidOption" in error.__notes__[0]


def test_a_recovery_is_quick_at_first_and_then_ever_more_patient() -> None:
    found = [recovery_wait(number).total_seconds() for number in range(1, 6)]
    assert found == [0, 0.25, 0.5, 1, 2]


@given(st.integers(0, 10**6))
def test_recovery_waits_are_monotone_and_bounded(recoveries: int) -> None:
    wait = recovery_wait(recoveries)
    assert timedelta() <= wait <= timedelta(seconds=30)
    assert wait <= recovery_wait(recoveries + 1)


def test_a_name_without_its_module_is_refused_as_it_would_never_match() -> None:
    with pytest.raises(DefinitionError, match="give the name with its module"):
        ExceptionPolicy("reattempt", on=("ConnectionError",))
    by_name = ExceptionPolicy("reattempt", on=("builtins.ConnectionError",))
    assert by_name.matches(ConnectionResetError())
    assert not by_name.matches(ValueError())
