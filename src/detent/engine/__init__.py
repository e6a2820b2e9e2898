"""The engine behind an app: opens, starts, waits, controls."""

from .core import Engine
from .settings import Options, Settings, checked_options, checked_settings

__all__ = ["Engine", "Options", "Settings", "checked_options", "checked_settings"]
