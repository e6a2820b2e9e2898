"""The facts of an error: `@facts` makes its annotations the arguments that it is built from.

It reads like `@dataclass(eq=False)`.  That one writes and compiles source for each class, which for all of
our errors takes longer than the rest of this package; here they share one function.
"""

from __future__ import annotations

from typing import Any, TypeVar, dataclass_transform

E = TypeVar("E", bound=type[Exception])


@dataclass_transform(eq_default=False)
def facts(cls: E) -> E:
    """Build errors of this class from the facts it names, by place or by name."""
    inherited: tuple[str, ...] = getattr(cls, "__match_args__", ())
    own = tuple(name for name in cls.__annotations__ if name not in inherited)
    defaults = {name: cls.__dict__[name] for name in own if name in cls.__dict__}
    made = {
        "__match_args__": inherited + own,
        "__init__": _init,
        "__repr__": _repr,
        "_defaults": getattr(cls, "_defaults", {}) | defaults,
    }
    for name, value in made.items():
        setattr(cls, name, value)
    return cls


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    names: tuple[str, ...] = cls.__match_args__
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or given.keys() & kwargs or not kwargs.keys() <= set(names):
        raise TypeError(f"{cls.__name__} is built from {', '.join(names)}, each once")
    given = cls._defaults | given | kwargs
    if missing := [name for name in names if name not in given]:
        raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")
    self.__dict__.update((name, given[name]) for name in names)


def _repr(self: Any) -> str:
    told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({told})"
