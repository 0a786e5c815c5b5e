"""Looks at brokers, and plans a change of the partition count; everything that refuses it is here.

Nothing is written. What is read: the partitions of topics, the group's offsets, input that is not
processed yet, and all changelogs whose records are to be divided.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statestore.errors import Misuse, RecordFailed, TopicMissing
from statestore.layout.activity_files import Progress
from statestore.model import time_marks
from statestore.model.ids import TopicPartition
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.repartition.logs_of_stores import Census, LoggedStore, Place
from statestore.operations.repartition.own_partitioners import (
    OWN,
    OwnPartitioner,
    own_of,
)
from statestore.operations.repartition.partition_plan import (
    GoesOn,
    Inputs,
    PartChange,
    PartitionChanges,
    RepartitionPlan,
    StoreChange,
    TopicChange,
    changes_of,
    check_topology,
    names,
    stamp_of,
)
from statestore.operations.start.changelogs import Accepted, StartingPoint
from statestore.operations.start.topics import internal_topics
from statestore.operations.unfinished import copied_by, copies_of
from statestore.ports import Bounds, GroupOffset
from statestore.serdes import composed
from statestore.stores.kinds.registry import kind_of
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of, logs
from statestore.topology.nodes import OperatorNode, TopicName
from statestore.topology.sub_topologies import SubTopology

_HASHES = ("murmur2", "crc32")
_IN_SYNC = "min.insync.replicas"


@dataclass(frozen=True)
class PartitionsAsked:
    """What the caller asks for. `partitioner`: the hash that producers use; None: found out."""

    partitions: int
    inputs: Inputs = Inputs.KEEP
    partitioner: str | None = None
    accept_removed_records: bool = False
    """Whether stores may be as a restore from changelogs makes them that have lost records."""


class _Input(NamedTuple):
    """A topic that a changing sub-topology reads: its partitions when it was read, and now."""

    name: TopicName
    topic: str
    before: int
    now: int


class _Read(NamedTuple):
    """What was read of the changelogs of a sub-topology; `extent`: which they were, how far.

    `own`: by store, the pipeline's own partitioner. `records`: by store, how many it has.
    """

    extent: tuple[PartChange, Mapping[str, str], Mapping[TopicPartition, Bounds]]
    stores: Sequence[LoggedStore]
    own: dict[str, OwnPartitioner]
    records: dict[str, int]
    by_hash: Census


class Planner:
    """Plans the change of one stopped application.

    It may be asked again while others write: what has not changed is not read again.
    """

    def __init__(
        self, environment: Environment, topology: Topology, asked: PartitionsAsked, told: Progress
    ) -> None:
        self._environment = environment
        self._topology = topology
        self._asked = asked
        self._told = told
        self._cluster = environment.cluster
        self._application_id = environment.settings.application_id
        self._deployed = Deployed()
        self._known: dict[int, _Read] = {}

    def plan(self) -> RepartitionPlan:
        """Plan it. Misuse, TopologyMismatch or NotCopartitioned say what cannot be."""
        topology, cluster = self._topology, self._cluster
        self._deployed = read_deployed(self._environment.layout)
        reused = logs(topology, self._environment.settings).topics()
        check_topology(topology, self._deployed, reused)
        read, written = topology.topics()
        self._check_names(read | written)
        existing = cluster.partitions(sorted(read))
        if missing := sorted(read - existing.keys()):
            raise TopicMissing(f"topics that do not exist: {names(missing)}: create them first")
        changes = changes_of(topology, self._deployed, existing, self._asked.partitions)
        parts = [topology.sub_topologies[ordinal] for ordinal in sorted(changes.parts)]
        inputs = {
            part.ordinal: self._inputs(part, changes.parts[part.ordinal], existing)
            for part in parts
        }
        self._check_startable(existing)
        topics = self._topics(parts, changes, inputs)
        stores: list[StoreChange] = []
        offsets: dict[TopicPartition, GoesOn] = {}
        for part in parts:
            group = self._group(inputs[part.ordinal])
            self._check_drained(part, inputs[part.ordinal], group)
            stores += self._stores(part, changes.parts[part.ordinal], inputs[part.ordinal], group)
            known = [one for one in inputs[part.ordinal] if self._was_read(part, one)]
            for at in self._offsets(known, changes, group):
                offsets[TopicPartition(at.topic, at.partition)] = at
        return RepartitionPlan(
            self._application_id,
            self._asked.partitions,
            list(changes.parts.values()),
            topics + self._changelogs(stores, changes),
            stores,
            list(offsets.values()),
        )

    def _check_startable(self, existing: Mapping[str, int]) -> None:
        """Misuse if a start with the old count would be refused, as for offsets that are gone.

        What is wrong with offsets, or with the settings of changelogs, would be so with any count.
        """
        known = dict(existing)
        for part in self._deployed.sub_topologies:
            for topic in self._topology.sub_topologies[part.ordinal].source_topics:
                if topic.name in known and part.tasks:
                    known[topic.name] = min(known[topic.name], part.tasks)
        counts = self._topology.partition_counts(known)
        needed = internal_topics(self._topology, counts, self._application_id)
        try:
            StartingPoint(self._environment, self._topology, counts, needed).check(Accepted())
        except (Misuse, RecordFailed) as error:
            raise Misuse(
                "the application cannot go on from where it stands, with any number of partitions: "
                f"start it first (`statestore run`), and see to this: {error}"
            ) from error

    # Topics.

    def _check_names(self, used: set[str]) -> None:
        """Misuse if a topic of the pipeline would be taken for a copy, which is deleted."""
        if taken := sorted(used & copies_of(self._application_id, self._topology)):
            raise Misuse(
                f"the pipeline uses topic {taken[0]}, which has the name of a copy that this "
                "command makes and deletes: give the topic another name first"
            )

    def _inputs(
        self, part: SubTopology, change: PartChange, existing: Mapping[str, int]
    ) -> list[_Input]:
        internal = [t.full(self._application_id) for t in part.source_topics if t.internal]
        known = {**existing, **self._cluster.partitions(internal)}
        found = []
        for name in part.source_topics:
            topic = name.full(self._application_id)
            now = known.get(topic, 0)
            if now < change.before and not name.internal:
                raise Misuse(
                    f"input {topic} has {now} partitions, and sub-topology {part.ordinal} was "
                    f"deployed with {change.before} stream tasks: an input that was created again "
                    "has lost what nobody knows to be processed, and inputs of different counts "
                    "cannot be divided alike: start under another application id, or `statestore "
                    "reset`"
                )
            # A topic that has grown since has the partitions of before among those of now.
            found.append(_Input(name, topic, min(now, change.before), now))
        return found

    def _topics(
        self,
        parts: Sequence[SubTopology],
        changes: PartitionChanges,
        inputs: Mapping[int, Sequence[_Input]],
    ) -> list[TopicChange]:
        found: dict[str, TopicChange] = {}
        for one in (it for part in parts for it in inputs[part.ordinal]):
            after = changes.counts[one.name]
            if one.name.internal:
                found[one.topic] = self._anew(one.topic, "repartition", one.now, after)
            elif one.now < after:
                self._may(Inputs.GROW, one, after)
                found[one.topic] = TopicChange(one.topic, "input", one.now, after, False)
            elif one.now > after:
                self._may(Inputs.RECREATE, one, after)
                found[one.topic] = self._anew(one.topic, "input", one.now, after)
        return list(found.values())

    def _may(self, needed: Inputs, one: _Input, after: int) -> None:
        if self._asked.inputs is needed:
            return
        if needed is Inputs.GROW:
            raise Misuse(
                f"input {one.topic} has {one.now} partitions, not {after}: stop its producers and "
                "pass --grow-inputs, or add the partitions yourself, then repeat the command"
            )
        raise Misuse(
            f"input {one.topic} has {one.now} partitions, and no topic ever gets fewer, so "
            f"{after} are too few: ask for {one.now} or more; or, as all of its records are "
            "processed, stop its producers and pass --recreate-inputs, which deletes the topic "
            "with all its records and creates it again"
        )

    def _anew(self, topic: str, role: str, before: int, after: int) -> TopicChange:
        spec = self._cluster.specs([topic]).get(topic)
        if spec is None:
            return TopicChange(topic, role, before, after, True)
        needed = int(self._cluster.topic_settings([topic])[topic].get(_IN_SYNC) or 1)
        replicas = spec.replicas or needed
        if role == "changelog" and needed > replicas:
            raise Misuse(
                f"changelog {topic} has {_IN_SYNC}={needed} and {replicas} replicas, so nothing "
                f"can be written to it: lower {_IN_SYNC} (kafka-configs --alter) or give it more "
                "replicas first"
            )
        return TopicChange(topic, role, before, after, True, dict(spec.config), replicas)

    def _changelogs(
        self, stores: Sequence[StoreChange], changes: PartitionChanges
    ) -> list[TopicChange]:
        return [
            self._anew(
                store.changelog,
                "changelog",
                changes.parts[store.sub_topology].before,
                changes.parts[store.sub_topology].after,
            )
            for store in stores
        ]

    # Input.

    def _group(self, inputs: Sequence[_Input]) -> Mapping[TopicPartition, GroupOffset]:
        tps = [TopicPartition(one.topic, p) for one in inputs for p in range(one.now)]
        return self._cluster.group_offsets(tps) if tps else {}

    def _check_drained(
        self,
        part: SubTopology,
        inputs: Sequence[_Input],
        group: Mapping[TopicPartition, GroupOffset],
    ) -> None:
        """Misuse if records under way are lost if their topic is created again.

        Or if nobody sees them yet: other producers' transactions may be open in inputs.
        """
        theirs = [
            TopicPartition(i.topic, p) for i in inputs if not i.name.internal for p in range(i.now)
        ]
        if hidden := self._cluster.undecided(theirs):
            raise Misuse(
                f"{hidden[0]} has a transaction that is open: its records would be lost with the "
                "topic, or stay where their keys do not belong any more: stop the producer, let it "
                "end its transaction or the broker abort it (transaction.timeout.ms), process "
                "everything to the end, then repeat the command"
            )
        for one in inputs:
            begins_anew = one.name.internal or one.now > self._asked.partitions
            if not begins_anew:
                continue
            tps = [TopicPartition(one.topic, p) for p in range(one.now)]
            for tp in tps:
                if any(True for _ in self._unprocessed(tp, group)):
                    raise Misuse(
                        f"{tp} has records that sub-topology {part.ordinal} has not processed, "
                        "and the topic is created again: process everything to the end first "
                        "(`statestore run`, without --run-for), then repeat the command"
                    )

    def _unprocessed(
        self, tp: TopicPartition, group: Mapping[TopicPartition, GroupOffset]
    ) -> Iterator[list[bytes | None]]:
        """Yield the keys of records that are not processed, without time marks."""
        bounds = self._cluster.bounds([tp])[tp]
        start = max(group[tp].offset if tp in group else bounds.start, bounds.start)
        if start >= bounds.end:
            return
        for stretch in self._environment.changelog.replay(tp, start, bounds.end):
            left = stretch.batch.without(list(time_marks.among(stretch.batch)))
            if len(left):
                yield left.keys.objects

    def _check_places(
        self,
        part: SubTopology,
        change: PartChange,
        one: _Input,
        group: Mapping[TopicPartition, GroupOffset],
        place: Place,
    ) -> None:
        """Misuse if a record that is not processed lies where its key does not belong any more."""
        if one.name.internal or not part.stores or one.now > change.after:
            return
        serdes = {topic: node.key_serde for node in part.sources for topic in node.topics}
        for p in range(one.now):
            tp = TopicPartition(one.topic, p)
            for keys in self._unprocessed(tp, group):
                placing = composed.placing(serdes[one.name], keys) or keys
                known = [key for key in placing if key]
                at = place(known, change.after)
                wrong = [key for key, found in zip(known, at, strict=True) if found != p]
                if wrong:
                    raise Misuse(self._misplaced(tp, wrong[0], change, grown=one.now))

    def _misplaced(self, tp: TopicPartition, key: bytes, change: PartChange, *, grown: int) -> str:
        said = (
            f"{tp} has a record of key {key[:60]!r} that is not processed and that belongs to "
            f"another partition of {change.after}: its state would be elsewhere"
        )
        if grown > change.before:
            return (
                f"{said}; the topic has grown since, so the application cannot process it with the "
                "old count: produce such records again, which puts them where they belong, and "
                "delete these (kafka-delete-records.sh)"
            )
        return (
            f"{said}: process everything to the end first (`statestore run`, without --run-for), "
            "with the producers stopped, then repeat the command"
        )

    # Stores.

    def _stores(
        self,
        part: SubTopology,
        change: PartChange,
        inputs: Sequence[_Input],
        group: Mapping[TopicPartition, GroupOffset],
    ) -> list[StoreChange]:
        places: dict[TopicName, Place] = {}
        counted = []
        read = self._read(part, change)
        by_hash = read.by_hash
        for store in read.stores:
            own, records = read.own.get(store.spec.name), read.records[store.spec.name]
            if own is not None:
                places |= dict.fromkeys(self._topology.topics_into(store.spec.name), own)
                if records:
                    self._check_shown(part, change, store.spec.name)
            counted.append((store, own, records))
        chosen = self._chosen(part, change, by_hash)
        hashed = self._environment.partitioners[chosen]
        for one in inputs:
            if one.name in places:
                self._check_places(part, change, one, group, places[one.name])
            if one.name not in self._topology.placed_by:
                self._check_places(part, change, one, group, hashed)
        return [
            StoreChange(
                store.spec.name,
                kind_of(store.spec).name,
                part.ordinal,
                store.topic,
                copied_by(self._application_id, store.spec.name),
                chosen if own is None else OWN,
                records,
            )
            for store, own, records in counted
        ]

    def _read(self, part: SubTopology, change: PartChange) -> _Read:
        """Read the changelogs of a sub-topology, unless they are what they were when last read."""
        stores = [self._logged(name, change) for name in part.stores]
        topics = [store.topic for store in stores]
        tps = [TopicPartition(topic, p) for topic in topics for p in range(change.before)]
        extent = (change, self._cluster.topic_ids(topics), self._cluster.bounds(tps))
        known = self._known.get(part.ordinal)
        if known is not None and known.extent == extent:
            return known
        changelog = self._environment.changelog
        hashes: dict[str, Place] = {n: self._environment.partitioners[n] for n in _HASHES}
        if self._asked.partitioner is not None:
            hashes = {self._asked.partitioner: hashes[self._asked.partitioner]}
        self._check_whole(extent[2])
        found = _Read(extent, stores, {}, {}, Census(changelog, hashes))
        for store in stores:
            own = own_of(self._environment, self._topology, store.spec)
            census = found.by_hash
            if own is not None:
                found.own[store.spec.name] = own
                census = Census(changelog, {OWN: own.tried(change.after)}, _whose(own))
            bounds = {tp: at for tp, at in extent[2].items() if tp.topic == store.topic}
            expected = sum(one.end - one.start for one in bounds.values())
            self._told.expect(expected)
            found.records[store.spec.name] = census.count(store, bounds)
            self._told.done(expected)
        self._known[part.ordinal] = found
        return found

    def _check_whole(self, logs: Mapping[TopicPartition, Bounds]) -> None:
        """Misuse if records were removed that stores on disk may have: compaction removes none."""
        begins_late = [tp for tp, at in sorted(logs.items()) if at.start > 0]
        if begins_late and not self._asked.accept_removed_records:
            tp = begins_late[0]
            raise Misuse(
                f"changelog {tp} begins at offset {logs[tp].start}: records were removed from it "
                "(retention, or kafka-delete-records.sh), and rows that only they had are in "
                "stores on disk alone, which are restored from changelogs afterwards: see with "
                "`statestore audit` whether rows are missing; if so, clone the application "
                "(`statestore export --for-clone`), which fills changelogs from stores, and change "
                "the clone; if not, pass --accept-removed-records"
            )

    def _logged(self, name: str, change: PartChange) -> LoggedStore:
        topic = log_of(self._application_id, name, {})
        there = self._cluster.partitions([topic]).get(topic)
        if there != change.before:
            raise Misuse(
                f"changelog {topic} of store {name} has {there or 'no'} partitions, and the store "
                f"was deployed with {change.before}: bring the topic back first"
            )
        known = self._deployed.stores[name].changelog_id
        if known is not None and self._cluster.topic_ids([topic])[topic] != known:
            raise Misuse(
                f"changelog {topic} of store {name} was deleted and created again since it was "
                "deployed: bring the topic back first"
            )
        return LoggedStore(self._topology.stores[name], topic, change.before, change.after)

    def _chosen(self, part: SubTopology, change: PartChange, census: Census) -> str:
        """The hash that places the keys; Misuse if two may, and nobody says which."""
        ours = self._environment.settings.partitioner_hash
        if len(census.fitting) == 1:
            return min(census.fitting)
        from_others = any(not topic.internal for topic in part.source_topics)
        own_keys = change.before == 1 and _may_have_other_keys(part)
        if census.keys and (from_others or own_keys):
            raise Misuse(
                f"sub-topology {part.ordinal}: its {census.keys} records lie where both murmur2 "
                "and crc32 put them, so they do not show which one places the keys of its inputs "
                f"({names(t.without_application() for t in part.source_topics)}), and that all "
                "rows have the keys of their records: pass --partitioner murmur2 (clients in Java, "
                "and what statestore writes) or --partitioner crc32 (librdkafka's default)"
            )
        return ours

    def _check_shown(self, part: SubTopology, change: PartChange, store: str) -> None:
        """Misuse if one partition does not show that the pipeline's partitioner places all rows."""
        from_others = any(not t.internal for t in self._topology.topics_into(store))
        open_question = from_others or _may_have_other_keys(part)
        if change.before == 1 and open_question and self._asked.partitioner is None:
            raise Misuse(
                f"store {store}: one partition does not show whether the pipeline's own "
                "partitioner places all of its rows: it does if they have the keys of their "
                "records, and if the producers of its inputs place these alike; then pass "
                "--partitioner, with the hash that places the keys of other inputs"
            )

    # Offsets.

    def _was_read(self, part: SubTopology, one: _Input) -> bool:
        """Whether a run has read it: one that a pattern matches since begins as a start has it."""
        before = next(it for it in self._deployed.sub_topologies if it.ordinal == part.ordinal)
        by_pattern = any(node.pattern and one.name in node.topics for node in part.sources)
        return not by_pattern or one.topic in before.source_topics

    def _offsets(
        self,
        inputs: Sequence[_Input],
        changes: PartitionChanges,
        group: Mapping[TopicPartition, GroupOffset],
    ) -> Iterator[GoesOn]:
        stamp = stamp_of(group)
        if stamp is None:
            return  # No task ever committed, so its inputs begin where a first start has them.
        text = stamp.text()
        tps = [TopicPartition(one.topic, p) for one in inputs for p in range(one.now)]
        bounds = self._cluster.bounds(tps)
        for one in inputs:
            after = changes.counts[one.name]
            anew = one.name.internal or one.now > after
            for p in range(after):
                tp, offset = TopicPartition(one.topic, p), 0
                if tp in group and not anew:
                    offset = group[tp].offset
                elif tp in bounds and not anew:
                    offset = bounds[tp].start
                yield GoesOn(one.topic, p, offset, text)


def _may_have_other_keys(part: SubTopology) -> bool:
    """Whether a processor may put rows under other keys than those of its records."""
    return any(
        isinstance(node, OperatorNode) and node.fans_out and node.stores for node in part.nodes
    )


def _whose(own: OwnPartitioner) -> str:
    return f"the partitioner of topic {own.topics[0]}"


def logged_store(topology: Topology, plan: RepartitionPlan, change: StoreChange) -> LoggedStore:
    """The store of a plan, as its log is divided."""
    part = next(one for one in plan.parts if one.sub_topology == change.sub_topology)
    return LoggedStore(topology.stores[change.store], change.changelog, part.before, part.after)
