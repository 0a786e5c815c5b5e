"""Draws small charts and graphs as SVG, without scripts or styles of its own.

Colours come from classes, so that a page shows them light or dark. All text is escaped.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

_BOX_WIDTH: Final = 190
_BOX_HEIGHT: Final = 46
_GAP_X: Final = 70
_GAP_Y: Final = 22
_NAME_MAX: Final = 24


def sparkline(values: Sequence[float | None], told: str, *, width: int = 160) -> Markup:
    """A line through the values; None leaves a gap. `told` says the same to those who hear it."""
    height, top = 36, max((v for v in values if v is not None), default=0.0) or 1.0
    step = width / max(1, len(values) - 1)
    lines: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{place * step:.1f},{height - 2 - value / top * (height - 4):.1f}")
    drawn = [Markup('<polyline points="{}"/>').format(" ".join(line)) for line in lines if line]
    return _svg("spark", width, height, told, drawn, stretched=True)


def stacked(
    parts: Mapping[str, Sequence[float]], labels: Sequence[str], told: str, *, width: int = 720
) -> Markup:
    """Bars of several parts each, by the name of the part, which is its class as well."""
    height, count = 120, len(labels)
    sums = [sum(values[place] for values in parts.values()) for place in range(count)]
    top, step = max(sums, default=0.0) or 1.0, width / max(1, count)
    drawn = []
    for place, label in enumerate(labels):
        if not sums[place]:
            continue
        at = float(height)
        bars = []
        for name, values in parts.items():
            tall = values[place] / top * (height - 4)
            at -= tall
            bars.append(
                Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                    name, f"{place * step:.1f}", f"{at:.1f}", f"{step * 0.85:.1f}", f"{tall:.1f}"
                )
            )
        drawn.append(Markup("<g><title>{}</title>{}</g>").format(label, Markup("").join(bars)))
    return _svg("stacked", width, height, told, drawn, stretched=True)


class Box(NamedTuple):
    """A node of a graph: its kind is its class; `address` makes it a link."""

    name: str
    kind: str
    note: str = ""
    address: str = ""


def graph(boxes: Mapping[str, Box], edges: Mapping[tuple[str, str], str], told: str) -> Markup:
    """Boxes in columns from left to right; each edge has a note, which may be empty."""
    columns = _columns(boxes, edges)
    places = {
        name: (column * (_BOX_WIDTH + _GAP_X) + 10, row * (_BOX_HEIGHT + _GAP_Y) + 10)
        for column, names in enumerate(columns)
        for row, name in enumerate(names)
    }
    width = len(columns) * (_BOX_WIDTH + _GAP_X) - _GAP_X + 20
    height = max(map(len, columns), default=0) * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y + 20
    drawn = []
    for (a, b), note in edges.items():
        told_edge = f"{boxes[a].name} → {boxes[b].name}{note and ': '}{note}"
        drawn.append(_edge(places[a], places[b], note, told_edge))
    drawn += [_box(box, *places[name]) for name, box in boxes.items()]
    return _svg("graph", max(width, 20), max(height, 20), told, drawn)


def _columns(boxes: Mapping[str, Box], edges: Mapping[tuple[str, str], str]) -> list[list[str]]:
    """Each box stands right of those that lead to it, as far as there is no circle."""
    column = dict.fromkeys(boxes, 0)
    for _ in boxes:
        moved = False
        for before, after in edges:
            if column[after] <= column[before] < len(boxes) - 1:
                column[after], moved = column[before] + 1, True
        if not moved:
            break
    used = sorted(set(column.values()))
    return [[name for name in boxes if column[name] == each] for each in used]


def _box(box: Box, x: int, y: int) -> Markup:
    name = box.name if len(box.name) <= _NAME_MAX else f"{box.name[: _NAME_MAX - 1]}…"
    shown = Markup(
        '<g class="{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="6"/>'
        '<text x="{}" y="{}">{}</text><text class="note" x="{}" y="{}">{}</text></g>'
    ).format(
        *(box.kind, f"{box.name}\n{box.note}", x, y, _BOX_WIDTH, _BOX_HEIGHT),
        *(x + 10, y + 20, name, x + 10, y + 37, box.note),
    )
    return Markup('<a href="{}">{}</a>').format(box.address, shown) if box.address else shown


def _edge(begin: tuple[int, int], end: tuple[int, int], note: str, told: str) -> Markup:
    x, y = begin[0] + _BOX_WIDTH, begin[1] + _BOX_HEIGHT // 2
    to_x, to_y = end[0], end[1] + _BOX_HEIGHT // 2
    bend = max(30, abs(to_x - x) // 2)
    path = f"M{x},{y} C{x + bend},{y} {to_x - bend},{to_y} {to_x},{to_y}"
    return Markup(
        '<g class="edge"><title>{}</title><path d="{}"/>'
        '<text x="{}" y="{}" text-anchor="middle">{}</text></g>'
    ).format(told, path, (x + to_x) // 2, (y + to_y) // 2 - 6, note)


def _svg(
    kind: str,
    width: int,
    height: int,
    told: str,
    drawn: Sequence[Markup],
    *,
    stretched: bool = False,
) -> Markup:
    """The drawing; `stretched` lets the page give it another shape."""
    shape = Markup(' preserveAspectRatio="none"') if stretched else Markup("")
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" '
        'aria-label="{}"{}>{}</svg>'
    ).format(kind, width, height, width, height, escape(told), shape, Markup("").join(drawn))
