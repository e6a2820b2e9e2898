"""What runs through a pooler: chains with their transactional steps, and all that waits."""

from .chains import achain, chain
from .waiting import achild, awaits, awork, child, waits, work

__all__ = ["achain", "achild", "awaits", "awork", "chain", "child", "waits", "work"]
