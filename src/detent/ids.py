"""Ids: UUIDv7, so that rows made one after the other lie side by side."""

from __future__ import annotations

import os
import time


def uuid7() -> str:
    """Return a new UUID of version 7 as text."""
    stamp = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10))
    number = (stamp & (1 << 48) - 1) << 80 | 7 << 76 | (tail >> 68) << 64 | 2 << 62 | tail & (1 << 62) - 1
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
