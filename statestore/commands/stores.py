r"""`statestore stores ls|get|history|range|count` and `statestore offsets`: looks into stores.

During a run they see the last commit of each stream task, in a snapshot that its owner takes.

Keys and values are converted by the serdes that the deployed topology names, or with `--pipeline`
by those of the pipeline. If the library does not have a serde of that name, the pipeline that the
applications file names is asked. With `--raw` keys and values are bytes: whatever is not printable
ASCII is shown as `\xNN`, and a KEY is written in the same way.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import click

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
from statestore.model.ids import TaskId
from statestore.model.modes import parse_time, to_ms
from statestore.model.records import Serde
from statestore.operations.at_rest import StoresAtRest
from statestore.operations.pipelines import load_pipeline, serdes_of
from statestore.runtime import Runtime
from statestore.stores import serdes
from statestore.stores.codec import after_prefix
from statestore.stores.kinds import AnyReader
from statestore.stores.reads import Entry, RowScan
from statestore.stores.specs import AtRestSpec, KeyValueSpec, SessionSpec, WindowSpec
from statestore.stores.versioned import layout as versioned_layout
from statestore.stores.versioned.store import VersionedReader

_WAYS_OUT = (
    "pass --pipeline module:function to decode with the serdes of the pipeline, or pass --raw"
)
_WITH_TIMES = (WindowSpec.kind, SessionSpec.kind)
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
    at_rest = _at_rest(parse_state_arguments(flags))
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
                "kind": "global",
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
    looked = _looked_at(flags, store, partition, as_of=as_of)
    face, time_ms = looked.face(raw=raw, pipeline=pipeline), _time_ms(as_of)
    wanted = face.key(key)
    found = looked.rows(lambda reader: _one(reader, wanted, time_ms), key=wanted)
    with closing(found):
        row = next(found, None)
    if row is None:
        click.echo(f"store {store!r} has no key {key}", err=True)
        context.exit(1)
    elif as_json:
        print_rows([face.fields(row)], as_json=True)
    else:
        click.echo(text_of(face.value_of(row)))


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
    looked = _looked_at(flags, store, partition, kind=versioned_layout.KIND)
    face = looked.face(raw=raw, pipeline=pipeline)
    from_ms, to_ms = _time_ms(first), _time_ms(last)
    if from_ms is not None and to_ms is not None and from_ms > to_ms:
        raise Misuse(f"--from {first} is after --to {last}: swap them")
    low, high, beyond = _bounds(face, key, key if hi is None else hi, prefix)

    def ask(reader: AnyReader) -> RowScan[Entry]:
        assert isinstance(reader, VersionedReader)
        return reader.versions(low, high, from_ms=from_ms, to_ms=to_ms, ascending=ascending)

    with closing(looked.rows(ask)) as found:
        rows = (face.fields(row) for row in found if row.entry.key != beyond)
        print_rows(rows, as_json=as_json)


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
    looked = _looked_at(flags, store, partition, as_of=as_of)
    face, time_ms = looked.face(raw=raw, pipeline=pipeline), _time_ms(as_of)
    low, high, beyond = _bounds(face, lo, hi, prefix)
    found = looked.rows(lambda reader: reader.entries(low, high, as_of_ms=time_ms, reverse=reverse))
    with closing(found):
        rows = (face.fields(row) for row in found if row.entry.key != beyond)
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
    looked = _looked_at(flags, store, partition)
    counts = dict.fromkeys(looked.tasks, 0)
    for row in looked.rows(lambda reader: reader.entries()):
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
        for found in _at_rest(parse_state_arguments(flags)).offsets(store)
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
            return serialized(text, self.key_serde)
        except Exception as error:
            raise Misuse(
                f"key {text!r} of store {self.store!r} is no {self.key_serde.name} ({error}): "
                "write one, or pass --raw"
            ) from error

    def fields(self, row: "_Row") -> dict[str, Any]:
        """The row as a line of JSON."""
        key = self._shown("key", row.entry.key, self.key_serde)
        task = None if row.task is None else str(row.task)
        line = {"stream_task": task, "key": key, "value": self.value_of(row)}
        return line | dict(zip(row.span_names, row.entry[2:], strict=False))

    def value_of(self, row: "_Row") -> Any:
        """The decoded value."""
        return self._shown("value", row.entry.value, self.value_serde)

    def _shown(self, side: str, data: bytes, serde: Serde[Any]) -> Any:
        if serde is serdes.BYTES:
            return serdes.printable(data)
        try:
            return serde.deserialize(data)
        except Exception as error:
            shown = serdes.printable(data)
            raise Misuse(
                f"store {self.store!r}: the {side} {shown} is no {serde.name} ({error}): "
                f"{_WAYS_OUT}"
            ) from error


def _at_rest(arguments: StateArguments) -> StoresAtRest:
    looked = StoresAtRest(Runtime(arguments.settings()))
    click.get_current_context().call_on_close(looked.close)
    return looked


class _Row(NamedTuple):
    """A row of one stream task's store, and what the two times of its entry are called.

    `task` None: of the store of a global table.
    """

    task: TaskId | None
    span_names: tuple[str, ...]
    entry: Entry


@dataclass(frozen=True)
class _LookedAt:
    """One store of an application, read in bytes.

    `tasks` has None for the store of a global table.
    """

    arguments: StateArguments
    at_rest: StoresAtRest
    spec: AtRestSpec
    tasks: Sequence[TaskId | None]

    def rows(
        self, ask: Callable[[AnyReader], RowScan[Entry]], *, key: bytes | None = None
    ) -> Generator[_Row, None, None]:
        """What `ask` gets from the reader of each stream task, in turn.

        `key`: begin where this key should lie.
        """
        tasks: Iterable[TaskId | None] = self.tasks
        if key is not None:
            tasks = self.at_rest.likely_first(self.spec.name, self.tasks, key)
        for task in tasks:
            with self._reader(task) as reader, ask(reader) as found:
                for entry in found:
                    yield _Row(task, reader.span_names, entry)

    def _reader(self, task: TaskId | None) -> AbstractContextManager[AnyReader]:
        if task is None:
            return self.at_rest.global_reader(self.spec.name)
        return self.at_rest.reader(task, self.spec)

    def face(self, *, raw: bool, pipeline: str | None) -> _Face:
        """How its keys and values are shown; Misuse if nothing says so."""
        store = self.spec.name
        if raw:
            if pipeline is not None:
                raise Misuse("pass --raw, or --pipeline for its serdes, not both")
            return _Face(store, serdes.BYTES, serdes.BYTES)
        if pipeline is not None:
            return self._face_of(pipeline)
        configured = self.arguments.pipeline()
        deployed = self.at_rest.deployed
        known = deployed.stores.get(store) or deployed.global_stores.get(store)
        if known is None:
            if configured is not None:
                return self._face_of(configured)
            raise Misuse(
                f"store {store!r} is not in the topology deployed last, so nothing says how to "
                f"decode it: {_WAYS_OUT}"
            )
        windows = serdes.of_windowed(known.key_serde)
        keys = known.key_serde if windows is None else windows.inner
        try:
            return _Face(store, serdes.by_name(keys), serdes.by_name(known.value_serde))
        except Misuse as error:
            if configured is not None:
                return self._face_of(configured)
            raise Misuse(f"store {store!r}: {error}: {_WAYS_OUT}") from error

    def _face_of(self, pipeline: str) -> _Face:
        """What the pipeline's own serdes show."""
        store = self.spec.name
        found = serdes_of(load_pipeline(pipeline), store, self.arguments.application_id)
        return _Face(store, found.key, found.value)


