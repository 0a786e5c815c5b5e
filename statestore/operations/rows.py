"""Reads the rows of a store partition by partition, as Spark does: bytes, in batches."""

from collections.abc import Iterator
from contextlib import closing

import msgspec

from statestore.errors import Misuse, UnknownStore
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.at_rest import StoresAtRest, windows_kept_ms
from statestore.operations.audits.perform import log_side
from statestore.operations.audits.rows import WINDOW, AuditRows, Subject, facts_of, stored_rows
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports, FetchedStore, find_exported
from statestore.ports import Engine
from statestore.stores import keyvalue, versioned_layout, windows


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
    environment: Environment, shape: Shape, stream_task: str, *, as_of_ms: int | None = None
) -> Iterator[AuditRows]:
    """The rows that the store of one stream task holds as last committed, from a snapshot.

    `as_of_ms`: of a store with history, the versions valid then; None: all of them.
    """
    if shape.export is not None:
        exports = Exports.of(environment)
        partition = TaskId.parse(stream_task).partition
        found = find_exported(exports.read(shape.export), shape.store, partition, kind=shape.kind)
        (at,) = [one for one in found if str(one.task) == stream_task]
        with (
            FetchedStore(exports, at) as fetched,
            closing(environment.databases.read(fetched.store_dir(shape.store))) as engine,
        ):
            yield from _shown(engine, shape, as_of_ms)
        return
    with closing(StoresAtRest(environment)) as looked:
        partition = TaskId.parse(stream_task).partition
        tasks = looked.find(shape.store, partition, kind=shape.kind)
        task = next((task for task in tasks if str(task) == stream_task), None)
        if task is None:
            raise UnknownStore(f"store {shape.store!r} is no longer in stream task {stream_task}")
        with looked.opened(task, shape.store, kind=shape.kind) as engine:
            for rows in _shown(engine, shape, as_of_ms):
                looked.snapshot(task)  # This renews the lease.
                yield rows


def logged_rows(
    environment: Environment,
    shape: Shape,
    stream_task: str,
    partition: int,
    *,
    as_of_ms: int | None = None,
) -> Iterator[AuditRows]:
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
        compactable_ms=0,
        key_serde=shape.key_serde,
        value_serde=shape.value_serde,
        is_source=shape.is_source,
    )
    log_state = log_side(environment, subject)
    clock = log_state.rows.get((windows.TIME_ROW, 0))
    for rows in log_state.chunks():
        yield _seen(rows, shape, as_of_ms, versioned_layout.TIME_MIN, clock and clock.value)


def _shown(engine: Engine, shape: Shape, as_of_ms: int | None) -> Iterator[AuditRows]:
    """The rows in the files of a store that its readers see."""
    _, bound_ms = facts_of(engine, shape.store)
    clock = engine.table(keyvalue.TABLE).get(windows.TIME_ROW) if shape.kind == WINDOW else None
    for rows in stored_rows(engine, shape.kind, bound_ms):
        yield _seen(rows, shape, as_of_ms, bound_ms, clock)


def _seen(
    rows: AuditRows, shape: Shape, as_of_ms: int | None, bound_ms: int, clock: bytes | None
) -> AuditRows:
    """The versions that were valid then; of windows, those that have not expired."""
    if shape.kind == WINDOW:
        gone_ms = windows.expired_ms(clock, shape.windows_kept_ms)
        return rows.taken(
            [
                place
                for place, key in enumerate(rows.keys)
                if key is not None
                and key != windows.TIME_ROW
                and windows.start_of(key[-8:]) > gone_ms
            ]
        )
    return rows if as_of_ms is None else rows.valid_at(as_of_ms, bound_ms)
