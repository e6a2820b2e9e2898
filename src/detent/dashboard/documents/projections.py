"""Projections: how far each has come, and what blocks it."""

from __future__ import annotations

from ...app.projections import Projections
from .source import Document, Source


def projection_documents(source: Source) -> Document:
    """Every generation of every projection."""
    known = {plan.name for plan in source.engine.registry.projections}
    return {
        "projections": [
            {
                "name": one.name,
                "generation": one.generation,
                "version": one.version,
                "state": one.state,
                "position": one.position,
                "head": one.head,
                "lag": one.lag,
                "behind_seconds": None if one.age is None else one.age.total_seconds(),
                "blocked": one.blocked,
                "blocked_at": one.blocked_at,
                "failures": one.failures,
                "error": one.error,
                "included": one.name in known,
            }
            for one in Projections(source.engine).status()
        ]
    }
