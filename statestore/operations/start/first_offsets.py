"""Commits where inputs begin that an application reads for the first time (KIP-1106).

It happens once, before anything of the deployment is written: a topic of the deployed topology goes
on where the group has it, or is refused as forgotten. So an input never begins at its end because
offsets have expired, and a partition that is added later begins at its start.
"""

from collections.abc import Mapping

from statestore.faults import CrashPoint, reach
from statestore.model.ids import TopicPartition
from statestore.model.modes import AutoOffsetReset
from statestore.operations.deployed import read_deployed
from statestore.operations.environment import Environment
from statestore.topology.graph import Topology
from statestore.topology.nodes import TopicName


def commit_first_offsets(
    environment: Environment, topology: Topology, counts: Mapping[TopicName, int]
) -> None:
    """Commit the offsets at which `offset_reset` of the sources has new topics begin.

    The application is claimed and its starting point was checked. `counts`: the partitions of the
    topics.
    """
    application_id = environment.settings.application_id
    previous = read_deployed(environment.layout)
    known = {it for part in previous.sub_topologies for it in part.topics(application_id)}
    asked = {
        TopicPartition(topic.name, p): node.offset_reset
        for part in topology.sub_topologies
        for node in part.sources
        for topic in node.topics
        if node.offset_reset is not None and topic.name not in known
        for p in range(counts[topic])
    }
    if not asked:
        return
    # No transaction can be pending, as a task starts only after these offsets were committed.
    committed = environment.cluster.group_offsets(list(asked), stable=False)
    offsets = _offsets(environment, {tp: at for tp, at in asked.items() if tp not in committed})
    if offsets:
        outbox = environment.outbox
        outbox.open()
        outbox.begin()
        outbox.send_offsets(offsets, "")
        reach(CrashPoint.OFFSETS_BEGUN)


def _offsets(
    environment: Environment, asked: Mapping[TopicPartition, AutoOffsetReset]
) -> dict[TopicPartition, int]:
    cluster, now_ms = environment.cluster, environment.clock.now_ms()
    found = {tp: bounds.end for tp, bounds in cluster.bounds(list(asked)).items()}
    times = {tp: at.time_ms(now_ms) for tp, at in asked.items()}
    for time_ms in {time_ms for time_ms in times.values() if time_ms is not None}:
        tps = [tp for tp, at_ms in times.items() if at_ms == time_ms]
        found |= cluster.offsets_at(tps, time_ms)
    return found
