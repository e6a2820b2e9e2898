"""Carrying out user code: frames, how their requests are performed, and what comes of them."""
