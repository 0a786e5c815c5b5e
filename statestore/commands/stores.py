r"""`statestore stores ls|get|history|range|count` and `statestore offsets`: looks into stores.

During a run they see the last commit of each stream task, in a snapshot that its owner takes.

Keys and values are converted by the serdes that the deployed topology names, or with `--pipeline`
by those of the pipeline. If the library does not have a serde of that name, the pipeline that the
applications file names is asked. With `--raw` keys and values are bytes: whatever is not printable
ASCII is shown as `\xNN`, and a KEY is written in the same way.
"""

from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click

from statestore import serdes
from statestore.commands.arguments import (
    PARTITION,
    StateArguments,
    parse_state_arguments,
    state_options,
)
from statestore.commands.help import CommandGroup
from statestore.commands.printing import print_rows, text_of
from statestore.commands.typed_keys import serialized
from statestore.errors import Misuse
from statestore.model.modes import parse_time, to_ms
from statestore.operations.pipelines import load_pipeline
from statestore.reading.decoding import Decoding
from statestore.reading.desk import Desk, FoundRow
from statestore.reading.questions import Range, VersionSpan
from statestore.reading.views import StoreView
from statestore.runtime import Runtime
from statestore.stores.kinds.kind import AnyReader
from statestore.stores.kinds.registry import GLOBAL
from statestore.stores.reads import Entry, RowScan

