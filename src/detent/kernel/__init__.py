"""The rules: pure functions and plain nouns.  No clock, no I/O, no threads, no user code."""
