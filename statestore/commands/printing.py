"""Prints rows, for people and for programs."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statestore.model.decoders import json_decoder
from statestore.model.texts import field_text, time_text

_TIME = "_ms"
_SPAN = "_seconds"


def print_rows(rows: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    """Print JSON lines, or a table on a terminal, or columns separated by tabs elsewhere.

    On a terminal, times, spans, sizes and counts are written for people, by the names of their
    columns; elsewhere only times are, as ISO-8601 in UTC, so that programs can go on calculating.
    """
    if as_json:
        for row in rows:
            click.echo(msgspec.json.encode(row, enc_hook=plain))
        return
    listed = list(rows)
    columns = list(listed[0]) if listed else []
    console = Console(file=sys.stdout)
    cell = cell_text if console.is_terminal else _plain_cell
    lines = [[cell(column, row[column]) for column in columns] for row in listed]
    if not console.is_terminal:
        for line in lines:
            click.echo("\t".join(line))
        return
    console.print(_table(columns, lines) if lines else "nothing")


def cell_text(name: str, item: Any) -> str:
    """The text of a field in a table for people."""
    shown = field_text(name, item) if isinstance(item, int | float) else None
    return text_of(item) if shown is None else shown


def text_of(item: Any) -> str:
    """The text of an item in a cell."""
    if item is None:
        return ""
    if isinstance(item, str):
        return item
    text = json_text(item)
    # What is a string in JSON, such as a date, is shown as strings are.
    return json_decoder(str).decode(text) if text.startswith('"') else text


def json_text(item: Any) -> str:
    """The item as JSON text, whatever class it is of."""
    return msgspec.json.encode(item, enc_hook=plain).decode()


def plain(item: Any) -> Any:
    """What stands in JSON for an object that JSON does not have.

    A pydantic model becomes what it dumps, and anything else its text.
    """
    dump = getattr(item, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(item)


def _plain_cell(column: str, item: Any) -> str:
    if isinstance(item, int) and column.endswith(_TIME):
        return time_text(item)
    return text_of(item)


def _table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column.removesuffix(_TIME).removesuffix(_SPAN).replace("_", " "))
    for line in lines:
        table.add_row(*map(Text, line))
    return table
