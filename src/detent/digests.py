"""SHA-256 for what `import detent` loads.

`hashlib` loads OpenSSL, 7 % of the time of the import.  So it is imported with the first digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(content: bytes) -> _Hash:
    import hashlib

    return hashlib.sha256(content)
