"""curves of a training log as an SVG file"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 220, 64, 28, 28
_MAX_POINTS = 400


def draw(log: Sequence[dict[str, float]], target: Path) -> None:
    """Draw one panel for "loss" and one for each held-out metric, over the steps.

    Args:
        log: lines of a log.jsonl, each with "step".
        target: the SVG file.
    """
    names = [name for name in dict.fromkeys(key for line in log for key in line)]
    names = [name for name in names if name == "loss" or name.startswith("held_out_")]
    curves = [(name, [(line["step"], line[name]) for line in log if name in line]) for name in names]
    panels = [_panel(name, _thinned(points), i) for i, (name, points) in enumerate(curves)]
    height = max(1, len(panels)) * (_HEIGHT + _TOP + _BOTTOM)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _LEFT + 16}" height="{height}">'
    style = '<rect width="100%" height="100%" fill="white"/><g font-family="sans-serif" font-size="12">'
    target.write_text("\n".join([head, style, *panels, "</g></svg>\n"]), encoding="utf-8")


def _panel(name: str, points: list[tuple[float, float]], index: int) -> str:
    top = index * (_HEIGHT + _TOP + _BOTTOM) + _TOP
    steps, values = [p[0] for p in points], [p[1] for p in points if math.isfinite(p[1])]
    if not values:
        return f'<text x="{_LEFT}" y="{top - 8}">{html.escape(name)}: no finite value</text>'
    low, high, last = min(values), max(values), max(max(steps), 1)
    span = high - low or 1.0
    places = [
        f"{_LEFT + _WIDTH * step / last:.1f},{top + _HEIGHT * (high - value) / span:.1f}"
        for step, value in points
        if math.isfinite(value)
    ]
    return "\n".join(
        [
            f'<text x="{_LEFT}" y="{top - 8}">{html.escape(name)}: {points[-1][1]:.5g} at step {steps[-1]:g}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>',
            f'<text x="{_LEFT - 4}" y="{top + 10}" text-anchor="end">{high:.4g}</text>',
            f'<text x="{_LEFT - 4}" y="{top + _HEIGHT}" text-anchor="end">{low:.4g}</text>',
            f'<text x="{_LEFT + _WIDTH}" y="{top + _HEIGHT + 16}" text-anchor="end">{last:g} steps</text>',
            f'<polyline fill="none" stroke="#1f5faa" stroke-width="1.5" points="{" ".join(places)}"/>',
        ]
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most _MAX_POINTS, each the mean of its neighbours."""
    count = -(-len(points) // _MAX_POINTS)
    groups = [points[i : i + count] for i in range(0, len(points), count or 1)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]
