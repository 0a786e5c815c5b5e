"""Prints rows, times and spans, for people and for programs."""

import math
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

_TIME = "_ms"
_YEARS_S = 100 * 365 * 86_400


def print_rows(rows: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    """Print JSON lines, or a table on a terminal, or columns separated by tabs elsewhere.

    Columns that end in `_ms` are times: people see them as ISO-8601, in UTC.
    """
    if as_json:
        for row in rows:
            click.echo(msgspec.json.encode(row, enc_hook=str))
        return
    listed = list(rows)
    columns = list(listed[0]) if listed else []
    lines = [[_cell(column, row[column]) for column in columns] for row in listed]
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        for line in lines:
            click.echo("\t".join(line))
        return
    console.print(_table(columns, lines) if lines else "nothing")


def text_of(item: Any) -> str:
    """The text of an item in a cell."""
    if item is None:
        return ""
    return item if isinstance(item, str) else msgspec.json.encode(item, enc_hook=str).decode()


def time_text(time_ms: int) -> str:
    """A time as ISO-8601 in UTC, as the command line accepts it; in ms if no calendar has it."""
    try:
        time = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    time = time.replace(microsecond=time_ms % 1000 * 1000)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def held_text(records: int) -> str:
    """Says how many records wait in operators, which no lag tells."""
    what = "record" if records == 1 else "records"
    return f"{records:,} {what} held back until later input"


def span_text(seconds: float | None) -> str:
    """A span in its two largest units; a question mark if it is not known."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds > _YEARS_S:
        return "years"
    left, parts = math.ceil(seconds), []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])


def _cell(column: str, item: Any) -> str:
    if isinstance(item, int) and column.endswith(_TIME):
        return time_text(item)
    return text_of(item)


def _table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column.removesuffix(_TIME).replace("_", " "))
    for line in lines:
        table.add_row(*map(Text, line))
    return table
