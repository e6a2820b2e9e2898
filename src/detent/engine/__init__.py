"""The engine behind an app: opens, starts, waits, controls."""

from .core import Engine
from .settings import Options, Settings

__all__ = ["Engine", "Options", "Settings"]
