"""Ids: UUIDv7, so that rows made one after the other lie side by side."""

from __future__ import annotations

import os
import random
import time

# A generator of its own: a user's random.seed() must not make ids repeat, and a forked
# child must not repeat its parent's.
_bits = random.Random(os.urandom(32))
os.register_at_fork(after_in_child=lambda: _bits.seed(os.urandom(32)))


def turn_id() -> str:
    """Return a new id for a decision, by which its events are found."""
    return os.urandom(8).hex()


def uuid7() -> str:
    """Return a new UUID of version 7 as text."""
    stamp = time.time_ns() // 1_000_000
    tail = _bits.getrandbits(74)
    text = f"{stamp:012x}7{tail >> 62:03x}{2 << 62 | tail & (1 << 62) - 1:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
