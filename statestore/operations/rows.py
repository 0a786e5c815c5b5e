"""Reads the rows of a store partition by partition, as Spark does: bytes, in batches."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import compress
from typing import Final, NamedTuple

import msgspec

from statestore.errors import Misuse, UnknownStore
from statestore.model.batch import in_lots
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.audits.perform import log_side
from statestore.operations.audits.rows import AuditRows, Subject
from statestore.operations.deployed import Deployed, DeployedSchema, DeployedStore
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports, FetchedStore, find_exported
from statestore.operations.looking.at_rest import NO_TERMS, StoresAtRest, in_bytes, open_reader
from statestore.stores.kinds.kind import AnyReader, Columns, StoreKind, StoreTerms
from statestore.stores.kinds.registry import kind_named
from statestore.stores.reads import Entry, RowScan
from statestore.stores.specs import StoreSpec
from statestore.stores.versioned import layout as versioned_layout


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


class Narrowed(NamedTuple):
    """What of a store to read: at least the rows with these keys and times. None: no limit.

    `keys`: sorted. `low` and `high`: the least and the largest key. The times are those at which
    rows begin, and the least one at which they end, inclusive, in ms.
    """

    keys: Sequence[bytes] | None = None
    low: bytes | None = None
    high: bytes | None = None
    begins_least_ms: int | None = None
    begins_most_ms: int | None = None
    ends_least_ms: int | None = None


ALL: Final = Narrowed()


class Shape(msgspec.Struct, frozen=True):
    """What a store is like: its kind, its serdes if they are known, its tasks and its log.

    The schemas are those of keys and of values, if they were recorded and one schema wrote all rows
    that are there.
    """

    store: str
    kind: str
    key_serde: str | None
    value_serde: str | None
    tasks: list[tuple[str, int]]
    topic: str
    is_source: bool
    terms: StoreTerms = NO_TERMS
    export: str | None = None
    key_schema: DeployedSchema | None = None
    value_schema: DeployedSchema | None = None

    @property
    def spec(self) -> StoreSpec:
        """How to read it in bytes."""
        return in_bytes(self.kind, self.store, self.terms)


def shape_of(
    environment: Environment, store: str, partition: int | None = None, export: str | None = None
) -> Shape:
    """The shape of a deployed store, or of one in an export; UnknownStore if there is none."""
    if export is None:
        with closing(StoresAtRest(environment)) as looked:
            said = looked.deployed
            kind = said.kind(store)
            tasks = looked.find(store, partition, kind=kind)
    else:
        manifest = Exports.of(environment).read(export)
        found = find_exported(manifest, store, partition)
        said, kind, export = manifest.deployed, found[0].store.kind, manifest.export_id
        tasks = [at.task for at in found]
    return shape_in(said, store, kind, tasks, environment.settings.application_id, export)


def shape_in(
    said: Deployed,
    store: str,
    kind: str,
    tasks: Sequence[TaskId],
    application_id: str,
    export: str | None = None,
) -> Shape:
    """Return the shape of a store as a deployed topology describes it, in these stream tasks."""
    known = said.stores.get(store)
    return Shape(
        store,
        kind,
        None if known is None else known.key_serde,
        None if known is None else known.value_serde,
        [(str(task), task.partition) for task in tasks],
        said.log_of(application_id, store),
        known is not None and known.source_topic is not None,
        NO_TERMS if known is None else known.terms,
        export,
        None if known is None else known.key_schema,
        None if known is None else _schema_of_values(known),
    )


def _schema_of_values(known: DeployedStore) -> DeployedSchema | None:
    """Return the schema by which all values are read; None if there are several, or none."""
    schemas = [one.schema for one in known.writers() if one.serde == known.value_serde]
    return schemas[0] if len(schemas) == 1 == len(known.writers()) else None


def committed_rows(
    environment: Environment,
    shape: Shape,
    stream_task: str,
    *,
    as_of_ms: int | None = None,
    times: Times | None = None,
    part: Narrowed = ALL,
) -> Iterator[Columns]:
    """The rows that the store of one stream task holds as last committed, from a snapshot.

    `as_of_ms`: of a store with history, the versions valid then; `times`: those of a span; None:
    all of them. `part`: other rows than these may be left out.
    """
    if shape.export is not None:
        exports = Exports.of(environment)
        partition = TaskId.parse(stream_task).partition
        found = find_exported(exports.read(shape.export), shape.store, partition, kind=shape.kind)
        (at,) = [one for one in found if str(one.task) == stream_task]
        with open_reader(
            shape.spec, [FetchedStore(exports, at)], environment.databases.read
        ) as reader:
            yield from _parts(reader, shape, as_of_ms, times, part)
        return
    with closing(StoresAtRest(environment)) as looked:
        partition = TaskId.parse(stream_task).partition
        tasks = looked.find(shape.store, partition, kind=shape.kind)
        task = next((task for task in tasks if str(task) == stream_task), None)
        if task is None:
            raise UnknownStore(f"store {shape.store!r} is no longer in stream task {stream_task}")
        with looked.reader(task, shape.spec) as reader:
            yield from _parts(reader, shape, as_of_ms, times, part)


def logged_rows(
    environment: Environment,
    shape: Shape,
    stream_task: str,
    partition: int,
    *,
    as_of_ms: int | None = None,
    times: Times | None = None,
    end: int | None = None,
) -> Iterator[Columns]:
    """The rows that the log of a store makes; nothing expires.

    `end`: up to which offset; None: the last stable one.
    """
    log = TopicPartition(shape.topic, partition)
    cluster = environment.cluster
    if log.topic not in cluster.partitions([log.topic]):
        raise Misuse(f"store {shape.store!r} has no log {log.topic} on these brokers")
    if end is None:
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
    clock = replayed.rows.get((kind_named(shape.kind).clock_row, 0))
    for rows in replayed.chunks():
        shown = _shown(rows, shape, as_of_ms, clock and clock.value)
        yield shown if times is None else times.of(shown)


def _parts(
    reader: AnyReader, shape: Shape, as_of_ms: int | None, times: Times | None, part: Narrowed
) -> Iterator[Columns]:
    kind = kind_named(shape.kind)
    if part.keys is None:
        yield from _chunks(_entries(reader, kind, as_of_ms, times, part))
    elif kind.has_windows or (kind.keeps_history and as_of_ms is None):
        for key in part.keys:
            only = part._replace(keys=None, low=key, high=key)
            yield from _chunks(_entries(reader, kind, as_of_ms, times, only))
    else:
        for keys in in_lots(part.keys, len):
            found = [one for one in kind.find_many(reader, keys, as_of_ms) if one is not None]
            if found:
                yield Columns(*map(list, zip(*found, strict=True)))


def _entries(
    reader: AnyReader, kind: StoreKind, as_of_ms: int | None, times: Times | None, part: Narrowed
) -> RowScan[Entry]:
    low, high = part.low, part.high
    if times is not None:
        return kind.versions(reader, low, high, from_ms=times.first_ms, to_ms=times.last_ms)
    if as_of_ms is not None:
        return reader.entries(low, high, as_of_ms=as_of_ms)
    if part == ALL:
        return reader.everything()
    if kind.keeps_history:
        return kind.versions(reader, low, high)
    first_ms = part.begins_least_ms
    if kind.rows_have_times and part.ends_least_ms is not None:
        # Sessions are found by their ends, and begin before these.
        first_ms = max(part.ends_least_ms, first_ms or 0)
    return kind.within(reader, low, high, from_ms=first_ms, to_ms=part.begins_most_ms)


def _chunks(found: RowScan[Entry]) -> Iterator[Columns]:
    with found:
        for chunk in in_lots(found, lambda row: len(row.key) + len(row.value)):
            yield Columns(*map(list, zip(*chunk, strict=True)))
            found.check_open()  # This renews the lease of the files.


def _shown(rows: AuditRows, shape: Shape, as_of_ms: int | None, clock: bytes | None) -> Columns:
    """The versions in a log that were valid then; of windows, those that have not expired."""
    if as_of_ms is not None:
        rows = rows.valid_at(as_of_ms, versioned_layout.TIME_MIN)
    found = Columns(list(rows.keys), list(rows.values), list(rows.begins), rows.ends)
    return kind_named(shape.kind).seen_in_log(found, clock, shape.terms)
