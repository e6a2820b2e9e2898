"""Drawings of a run: its graph and its timeline, as numbers.  Pure."""
