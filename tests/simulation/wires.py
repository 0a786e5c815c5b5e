"""The ports of a simulated process: the broker's in memory, with calls that fail or get no answer.

A commit without an answer happened, was lost, or is on its way and arrives when it likes, unless
its epoch is gone by then.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from statestore.errors import CommitUnknown, Fenced, Unavailable
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.ports import (
    Arrival,
    Bounds,
    Changelog,
    Cluster,
    CommitWaits,
    GroupOffset,
    KeyHashes,
    Outbox,
    Records,
    Replayed,
    Source,
    TopicSpec,
)
from statestore.settings import Settings
from statestore.testing.memory_broker import MemoryBroker, MemoryBrokers
from tests.simulation.world import Process, Step


@dataclass
class _Transaction:
    """One transaction of one client: whether its commit was asked for, and has arrived."""

    client: Outbox
    asked: bool = False
    arrived: bool = False

    @property
    def undecided(self) -> bool:
        return self.asked and not self.arrived

    def arrive(self) -> None:
        if not self.arrived:
            self.client.commit()
            self.arrived = True


class SimulatedOutbox:
    """`ports.Outbox`: the broker's, with calls that fail and commits that are not answered."""

    def __init__(self, make: Callable[[], Outbox], process: Process) -> None:
        self._make = make
        self._process = process
        self._client: Outbox | None = None
        self._transaction: _Transaction | None = None

    def open(self) -> None:
        self._client = self._transaction = None
        client = self._make()
        self._process.ask("outbox.open")
        client.open()
        told = self._process.fate.protocol
        at = len(told)
        self._process.tell(Step.OPENS)
        try:
            self._process.ask("outbox.open answered")
        except BaseException:
            told[at] = told[at]._replace(step=Step.OPENS_UNHEARD)
            raise
        self._client = client

    def begin(self, number: int | None = None) -> None:
        self._process.visit("outbox.begin")
        client = self._opened()
        client.begin(number)
        self._process.offered = 0
        self._process.tell(Step.BEGINS, number or 0)
        self._transaction = _Transaction(client)

    def send(self, records: Records, *, tracked: bool = False) -> None:
        self._process.ask(f"outbox.send {len(records.keys)} to {records.topic}")
        self._opened().send(records, tracked=tracked)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        # A serving's name is of no schedule's choosing.
        stamp = re.sub(r'"serving":"[^"]*"', '"serving":"…"', metadata)
        self._process.ask(f"outbox.send_offsets {_told(offsets)} {stamp}")
        self._opened().send_offsets(offsets, metadata)
        self._process.offered = number_in(metadata)
        self._process.tell(Step.SENDS, self._process.offered)
        self._process.tell(Step.ADDS_OFFSETS, self._process.offered)

    def flush(self) -> None:
        self._process.ask("outbox.flush")
        self._opened().flush()

    def commit(self) -> None:
        self._process.visit("outbox.commit")
        self._opened()
        transaction, fate = self._transaction, self._process.fate
        assert transaction is not None, "begin comes before commit"
        transaction.asked = True
        if not fate.happens(fate.odds.unanswered):
            transaction.arrive()
            self._process.tell(Step.HEARS, self._process.offered)
            return
        self._process.trouble = 8
        outcome = fate.rng.choice(("happens", "is lost", "is late"))
        fate.note(self._process.name, f"outbox.commit unanswered: it {outcome}")
        match outcome:
            case "happens":
                transaction.arrive()
            case "is late":
                fate.late.append(lambda: self._arrive_late(transaction))
        self._process.tell(Step.HEARS_NOTHING, self._process.offered)
        raise CommitUnknown("the commit was not answered: commit again")

    def push(self) -> None:
        self._process.visit("outbox.push")
        self._opened().push()

    def ask_commit(self) -> None:
        self._process.visit("outbox.ask_commit")
        self._opened()

    def waited(self) -> CommitWaits:
        return self._opened().waited()

    def abort(self) -> None:
        self._process.ask("outbox.abort")
        if self._client is None:
            return
        if self._transaction is not None and self._transaction.undecided:
            raise Unavailable("a commit is under way: it cannot be aborted")
        self._client.abort()

    def ends(self) -> dict[TopicPartition, int]:
        return self._opened().ends()

    def close(self) -> None:
        self._process.visit("outbox.close")
        undecided = self._transaction is not None and self._transaction.undecided
        if self._client is not None and not undecided:
            self._client.close()
        self._client = self._transaction = None

    def _opened(self) -> Outbox:
        if self._client is None:
            raise Unavailable("the producer has no epoch: open it again")
        return self._client

    def _arrive_late(self, transaction: _Transaction) -> None:
        """The broker takes it, unless its epoch is gone meanwhile."""
        if transaction.arrived:
            return
        try:
            transaction.arrive()
        except (Fenced, Unavailable):
            return
        self._process.fate.note(self._process.name, "a late commit arrives and happens")


