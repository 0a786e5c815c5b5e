"""Removes topics and a group for good: what a clone had of its own."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from statestore.kafka.errors import kafka_error, translated
from statestore.kafka.topics import Admin
from statestore.settings import Settings

_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND})


def remove(settings: Settings, topics: Sequence[str], group_id: str) -> None:
    """Remove these topics and the group's offsets; what is gone does not matter."""
    admin = Admin(settings)
    try:
        there = sorted(admin.partitions(topics))
        if there:
            # The client refuses an empty list.
            pending = admin.client.delete_topics(there, operation_timeout=admin.timeout_s)
            for name, future in pending.items():
                _await(future, f"delete topic {name}")
        for name, future in admin.client.delete_consumer_groups([group_id]).items():
            _await(future, f"delete group {name}")
    finally:
        admin.close()


def _await(pending: "Future[Any]", doing: str) -> None:
    try:
        pending.result()
    except KafkaException as failure:
        error = kafka_error(failure)
        if error is None or error.code() not in _GONE:
            raise translated(failure, doing) from failure
