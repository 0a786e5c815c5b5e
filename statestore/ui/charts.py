"""Draws the small charts of lists as SVG, without scripts or styles of its own.

Colours come from classes, so that a page shows them light or dark. All text is escaped.
"""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

_WIDTH: Final = 160
_HEIGHT: Final = 36


def sparkline(values: Sequence[float | None], told: str) -> Markup:
    """A line through the values; None leaves a gap. `told` says the same to those who hear it."""
    width, height = _WIDTH, _HEIGHT
    top = max((v for v in values if v is not None), default=0.0) or 1.0
    step = width / max(1, len(values) - 1)
    lines: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{place * step:.1f},{height - 2 - value / top * (height - 4):.1f}")
    drawn = [Markup('<polyline points="{}"/>').format(" ".join(line)) for line in lines if line]
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" '
        'aria-label="{}" preserveAspectRatio="none">{}</svg>'
    ).format(width, height, width, height, told, Markup("").join(drawn))