class SimulatedSource:
    """`ports.Source`: the broker's, where records take their time."""

    def __init__(self, source: Source, process: Process) -> None:
        self._source = source
        self._process = process

    def start(self, positions: Mapping[TopicPartition, int]) -> None:
        self._process.ask(f"source.start {_told(positions)}")
        self._source.start(positions)

    def poll(self, max_records: int, timeout_ms: int, *, soon: bool = False) -> list[Batch]:
        self._process.ask("source.poll")
        fate = self._process.fate
        if fate.happens(fate.odds.nothing_yet):
            return []
        return self._source.poll(fate.rng.randint(1, max_records), timeout_ms, soon=soon)

    def arrival(self) -> Arrival | None:
        return self._source.arrival()

    def position(self, tp: TopicPartition) -> int:
        return self._source.position(tp)

    def at_end(self, tp: TopicPartition) -> bool:
        return self._source.at_end(tp)

    def log_end(self, tp: TopicPartition) -> int | None:
        return self._source.log_end(tp)

    def pause(self, tps: Sequence[TopicPartition]) -> None:
        self._source.pause(tps)

    def resume(self, tps: Sequence[TopicPartition]) -> None:
        self._source.resume(tps)

    def close(self) -> None:
        self._source.close()


class SimulatedChangelog:
    """`ports.Changelog`: the broker's, a few offsets at a time."""

    def __init__(self, broker: MemoryBroker, process: Process) -> None:
        self._changelog = broker.changelog()
        self._process = process

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        self._process.ask("changelog.bounds")
        return self._changelog.bounds(tps)

    def replay(self, tp: TopicPartition, start: int, end: int) -> Iterator[Replayed]:
        at = start
        while at < end:
            self._process.ask(f"changelog.replay {tp.topic}-{tp.partition}@{at}")
            upto = min(end, at + self._process.fate.rng.randint(1, 12))
            yield from self._changelog.replay(tp, at, upto)
            at = upto


class SimulatedCluster:
    """`ports.Cluster`: the broker's."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process

    def topics(self) -> list[str]:
        self._process.ask("cluster.topics")
        return self._cluster.topics()

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        self._process.ask("cluster.partitions")
        return self._cluster.partitions(topics)

    def create(self, topics: Sequence[TopicSpec]) -> None:
        self._process.ask("cluster.create")
        self._cluster.create(topics)

    def topic_settings(self, topics: Sequence[str]) -> dict[str, Mapping[str, str]]:
        self._process.ask("cluster.topic_settings")
        return self._cluster.topic_settings(topics)

    def specs(self, topics: Sequence[str]) -> dict[str, TopicSpec]:
        self._process.ask("cluster.specs")
        return self._cluster.specs(topics)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        self._process.ask("cluster.topic_ids")
        return self._cluster.topic_ids(topics)

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        self._process.ask("cluster.bounds")
        return self._cluster.bounds(tps)

    def undecided(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        self._process.ask("cluster.undecided")
        return self._cluster.undecided(tps)

    def offsets_at(self, tps: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        self._process.ask("cluster.offsets_at")
        return self._cluster.offsets_at(tps, time_ms)

    def group_offsets(
        self, tps: Sequence[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, GroupOffset]:
        self._process.ask("cluster.group_offsets")
        found = self._cluster.group_offsets(tps, stable=stable)
        if stable:
            numbers = (number_in(at.metadata) for at in found.values())
            self._process.tell(Step.READS, max(numbers, default=0))
        return found

    def key_hashes(
        self, topics: Mapping[str, int], windowed: Mapping[str, int] | None = None
    ) -> dict[str, KeyHashes]:
        self._process.ask("cluster.key_hashes")
        return self._cluster.key_hashes(topics, windowed)

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._process.ask("cluster.delete_before")
        self._cluster.delete_before(offsets)

    def raise_compaction_lag(self, topic: str, lag_ms: int) -> int | None:
        self._process.ask("cluster.raise_compaction_lag")
        return self._cluster.raise_compaction_lag(topic, lag_ms)

    def remove(self, topics: Sequence[str], group_id: str | None) -> None:
        self._process.ask("cluster.remove")
        self._cluster.remove(topics, group_id)

    def grow(self, partitions: Mapping[str, int]) -> None:
        self._process.ask("cluster.grow")
        self._cluster.grow(partitions)

    def abort_open_transactions(self, transactional_ids: Sequence[str]) -> None:
        self._process.ask("cluster.abort_open_transactions")
        self._cluster.abort_open_transactions(transactional_ids)

    def check(self) -> None:
        self._process.ask("cluster.check")
        self._cluster.check()

    def close(self) -> None:
        """Nothing is held."""


class SimulatedBrokers(MemoryBrokers):
    """What a driver in a simulated process asks."""

    def __init__(self, broker: MemoryBroker, settings: Settings, process: Process) -> None:
        super().__init__(broker, settings)
        self._process = process

    def cluster(self) -> Cluster:
        return SimulatedCluster(super().cluster(), self._process)

    def changelog(self) -> Changelog:
        return SimulatedChangelog(self._broker, self._process)


def number_in(metadata: str) -> int:
    """The commit number of a stamp, read by code that shares nothing with the library."""
    number: int = json.loads(metadata)["number"] if metadata else 0
    return number


def _told(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{topic}-{p}@{at}" for (topic, p), at in offsets.items())
