"""Benchmarks of Detent; `make bench` runs them."""
