"""The topics an application needs beside its inputs: their names, and how they are kept."""

from collections.abc import Mapping

from statestore.errors import InvalidSetting
from statestore.ports import TopicSpec
from statestore.settings import Settings
from statestore.stores.specs import StoreSpec, VersionedSpec
from statestore.topology.graph import TopicName, Topology
from statestore.topology.logs import log_of

_DAY_MS = 86_400_000
_WEEK_MS = 7 * _DAY_MS


def dead_letter_topics(topology: Topology, settings: Settings) -> set[str]:
    """The topic of the dead letters, if a handler writes any (SEMANTICS E9)."""
    topic = settings.dead_letter_topic
    if not settings.writes_dead_letters:
        return set()
    if topic in topology.topics()[0]:
        raise InvalidSetting(
            f"errors.dead.letter.queue.topic.name {topic!r} is an input of this pipeline, which "
            "would read its dead letters without end: name another topic"
        )
    return {topic}


def internal_topics(
    topology: Topology,
    counts: Mapping[TopicName, int],
    application_id: str,
    logs: Mapping[str, str] | None = None,
) -> list[TopicSpec]:
    """The repartition and changelog topics a topology needs (SEMANTICS T1, T3).

    `logs`: by store, the source topic that is its log; those need no changelog.
    """
    specs = [
        TopicSpec(
            topic.full(application_id),
            count,
            {
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "message.timestamp.type": "CreateTime",
            },
        )
        for topic, count in counts.items()
        if topic.internal
    ]
    tasks = topology.tasks(counts)
    for part in topology.sub_topologies:
        for store in part.stores:
            if logs and store in logs:
                continue
            config = {
                "cleanup.policy": "compact",
                "delete.retention.ms": str(_WEEK_MS),
                "message.timestamp.type": "CreateTime",
            }
            config |= _spared(topology.stores[store]) | topology.stores[store].changelog_config
            name = log_of(application_id, store, {})
            specs.append(TopicSpec(name, len(tasks[part.ordinal]), config))
    return specs


def _spared(spec: StoreSpec) -> dict[str, str]:
    """What keeps a broker's cleaner from versions that history still shows (KIP-889)."""
    if not isinstance(spec, VersionedSpec):
        return {}
    return {"min.compaction.lag.ms": str(compaction_lag_ms(spec.history_retention_ms))}


def compaction_lag_ms(retention_ms: int) -> int:
    """How long a cleaner must spare the records of a store with that much history (T3)."""
    return min(retention_ms + _DAY_MS, 2**63 - 1)
