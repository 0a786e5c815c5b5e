"""Fills the logs of a clone from the rows of its stores, or copies them from the original's."""

from collections.abc import Iterator
from itertools import islice

from statestore.errors import TaskCorrupted, Unavailable
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds, Changelog, Engine, Outbox, Records
from statestore.stores import keyvalue, offsets
from statestore.stores.row_times import read_times
from statestore.stores.specs import WindowSpec
from statestore.stores.staged_table import Changes
from statestore.stores.versioned import layout as versioned_layout
from statestore.stores.windows import keys_of
from statestore.tasks.store_log import sendable

_AT_ONCE = 20_000


def logged(engine: Engine, kind: str, otherwise_ms: int) -> Iterator[Changes]:
    """The rows of a built-in store as its changelog has them, in batches, older versions first.

    `otherwise_ms`: the time of rows that have none of their own.
    """
    if kind == versioned_layout.KIND:
        yield from _versions(engine)
        return
    rows = iter(engine.table(keyvalue.TABLE).scan())
    while batch := list(islice(rows, _AT_ONCE)):
        keys = [key for key, _ in batch]
        times = read_times(engine.table(offsets.TABLE), keys, otherwise_ms)
        if kind == WindowSpec.kind:
            keys = keys_of(keys)
        yield Changes(keys, [value for _, value in batch], times)


def seed(
    outbox: Outbox, log: TopicPartition, engine: Engine, kind: str, stream_time_ms: int
) -> int | None:
    """Write the rows of a store into its new changelog; the offset after them, None if no row."""
    outbox.begin()
    for changes in logged(engine, kind, stream_time_ms):
        times, headers = sendable(changes.times)
        topic, partition = log
        records = Records(topic, changes.keys, changes.values, times, partition, headers)
        outbox.send(records, tracked=True)
    outbox.flush()
    return outbox.ends().get(log)


def copy(
    changelog: Changelog, source: TopicPartition, bounds: Bounds, outbox: Outbox, into: str
) -> int:
    """Copy committed records in [start, end) to the same partition of another topic; how many.

    Unavailable if some of them are gone.
    """
    outbox.begin()
    count = 0
    try:
        for stretch in changelog.replay(source, bounds.start, bounds.end):
            batch = stretch.batch
            count += len(batch)
            keys, values = batch.keys.objects, batch.values.objects
            records = Records(into, keys, values, batch.timestamps, source.partition, batch.headers)
            outbox.send(records)
    except TaskCorrupted as error:
        raise Unavailable(
            f"{source} has no records from {bounds.start} on any more: the application has gone on "
            "since: export it for a clone again"
        ) from error
    outbox.flush()
    return count


def _versions(engine: Engine) -> Iterator[Changes]:
    """The versions of each key in order of time: by segment and end, then the latest one.

    Compaction keeps the last record of a key, which is its latest version.
    """
    history = engine.table(versioned_layout.HISTORY)
    old = (
        (versioned_layout.key_of(at), row)
        for at, row in history.scan()
        if not at.startswith(versioned_layout.NOT_VERSIONS)
    )
    for rows in (old, iter(engine.table(versioned_layout.LATEST).scan())):
        while batch := list(islice(rows, _AT_ONCE)):
            versions = [versioned_layout.read_version(row) for _, row in batch]
            yield Changes(
                [key for key, _ in batch],
                [version.value for version in versions],
                [version.valid_from for version in versions],
            )
