"""Gathers what the log checker judges, with clients of its own that go straight to the broker."""

import json
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

import statestore as ss
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from tests.builders import DEADLINE_S, eventually
from tests.kafka.log_checker import Entry, Mark, Stored, Transaction
from tests.kafka.wire import Kind, RawBatch, RawLog, compact_string, read_raw, string

GROUPS = "__consumer_offsets"
GROUP_PARTITIONS = 4  # as LocalKafka makes them
_OFFSET_COMMIT_KEYS = {0, 1}
_FLEXIBLE_OFFSETS = 4
Logs = dict[TopicPartition, list[Message]]


class Reader:
    """A consumer that fetches in the background, from `start` on."""

    def __init__(self, address: str, isolation_level: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "reader",
                "isolation.level": isolation_level,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                # What a broker that has just begun denies is asked for again, not in five minutes.
                "topic.metadata.refresh.interval.ms": 1_000,
                "log_level": 0,
            }
        )

    def start(self, positions: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign([KafkaPartition(*tp, at) for tp, at in positions.items()])

    def read_to(self, ends: Mapping[TopicPartition, int]) -> Logs:
        """All that arrived of these partitions since `start`, once it reaches so far."""
        found: Logs = {tp: [] for tp in ends}
        left = {tp for tp, end in ends.items() if end > 0}
        deadline = monotonic() + DEADLINE_S
        while left:
            assert monotonic() < deadline, f"these were not read to {ends}: {left}"
            for message in self._consumer.consume(1000, 0.05):
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    continue  # a topic just made that this broker does not know yet
                assert topic is not None
                assert partition is not None
                assert offset is not None
                tp = TopicPartition(topic, partition)
                if error is None:
                    found[tp].append(message)
                    offset += 1
                if offset >= ends[tp]:
                    left.discard(tp)
        return found

    def close(self) -> None:
        self._consumer.close()


def settled_logs(
    address: str, tps: Iterable[TopicPartition], starts: Mapping[TopicPartition, int] | None = None
) -> dict[TopicPartition, RawLog]:
    """The raw logs once no transaction keeps any part of what is there now from readers."""
    found = {}
    for tp in tps:
        start = (starts or {}).get(tp, 0)
        target = read_raw(address, *tp, start).end

        def settled(tp: TopicPartition = tp, start: int = start, target: int = target) -> bool:
            found[tp] = read_raw(address, *tp, start)
            return found[tp].stable_end >= target

        eventually(settled, f"every transaction in {tp} ends", DEADLINE_S)
    return found


def group_partitions() -> list[TopicPartition]:
    """Where the broker keeps what groups commit."""
    return [TopicPartition(GROUPS, partition) for partition in range(GROUP_PARTITIONS)]


def make_group_log(address: str) -> None:
    """Have the broker make the log of groups, which it does when one is first asked for."""
    config = {"bootstrap.servers": address, "group.id": "first", "log_level": 0}

    def is_there() -> bool:
        with closing(Consumer(config)) as consumer, suppress(KafkaException):
            consumer.committed([KafkaPartition("none", 0)], DEADLINE_S)
            return True
        return False

    eventually(is_there, "the log of groups is there")


def entries_of(messages: Iterable[Message]) -> list[Entry]:
    """Values are counts of 8 bytes, or numbers in JSON."""
    found = []
    for message in messages:
        key, value, offset = message.key(), message.value(), message.offset()
        assert key is not None
        assert value is not None
        assert offset is not None
        number = int.from_bytes(value) if len(value) == 8 else int(json.loads(value))
        found.append(Entry(offset, key.decode(), number))
    return found


def marks_of(
    logs: Logs, raw: Mapping[TopicPartition, RawLog], group_id: str
) -> dict[TopicPartition, list[Mark]]:
    """What a group committed for each input partition, in the log's order.

    `raw`: the same partitions of the log of groups.
    """
    found: dict[TopicPartition, list[Mark]] = defaultdict(list)
    for tp in group_partitions():
        writers = _writers(raw[tp].batches)
        for message in logs[tp]:
            key, value, offset = message.key(), message.value(), message.offset()
            assert key is not None
            assert offset is not None
            if value is None or int.from_bytes(key[:2]) not in _OFFSET_COMMIT_KEYS:
                continue
            group, at = string(key, 2)
            name, at = string(key, at)
            if group == group_id and name is not None:
                (partition,) = struct.unpack_from(">i", key, at)
                found[TopicPartition(name, partition)].append(_mark(value, writers.get(offset)))
    return found


def stored_rows(
    spec: Any, state_dir: Path, application_id: str, *, sub_topology: int = 0
) -> dict[TopicPartition, Stored]:
    """The rows of a closed store in each task of a sub-topology, by its changelog."""
    layout = StateLayout(state_dir, application_id)
    found: dict[TopicPartition, Stored] = {}
    for partition in count():
        folder = layout.store_dir(TaskId(sub_topology, partition), spec.name).parent
        if not folder.exists():
            return found
        log = TopicPartition(f"{application_id}-{spec.name}-changelog", partition)
        with ss.open_store(spec, folder) as opened, opened.all() as pairs:
            found[log] = Stored(dict(pairs), opened.committed_offset(log))
    raise AssertionError("counts without end")


def _writers(batches: Iterable[RawBatch]) -> dict[int, Transaction]:
    """The transaction of each offset that is part of one."""
    return {
        offset: Transaction(batch.producer_id, batch.epoch)
        for batch in batches
        if batch.kind is Kind.RECORDS and batch.producer_id >= 0
        for offset in range(batch.first, batch.last + 1)
    }


def _mark(value: bytes, of: Transaction | None) -> Mark:
    """Version 3 has a leader's epoch before the metadata; 4 has it as a compact string."""
    version, offset = struct.unpack_from(">hq", value)
    if version >= _FLEXIBLE_OFFSETS:
        metadata, _ = compact_string(value, 14)
    else:
        metadata, _ = string(value, 14 if version == 3 else 10)
    assert metadata is not None
    # The client writes the end of its C string too.
    return Mark(offset, json.loads(metadata.rstrip("\0"))["number"], of)
