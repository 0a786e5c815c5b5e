"""The cut: the offsets of the group of a stopped application, and where its topics end.

It is taken while the lock of the application is held and after its stores were exported. Each store
must have all that its log has, so that stores, group and topics are of the same moment.
"""

from collections.abc import Mapping

from statestore.errors import Unavailable
from statestore.model.ids import TopicPartition
from statestore.operations.environment import Environment
from statestore.operations.exports.manifest import ExportedTask, LogCut
from statestore.operations.start.matching import with_matches
from statestore.operations.start.topics import internal_topics
from statestore.ports import Changelog
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of, logs


def take_cut(environment: Environment, topology: Topology, tasks: list[ExportedTask]) -> LogCut:
    """Take the cut; Unavailable if a store lacks records of its log.

    That means that the last run did not end cleanly.
    """
    application_id = environment.settings.application_id
    cluster = environment.cluster
    topology = with_matches(environment, topology)
    sources = logs(topology, environment.settings).topics()
    read, written = topology.topics()
    counts = topology.partition_counts(cluster.partitions(sorted(read)))
    inputs = [
        TopicPartition(topic.full(application_id), p)
        for topic, count in counts.items()
        for p in range(count)
    ]
    group = cluster.group_offsets(inputs)
    specs = internal_topics(topology, counts, application_id, sources)
    own = {spec.name: spec.partitions for spec in specs}
    own |= cluster.partitions(sorted(read & written))
    tps = [TopicPartition(topic, p) for topic, count in own.items() for p in range(count)]
    bounds = cluster.bounds(tps)
    _check(environment, sources, tasks, {tp: at.offset for tp, at in group.items()})
    return LogCut(
        [(*tp, at.offset, at.metadata) for tp, at in sorted(group.items())],
        [(*tp, found.start, found.end) for tp, found in sorted(bounds.items())],
    )


def behind(
    changelog: Changelog,
    offsets: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int] | None = None,
) -> list[TopicPartition]:
    """The logs that hold committed records from these offsets on, up to the ends given."""
    bounds = changelog.bounds(list(offsets))
    found = []
    for tp, at in offsets.items():
        end = bounds[tp].end if ends is None else min(ends[tp], bounds[tp].end)
        stretches = changelog.replay(tp, max(at, bounds[tp].start), end)
        if any(len(stretch.batch) for stretch in stretches):
            found.append(tp)
    return found


def _check(
    environment: Environment,
    sources: Mapping[str, str],
    tasks: list[ExportedTask],
    group: Mapping[TopicPartition, int],
) -> None:
    """Unavailable if a store lacks records.

    `sources`: by store, the source topic that is its log.
    """
    application_id, changelog = environment.settings.application_id, environment.changelog
    own: dict[TopicPartition, int] = {}
    shared: dict[TopicPartition, int] = {}
    for task in tasks:
        for store, exported in task.stores.items():
            topic = log_of(application_id, store, sources)
            tp = TopicPartition(topic, task.task_id.partition)
            at = exported.offsets.offsets().get(tp, 0)
            (shared if store in sources else own)[tp] = at
    late = behind(changelog, own)
    # Records of a source topic that the group has not read do not count.
    read = {tp: at for tp, at in shared.items() if tp in group}
    late += behind(changelog, read, group)
    if late:
        raise Unavailable(
            f"stores of {application_id} lack records of {late[0]}: its last run did not end "
            "cleanly: run it once to its end, then export"
        )
