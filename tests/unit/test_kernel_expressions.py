"""Recorded expressions: as data they mean what Python means, and nothing in them is code."""

import contextlib
import math
import operator
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from detent.errors import DefinitionError, ExpressionError
from detent.kernel.expressions import (
    OPERATORS,
    Expression,
    data_of,
    evaluate,
    output_of,
    outputs_in,
    recorded,
    resolve,
    shown,
)

a, b = output_of("a"), output_of("b")


def value_of(expression: Expression, **outputs: Any) -> Any:
    """What it comes to, after it has been stored and read again."""
    stored = msgspec.json.decode(msgspec.json.encode(recorded(expression)))
    list(outputs_in(stored))  # as validation does
    return resolve(stored, outputs)


# -- Recording -------------------------------------------------------------------------------------


def test_operators_are_recorded_and_not_computed() -> None:
    expression = a["sum"] + 1 > 50
    assert data_of(expression) == ["gt", ["add", ["get", ["output", "a"], "sum"], 1], 50]
    assert repr(expression) == "<recorded ((a.output['sum'] + 1) > 50)>"


def test_what_stands_left_of_an_expression_stays_left() -> None:
    assert data_of(10 - a) == ["sub", 10, ["output", "a"]]
    assert data_of(10 / a) == ["div", 10, ["output", "a"]]
    assert data_of(10 // a) == ["floordiv", 10, ["output", "a"]]
    assert data_of(10 % a) == ["mod", 10, ["output", "a"]]
    assert data_of("x" + a) == ["add", "x", ["output", "a"]]
    assert data_of(True & (a > 1)) == ["and", True, ["gt", ["output", "a"], 1]]
    assert data_of(operator.lt(10, a)) == ["gt", ["output", "a"], 10]  # Python turns it round


def test_a_list_may_stand_in_an_expression() -> None:
    assert value_of(operator.add(a, [1, b]), a=[0], b=2) == [0, 1, 2]


UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "neg": (operator.neg, operator.neg),
    "not": (operator.invert, operator.not_),
    "len": (lambda x: x.length(), len),
}
BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "get": (lambda x, y: x[y], operator.getitem),
    "add": (operator.add, operator.add),
    "sub": (operator.sub, operator.sub),
    "mul": (operator.mul, operator.mul),
    "div": (operator.truediv, operator.truediv),
    "floordiv": (operator.floordiv, operator.floordiv),
    "mod": (operator.mod, operator.mod),
    "eq": (operator.eq, operator.eq),
    "ne": (operator.ne, operator.ne),
    "lt": (operator.lt, operator.lt),
    "le": (operator.le, operator.le),
    "gt": (operator.gt, operator.gt),
    "ge": (operator.ge, operator.ge),
    "contains": (lambda x, y: x.contains(y), operator.contains),
    "and": (operator.and_, lambda x, y: x and y),
    "or": (operator.or_, lambda x, y: x or y),
}


def test_every_operator_is_compared_with_python() -> None:
    assert set(UNARY) | set(BINARY) == set(OPERATORS) | {"and", "or"}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)
small = st.integers(-5, 5) | st.sampled_from(["a", "", "ab", 0.5, True, None]) | st.lists(st.integers(0, 3))
REFUSED_BY_US = {
    # what Python would do, and we do not: for a text can be as large as it likes
    "mul": lambda x, y: not all(isinstance(side, int | float) for side in (x, y)),
    "mod": lambda x, y: isinstance(x, str),
}


@given(st.sampled_from(sorted(BINARY)), values | small, values | small)
def test_an_operator_means_what_it_means_in_python(name: str, left: Any, right: Any) -> None:
    record, meaning = BINARY[name]
    assume(not REFUSED_BY_US.get(name, lambda x, y: False)(left, right))
    try:
        expected = meaning(left, right)
    except (TypeError, ValueError, KeyError, IndexError, ArithmeticError):
        with pytest.raises(ExpressionError):
            value_of(record(a, b), a=left, b=right)
    else:
        found = value_of(record(a, b), a=left, b=right)
        assert (type(found), found) == (type(expected), expected)


@given(st.sampled_from(sorted(UNARY)), values)
def test_an_operator_on_one_thing_means_what_it_means_in_python(name: str, value: Any) -> None:
    record, meaning = UNARY[name]
    try:
        expected = meaning(value)
    except TypeError:
        with pytest.raises(ExpressionError):
            value_of(record(a), a=value)
    else:
        assert value_of(record(a), a=value) == expected


arithmetic = st.recursive(
    st.sampled_from(["a", "b"]) | st.integers(-9, 9),
    lambda inner: st.tuples(st.sampled_from("add sub mul lt eq and or floordiv mod".split()), inner, inner),
    max_leaves=8,
)


@given(arithmetic, st.integers(-9, 9), st.integers(-9, 9))
def test_a_whole_expression_means_what_it_means_in_python(tree: Any, x: int, y: int) -> None:
    def both(tree: Any) -> tuple[Any, Callable[[], Any]]:
        if isinstance(tree, str):
            return output_of(tree), lambda: x if tree == "a" else y
        if isinstance(tree, int):
            return tree, lambda: tree
        name, (left, left_now), (right, right_now) = tree[0], both(tree[1]), both(tree[2])
        if not isinstance(left, Expression) and not isinstance(right, Expression):
            left = output_of("a") * 0 + left  # two plain numbers would be computed at once
        lazy = {"and": lambda: left_now() and right_now(), "or": lambda: left_now() or right_now()}
        return BINARY[name][0](left, right), lazy.get(name, lambda: BINARY[name][1](left_now(), right_now()))

    expression, plainly = both(tree)
    assume(isinstance(expression, Expression))
    try:
        expected = plainly()
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="ZeroDivisionError"):
            value_of(expression, a=x, b=y)
    else:
        assert value_of(expression, a=x, b=y) == expected


