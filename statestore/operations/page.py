"""Writes one HTML page that needs no script, font or server; all text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem;
  padding: 0 1rem; color: #222; background: #fff; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-bottom: 1px solid #ddd; overflow-wrap: anywhere; }
td.n { font-variant-numeric: tabular-nums; }
.green { color: #146c2e; } .red { color: #b3261e; font-weight: 600; } .yellow { color: #8a5a00; }
ul { margin: .3rem 0 0; padding-left: 1.1rem; } summary { cursor: pointer; }
"""


class Cell(NamedTuple):
    """A cell of a table: its HTML and its class; the class "n" is for numbers."""

    html: str
    shown: str = ""


def text(value: object) -> str:
    """Anything as HTML; None as nothing."""
    return "" if value is None else escape(str(value))


def number(value: int) -> Cell:
    """A count, with commas between thousands."""
    return Cell(f"{value:,}", "n")


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> str:
    """A table; a cell that is not a `Cell` is text."""
    lines = ["".join(map(_cell, row)) for row in rows]
    head = "".join(f"<th>{text(column)}</th>" for column in columns)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def listed(values: Iterable[str]) -> str:
    """A list of texts; nothing if there are none."""
    items = "".join(f"<li>{text(value)}</li>" for value in values)
    return f"<ul>{items}</ul>" if items else ""


def page(title: str, *parts: str) -> str:
    """The page: a title, which is text, and parts, which are HTML."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{text(title)}</h1>\n{body}\n</body></html>\n"
    )


def _cell(cell: Cell | str) -> str:
    html, shown = cell if isinstance(cell, Cell) else Cell(text(cell))
    return f'<td class="{shown}">{html}</td>' if shown else f"<td>{html}</td>"
