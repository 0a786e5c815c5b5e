"""Reads the rows of a store partition by partition, as Spark does: bytes, in batches."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final, NamedTuple

from statestore.errors import Misuse, Unavailable, UnknownStore
from statestore.model.batch import in_lots
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.audits.both_sides import AuditRows, Subject
from statestore.operations.audits.perform import log_side
from statestore.operations.deployed import DeployedStore, is_made_anew
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports, FetchedStore, find_exported
from statestore.operations.looking.at_rest import StoresAtRest, made_anew_text, open_reader
from statestore.reading.splits import Split, split_reader
from statestore.reading.views import StoreView
from statestore.stores.kinds.kind import AnyReader, Columns, StoreKind
from statestore.stores.kinds.registry import kind_named
from statestore.stores.reads import Entry, RowScan
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

    @property
    def divisible(self) -> bool:
        """Whether rows are walked through, so that they can be divided; else they are looked up."""
        return self.keys is None and (self.low is None or self.low != self.high)


ALL: Final = Narrowed()


@dataclass(frozen=True)
class StoreParts:
    """A store, and the stream tasks that have it with their partitions: live, or in an export."""

    view: StoreView
    tasks: Sequence[tuple[str, int]]
    export: str | None = None

    @classmethod
    def of(
        cls, view: StoreView, tasks: Sequence[TaskId], export: str | None = None
    ) -> "StoreParts":
        """The store in these stream tasks."""
        return cls(view, [(str(task), task.partition) for task in tasks], export)


def parts_of(
    environment: Environment, store: str, partition: int | None = None, export: str | None = None
) -> StoreParts:
    """The parts of a deployed store, or of one in an export; UnknownStore if there is none."""
    application_id = environment.settings.application_id
    if export is None:
        with closing(StoresAtRest(environment)) as looked:
            view = StoreView.of(looked.deployed, application_id, store)
            return StoreParts.of(view, looked.find(store, partition, kind=view.kind.name))
    manifest = Exports.of(environment).read(export)
    found = find_exported(manifest, store, partition)
    view = StoreView.of(manifest.deployed, application_id, store)
    view = replace(view, kind=kind_named(found[0].store.kind))
    return StoreParts.of(view, [at.task for at in found], manifest.export_id)


def committed_rows(
    environment: Environment,
    parts: StoreParts,
    stream_task: str,
    *,
    as_of_ms: int | None = None,
    times: Times | None = None,
    part: Narrowed = ALL,
    split: Split | None = None,
) -> Iterator[Columns]:
    """The rows that the store of one stream task holds as last committed, from a snapshot.

    `as_of_ms`: of a store with history, the versions valid then; `times`: those of a span; None:
    all of them. `part`: other rows than these may be left out. `split`: those of a split alone,
    of a `part` that is `divisible`.
    """
    view = parts.view
    if split is not None:
        assert part.divisible
        with split_reader(environment, view, split) as reader:
            yield from _read(reader, view.kind, as_of_ms, times, part, by_key=True)
        return
    if parts.export is not None:
        exports = Exports.of(environment)
        partition = TaskId.parse(stream_task).partition
        found = find_exported(exports.read(parts.export), view.name, partition, kind=view.kind.name)
        (at,) = [one for one in found if str(one.task) == stream_task]
        with open_reader(
            view.in_bytes, [FetchedStore(exports, at)], environment.databases.read
        ) as reader:
            yield from _read(reader, view.kind, as_of_ms, times, part)
        return
    with closing(StoresAtRest(environment)) as looked:
        partition = TaskId.parse(stream_task).partition
        now = looked.deployed.stores.get(view.name)
        if isinstance(view.known, DeployedStore) and now and is_made_anew(view.known, now):
            raise Unavailable(made_anew_text(view.name))
        tasks = looked.find(view.name, partition, kind=view.kind.name)
        task = next((task for task in tasks if str(task) == stream_task), None)
        if task is None:
            raise UnknownStore(f"store {view.name!r} is no longer in stream task {stream_task}")
        with looked.reader(task, view.in_bytes) as reader:
            yield from _read(reader, view.kind, as_of_ms, times, part)


def logged_rows(
    environment: Environment,
    parts: StoreParts,
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
    view, known = parts.view, parts.view.known
    log = TopicPartition(view.log, partition)
    cluster = environment.cluster
    if log.topic not in cluster.partitions([log.topic]):
        raise Misuse(f"store {view.name!r} has no log {log.topic} on these brokers")
    if end is None:
        end = cluster.bounds([log])[log].end
    subject = Subject(
        view.name,
        stream_task,
        view.kind.name,
        "",
        *log,
        partitions=0,
        offset_next=end,
        log_end=end,
        last_offset=None,
        bound_ms=versioned_layout.TIME_MIN,
        is_whole=True,
        key_serde=None if known is None else known.key_serde,
        value_serde=None if known is None else known.value_serde,
        is_source=view.is_source,
    )
    replayed = log_side(environment, subject)
    clock = replayed.rows.get((view.kind.clock_row, 0))
    for rows in replayed.chunks():
        shown = _shown(rows, view, as_of_ms, clock and clock.value)
        yield shown if times is None else times.of(shown)


def _read(
    reader: AnyReader,
    kind: StoreKind,
    as_of_ms: int | None,
    times: Times | None,
    part: Narrowed,
    *,
    by_key: bool = False,
) -> Iterator[Columns]:
    if part.keys is None:
        yield from _chunks(_entries(reader, kind, as_of_ms, times, part, by_key=by_key))
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
    reader: AnyReader,
    kind: StoreKind,
    as_of_ms: int | None,
    times: Times | None,
    part: Narrowed,
    *,
    by_key: bool = False,
) -> RowScan[Entry]:
    """Scan the rows; `by_key`: the history of a key is looked for where the key is."""
    low, high = part.low, part.high
    if times is not None:
        return kind.versions(reader, low, high, from_ms=times.first_ms, to_ms=times.last_ms)
    if as_of_ms is not None:
        return reader.entries(low, high, as_of_ms=as_of_ms)
    if part == ALL and not (by_key and kind.keeps_history):
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


def _shown(rows: AuditRows, view: StoreView, as_of_ms: int | None, clock: bytes | None) -> Columns:
    """The versions in a log that were valid then; of windows, those that have not expired."""
    if as_of_ms is not None:
        rows = rows.valid_at(as_of_ms, versioned_layout.TIME_MIN)
    found = Columns(list(rows.keys), list(rows.values), list(rows.begins), rows.ends)
    return view.kind.seen_in_log(found, clock, view.terms)
