"""Reads the rows of a store partition by partition, as Spark does: bytes, in batches."""

from collections.abc import Iterator
from contextlib import closing
from itertools import compress
from typing import Any, NamedTuple

import msgspec

from statestore.errors import Misuse, UnknownStore
from statestore.model.batch import in_lots
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.at_rest import StoresAtRest, open_reader, windows_kept_ms
from statestore.operations.audits.perform import log_side
from statestore.operations.audits.rows import AuditRows, Subject
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports, FetchedStore, find_exported
from statestore.stores import in_windows, keyvalue, serdes, sessions, windows
from statestore.stores.kinds import AnyReader
from statestore.stores.reads import Entry, RowScan
from statestore.stores.specs import AtRestSpec, SessionSpec, WindowSpec, spec_in_bytes
from statestore.stores.versioned import layout as versioned_layout
from statestore.stores.versioned.store import VersionedReader


class Columns(NamedTuple):
    """Rows of a store by column; `begins` and `ends` are the spans of versions and of windows."""

    keys: list[Any]
    values: list[Any]
    begins: list[int | None]
    ends: list[int | None]


class Times(NamedTuple):
    """Versions valid at some time between both, inclusive; None: an open end."""

    first_ms: int | None
    last_ms: int | None

    def of(self, rows: Columns) -> Columns:
        """Return those of the rows."""
        first, last = self
        kept = [
            (last is None or begins is None or begins <= last)
            and (first is None or ends is None or ends > first)
            for begins, ends in zip(rows.begins, rows.ends, strict=True)
        ]
        return Columns(*(list(compress(column, kept)) for column in rows))


class Shape(msgspec.Struct, frozen=True):
    """What a store is like: its kind, its serdes if they are known, its tasks and its log."""

    store: str
    kind: str
    key_serde: str | None
    value_serde: str | None
    tasks: list[tuple[str, int]]
    topic: str
    is_source: bool
    windows_kept_ms: int = 0
    export: str | None = None

    @property
    def window_ms(self) -> int:
        """How long its windows are; 0 where it has none."""
        found = serdes.of_windowed(self.key_serde or "")
        return 0 if found is None else found.size_ms or 0

    @property
    def spec(self) -> AtRestSpec:
        """How to read it in bytes."""
        return spec_in_bytes(
            self.kind, self.store, window_ms=self.window_ms, kept_ms=self.windows_kept_ms
        )


def shape_of(
    environment: Environment, store: str, partition: int | None = None, export: str | None = None
) -> Shape:
    """The shape of a deployed store, or of one in an export; UnknownStore if there is none."""
    if export is None:
        with closing(StoresAtRest(environment)) as looked:
            said = looked.deployed
            kind = said.stores[store].kind if store in said.stores else keyvalue.KIND
            tasks = looked.find(store, partition, kind=kind)
    else:
        manifest = Exports.of(environment).read(export)
        found = find_exported(manifest, store, partition)
        said, kind, export = manifest.deployed, found[0].store.kind, manifest.export_id
        tasks = [at.task for at in found]
    known = said.stores.get(store)
    return Shape(
        store,
        kind,
        None if known is None else known.key_serde,
        None if known is None else known.value_serde,
        [(str(task), task.partition) for task in tasks],
        said.log_of(environment.settings.application_id, store),
        known is not None and known.source_topic is not None,
        0 if known is None else windows_kept_ms(known),
        export,
    )


