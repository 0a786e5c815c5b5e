r"""`statestore stores ls|get|history|range|count` and `statestore offsets`: looks into stores.

During a run they see the last commit of each stream task, in a snapshot that its owner takes.

Keys and values are converted by the serdes that the deployed topology names. With `--raw` they are
bytes: whatever is not printable ASCII is shown as `\xNN`, and a KEY is written in the same way.
"""

import re
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click
import msgspec

from statestore.commands.arguments import PARTITION, parse_state, parse_time, state_options
from statestore.commands.printing import print_rows, text_of
from statestore.errors import Misuse
from statestore.model.modes import to_ms
from statestore.model.records import Serde
from statestore.operations.at_rest import Row, StoresAtRest
from statestore.operations.versions_at_rest import VersionRow, VersionsAtRest
from statestore.operations.windows_at_rest import WindowRow, WindowsAtRest
from statestore.runtime import Runtime
from statestore.stores import keyvalue, serdes, versioned_layout
from statestore.stores.codec import after_prefix
from statestore.stores.specs import WindowSpec

_Row = Row | VersionRow | WindowRow

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
_raw_option = click.option("--raw", is_flag=True, help=r"Show bytes, as text with \xNN.")
_partition_option = click.option("--partition", type=PARTITION, help="Look only at this partition.")


@click.group()
def stores() -> None:
    """Look into stores, whether or not a run is in progress."""


@stores.command("ls")
@state_options
@_json_option
def list_stores_command(*, as_json: bool, **flags: Any) -> None:
    """List the stores on disk: where they are, how large, and how to decode them."""
    at_rest = _at_rest(flags)
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
    print_rows(rows, as_json=as_json)


@stores.command("get")
@click.argument("store")
@click.argument("key")
@click.option(
    "--as-of", metavar="TIME", help="The value at this time, of a store with history or windows."
)
@_partition_option
@_raw_option
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
    as_json: bool,
    **flags: Any,
) -> None:
    """Print the value of KEY in STORE; exit code 1 if there is none. TIME: ISO-8601 or epoch ms."""
    at_rest = _at_rest(flags)
    time_ms = _time_ms(as_of)
    kind = _kind(at_rest, store, as_of=as_of)
    face = _face(at_rest, store, partition, raw=raw, kind=kind)
    row: _Row | None
    if kind == WindowSpec.kind:
        if time_ms is None:
            raise Misuse(f"store {store!r} has windows: pass --as-of, a time in the one you want")
        row = WindowsAtRest(at_rest, store, partition).get(face.key(key), time_ms)
    elif kind == versioned_layout.KIND:
        row = VersionsAtRest(at_rest, store, partition).get(face.key(key), time_ms)
    else:
        row = at_rest.get(store, face.key(key), partition)
    if row is None:
        click.echo(f"store {store!r} has no key {key}", err=True)
        context.exit(1)
    elif as_json:
        print_rows([face.fields(row)], as_json=True)
    else:
        click.echo(text_of(face.value_of(row)))


