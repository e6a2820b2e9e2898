"""Recorded expressions: what is computed from nodes' outputs, kept as data.

`total.output["sum"] + 1 > limit` does not compute anything; it records

    ["gt", ["add", ["get", ["output", "n_1f"], "sum"], 1], 50]

A stored graph holds that as JSON, marked `{"$expr": [...]}`, and it is evaluated
inside the completion of the nodes that it names.  Only the operators of `OPERATORS`
exist; nothing in an expression can call code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from ..errors import DefinitionError, ExpressionError

MARK = "$expr"
LITERAL = "$literal"  # around a user's own dict that has a key like our marks
DEEPEST = 50


class Expression:
    """Something that will be known when a run comes there; operators on it are recorded.

        total = g.node("total", job=aggregate)
        with g.when(total.output["sum"] > 100):
            g.node("approve", job=approve)

    Compare and compute as with the value itself; combine conditions with `&`, `|`
    and `~`; `.contains(x)` and `.length()` stand for `in` and `len()`.
    """

    __slots__ = ("_data", "_names")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: list[Any], names: Mapping[str, str] | None = None) -> None:
        self._data = data
        self._names = names or {}  # what the nodes in it are called: data holds their ids

    def __repr__(self) -> str:
        return f"<recorded {shown(self._data, self._names)}>"

    def __getitem__(self, key: Any) -> Expression:
        return self._with("get", key)

    def __add__(self, other: Any) -> Expression:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Expression:
        return self._after("add", other)

    def __sub__(self, other: Any) -> Expression:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Expression:
        return self._after("sub", other)

    def __mul__(self, other: Any) -> Expression:
        return self._with("mul", other)

    def __rmul__(self, other: Any) -> Expression:
        return self._after("mul", other)

    def __truediv__(self, other: Any) -> Expression:
        return self._with("div", other)

    def __rtruediv__(self, other: Any) -> Expression:
        return self._after("div", other)

    def __floordiv__(self, other: Any) -> Expression:
        return self._with("floordiv", other)

    def __rfloordiv__(self, other: Any) -> Expression:
        return self._after("floordiv", other)

    def __mod__(self, other: Any) -> Expression:
        return self._with("mod", other)

    def __rmod__(self, other: Any) -> Expression:
        return self._after("mod", other)

    def __neg__(self) -> Expression:
        return Expression(["neg", self._data], self._names)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return self._with("eq", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return self._with("ne", other)

    def __lt__(self, other: Any) -> Expression:
        return self._with("lt", other)

    def __le__(self, other: Any) -> Expression:
        return self._with("le", other)

    def __gt__(self, other: Any) -> Expression:
        return self._with("gt", other)

    def __ge__(self, other: Any) -> Expression:
        return self._with("ge", other)

    def __and__(self, other: Any) -> Expression:
        return self._with("and", other)

    def __rand__(self, other: Any) -> Expression:
        return self._after("and", other)

    def __or__(self, other: Any) -> Expression:
        return self._with("or", other)

    def __ror__(self, other: Any) -> Expression:
        return self._after("or", other)

    def __invert__(self) -> Expression:
        return Expression(["not", self._data], self._names)

    def contains(self, item: Any) -> Expression:
        """Whether `item` is in it."""
        return self._with("contains", item)

    def length(self) -> Expression:
        """How many items or characters it has."""
        return Expression(["len", self._data], self._names)

    def __bool__(self) -> bool:  # noqa: PLE0304 - it raises
        self._refuse("has no truth value yet", "g.when(...), and combine conditions with & | ~")

    def __iter__(self) -> Iterator[Any]:
        self._refuse("cannot be iterated yet", 'g.spread("name", over=...)')

    def __len__(self) -> int:  # noqa: PLE0303 - it raises
        self._refuse("has no length yet", ".length()")

    def __contains__(self, item: Any) -> bool:
        self._refuse("cannot be searched yet", ".contains(item)")

    def __str__(self) -> str:  # noqa: PLE0307 - it raises
        self._refuse("has no text yet", "+ to join texts, or give the parts to a job")

    def __format__(self, spec: str) -> str:
        self._refuse("has no text yet", "+ to join texts, or give the parts to a job")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise DefinitionError(
            f"{shown(self._data, self._names)} {what}: it is known only at run time; write {instead}"
        )

    def _with(self, name: str, other: Any) -> Expression:
        return Expression([name, self._data, _operand(other)], self._names_with(other))

    def _after(self, name: str, other: Any) -> Expression:
        return Expression([name, _operand(other), self._data], self._names_with(other))

    def _names_with(self, other: Any) -> Mapping[str, str]:
        names = dict(self._names)
        for item in other if isinstance(other, list | tuple) else [other]:
            if isinstance(item, Expression):
                names |= item._names
        return names


def data_of(expression: Expression) -> list[Any]:
    """What was recorded."""
    return expression._data


def output_of(node: str, name: str | None = None) -> Expression:
    """The output of a node, to be known later."""
    return Expression(["output", node], {node: node if name is None else name})


def error_of(node: str, name: str) -> Expression:
    """The error of a node with an error branch: its type and message, or None if it did not fail."""
    return Expression(["error", node], {node: name})


def error_key(node: str) -> str:
    """Under which key `evaluate` looks for the error of a node; no id has this sign."""
    return f"{node}#error"


def _operand(value: Any) -> Any:
    if isinstance(value, Expression):
        return value._data
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return ["list", *map(_operand, value)]
    raise DefinitionError(
        f"an expression accepts numbers, texts, booleans, None and lists of them, not {type(value).__name__}"
    )


# What may stand in a stored graph: values with expressions anywhere inside.


def recorded(value: Any) -> Any:
    """A value as it is stored: expressions in it become marked data."""
    if isinstance(value, Expression):
        return {MARK: value._data}
    if isinstance(value, Mapping):
        plain = {key: recorded(item) for key, item in value.items()}
        return {LITERAL: plain} if MARK in plain or LITERAL in plain else plain
    if isinstance(value, list | tuple):
        return [recorded(item) for item in value]
    return value


def outputs_in(value: Any) -> Iterator[str]:
    """The nodes whose outputs or errors a stored value names.  Raises if it is not a stored value."""
    for data in _expressions(value, 0):
        for _, node in _references(data, 0):
            yield node


def errors_in(value: Any) -> Iterator[str]:
    """The nodes whose errors a stored value names."""
    for data in _expressions(value, 0):
        for what, node in _references(data, 0):
            if what == "error":
                yield node


def resolve(value: Any, outputs: Mapping[str, Any]) -> Any:
    """A stored value, with its expressions evaluated."""
    if isinstance(value, dict):
        if MARK in value:
            return evaluate(value[MARK], outputs)
        if LITERAL in value:
            return {key: resolve(item, outputs) for key, item in value[LITERAL].items()}
        return {key: resolve(item, outputs) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, outputs) for item in value]
    return value


def evaluate(data: Any, outputs: Mapping[str, Any]) -> Any:
    """The value of an expression; ExpressionError where it has none."""
    if not isinstance(data, list):
        return data
    name = data[0]
    if name == "output":
        return outputs[data[1]]
    if name == "error":
        return outputs[error_key(data[1])]
    if name == "list":
        return [evaluate(item, outputs) for item in data[1:]]
    if name in ("and", "or"):  # like Python's: the second is not looked at without need
        first = evaluate(data[1], outputs)
        return first if bool(first) is (name == "or") else evaluate(data[2], outputs)
    values = [evaluate(item, outputs) for item in data[1:]]
    try:
        return OPERATORS[name][1](*values)
    except (TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
        raise ExpressionError(shown(data), f"{type(error).__name__}: {error}") from None


def _multiplied(left: Any, right: Any) -> Any:
    # Numbers only: "x" * 10**9 in a stored graph would fill the memory of the process that evaluates it.
    if not all(isinstance(side, int | float) for side in (left, right)):
        raise TypeError("only numbers can be multiplied")
    return left * right


def _got(value: Any, key: Any) -> Any:
    if not isinstance(value, dict | list | str):
        raise TypeError(f"{type(value).__name__} has no items")
    return value[key]


# Name -> (how it is written, what it does).
OPERATORS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "get": ("[]", _got),
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", _multiplied),
    "div": ("/", operator.truediv),
    "floordiv": ("//", operator.floordiv),
    "mod": ("%", lambda left, right: _number(left) % right),
    "neg": ("-", operator.neg),
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
    "not": ("not ", operator.not_),
    "contains": ("contains", lambda whole, item: item in whole),
    "len": ("len", len),
}
_UNARY = ("neg", "not", "len")


def _number(value: Any) -> Any:
    if isinstance(value, str):
        raise TypeError("a text cannot be divided")  # it would be formatted instead
    return value


def _expressions(value: Any, depth: int) -> Iterator[Any]:
    if depth > DEEPEST * 2:
        raise ExpressionError("a stored value", "it is nested too deeply")
    if isinstance(value, dict):
        if MARK in value:
            if len(value) != 1:
                raise ExpressionError(str(value)[:80], f"{MARK!r} must be the only key")
            yield value[MARK]
            return
        if LITERAL in value:
            if len(value) != 1:
                raise ExpressionError(str(value)[:80], f"{LITERAL!r} must be the only key")
            if not isinstance(value[LITERAL], dict):
                raise ExpressionError(str(value)[:80], f"{LITERAL!r} is around a literal dict")
        for item in value.get(LITERAL, value).values():
            yield from _expressions(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _expressions(item, depth + 1)


def _references(data: Any, depth: int) -> Iterator[tuple[str, str]]:
    if depth > DEEPEST:
        raise ExpressionError("an expression", "it is nested too deeply")
    if not isinstance(data, list):
        if data is not None and not isinstance(data, str | int | float | bool):
            raise ExpressionError(str(data)[:80], "it is not an expression")
        return
    name = data[0] if data else None
    if name in ("output", "error"):
        if len(data) != 2 or not isinstance(data[1], str):
            raise ExpressionError(str(data)[:80], f"an {name} names one node")
        yield name, data[1]
        return
    sides = 1 if name in _UNARY else 2
    known = isinstance(name, str) and (name in OPERATORS or name in ("and", "or"))
    if name != "list" and (not known or len(data) != sides + 1):
        raise ExpressionError(str(data)[:80], "there is no such operator")
    for item in data[1:]:
        yield from _references(item, depth + 1)


def shown(data: Any, names: Mapping[str, str] | None = None) -> str:
    """An expression as people write it, with the names of nodes where they are known."""
    if not isinstance(data, list):
        return repr(data)
    name, *sides = data
    if name in ("output", "error"):
        return f"{(names or {}).get(sides[0], sides[0])}.{name}"
    parts = [shown(side, names) for side in sides]
    if name == "get":
        return f"{parts[0]}[{parts[1]}]"
    if name == "list":
        return f"[{', '.join(parts)}]"
    if name in ("len", "contains"):
        return f"{name}({', '.join(parts)})"
    sign = {"and": "&", "or": "|"}.get(name) or OPERATORS[name][0]
    return f"{sign}{parts[0]}" if len(parts) == 1 else f"({parts[0]} {sign} {parts[1]})"
