"""Errors: one tree, drawn in full, whose members survive a pickle and say what to do."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from typing import Any

import pytest

from detent import errors
from detent.errors import DetentError

ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, DetentError)]
CONCRETE = [cls for cls in ALL if hasattr(cls, "__dataclass_fields__")]
SAMPLES: dict[str, Any] = {
    "str": "something",
    "int": 3,
    "float": 1.5,
    "tuple[str, ...]": ("a", "b"),
    "bool": True,
}


def sample(cls: type[Any]) -> DetentError:
    error: DetentError = cls(**{field.name: SAMPLES[str(field.type)] for field in dataclasses.fields(cls)})
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
