"""The systems that Detent is measured against: one adapter each, run in an environment of its own.

To add one: a line in versions.txt, a line in SYSTEMS of bench/catalogue.py, and `bench/peers/NAME.py` that
calls `protocol.serve` with a function for each shape, and with the reason for each that it does not have.
Write it as its users would, in the fastest way that it documents.
"""
