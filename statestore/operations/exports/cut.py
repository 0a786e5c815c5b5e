"""What the log says of a stopped application: its group's offsets, and where its topics end.

Taken while the application's lock is held, after its stores were exported: each of them must have
all that its log has, so that stores, group and topics are of one moment.
"""

from collections.abc import Mapping

from statestore.errors import Unavailable
from statestore.model.ids import TopicPartition
from statestore.operations.environment import Environment
from statestore.operations.exports.manifest import Cut, ExportedTask
from statestore.operations.topics import internal_topics
from statestore.ports import Changelog
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of, logs


class Cutting:
    """Takes the cut of one application."""

    def __init__(self, environment: Environment, topology: Topology) -> None:
        self._topology = topology
        self._application_id = environment.settings.application_id
        self._cluster = environment.cluster
        self._changelog = environment.changelog
        self._logs = logs(topology, environment.settings).topics()

    def take(self, tasks: list[ExportedTask]) -> Cut:
        """Unavailable if a store lacks what its log has: the last run did not end cleanly."""
        topology, cluster = self._topology, self._cluster
        read, written = topology.topics()
        counts = topology.partition_counts(cluster.partitions(sorted(read)))
        inputs = [
            TopicPartition(topic.full(self._application_id), p)
            for topic, count in counts.items()
            for p in range(count)
        ]
        group = cluster.group_offsets(inputs)
        specs = internal_topics(topology, counts, self._application_id, self._logs)
        own = {spec.name: spec.partitions for spec in specs}
        own |= cluster.partitions(sorted(read & written))
        tps = [TopicPartition(topic, p) for topic, count in own.items() for p in range(count)]
        bounds = cluster.bounds(tps)
        self._check(tasks, {tp: at.offset for tp, at in group.items()})
        return Cut(
            [(*tp, at.offset, at.metadata) for tp, at in sorted(group.items())],
            [(*tp, found.start, found.end) for tp, found in sorted(bounds.items())],
        )

    def _check(self, tasks: list[ExportedTask], group: Mapping[TopicPartition, int]) -> None:
        own: dict[TopicPartition, int] = {}
        shared: dict[TopicPartition, int] = {}
        for task in tasks:
            for store, exported in task.stores.items():
                topic = log_of(self._application_id, store, self._logs)
                tp = TopicPartition(topic, task.task_id.partition)
                at = exported.offsets.offsets().get(tp, 0)
                (shared if store in self._logs else own)[tp] = at
        late = behind(self._changelog, own)
        # Of a topic that a table is made of: what the group has not read does not count.
        read = {tp: at for tp, at in shared.items() if tp in group}
        late += behind(self._changelog, read, group)
        if late:
            raise Unavailable(
                f"stores of {self._application_id} lack records of {late[0]}: its last run did not "
                "end cleanly: run it once to its end, then export"
            )


def behind(
    changelog: Changelog,
    offsets: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int] | None = None,
) -> list[TopicPartition]:
    """The logs that hold committed records at these offsets or after them, up to the ends given."""
    bounds = changelog.bounds(list(offsets))
    found = []
    for tp, at in offsets.items():
        end = bounds[tp].end if ends is None else min(ends[tp], bounds[tp].end)
        stretches = changelog.replay(tp, max(at, bounds[tp].start), end)
        if any(len(stretch.batch) for stretch in stretches):
            found.append(tp)
    return found
