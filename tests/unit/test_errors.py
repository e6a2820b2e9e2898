"""Errors: one tree, drawn in full, whose members survive a pickle and say what to do."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from detent import errors
from detent.errors import DetentError

ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, DetentError)]
CONCRETE = [cls for cls in ALL if hasattr(cls, "__match_args__")]
SAMPLES: dict[str, Any] = {
    "str": "something",
    "int": 3,
    "float": 1.5,
    "tuple[str, ...]": ("a", "b"),
    "bool": True,
    "list[str]": ["a", "b"],
}


def sample(cls: type[Any]) -> DetentError:
    types = {
        name: type for base in reversed(cls.__mro__) for name, type in inspect.get_annotations(base).items()
    }
    error: DetentError = cls(**{name: SAMPLES[types[name]] for name in cls.__match_args__})
    return error


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.__name__)
def test_an_error_survives_a_pickle(cls: type[Any]) -> None:
    error = sample(cls)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (cls, str(error), vars(error))


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.__name__)
def test_an_errors_message_says_more_than_its_name(cls: type[Any]) -> None:
    assert len(str(sample(cls)).split()) >= 4


def test_the_tree_in_the_docstring_names_every_error() -> None:
    drawn = set(re.findall(r"\b[A-Z][A-Za-z]+\b", errors.__doc__ or ""))
    assert {cls.__name__ for cls in ALL} <= drawn


def test_an_error_is_built_from_its_facts_by_place_or_by_name() -> None:
    by_place = errors.InvalidState("pause", "r-1", "failed")
    by_name = errors.InvalidState(run_id="r-1", state="failed", verb="pause", hint="")
    assert vars(by_place) == vars(by_name)
    assert repr(by_name) == "InvalidState(verb='pause', run_id='r-1', state='failed', hint='')"


def test_an_inherited_error_takes_the_facts_of_its_base_first() -> None:
    error = errors.CannotReattempt("reattempt", "r-1", "it goes on", node="charge")
    assert (error.run_id, error.hint, error.node) == ("r-1", "", "charge")


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), (("r-1", "x"), {}), (("r-1",), {"run_id": "r-1"}), (("r-1",), {"colour": "red"})],
    ids=["too few", "too many", "twice", "unknown"],
)
def test_facts_that_do_not_fit_are_refused(args: tuple[str, ...], kwargs: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="RunNotFound"):
        errors.RunNotFound(*args, **kwargs)


def test_errors_of_users_are_plain_exceptions() -> None:
    class Declined(errors.PermanentError):
        code: int = 51

    assert str(Declined("no funds")) == "no funds"