def committed_rows(
    environment: Environment,
    shape: Shape,
    stream_task: str,
    *,
    as_of_ms: int | None = None,
    times: Times | None = None,
) -> Iterator[Columns]:
    """The rows that the store of one stream task holds as last committed, from a snapshot.

    `as_of_ms`: of a store with history, the versions valid then; `times`: those of a span; None:
    all of them.
    """
    if shape.export is not None:
        exports = Exports.of(environment)
        partition = TaskId.parse(stream_task).partition
        found = find_exported(exports.read(shape.export), shape.store, partition, kind=shape.kind)
        (at,) = [one for one in found if str(one.task) == stream_task]
        with open_reader(
            shape.spec, [FetchedStore(exports, at)], environment.databases.read
        ) as reader:
            yield from _chunks(_entries(reader, as_of_ms, times))
        return
    with closing(StoresAtRest(environment)) as looked:
        partition = TaskId.parse(stream_task).partition
        tasks = looked.find(shape.store, partition, kind=shape.kind)
        task = next((task for task in tasks if str(task) == stream_task), None)
        if task is None:
            raise UnknownStore(f"store {shape.store!r} is no longer in stream task {stream_task}")
        with looked.reader(task, shape.spec) as reader:
            yield from _chunks(_entries(reader, as_of_ms, times))


def logged_rows(
    environment: Environment,
    shape: Shape,
    stream_task: str,
    partition: int,
    *,
    as_of_ms: int | None = None,
    times: Times | None = None,
) -> Iterator[Columns]:
    """The rows that the log of a store makes up to its last stable offset; nothing expires."""
    log = TopicPartition(shape.topic, partition)
    cluster = environment.cluster
    if log.topic not in cluster.partitions([log.topic]):
        raise Misuse(f"store {shape.store!r} has no log {log.topic} on these brokers")
    end = cluster.bounds([log])[log].end
    subject = Subject(
        shape.store,
        stream_task,
        shape.kind,
        "",
        *log,
        partitions=0,
        offset_next=end,
        log_end=end,
        last_offset=None,
        bound_ms=versioned_layout.TIME_MIN,
        is_whole=True,
        key_serde=shape.key_serde,
        value_serde=shape.value_serde,
        is_source=shape.is_source,
    )
    replayed = log_side(environment, subject)
    clock = replayed.rows.get((in_windows.TIME_ROW, 0))
    for rows in replayed.chunks():
        shown = _shown(rows, shape, as_of_ms, clock and clock.value)
        yield shown if times is None else times.of(shown)


def _entries(reader: AnyReader, as_of_ms: int | None, times: Times | None) -> RowScan[Entry]:
    if times is not None:
        assert isinstance(reader, VersionedReader)
        return reader.versions(from_ms=times.first_ms, to_ms=times.last_ms)
    return reader.everything() if as_of_ms is None else reader.entries(as_of_ms=as_of_ms)


def _chunks(found: RowScan[Entry]) -> Iterator[Columns]:
    with found:
        for chunk in in_lots(found, lambda row: len(row.key) + len(row.value)):
            yield Columns(*map(list, zip(*chunk, strict=True)))
            found.check_open()  # This renews the lease of the files.


def _shown(rows: AuditRows, shape: Shape, as_of_ms: int | None, clock: bytes | None) -> Columns:
    """The versions in a log that were valid then; of windows, those that have not expired."""
    if shape.kind == SessionSpec.kind:
        return Columns(*sessions.columns_of(rows.keys, rows.values, clock, shape.windows_kept_ms))
    if as_of_ms is not None:
        rows = rows.valid_at(as_of_ms, versioned_layout.TIME_MIN)
    begins: list[int | None] = list(rows.begins)
    if shape.kind != WindowSpec.kind:
        return Columns(list(rows.keys), list(rows.values), begins, rows.ends)
    gone_ms = windows.expired_ms(clock, shape.windows_kept_ms)
    found = [
        (windows.row_of(key), value)
        for key, value in zip(rows.keys, rows.values, strict=True)
        if key is not None
        and key != in_windows.TIME_ROW
        and in_windows.start_of(key[-8:]) > gone_ms
    ]
    starts = [in_windows.start_of(row) for row, _ in found]
    return Columns(
        [row[8:] for row, _ in found],
        [value for _, value in found],
        list(starts),
        [start + shape.window_ms for start in starts],
    )