_WAYS_OUT = (
    "pass --pipeline module:function to decode with the serdes of the pipeline, or pass --raw"
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
_raw_option = click.option("--raw", is_flag=True, help=r"Show bytes, as text with \xNN.")
_pipeline_option = click.option(
    "--pipeline", help="module:function, whose serdes convert keys and values."
)
_partition_option = click.option("--partition", type=PARTITION, help="Look only at this partition.")


@click.group(cls=CommandGroup)
def stores() -> None:
    """Look into stores, whether or not a run is in progress."""


@stores.command("ls")
@state_options
@_json_option
def list_stores_command(*, as_json: bool, **flags: Any) -> None:
    """List the stores on disk: where they are, how large, and how to decode them."""
    at_rest = _desk(parse_state_arguments(flags)).at_rest
    rows = []
    for file in at_rest.files():
        known = file.deployed
        rows.append(
            {
                "store": file.store,
                "stream_task": str(file.task),
                "bytes": file.size_bytes,
                "kind": known and known.kind,
                "key_serde": known and known.key_serde,
                "value_serde": known and known.value_serde,
            }
        )
    for shared in at_rest.global_files():
        said = shared.deployed
        rows.append(
            {
                "store": shared.store,
                "stream_task": None,
                "bytes": shared.size_bytes,
                "kind": GLOBAL.name,
                "key_serde": said and said.key_serde,
                "value_serde": said and said.value_serde,
            }
        )
    print_rows(rows, as_json=as_json)


@stores.command("get")
@click.argument("store")
@click.argument("key")
@click.option(
    "--as-of", metavar="TIME", help="The value at this time, of a store with history or windows."
)
@_partition_option
@_raw_option
@_pipeline_option
@state_options
@_json_option
@click.pass_context
def get_command(
    context: click.Context,
    /,
    *,
    store: str,
    key: str,
    as_of: str | None,
    partition: int | None,
    raw: bool,
    pipeline: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Print the value of KEY in STORE; exit code 1 if there is none. TIME: ISO-8601 or epoch ms."""
    arguments, time_ms = parse_state_arguments(flags), _time_ms(as_of)
    looked = _desk(arguments).look(store, partition, needs_times=time_ms is not None)
    shown = _shown(looked.view, arguments, pipeline, raw=raw)
    wanted = shown.key(key)
    with closing(looked.rows(lambda reader: _one(reader, wanted, time_ms), key=wanted)) as found:
        row = next(found, None)
    if row is None:
        click.echo(f"store {store!r} has no key {key}", err=True)
        context.exit(1)
    elif as_json:
        print_rows([shown.fields(row)], as_json=True)
    else:
        click.echo(text_of(shown.value_of(row)))


@stores.command("history")
@click.argument("store")
@click.argument("key", required=False)
@click.argument("hi", required=False)
@click.option(
    "--from", "first", metavar="TIME", help="Only versions that were valid at this time or later."
)
@click.option(
    "--to", "last", metavar="TIME", help="Only versions that were valid at this time or before."
)
@click.option("--prefix", help="All keys whose bytes begin with those of this key.")
@click.option("--ascending", is_flag=True, help="Show the oldest of each key first.")
@_partition_option
@_raw_option
@_pipeline_option
@state_options
@_json_option
def history_command(
    *,
    store: str,
    key: str | None,
    hi: str | None,
    first: str | None,
    last: str | None,
    prefix: str | None,
    ascending: bool,
    partition: int | None,
    raw: bool,
    pipeline: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Print the versions of KEY in STORE, latest first. TIME: ISO-8601 or epoch ms, inclusive.

    With HI those of all keys with KEY <= key <= HI by bytes, without KEY those of all keys,
    partition by partition.
    """
    arguments, from_ms, to_ms = parse_state_arguments(flags), _time_ms(first), _time_ms(last)
    looked = _desk(arguments).look(store, partition, needs_history=True)
    shown = _shown(looked.view, arguments, pipeline, raw=raw)
    if from_ms is not None and to_ms is not None and from_ms > to_ms:
        raise Misuse(f"--from {first} is after --to {last}: swap them")
    wanted = Range(
        lo=shown.optional_key(key),
        hi=shown.optional_key(key if hi is None else hi),
        prefix=shown.optional_key(prefix),
        times=VersionSpan(first_ms=from_ms, last_ms=to_ms, ascending=ascending),
    )
    with closing(looked.range(wanted)) as found:
        print_rows(map(shown.fields, found), as_json=as_json)


@stores.command("range")
@click.argument("store")
@click.argument("lo", required=False)
@click.argument("hi", required=False)
@click.option("--prefix", help="Only keys whose bytes begin with those of this key.")
@click.option("--reverse", is_flag=True, help="Begin with the largest key.")
@click.option(
    "--limit",
    type=click.IntRange(0, 1_000_000_000),
    default=100,
    show_default=True,
    help="Show at most this many rows; 0 shows all.",
)
@click.option("--as-of", metavar="TIME", help="The values at this time, of a store with history.")
@_partition_option
@_raw_option
@_pipeline_option
@state_options
@_json_option
def range_command(
    *,
    store: str,
    lo: str | None,
    hi: str | None,
    prefix: str | None,
    reverse: bool,
    limit: int,
    as_of: str | None,
    partition: int | None,
    raw: bool,
    pipeline: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Print the rows of STORE with LO <= key <= HI by bytes, partition by partition.

    Of a store with history they are the latest versions, or those valid as of TIME; of a store with
    windows, all windows of the keys, by start.
    """
    arguments, time_ms = parse_state_arguments(flags), _time_ms(as_of)
    looked = _desk(arguments).look(store, partition, needs_times=time_ms is not None)
    shown = _shown(looked.view, arguments, pipeline, raw=raw)
    wanted = Range(
        lo=shown.optional_key(lo),
        hi=shown.optional_key(hi),
        prefix=shown.optional_key(prefix),
        reverse=reverse,
        as_of_ms=time_ms,
    )
    with closing(looked.range(wanted)) as found:
        rows = map(shown.fields, found)
        print_rows(islice(rows, limit) if limit else rows, as_json=as_json)
        if limit and next(rows, None) is not None:
            click.echo(f"there are more than {limit} rows: pass --limit", err=True)


@stores.command("count")
@click.argument("store")
@_partition_option
@state_options
@_json_option
def count_command(*, store: str, partition: int | None, as_json: bool, **flags: Any) -> None:
    """Count the rows of STORE exactly, by reading every one.

    Of a store with history these are the keys that have a value now; of one with windows, the
    windows of all keys.
    """
    looked = _desk(parse_state_arguments(flags)).look(store, partition)
    counts = dict.fromkeys(looked.tasks, 0)
    for row in looked.range(Range()):
        counts[row.task] += 1
    total = sum(counts.values())
    if as_json:
        by_task = {str(task): count for task, count in counts.items() if task is not None}
        print_rows([{"store": store, "count": total, "stream_tasks": by_task}], as_json=True)
    else:
        click.echo(total)


@click.command("offsets")
@click.argument("store", required=False)
@state_options
@_json_option
def offsets_command(*, store: str | None, as_json: bool, **flags: Any) -> None:
    """Print the offsets of stores: of changelogs NEXT to read, of inputs LAST processed."""
    rows = [
        {
            "store": found.store,
            "stream_task": str(found.task),
            "topic": tp.topic,
            "partition": tp.partition,
            "offset_next": offset if offsets is found.changelog else None,
            "offset_last": offset if offsets is found.position else None,
        }
        for found in _desk(parse_state_arguments(flags)).at_rest.offsets(store)
        for offsets in (found.changelog, found.position)
        for tp, offset in sorted(offsets.items())
    ]
    print_rows(rows, as_json=as_json)


@dataclass(frozen=True)
class _Shown:
    """How keys of one store are typed on a command line, and how its rows are printed."""

    decoding: Decoding

    def key(self, text: str) -> bytes:
        """Convert a key from text to bytes; Misuse says what was expected."""
        return self.decoding.key(text, serialized)

    def optional_key(self, text: str | None) -> bytes | None:
        """The same where none has to be given."""
        return None if text is None else self.key(text)

    def fields(self, row: FoundRow) -> dict[str, Any]:
        """The row as a line of JSON."""
        key = _printable(self.decoding.decoded_key(row.entry.key))
        task = None if row.task is None else str(row.task)
        line = {"stream_task": task, "key": key, "value": self.value_of(row)}
        return line | dict(zip(row.span_names, row.entry[2:], strict=False))

    def value_of(self, row: FoundRow) -> Any:
        """The decoded value."""
        return _printable(self.decoding.decoded_value(row.entry.value))


def _printable(item: Any) -> Any:
    return serdes.printable(item) if isinstance(item, bytes) else item


def _desk(arguments: StateArguments) -> Desk:
    desk = Desk(Runtime(arguments.settings()))
    click.get_current_context().call_on_close(desk.close)
    return desk


def _shown(
    view: StoreView, arguments: StateArguments, pipeline: str | None, *, raw: bool
) -> _Shown:
    """How a store is shown; Misuse if nothing says so."""
    if raw and pipeline is not None:
        raise Misuse("pass --raw, or --pipeline for its serdes, not both")
    topology = None if pipeline is None else load_pipeline(pipeline)
    try:
        found = view.serdes(_WAYS_OUT, raw=raw, topology=topology)
    except Misuse:
        configured = arguments.pipeline()
        if topology is not None or configured is None:
            raise
        found = view.serdes(_WAYS_OUT, topology=load_pipeline(configured))
    return _Shown(Decoding(view.name, found, _WAYS_OUT))


def _one(reader: AnyReader, key: bytes, time_ms: int | None) -> RowScan[Entry]:
    found = reader.find(key, time_ms)
    return RowScan(iter(() if found is None else (found,)), lambda: None)


def _time_ms(text: str | None) -> int | None:
    return None if text is None else to_ms(parse_time(text))
