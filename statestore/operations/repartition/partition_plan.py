"""What a change of the partition count does: values, and what they follow from.

`changes_of` works out, without asking anybody, which sub-topologies get another number of stream
tasks and which topics get another number of partitions with them. `stamps_of` says with what the
group's offsets go on.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from statestore.errors import Misuse, TopologyMismatch
from statestore.layout.documents import (
    ApplicationName,
    Count,
    Ordinal,
    StoreName,
    Text,
    Topic,
    Word,
)
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import Deployed
from statestore.ports import GroupOffset, TopicSpec
from statestore.tasks.commit import CommitStamp
from statestore.topology.graph import Topology
from statestore.topology.nodes import TopicName

VERSION = 1
MOST = 100_000
"""More partitions than any topic has."""


class Inputs(StrEnum):
    """What the command may do to inputs that have another number of partitions."""

    KEEP = "keep"
    GROW = "grow"
    RECREATE = "recreate"


class PartChange(msgspec.Struct, frozen=True):
    """A sub-topology, and how many stream tasks it had and will have."""

    sub_topology: Ordinal
    before: Count
    after: Count


class TopicChange(msgspec.Struct, frozen=True):
    """A topic and its partitions; `role`: input, repartition or changelog.

    `begins_anew`: it is deleted and created again. `config`: with these settings, which were set on
    it. `replicas`: with so many; 0: as `replication.factor` has it.
    """

    topic: Topic
    role: Word
    before: Count
    after: Count
    begins_anew: bool
    config: dict[Word, Text] = {}
    replicas: Count = 0

    def spec(self) -> TopicSpec:
        """How it is created again."""
        return TopicSpec(self.topic, self.after, self.config, self.replicas or None)


class StoreChange(msgspec.Struct, frozen=True):
    """A store whose rows are divided anew, and how many records its changelog has.

    `placed_by`: the hash by which keys lie in partitions, or `own` (own_partitioners.py).
    """

    store: StoreName
    kind: Word
    sub_topology: Ordinal
    changelog: Topic
    copied_by: Topic
    placed_by: Word
    records: Count


class GoesOn(msgspec.Struct, frozen=True):
    """An input partition: the offset NEXT to read, and what is committed with it."""

    topic: Topic
    partition: Ordinal
    offset: Count
    metadata: Text


class RepartitionPlan(msgspec.Struct, frozen=True):
    """All that is done. While it goes on, it is in `repartition.json`.

    `input_partitions`: what was asked for. `seen`: by changelog, what the cluster called the one
    that was copied.
    """

    application_id: ApplicationName
    input_partitions: Count
    parts: list[PartChange]
    topics: list[TopicChange]
    stores: list[StoreChange]
    offsets: list[GoesOn]
    finished: bool = False
    """All but the removal of the copies and of the journal itself is done."""
    version: Count = VERSION

    @property
    def anything(self) -> bool:
        """Whether anything is to be done."""
        return bool(self.parts)

    def after(self, ordinal: int) -> int | None:
        """How many stream tasks a sub-topology will have; None: it stays as it is."""
        return next((part.after for part in self.parts if part.sub_topology == ordinal), None)

    def tasks(self) -> set[TaskId]:
        """All stream tasks that were, or will be, of the sub-topologies that change."""
        return {
            TaskId(part.sub_topology, p)
            for part in self.parts
            for p in range(max(part.before, part.after))
        }


class RepartitionReport(msgspec.Struct, frozen=True):
    """What a change did (`applied`) or would do; `begun`: an earlier call began it."""

    plan: RepartitionPlan
    applied: bool = False
    begun: bool = False
    seconds: float = 0.0


class PartitionChanges(NamedTuple):
    """The sub-topologies that change, and the partition counts of all topics afterwards."""

    parts: dict[int, PartChange]
    counts: Mapping[TopicName, int]


def changes_of(
    topology: Topology, deployed: Deployed, existing: Mapping[str, int], partitions: int
) -> PartitionChanges:
    """Work out what changes if all inputs of stream tasks get so many partitions.

    `existing`: the partitions of the topics that are read.
    """
    inputs = {t.name for part in topology.sub_topologies for t in part.source_topics}
    after = {name: partitions if name in inputs else n for name, n in existing.items()}
    counts = topology.partition_counts(after)
    tasks = topology.tasks(counts)
    before = {part.ordinal: part.tasks for part in deployed.sub_topologies}
    unknown = [ordinal for ordinal in tasks if before.get(ordinal) is None]
    if unknown:
        raise Misuse(
            f"it is not known how many stream tasks sub-topology {unknown[0]} had, as it was "
            "deployed without a broker: start the application once before its inputs grow"
        )
    parts = {
        ordinal: PartChange(ordinal, before[ordinal] or 0, len(found))
        for ordinal, found in tasks.items()
        if len(found) != before[ordinal]
    }
    return PartitionChanges(parts, counts)


def check_topology(topology: Topology, deployed: Deployed, reused: Mapping[str, str]) -> None:
    """Misuse, or TopologyMismatch, if this cannot be done with the application at all.

    `reused`: by store, the source topic that is its log.
    """
    if not deployed.sub_topologies:
        raise Misuse("nothing was deployed yet: start the application with the new inputs")
    if topology.fingerprint() != deployed.fingerprint:
        raise TopologyMismatch(
            f"topology {deployed.fingerprint} is deployed and this pipeline is "
            f"{topology.fingerprint()}: change one thing at a time: bring the old pipeline back, "
            "or start this one first"
        )
    if reused:
        store, topic = min(reused.items())
        raise Misuse(
            f"store {store} has topic {topic} as its log (topology.optimization), whose records "
            "stay in their partitions: give the table a changelog of its own, under another name"
        )


def stamp_of(committed: Mapping[TopicPartition, GroupOffset]) -> CommitStamp | None:
    """What the new stream tasks of a sub-topology go on with: the latest of all old ones.

    None if no old one ever committed. What upstream tasks had said is left out: all that they wrote
    was processed, and they say it again.
    """
    stamps = [stamp for at in committed.values() if (stamp := CommitStamp.read(at)) is not None]
    if not stamps:
        return None
    latest = CommitStamp.latest(committed)
    times: dict[str, int] = {}
    for stamp in stamps:
        for digest, time_ms in stamp.partition_times.items():
            times[digest] = max(time_ms, times.get(digest, time_ms))
    return CommitStamp(
        latest.number, latest.stream_time_ms, partition_times=times, seen_ms=latest.seen_ms
    )


def deployed_after(
    deployed: Deployed, plan: RepartitionPlan, changelog_ids: Mapping[str, str]
) -> Deployed:
    """What is deployed once all is done; `changelog_ids`: by topic."""
    parts = [
        part
        if (after := plan.after(part.ordinal)) is None
        else msgspec.structs.replace(part, tasks=after)
        for part in deployed.sub_topologies
    ]
    stores = dict(deployed.stores)
    for change in plan.stores:
        stores[change.store] = msgspec.structs.replace(
            stores[change.store], changelog_id=changelog_ids[change.changelog]
        )
    return msgspec.structs.replace(deployed, sub_topologies=parts, stores=stores)


def names(found: Iterable[object]) -> str:
    """Several things in a message."""
    return ", ".join(map(str, found)) or "none"
