"""Heroes: the subject of a run, named so that the database can keep one run for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError
from .models import load_model


class Heroes:
    """How the app names its heroes, and loads them again."""

    def __init__(self, url: str = "") -> None:
        self._url = url  # the database of models that were not registered
        self._known: dict[type, tuple[str, Callable[[Any], Any], Callable[[str], Any] | None]] = {}

    def register(
        self,
        cls: type,
        *,
        key: Callable[[Any], Any],
        load: Callable[[str], Any] | None = None,
        name: str | None = None,
    ) -> None:
        self._known[cls] = (name or cls.__name__, key, load)

    def name(self, hero: Any) -> tuple[str, str] | None:
        """The stored name of a hero: its type and its id, as text."""
        if hero is None:
            return None
        if isinstance(hero, tuple) and len(hero) == 2:
            return _named(hero, *hero)
        for cls in type(hero).__mro__:
            if cls in self._known:
                name, key, _ = self._known[cls]
                return _named(hero, name, key(hero))
        identity = _model_identity(hero)
        if identity is not None:
            return identity
        raise ConfigurationError(
            f"{type(hero).__name__} is not registered as a hero; register it with "
            f"app.hero({type(hero).__name__}, key=lambda it: it.id), or pass a (type, id) pair"
        )

    def load(self, type: str, id: str) -> Any:
        """The hero of that name; None if it no longer exists.

        One that was given as a (type, id) pair, or has no `load`, is that name itself.
        """
        for name, _, load in self._known.values():
            if name == type and load is not None:
                return load(id)
        return load_model(self._url, type, id)


def _named(hero: Any, type: Any, id: Any) -> tuple[str, str]:
    """The stored name; refuses an id that is missing, which all heroes without one would share."""
    if type is None or id is None or not str(type) or not str(id):
        raise ConfigurationError(
            f"hero={hero!r}: its type is {type!r} and its id is {id!r}; both must be set and not empty. "
            f"Save the object before starting a run for it"
        )
    return str(type), str(id)


def _model_identity(hero: Any) -> tuple[str, str] | None:
    """The name of a Django or SQLAlchemy object, without importing either."""
    meta = getattr(hero, "_meta", None)
    if meta is not None and hasattr(meta, "label") and hasattr(hero, "pk"):
        return _named(hero, meta.label, hero.pk)
    state = getattr(hero, "_sa_instance_state", None)
    identity = getattr(state, "identity", None)
    if state is not None and not identity:
        raise ConfigurationError(
            f"hero={hero!r} has no primary key yet; add it to a session and flush it before starting its run"
        )
    if state is not None and identity:
        return f"{type(hero).__module__}.{type(hero).__qualname__}", ",".join(map(str, identity))
    return None
