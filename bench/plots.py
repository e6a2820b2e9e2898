"""Plots as SVG, written by hand: horizontal bars, and lines over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH = 760
LEFT = 240
RIGHT = 130
BAR = 22
OURS, THEIRS, LIMIT = "#1f6f8b", "#b8c4cc", "#d9a441"
# Dark enough on white, light enough on a dark page: the page's own background shows through.
STYLE = "<style>text{font:13px system-ui,sans-serif;fill:#78818a}.t{font-weight:600}</style>"


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar for each (name, value, label); the scale is logarithmic where the values differ tenfold."""
    values = [value for _, value, _ in rows if value > 0]
    logarithmic = bool(values) and max(values) > 10 * min(values)
    height = 44 + BAR * len(rows) + 10
    lines = [_open(height), f'<text class="t" x="8" y="18">{escape(title)}</text>']
    if logarithmic:
        lines.append('<text x="8" y="36">logarithmic scale</text>')
    for number, (name, value, label) in enumerate(rows):
        top = 44 + BAR * number
        length = (WIDTH - LEFT - RIGHT) * _share(value, values, logarithmic)
        colour = _colour(name)
        lines += [
            f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top + 2}" width="{length:.1f}" height="{BAR - 6}" fill="{colour}"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{top + 14}">{escape(label)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _share(value: float, values: Sequence[float], logarithmic: bool) -> float:
    """How long a bar is, of the longest; the shortest of a logarithmic scale stays visible."""
    if value <= 0:
        return 0.0
    if not logarithmic:
        return value / max(values)
    low = math.log10(min(values)) - 0.3
    return (math.log10(value) - low) / (math.log10(max(values)) - low)


def _colour(name: str) -> str:
    return OURS if name.startswith("Detent") else LIMIT if name.startswith("limit") else THEIRS


def line(title: str, unit: str, points: Sequence[tuple[float, float]], across: str) -> str:
    """One value over another, from zero up, so that flat looks flat."""
    height, top, bottom = 220, 34, 180
    most = max((y for _, y in points), default=0.0) or 1.0
    last = max((x for x, _ in points), default=0.0) or 1.0
    inner = WIDTH - 120
    placed = " ".join(
        f"{70 + inner * x / last:.1f},{bottom - (bottom - top) * y / (1.1 * most):.1f}" for x, y in points
    )
    lines = [
        _open(height),
        f'<text class="t" x="8" y="18">{escape(title)}</text>',
        f'<path d="M70 {top}V{bottom}H{70 + inner}" fill="none" stroke="#b8c4cc"/>',
        f'<text x="64" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="64" y="{top + 14}" text-anchor="end">{escape(short(most))}</text>',
        f'<text x="76" y="{top + 14}">{escape(unit)}</text>',
        f'<text x="{70 + inner}" y="{bottom + 20}" text-anchor="end">{short(last)} {escape(across)}</text>',
        f'<polyline points="{placed}" fill="none" stroke="{OURS}" stroke-width="2"/>',
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def short(value: float) -> str:
    """Three digits that mean something."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def _open(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">{STYLE}'
    )
