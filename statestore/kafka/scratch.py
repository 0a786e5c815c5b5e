"""Truncates and deletes topics of a scratch application, and of no other application."""

from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from statestore.kafka.topics import Admin, KafkaCluster
from statestore.settings import Settings


def delete(settings: Settings, prefix: str) -> None:
    """Delete every topic whose name begins with `prefix`, and the application's group."""
    with closing(Admin(settings)) as admin:
        admin.connect()
        listed = admin.client.list_topics(timeout=admin.timeout_s).topics
        topics = [name for name in listed if name.startswith(prefix)]
        KafkaCluster(settings, admin).remove(topics, settings.application_id)


def truncate(settings: Settings, topic: str, offsets: Mapping[int, int]) -> None:
    """Purge the partitions of a compacted topic below these offsets.

    Brokers refuse this for compacted topics, so the topic's policy is changed meanwhile.
    """
    with closing(Admin(settings)) as admin:
        _set_policy(admin, topic, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
        try:
            below = [KafkaPartition(topic, p, at) for p, at in offsets.items()]
            pending = admin.client.delete_records(below, request_timeout=admin.timeout_s)
            for tp, future in pending.items():
                admin.answer(future, f"purge {tp.topic}-{tp.partition} below {tp.offset}")
        finally:
            _set_policy(admin, topic, {"cleanup.policy": "compact"})


def _set_policy(admin: Admin, topic: str, config: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    (done,) = admin.client.incremental_alter_configs(
        [wanted], request_timeout=admin.timeout_s
    ).values()
    admin.answer(done, f"set the policy of {topic}")
