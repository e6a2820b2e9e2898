"""The version of an app's code: `App(version=...)`, or a hash of what the app includes.

The hash covers the names of the definitions and their compiled code.  It is made from the code that this
process has loaded, not from source files: a deploy may have replaced those under a running process.  So
another version of Python is another version of the code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType
from typing import Any

from ..definitions.blueprint import Blueprint
from ..definitions.deciders import DeciderPlan
from ..definitions.projections import ProjectionPlan
from ..execution.registry import Served

DIGITS = 12


def code_version(definitions: Iterable[Served]) -> str:
    """A hash of the definitions; the same in every process that has the same code."""
    digest = hashlib.sha256()
    for definition in sorted(definitions, key=lambda one: (type(one).__name__, one.name)):
        digest.update(f"{type(definition).__name__} {definition.name}\n".encode())
        for part in _parts(definition):
            digest.update(part.encode(errors="surrogatepass") + b"\n")
    return digest.hexdigest()[:DIGITS]


def _parts(definition: Served) -> Iterator[str]:
    if isinstance(definition, Blueprint):
        if not definition.abstract:
            yield definition.graph.signature
        for node in definition.nodes.values():
            yield from _of_value(node.name, node.step)
    if isinstance(definition, Blueprint | DeciderPlan | ProjectionPlan):
        for cls in definition.cls.__mro__:
            if not cls.__module__.startswith(("detent.", "builtins")):
                yield from _of_class(cls)
    else:
        yield from _of_value(definition.name, definition)


def _of_class(cls: type) -> Iterator[str]:
    for name, value in sorted(vars(cls).items()):
        yield from _of_value(name, value)


def _of_value(name: str, value: Any) -> Iterator[str]:
    """The code behind a definition, a method, a property or a plain function; other values have none."""
    for attribute in ("__func__", "function", "fget", "func"):
        inner = getattr(value, attribute, None)
        if inner is not None and not isinstance(value, CodeType):
            value = inner
            break
    while isinstance(value, partial):
        value = value.func
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        yield name
        yield from _of_code(code)


def _of_code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_name
            yield from _of_code(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(constant, key=repr))
        else:
            yield repr(constant)
