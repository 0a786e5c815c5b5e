"""Markers that a broker owes: it says that a transaction has ended, and a partition has no marker.

A broker that is alone does so when it starts again or stops (docs/upstream/kafka-skips-markers.md).
Both sides of it are the broker's own: its log of transactions, and the logs of the partitions.
"""

import struct
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from statestore.model.ids import TopicPartition
from tests.kafka.log_evidence import Reader
from tests.kafka.wire import Kind, compact_array, compact_string, plain_array, read_raw, string

_STATES = "__transaction_state"
STATE_PARTITIONS = 4  # as LocalKafka makes them
# A state begins with its version, the producer's id; tags since version 1; epoch, timeout, status.
_HEAD, _STATUS = struct.Struct(">hq"), struct.Struct(">hib")
_PREPARED = {2: Kind.COMMIT, 3: Kind.ABORT}
_COMPLETE = {4, 5}


class _State(NamedTuple):
    """What the log of transactions says of an id at some moment."""

    producer_id: int
    epoch: int
    status: int
    partitions: list[TopicPartition]


def skipped_markers(address: str) -> list[str]:
    """Return what ended transactions lack, in words; nothing may have been compacted."""
    found: list[str] = []
    written: dict[TopicPartition, set[tuple[int, int, Kind]]] = {}
    for transactional_id, prepared in _ended(address):
        kind = _PREPARED[prepared.status]
        for tp in prepared.partitions:
            if tp not in written:
                raw = read_raw(address, *tp, committed=False)
                written[tp] = {(one.producer_id, one.epoch, one.kind) for one in raw.batches}
            if (prepared.producer_id, prepared.epoch, kind) not in written[tp]:
                found.append(f"{tp} has no {kind} of {transactional_id}, epoch {prepared.epoch}")
    return found


def _ended(address: str) -> Iterator[tuple[str, _State]]:
    """Yield what was to be done for each transaction of which it was said to be done."""
    tps = [TopicPartition(_STATES, partition) for partition in range(STATE_PARTITIONS)]
    with closing(Reader(address, "read_uncommitted")) as reader:
        reader.start(dict.fromkeys(tps, 0))
        logs = reader.read_to({tp: read_raw(address, *tp).end for tp in tps})
    prepared: dict[str, _State] = {}
    for messages in logs.values():
        for message in messages:
            key, value = message.key(), message.value()
            assert key is not None
            name, _ = string(key, 2)
            if value is None or name is None:
                continue
            state = _state(value)
            if state.status in _PREPARED:
                prepared[name] = state
            elif state.status in _COMPLETE and name in prepared:
                yield name, prepared.pop(name)


def _state(value: bytes) -> _State:
    version, producer_id = _HEAD.unpack_from(value)
    epoch, _, status = _STATUS.unpack_from(value, _HEAD.size)
    at, partitions = _HEAD.size + _STATUS.size, list[TopicPartition]()
    text, array = (compact_string, compact_array) if version else (string, plain_array)
    count, at = array(value, at)
    for _ in range(count):
        topic, at = text(value, at)
        assert topic is not None
        numbers, at = array(value, at)
        partitions += [
            TopicPartition(topic, n) for n in struct.unpack_from(f">{numbers}i", value, at)
        ]
        at += 4 * numbers + (1 if version else 0)  # no tags
    return _State(producer_id, epoch, status, partitions)
