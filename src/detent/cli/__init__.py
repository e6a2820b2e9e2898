"""The command line: `detent worker shop:app`, `detent runs`, `detent demo`…

Written over the public face of the package, as a user would write it.  Click and
Rich are imported here and nowhere else.
"""

from .main import detent, main

__all__ = ["detent", "main"]
