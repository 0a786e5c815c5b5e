"""The state of the in-memory broker: logs, transactions, groups, transactional ids.

Offsets, control records, the last stable offset and fencing behave as Kafka's do. Nothing here
waits, uses a clock or a thread, so the same calls always give the same logs.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from statestore.errors import Fenced, Misuse, RecordFailed, TopicMissing, Unavailable
from statestore.kafka.partitioner import murmur2_partition
from statestore.model.ids import TopicPartition
from statestore.model.records import Header
from statestore.ports import GroupOffset

MESSAGE_BYTES_MAX = 1_048_588


class TransactionOutcome(StrEnum):
    """The state of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False)
class Transaction:
    """One transaction: its first offset in each partition, and the group offsets it will commit."""

    outcome: TransactionOutcome = TransactionOutcome.OPEN
    first_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    group_offsets: dict[tuple[str, TopicPartition], GroupOffset] = field(default_factory=dict)


class LogEntry(NamedTuple):
    """One offset of a log: a record, or the control record that ends a transaction."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...] = ()
    transaction: Transaction | None = None
    is_control: bool = False

    @property
    def is_visible(self) -> bool:
        """Whether a reader of committed records sees the entry."""
        outcome = self.transaction.outcome if self.transaction else TransactionOutcome.COMMITTED
        return outcome is TransactionOutcome.COMMITTED and not self.is_control


_offset = attrgetter("offset")


@dataclass
class Log:
    """One partition."""

    start: int = 0
    end: int = 0
    entries: list[LogEntry] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    @property
    def last_stable(self) -> int:
        """The first offset of the oldest open transaction, else the end."""
        return min(self.open, default=self.end)

    def append(self, entry: LogEntry) -> int:
        """Give the entry the next offset."""
        offset = self.end
        self.entries.append(entry._replace(offset=offset))
        self.end += 1
        return offset

    def read(self, start: int, end: int) -> Iterator[LogEntry]:
        """Entries with start <= offset < end, including control records and aborted ones."""
        for index in range(bisect_left(self.entries, start, key=_offset), len(self.entries)):
            entry = self.entries[index]
            if entry.offset >= end:
                return
            yield entry

    def holds(self, offset: int) -> bool:
        """Whether a reader may have this position."""
        return self.start <= offset <= self.end

    def delete_before(self, offset: int) -> None:
        """Move the log's start."""
        self.start = max(self.start, offset)
        del self.entries[: bisect_left(self.entries, self.start, key=_offset)]

    def compact(self, *, deletes: bool = False) -> None:
        """Keep the last stable record of each key; offsets stay, so gaps appear.

        With `deletes`, remove tombstones too, as a broker does after delete.retention.ms.
        """
        stable = self.last_stable
        last = {
            entry.key: entry.offset
            for entry in self.entries
            if entry.is_visible and entry.offset < stable
        }
        self.entries = [
            entry
            for entry in self.entries
            if entry.offset >= stable
            or (last.get(entry.key) == entry.offset and not (deletes and entry.value is None))
        ]


@dataclass
class _Owner:
    epoch: int = 0
    transaction: Transaction | None = None