def test_the_other_side_of_a_condition_is_not_looked_at_without_need() -> None:
    assert value_of((a > 0) & (10 / a > 1), a=0) is False
    assert value_of((a == 0) | (10 / a > 1), a=0) is True


# -- Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "instead"),
    [
        (lambda: bool(a > 1), "g.when"),
        (lambda: not a, "g.when"),
        (lambda: 1 if a == 1 else 2, "g.when"),
        (lambda: 1 < a < 3, "g.when"),
        (lambda: a and b, "g.when"),
        (lambda: a in [1, 2], "g.when"),
        (lambda: list(a), "g.spread"),
        (lambda: [*a], "g.spread"),
        (lambda: len(a), ".length()"),
        (lambda: 1 in a, ".contains(item)"),
        (lambda: f"{a}", "+ to join"),
        (lambda: f"{a:>10}", "+ to join"),
        (lambda: str(a), "+ to join"),
        (lambda: operator.mod("%s", a), "+ to join"),
    ],
    ids=[
        "bool",
        "not",
        "if",
        "chained",
        "and",
        "in a list",
        "list",
        "star",
        "len",
        "in",
        "f-string",
        "format",
        "str",
        "percent",
    ],
)
def test_what_needs_the_value_now_is_refused_and_says_what_to_write(
    use: Callable[[], Any], instead: str
) -> None:
    with pytest.raises(DefinitionError) as caught:
        use()
    assert instead in str(caught.value)
    assert "a.output" in str(caught.value)


@pytest.mark.parametrize("operand", [{"a": 1}, {1}, b"x", object(), slice(1, 2), len, 1j])
def test_what_json_cannot_hold_is_no_operand(operand: Any) -> None:
    for use in (lambda: a == operand, lambda: a[operand], lambda: operator.add([operand], a)):
        with pytest.raises(DefinitionError, match="an expression accepts"):
            use()


@pytest.mark.parametrize(
    "use", [hash, int, float, round, abs, lambda x: x(), lambda x: x.name, lambda x: x**2]
)
def test_what_is_not_recorded_does_not_exist(use: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        use(a)


# -- No code ---------------------------------------------------------------------------------------


def test_no_name_of_a_value_can_be_reached() -> None:
    for key in ("__class__", "__len__", "append", "keys"):
        for value in list[Any]([[], {}, "text", 1, None]):
            with pytest.raises(ExpressionError):
                value_of(a[key], a=value)


@pytest.mark.parametrize(
    "stored",
    [
        {"$expr": ["call", ["output", "a"]]},
        {"$expr": ["__import__", "os"]},
        {"$expr": ["getattr", ["output", "a"], "x"]},
        {"$expr": [["output", "a"], 1]},
        {"$expr": [None]},
        {"$expr": {"add": [1, 2]}},
        {"x": [{"y": {"$expr": ["eval", "1"]}}]},
        {"$literal": {"$expr": {"$expr": ["eval", "1"]}}},
    ],
)
def test_only_what_is_an_operator_is_accepted(stored: Any) -> None:
    with pytest.raises(ExpressionError):
        list(outputs_in(stored))


def test_a_text_cannot_be_blown_up() -> None:
    for data in (["mul", "x", 10**9], ["mul", ["list", 0], 10**9], ["mod", "%1000000000d", 1]):
        with pytest.raises(ExpressionError):
            evaluate(data, {})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(
                st.sampled_from(sorted([*OPERATORS, "and", "or", "list", "output"])), inner, inner
            ).map(list)
        ),
        max_leaves=10,
    )
)
def test_what_is_accepted_evaluates_or_says_why_not(data: Any) -> None:
    try:
        wanted = list(outputs_in({"$expr": data}))
    except ExpressionError:
        return
    with contextlib.suppress(ExpressionError):
        evaluate(data, dict.fromkeys(wanted, 1))
    assert shown(data)


# -- Values with expressions inside ----------------------------------------------------------------


def test_expressions_are_found_anywhere_in_a_value() -> None:
    stored = recorded({"x": [1, {"y": a + b}], "z": (a,)})
    assert list(outputs_in(stored)) == ["a", "b", "a"]
    assert resolve(stored, {"a": 1, "b": 2}) == {"x": [1, {"y": 3}], "z": [1]}


@given(
    st.recursive(
        values,
        lambda inner: st.dictionaries(st.sampled_from(["$expr", "$literal", "x"]), inner, max_size=3),
        max_leaves=5,
    )
)
def test_a_users_own_value_comes_back_whatever_its_keys(value: Any) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(recorded(value)))
    assert list(outputs_in(stored)) == []
    assert resolve(stored, {}) == value


def test_an_error_shows_the_expression_and_the_reason() -> None:
    with pytest.raises(ExpressionError) as caught:
        value_of(a["sum"] / 0, a={"sum": 1})
    assert str(caught.value) == "cannot evaluate (a.output['sum'] / 0): ZeroDivisionError: division by zero"
    with pytest.raises(ExpressionError, match="KeyError"):
        value_of(a["sum"], a={})


def test_a_result_that_is_no_number_is_left_to_who_stores_it() -> None:
    assert math.isinf(value_of(a * 10.0, a=1e308))