def _looked_at(
    flags: dict[str, Any],
    store: str,
    partition: int | None,
    *,
    kind: str | None = None,
    as_of: str | None = None,
) -> _LookedAt:
    """The store, as the deployed topology describes it; a time asks for one with history."""
    arguments = parse_state_arguments(flags)
    at_rest = _at_rest(arguments)
    if store in at_rest.deployed.global_stores:
        if as_of is not None or kind is not None or partition:
            raise Misuse(
                f"store {store!r} is that of a global table: it has one part and no history: leave "
                "out times and --partition"
            )
        spec = KeyValueSpec(store, serdes.BYTES, serdes.BYTES)
        return _LookedAt(arguments, at_rest, spec, [None])
    known = at_rest.deployed.stores.get(store)
    if as_of is not None and (known is None or known.kind not in _WITH_TIMES):
        kind = versioned_layout.KIND
    wanted = kind or (KeyValueSpec.kind if known is None else known.kind)
    tasks = at_rest.find(store, partition, kind=wanted)
    return _LookedAt(arguments, at_rest, at_rest.spec_in_bytes(store, kind=kind), tasks)


def _one(reader: AnyReader, key: bytes, time_ms: int | None) -> RowScan[Entry]:
    found = reader.find(key, time_ms)
    return RowScan(iter(() if found is None else (found,)), lambda: None)


def _bounds(
    face: _Face, lo: str | None, hi: str | None, prefix: str | None
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the lowest key, the highest one, and a key that is not part of the range."""
    if prefix is None:
        low, high = (None if end is None else face.key(end) for end in (lo, hi))
        return low, high, None
    if lo is not None:
        raise Misuse("pass keys, or --prefix, not both")
    low = face.key(prefix)
    beyond = after_prefix(low)
    return low, beyond, beyond


def _time_ms(text: str | None) -> int | None:
    return None if text is None else to_ms(parse_time(text))
