"""Prints rows, for people and for programs."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statestore.model.texts import time_text

_TIME = "_ms"


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
