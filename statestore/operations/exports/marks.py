"""What an export for a move adds: the last records before each offset, by which a mirror is read.

A mirror of a topic has the same records in the same order, at other offsets. So the place of the
group's offset is behind the record that was processed last, and the few records before that one
tell it from others that are equal to it. A digest is of time, key and value: mirrors keep these.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from statestore.errors import Misuse, Unavailable
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.environment import Environment
from statestore.operations.exports.cut import behind, take_cut
from statestore.operations.exports.manifest import ExportedTask, InputMark, LogCut
from statestore.operations.start.matching import with_matches
from statestore.ports import Bounds, Changelog
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of, logs
from statestore.topology.nodes import TopicName

RECORDS: Final = 64
"""How many records before an offset are told of."""
_FIRST_OFFSETS: Final = 256
"""How far back they are looked for at first; then four times as far, and so on."""
_HEAD = struct.Struct(">qq")


class MarkedRecord(NamedTuple):
    """A record of an input."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


def digest_of(record: MarkedRecord) -> str:
    """What a record and its mirrored copy have in common."""
    _, time_ms, key, value = record
    head = _HEAD.pack(time_ms, -1 if key is None else len(key))
    body = b"\0" if value is None else b"\1" + value
    return blake2b(head + (key or b"") + body, digest_size=8).hexdigest()


def records_in(changelog: Changelog, tp: TopicPartition, bounds: Bounds) -> Iterator[MarkedRecord]:
    """Yield the committed records of an input in [start, end); Unavailable if some are gone."""
    for stretch in changelog.replay(tp, bounds.start, bounds.end):
        batch = stretch.batch
        assert batch.offsets is not None
        keys, values = batch.keys.objects, batch.values.objects
        yield from map(MarkedRecord, batch.offsets, batch.timestamps, keys, values)


def take_cut_to_move(
    environment: Environment, topology: Topology, tasks: list[ExportedTask]
) -> LogCut:
    """Take the cut of an application that goes on elsewhere, where only its inputs are mirrored.

    Unavailable if it has something left to process between its sub-topologies. Misuse if what it
    knows is only in topics that stay behind.
    """
    topology = with_matches(environment, topology)
    read, written = topology.topics()
    if both := sorted(read & written):
        raise Misuse(
            f"the application reads and writes topic {both[0]} itself: its records stay behind, so "
            "it cannot be moved: use a repartition topic"
        )
    counts = topology.partition_counts(environment.cluster.partitions(sorted(read)))
    cut = take_cut(environment, topology, tasks)
    _check_drained(environment, counts, cut)
    _check_stores(environment, topology, counts, tasks)
    inputs = {topic.name for topic in counts if not topic.internal}
    offsets = {tp: at.offset for tp, at in cut.group_offsets().items() if tp.topic in inputs}
    starts = environment.changelog.bounds(list(offsets))
    marks = [
        mark_of(environment.changelog, tp, Bounds(starts[tp].start, offset))
        for tp, offset in sorted(offsets.items())
    ]
    return msgspec.structs.replace(cut, marks=marks)


def mark_of(changelog: Changelog, tp: TopicPartition, bounds: Bounds) -> InputMark:
    """Read the last records before an offset, `bounds.end`, of a log that starts where it says."""
    reach, start = _FIRST_OFFSETS, bounds.end
    found: deque[MarkedRecord] = deque(maxlen=RECORDS)
    while len(found) < RECORDS and start > bounds.start:
        start = max(bounds.start, bounds.end - reach)
        found = deque(records_in(changelog, tp, Bounds(start, bounds.end)), maxlen=RECORDS)
        reach *= 4
    return InputMark(
        tp.topic,
        tp.partition,
        found[-1].offset if found else None,
        max(0, min((record.time_ms for record in found), default=0)),
        bounds.start == 0 and len(found) < RECORDS,
        [digest_of(record) for record in found],
    )


def _check_drained(environment: Environment, counts: Mapping[TopicName, int], cut: LogCut) -> None:
    """Unavailable if a stream task has not read all that others have sent to it."""
    application_id, group = environment.settings.application_id, cut.group_offsets()
    own = {topic.full(application_id) for topic in counts if topic.internal}
    left = {
        tp: group[tp].offset if tp in group else found.start
        for tp, found in cut.bounds().items()
        if tp.topic in own
    }
    if waiting := behind(environment.changelog, left):
        raise Unavailable(
            f"{waiting[0]} has records that were not processed yet, and it stays behind: let a "
            "bounded run (`statestore run`) end, then export"
        )


def _check_stores(
    environment: Environment,
    topology: Topology,
    counts: Mapping[TopicName, int],
    tasks: list[ExportedTask],
) -> None:
    """Misuse if a store that is in no export has rows in a changelog, which stays behind."""
    sources = logs(topology, environment.settings).topics()
    there = {(task.task_id, store) for task in tasks for store in task.stores}
    by_log: dict[TopicPartition, tuple[TaskId, str]] = {}
    by_ordinal = topology.tasks(counts)
    for part in topology.sub_topologies:
        for task in by_ordinal[part.ordinal]:
            for store in part.stores:
                if store not in sources and (task, store) not in there:
                    topic = log_of(environment.settings.application_id, store, sources)
                    by_log[TopicPartition(topic, task.partition)] = task, store
    starts = environment.changelog.bounds(list(by_log)) if by_log else {}
    if left := behind(environment.changelog, {tp: found.start for tp, found in starts.items()}):
        task, store = by_log[left[0]]
        raise Misuse(
            f"store {store!r} of task {task} is in memory, or was not there, and its changelog "
            f"{left[0]} stays behind: give it files (a persistent store) or run once, then export"
        )