class BrokerState:
    """What the ports of `memory_broker` share; tests may look in through it.

    `changing` is held by whoever appends to logs or asks for, begins or ends transactions, as the
    tasks of a slot begin side by side.
    """

    def __init__(self) -> None:
        self.changing = threading.RLock()
        self.topics: dict[str, list[Log]] = {}
        self.configs: dict[str, Mapping[str, str]] = {}
        self.ids: dict[str, str] = {}
        self.groups: dict[tuple[str, TopicPartition], GroupOffset] = {}
        self.is_up = True
        self._owners: dict[str, _Owner] = {}
        self._keyless = 0
        self._created = 0

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets of it, which makes a lock of its own."""
        return {name: value for name, value in vars(self).items() if name != "changing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, changing=threading.RLock())

    def require_up(self) -> None:
        """Raise what clients raise while nobody answers."""
        if not self.is_up:
            raise Unavailable("the in-memory broker is stopped: resume() it")

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """A new topic, empty."""
        if partitions < 1:
            raise Misuse(f"topic {name!r}: {partitions} partitions: at least 1")
        self.topics[name] = [Log() for _ in range(partitions)]
        self.configs[name] = dict(config)
        self._created += 1
        self.ids[name] = f"{name}#{self._created}"

    def grow(self, name: str, partitions: int) -> None:
        """More partitions for a topic that has fewer, as far as it exists."""
        logs = self.topics.get(name, [])
        logs += [Log() for _ in range(partitions - len(logs) if logs else 0)]

    def log(self, tp: TopicPartition) -> Log:
        """The log of a partition; TopicMissing."""
        self.require_up()
        logs = self.topics.get(tp.topic, [])
        if not 0 <= tp.partition < len(logs):
            raise TopicMissing(f"the in-memory broker has no partition {tp}: create the topic")
        return logs[tp.partition]

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has, or will have."""
        return len(self.topics.get(topic, [])) or 1

    def partition_for(self, topic: str, key: bytes | None) -> int:
        """Kafka's choice for a key; without one they take turns."""
        count = self.partitions_of(topic)
        if key is None:
            self._keyless += 1
            return self._keyless % count
        return murmur2_partition(key, count)

    def append(self, tp: TopicPartition, entry: LogEntry) -> int:
        """Append a record, of a transaction or of none; RecordFailed if it is too large."""
        log = self.log(tp)
        size = len(entry.key or b"") + len(entry.value or b"")
        most = int(self.configs[tp.topic].get("max.message.bytes", MESSAGE_BYTES_MAX))
        if size > most:
            raise RecordFailed(
                f"a record for {tp.topic}, key {(entry.key or b'')[:40]!r}, has {size} bytes, "
                f"more than max.message.bytes = {most}"
            )
        offset = log.append(entry)
        if entry.transaction is not None and tp not in entry.transaction.first_offsets:
            entry.transaction.first_offsets[tp] = offset
            log.open.append(offset)
        return offset

    def fence(self, transactional_id: str) -> int:
        """Give the id a new epoch and abort what its last owner left open."""
        self.require_up()
        with self.changing:
            owner = self._owners.setdefault(transactional_id, _Owner())
            if owner.transaction is not None:
                self._end(owner, TransactionOutcome.ABORTED)
            owner.epoch += 1
            return owner.epoch

    def epoch(self, transactional_id: str) -> int:
        """Return how often the id was opened."""
        return self._owners[transactional_id].epoch if transactional_id in self._owners else 0

    def begin(self, transactional_id: str, epoch: int) -> None:
        """Begin a transaction."""
        owner = self._owner(transactional_id, epoch)
        assert owner.transaction is None, "a transaction is open"
        owner.transaction = Transaction()

    def transaction(self, transactional_id: str, epoch: int) -> Transaction:
        """The open transaction of this owner; Fenced if it is no longer the owner."""
        owner = self._owner(transactional_id, epoch)
        assert owner.transaction is not None, "begin comes first"
        return owner.transaction

    def end(self, transactional_id: str, epoch: int, outcome: TransactionOutcome) -> None:
        """Commit or abort: all its records and offsets at once."""
        with self.changing:
            owner = self._owner(transactional_id, epoch)
            assert owner.transaction is not None, "begin comes first"
            self._end(owner, outcome)

    def is_pending(self, group_id: str, tp: TopicPartition) -> bool:
        """Whether an open transaction carries an offset of this group."""
        with self.changing:
            return any(
                owner.transaction is not None and (group_id, tp) in owner.transaction.group_offsets
                for owner in self._owners.values()
            )

    def _owner(self, transactional_id: str, epoch: int) -> _Owner:
        self.require_up()
        owner = self._owners[transactional_id]
        if owner.epoch != epoch:
            raise Fenced(
                f"{transactional_id} has epoch {owner.epoch}, not {epoch}: "
                "a newer owner opened it, or the transaction expired"
            )
        return owner

    def _end(self, owner: _Owner, outcome: TransactionOutcome) -> None:
        transaction, owner.transaction = owner.transaction, None
        assert transaction is not None
        transaction.outcome = outcome
        for tp, first in transaction.first_offsets.items():
            log = self.log(tp)
            log.open.remove(first)
            latest = log.entries[-1].timestamp_ms if log.entries else 0
            control = LogEntry(-1, None, None, latest, transaction=transaction, is_control=True)
            log.append(control)
        if outcome is TransactionOutcome.COMMITTED:
            self.groups.update(transaction.group_offsets)
