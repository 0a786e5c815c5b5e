"""Whether a start may go on from the logs and offsets that are there (SEMANTICS E4a).

A store is what its log makes of it, and input goes on where the group's offsets stand. If the two
do not belong together, a start would lose what was committed or count it twice, and nobody would
notice. All of this is asked before anything is written (I9, I27).
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from statestore.errors import InvalidSetting, Misuse, TopologyMismatch
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.start.topics import ANY_PAST, ANY_TIME, as_settings, refused_times
from statestore.ports import Bounds, Changelog, Cluster, GroupOffset, TopicSpec
from statestore.stores.kinds.registry import kind_of
from statestore.stores.specs import StoreSpec
from statestore.tasks import input_checkpoint
from statestore.tasks.commit import check_metadata
from statestore.tasks.input_checkpoint import forgotten, truncated
from statestore.topology.graph import Topology
from statestore.topology.logs import Logs, log_of, logs
from statestore.topology.nodes import SinkNode, TopicName
from statestore.topology.sub_topologies import SubTopology

_log = logging.getLogger(__name__)
_ALL_PAST_MS = 3 * 10**12
"""More than 90 years: no time since 1970 is that old."""
_POLICY, _RETENTION, _SIZE = "cleanup.policy", "retention.ms", "retention.bytes"


class Accepted(NamedTuple):
    """What the caller has accepted, so that a start is not refused for it."""

    empty_changelog: bool = False
    forgotten_offsets: bool = False


class _Task(NamedTuple):
    """A stream task: what it reads, and the changelogs that its stores are restored from."""

    task_id: TaskId
    inputs: tuple[TopicPartition, ...]
    changelogs: tuple[TopicPartition, ...]


class StartingPoint:
    """Where an application stands on its cluster: its internal topics and its group's offsets."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology,
        counts: Mapping[TopicName, int],
        needed: Sequence[TopicSpec],
    ) -> None:
        """`counts`: the partitions of the topics. `needed`: the internal topics of the topology."""
        self._topology = topology
        self._counts = counts
        self._needed = needed
        self._layout = environment.layout
        self._cluster = environment.cluster
        self._changelog = environment.changelog
        self._exactly_once = environment.settings.exactly_once
        self._application_id = environment.settings.application_id
        self._previous = read_deployed(environment.layout)
        self._logs = logs(topology, environment.settings).topics()

    def check(self, accepted: Accepted) -> None:
        """Misuse, InvalidSetting or RecordFailed if a start would lose or repeat anything."""
        existing = self._cluster.partitions([spec.name for spec in self._needed])
        self._check_settings(existing)
        group = self._group(stable=False)
        self._check_inputs(group)
        if not accepted.empty_changelog:
            self._check_missing(existing, group)
        if self._exactly_once and not accepted.forgotten_offsets:
            self._check_uncommitted(existing, group)

    # Settings of internal topics.

    def _check_settings(self, existing: Collection[str]) -> None:
        """InvalidSetting if an internal topic forgets what is still needed."""
        there = self._settings_of(sorted(existing))
        stores = {log_of(self._application_id, name, {}): name for name in self._logged()}
        for spec in self._needed:
            told = there.get(spec.name, {}) if spec.name in existing else spec.config
            store = stores.get(spec.name)
            if store is None:
                _check_repartition(spec.name, told)
            else:
                where = "" if spec.name in existing else " by its changelog_config"
                _check_changelog(spec.name, where, self._topology.stores[store], told)
        _tell_of_times({topic: there.get(topic, {}) for topic in sorted(existing)})

    def _settings_of(self, topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        try:
            return self._cluster.topic_settings(topics)
        except InvalidSetting:
            raise
        except Misuse as error:
            # A start does not need the right to read them; then the administrator sees to T3.
            _log.warning("the settings of the internal topics are not known: %s", error)
            return {}

    # Inputs.

    def _check_inputs(self, group: Mapping[TopicPartition, GroupOffset]) -> None:
        """RecordFailed if an input that was read is truncated, created again or forgotten.

        Misuse if another program committed in the group.
        """
        inputs = {tp: task.task_id for task in self._tasks for tp in task.inputs}
        checkpointed = input_checkpoint.read_all(map(self._layout.task_dir, self._layout.tasks()))
        for tp, task_id in inputs.items():
            if tp in checkpointed and tp not in group:
                raise forgotten(tp, task_id, checkpointed[tp] - 1)
        check_metadata({tp: group[tp] for tp in inputs if tp in group})
        read = [tp for tp in inputs if tp in group and group[tp].offset > 0]
        ends = self._cluster.bounds(self._existing(read)) if read else {}
        for tp, bounds in ends.items():
            if group[tp].offset > bounds.end:
                raise truncated(tp, end=bounds.end, committed=group[tp].offset)

    # Changelogs that are gone.

    def _check_missing(
        self, existing: Collection[str], group: Mapping[TopicPartition, GroupOffset]
    ) -> None:
        """Misuse if the changelog of a store with commits is gone or was created again.

        Where no deployment is known, an offset without a stamp is not a commit of a stream task: a
        reset has put it there, or the first start.
        """
        ids = self._cluster.topic_ids(sorted(existing))
        gone: dict[str, str] = {}
        for store in self._logged():
            topic = log_of(self._application_id, store, {})
            known = self._previous.stores.get(store)
            made = None if known is None else known.changelog_id
            if topic not in existing and (made is not None or not self._previous.fingerprint):
                gone[topic] = f"as topic {topic} does not exist"
            elif topic in existing and made is not None and made != ids[topic]:
                gone[topic] = f"or was: topic {topic} was deleted and created again"
        for task in self._tasks:
            committed = [
                tp
                for tp in self._committed_of(task, group)
                if self._previous.fingerprint or group[tp].metadata
            ]
            for tp in task.changelogs:
                if tp.topic in gone and committed:
                    raise Misuse(
                        f"the changelog {tp} is empty, {gone[tp.topic]}, and group "
                        f"{self._application_id} has committed input of task {task.task_id}, such "
                        f"as {committed[0]}: what its store held is lost: bring the topic back, or "
                        "pass --accept-empty-changelog to begin with an empty store"
                    )

    # Records that nobody has committed input for.

    def _check_uncommitted(
        self, existing: Collection[str], group: Mapping[TopicPartition, GroupOffset]
    ) -> None:
        """Misuse if an internal topic has records that this group cannot know of."""
        suspects = list(self._suspects(existing, group))
        bounds = self._cluster.bounds([tp for tp, _, _ in suspects]) if suspects else {}
        suspects = [one for one in suspects if self._holds_records(one[0], bounds[one[0]])]
        if not suspects:
            return
        # A commit that is just going through is visible in a changelog before it is in the group.
        # Nothing else is waited for, in particular no transaction that a dead owner left open.
        known = self._group(stable=True)
        for tp, what, inputs in suspects:
            if not any(one in known for one in inputs):
                raise Misuse(self._uncommitted(tp, what))

    def _suspects(
        self, existing: Collection[str], group: Mapping[TopicPartition, GroupOffset]
    ) -> Iterator[tuple[TopicPartition, str, Sequence[TopicPartition]]]:
        """Internal partitions, whose they are, and inputs of which not one is committed."""
        for task in self._tasks:
            if not self._committed_of(task, group) and not self._reads_only_new(task):
                inputs = [*task.inputs, *self._inputs_before(task)]
                for tp in task.changelogs:
                    if tp.topic in existing:
                        yield tp, f"task {task.task_id}", inputs
        for topic, count in self._counts.items():
            name = topic.full(self._application_id)
            if not topic.internal or name not in existing:
                continue
            writers = [part for part in self._topology.sub_topologies if _writes(part, topic)]
            readers = [tp for task in self._tasks for tp in task.inputs if tp.topic == name]
            inputs = [*readers, *(tp for part in writers for tp in self._inputs(part))]
            if not any(tp in group for tp in inputs):
                for p in range(count):
                    yield TopicPartition(name, p), "the tasks that write to it", inputs

    def _reads_only_new(self, task: _Task) -> bool:
        """Whether all that a task reads by a pattern are topics that no run has read yet.

        What its stores have is of topics that are gone, and the broker forgot their offsets, too.
        """
        part = self._topology.sub_topologies[task.task_id.sub_topology]
        if not self._previous.fingerprint or all(node.pattern is None for node in part.sources):
            return False
        known = {topic for part in self._previous.sub_topologies for topic in part.source_topics}
        return known.isdisjoint(topic for topic, _ in task.inputs)

    def _holds_records(self, tp: TopicPartition, bounds: Bounds) -> bool:
        """Whether any record there was committed; offsets alone may be those of aborted ones."""
        return _any_record(self._changelog, tp, bounds)

    def _uncommitted(self, tp: TopicPartition, what: str) -> str:
        return (
            f"{tp} has records, but group {self._application_id} never committed any input of "
            f"{what}: its input would be read from the start over what is there, and counted "
            "twice. If the group's offsets were forgotten (offsets.retention.minutes), set them to "
            "where the last run ended, or delete the internal topics to start again; if the topic "
            "is another application's, whose id and name of a store make up the same name, give "
            "this application or its store another name; to read input from its start all the "
            "same, pass --accept-forgotten-offsets"
        )

    # What belongs to whom.

    def _logged(self) -> list[str]:
        """The stores that have a changelog of their own."""
        parts = self._topology.sub_topologies
        return [store for part in parts for store in part.stores if store not in self._logs]

    @cached_property
    def _tasks(self) -> list[_Task]:
        tasks, found = self._topology.tasks(self._counts), []
        for part in self._topology.sub_topologies:
            topics = [
                log_of(self._application_id, store, {})
                for store in part.stores
                if store not in self._logs
            ]
            for task_id in tasks[part.ordinal]:
                p = task_id.partition
                inputs = tuple(
                    TopicPartition(topic.full(self._application_id), p)
                    for topic in part.source_topics
                    if p < self._counts[topic]
                )
                changelogs = tuple(TopicPartition(topic, p) for topic in topics)
                found.append(_Task(task_id, inputs, changelogs))
        return found

    def _inputs(self, part: SubTopology) -> Iterator[TopicPartition]:
        for topic in part.source_topics:
            for p in range(self._counts[topic]):
                yield TopicPartition(topic.full(self._application_id), p)

    def _committed_of(
        self, task: _Task, group: Mapping[TopicPartition, GroupOffset]
    ) -> list[TopicPartition]:
        """The committed inputs of a task and of the tasks that had its stores before."""
        return [tp for tp in (*task.inputs, *self._inputs_before(task)) if tp in group]

    def _inputs_before(self, task: _Task) -> list[TopicPartition]:
        """What the tasks that had this task's stores in the last deployment read."""
        part = self._topology.sub_topologies[task.task_id.sub_topology]
        known = [self._previous.stores.get(store) for store in part.stores]
        ordinals = {store.sub_topology for store in known if store is not None}
        return [
            TopicPartition(topic, task.task_id.partition)
            for before in self._previous.sub_topologies
            if before.ordinal in ordinals
            for topic in before.topics(self._application_id)
        ]

    def _group(self, *, stable: bool) -> Mapping[TopicPartition, GroupOffset]:
        asked = {
            tp: None for task in self._tasks for tp in (*task.inputs, *self._inputs_before(task))
        }
        return self._cluster.group_offsets(list(asked), stable=stable)

    def _existing(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The partitions that exist; a repartition topic may still have to be created."""
        counts = self._cluster.partitions(sorted({tp.topic for tp in tps}))
        return [tp for tp in tps if tp.partition < counts.get(tp.topic, 0)]


def holds_records(cluster: Cluster, changelog: Changelog, topic: str) -> bool:
    """Whether a topic exists and holds any committed record."""
    count = cluster.partitions([topic]).get(topic, 0)
    bounds = cluster.bounds([TopicPartition(topic, p) for p in range(count)]) if count else {}
    return any(_any_record(changelog, tp, bound) for tp, bound in bounds.items())


def _any_record(changelog: Changelog, tp: TopicPartition, bounds: Bounds) -> bool:
    """Whether a partition holds a committed record; False if there is no reader to ask."""
    return any(len(one.batch) for one in changelog.replay(tp, bounds.start, bounds.end))


def _writes(part: SubTopology, topic: TopicName) -> bool:
    return any(isinstance(node, SinkNode) and node.topic == topic for node in part.nodes)


def _tell_of_times(there: Mapping[str, Mapping[str, str]]) -> None:
    """Warn of existing internal topics that do not accept or keep all times."""
    limited = {topic: refused_times(told) for topic, told in there.items()}
    named = [f"{topic} has {' and '.join(found)}" for topic, found in limited.items() if found]
    if named:
        _log.warning(
            "internal topics that do not take records of any time as they are: %s; a record whose "
            "time the broker refuses is treated as a production error: existing topics are never "
            "altered, so give them %s (kafka-configs --alter)",
            "; ".join(named),
            as_settings(ANY_TIME),
        )


def _check_repartition(topic: str, told: Mapping[str, str]) -> None:
    policy = told.get(_POLICY, "")
    if "compact" in policy:
        raise InvalidSetting(
            f"repartition topic {topic} has {_POLICY}={policy}, so the broker drops records before "
            f"they are read: set {_POLICY}=delete"
        )


def _check_changelog(topic: str, where: str, spec: StoreSpec, told: Mapping[str, str]) -> None:
    kind = kind_of(spec)
    if kind.keeps_history and (limited := refused_times(told, ANY_PAST)):
        raise InvalidSetting(
            f"changelog {topic} of store {spec.name!r} has {' and '.join(limited)}{where}, but the "
            "records of a store with history all have the time 1, as their keys have the times of "
            f"the versions: give it {as_settings(ANY_PAST)} (kafka-configs --alter)"
        )
    policy = told.get(_POLICY, "compact")
    if "delete" not in policy:
        return
    begin = f"changelog {topic} of store {spec.name!r} has {_POLICY}={policy}{where}"
    if not kind.has_windows or "compact" not in policy:
        raise InvalidSetting(
            f"{begin}, so the broker forgets rows that the store still has, and a restore would "
            f"lose them: set {_POLICY}=compact"
        )
    kept_ms, kept_bytes = int(told.get(_RETENTION, -1)), int(told.get(_SIZE, -1))
    if 0 <= kept_ms < _ALL_PAST_MS or kept_bytes >= 0:
        limits = f"{_RETENTION}={kept_ms} and {_SIZE}={kept_bytes}"
        raise InvalidSetting(
            f"{begin} with {limits}: the broker compares the times of records with its clock, so "
            "it would delete windows of long ago that the store still has; the store deletes "
            f"those that have expired itself: set {_POLICY}=compact"
        )


# Tables whose log is their source topic (docs/adr/0015).


def check_source_topics(cluster: Cluster, logs: Logs) -> None:
    """InvalidSetting if a source topic that is a log deletes the last record of a key."""
    topics = logs.topics()
    for table, why in logs.apart.items():
        _log.info("table %s keeps a changelog of its own: %s", table, why)
    if not topics:
        return
    settings = cluster.topic_settings(sorted(set(topics.values())))
    for table, topic in topics.items():
        told = settings.get(topic, {})
        limited = [key for key in (_RETENTION, _SIZE) if int(told.get(key, -1)) >= 0]
        limits = [f"{key}={told[key]}" for key in limited]
        if "delete" in told.get(_POLICY, "") and limits:
            raise InvalidSetting(
                f"topology.optimization: topic {topic} has cleanup.policy="
                f"{told['cleanup.policy']} with {' and '.join(limits)}, so it forgets keys, and "
                f"table {table} could not be restored from it: set cleanup.policy=compact, or "
                "topology.optimization=none"
            )


def check_logs_unchanged(
    application_id: str, topology: Topology, previous: Deployed, topics: Mapping[str, str]
) -> None:
    """TopologyMismatch if a deployed store would get a log that its offsets do not speak of."""
    for store, known in previous.stores.items():
        if store not in topology.stores or known.source_topic == topics.get(store):
            continue
        was = previous.log_of(application_id, store)
        will_be = log_of(application_id, store, topics)
        if store in topics:
            way_out = (
                "keep topology.optimization=none, or give the table's store a new name: it is "
                f"filled from {will_be}"
            )
        else:
            way_out = (
                f"keep topology.optimization and the table as it was, or start under another "
                f"application id, which reads {was} from its start"
            )
        raise TopologyMismatch(
            f"the log of store {store} was {was} and would be {will_be}, of which the offsets in "
            f"the store know nothing: {way_out}"
        )