@stores.command("history")
@click.argument("store")
@click.argument("key")
@click.option(
    "--from", "first", metavar="TIME", help="Only versions that were valid at this time or later."
)
@click.option(
    "--to", "last", metavar="TIME", help="Only versions that were valid at this time or before."
)
@click.option("--ascending", is_flag=True, help="Show the oldest first.")
@_partition_option
@_raw_option
@state_options
@_json_option
def history_command(
    *,
    store: str,
    key: str,
    first: str | None,
    last: str | None,
    ascending: bool,
    partition: int | None,
    raw: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Print the versions of KEY in STORE, latest first. TIME: ISO-8601 or epoch ms, inclusive."""
    at_rest = _at_rest(flags)
    versions = VersionsAtRest(at_rest, store, partition)
    face = _face(at_rest, store, partition, raw=raw, kind=versioned_layout.KIND)
    from_ms, to_ms = _time_ms(first), _time_ms(last)
    if from_ms is not None and to_ms is not None and from_ms > to_ms:
        raise Misuse(f"--from {first} is after --to {last}: swap them")
    rows = versions.history(face.key(key), from_ms, to_ms)
    print_rows(map(face.fields, reversed(rows) if ascending else rows), as_json=as_json)


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
    as_json: bool,
    **flags: Any,
) -> None:
    """Print the rows of STORE with LO <= key <= HI by bytes, partition by partition.

    Of a store with history they are the latest versions, or those valid as of TIME; of a store with
    windows, all windows of the keys, by start.
    """
    at_rest = _at_rest(flags)
    kind = _kind(at_rest, store, as_of=as_of)
    face = _face(at_rest, store, partition, raw=raw, kind=kind)
    low, high = (None if end is None else face.key(end) for end in (lo, hi))
    beyond = None
    if prefix is not None:
        if lo is not None:
            raise Misuse("pass LO and HI, or --prefix, not both")
        low = face.key(prefix)
        high = beyond = after_prefix(low)
    found: Generator[_Row, None, None]
    if kind == WindowSpec.kind:
        if as_of is not None:
            raise Misuse(f"store {store!r} has windows, and no history: leave --as-of out")
        found = WindowsAtRest(at_rest, store, partition).range(low, high, reverse=reverse)
    elif kind == versioned_layout.KIND:
        versions = VersionsAtRest(at_rest, store, partition)
        found = versions.range(low, high, as_of_ms=_time_ms(as_of), reverse=reverse)
    else:
        found = at_rest.range(store, low, high, reverse=reverse, partition=partition)
    with closing(found):
        rows = (face.fields(row) for row in found if row.key != beyond)
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
    at_rest = _at_rest(flags)
    kind = _kind(at_rest, store)
    if kind == WindowSpec.kind:
        counts = WindowsAtRest(at_rest, store, partition).counts()
    elif kind == versioned_layout.KIND:
        counts = VersionsAtRest(at_rest, store, partition).counts()
    else:
        counts = at_rest.counts(store, partition)
    total = sum(counts.values())
    if as_json:
        by_task = {str(task): count for task, count in counts.items()}
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
        for found in _at_rest(flags).offsets(store)
        for offsets in (found.changelog, found.position)
        for tp, offset in sorted(offsets.items())
    ]
    print_rows(rows, as_json=as_json)


@dataclass(frozen=True)
class _Face:
    """How keys and values of one store are written and shown."""

    store: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]

    def key(self, text: str) -> bytes:
        """Convert a key from text to bytes; Misuse says what was expected."""
        try:
            return self.key_serde.serialize(_item(text, self.key_serde))
        except Exception as error:
            raise Misuse(
                f"key {text!r} of store {self.store!r} is no {self.key_serde.name} ({error}): "
                "write one, or pass --raw"
            ) from error

    def fields(self, row: _Row) -> dict[str, Any]:
        """The row as a line of JSON."""
        key = self._shown("key", row.key, self.key_serde)
        line = {"stream_task": str(row.task), "key": key, "value": self.value_of(row)}
        if isinstance(row, VersionRow):
            line |= {"timestamp_ms": row.timestamp_ms, "valid_to_ms": row.valid_to_ms}
        if isinstance(row, WindowRow):
            line |= {"start_ms": row.start_ms, "end_ms": row.end_ms}
        return line

    def value_of(self, row: _Row) -> Any:
        """The decoded value."""
        return self._shown("value", row.value, self.value_serde)

    def _shown(self, side: str, data: bytes, serde: Serde[Any]) -> Any:
        if serde is serdes.BYTES:
            return serdes.printable(data)
        try:
            return serde.deserialize(data)
        except Exception as error:
            shown = serdes.printable(data)
            raise Misuse(
                f"store {self.store!r}: the {side} {shown} is no {serde.name} ({error}): pass --raw"
            ) from error


def _at_rest(flags: dict[str, Any]) -> StoresAtRest:
    looked = StoresAtRest(Runtime(parse_state(flags)))
    click.get_current_context().call_on_close(looked.close)
    return looked


def _kind(at_rest: StoresAtRest, store: str, *, as_of: str | None = None) -> str:
    """The kind that the deployed topology says; otherwise, with a time, one with history."""
    known = at_rest.deployed.stores.get(store)
    windows = known is not None and known.kind == WindowSpec.kind
    if as_of is not None and not windows:
        return versioned_layout.KIND
    return keyvalue.KIND if known is None else known.kind


def _time_ms(text: str | None) -> int | None:
    return None if text is None else to_ms(parse_time(text))


def _face(
    at_rest: StoresAtRest, store: str, partition: int | None, *, raw: bool, kind: str
) -> _Face:
    at_rest.find(store, partition, kind=kind)
    if raw:
        return _Face(store, serdes.BYTES, serdes.BYTES)
    known = at_rest.deployed.stores.get(store)
    if known is None:
        raise Misuse(
            f"store {store!r} is not in the topology deployed last, so nothing says how to decode "
            "it: pass --raw"
        )
    windows = serdes.of_windowed(known.key_serde)
    keys = known.key_serde if windows is None else windows[1]
    try:
        return _Face(store, serdes.by_name(keys), serdes.by_name(known.value_serde))
    except Misuse as error:
        raise Misuse(f"store {store!r}: {error}; or pass --raw") from error


def _item(text: str, serde: Serde[Any]) -> Any:
    if serde is serdes.BYTES:
        return _unescaped(text)
    if serde is serdes.STRING:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _unescaped(text: str) -> bytes:
    return re.sub(rb"\\x([0-9a-fA-F]{2})", lambda found: bytes([int(found[1], 16)]), text.encode())
