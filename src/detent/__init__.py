"""Detent: durable workflows for Python."""
