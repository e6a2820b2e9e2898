"""The chains, with a poison among them."""

from .chains import achain, chain
from .poison import poison

__all__ = ["achain", "chain", "poison"]
