"""The Kafka clients of one application, made from its settings when they are first asked for."""

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from statestore.kafka.admin import Admin
from statestore.kafka.audit_log_reader import KafkaAuditLogReader
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.clients import Trouble, consumer, producer, tell_unused
from statestore.kafka.cluster import KafkaCluster
from statestore.kafka.groups import Groups
from statestore.kafka.monitoring import KafkaMonitoringClient
from statestore.kafka.outbox import NumberOf, PlainOutbox, TransactionalOutbox, no_number
from statestore.kafka.output_log import KafkaOutputLog, LogWriter
from statestore.kafka.source import KafkaSource
from statestore.model.ids import TopicPartition
from statestore.model.modes import KafkaClient
from statestore.ports import (
    AuditLogReader,
    Changelog,
    Cluster,
    MonitoringClient,
    Outbox,
    OutputLog,
    Source,
)
from statestore.settings import Settings
from statestore.tasks.commit import CommitStamp
from statestore.tasks.plan import TaskPlan, transactional_ids


class OwnClient(Protocol):
    """`kafka.wire.client.WireClient`, which is imported when it is first asked for."""

    def outbox(
        self,
        transactional_ids: Sequence[str],
        *,
        group_id: str | None,
        inputs: Sequence[TopicPartition],
        number_of: NumberOf,
        batch_bytes: int | None,
    ) -> Outbox: ...
    def source(self) -> Source: ...
    def writer(self) -> LogWriter: ...
    def forget_topics(self) -> None: ...
    def close(self) -> None: ...


class KafkaBrokers:
    """`runtime.Brokers` on a real cluster. Its cluster and its changelog share one connection."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._group_id = settings.application_id
        self._groups = Groups(settings)
        self._lock = threading.Lock()
        self._made: OwnClient | None = None
        self._has_asked = False

    def cluster(self) -> Cluster:
        return KafkaCluster(self._settings, self._admin, self._groups)

    def changelog(self) -> Changelog:
        return KafkaChangelog(self._settings, self._admin, self.source)

    def source(self) -> Source:
        wire = self._wire()
        if wire is not None:
            return wire.source()
        return KafkaSource(self._settings, group_id=self._group_id)

    def outbox(self) -> Outbox:
        return PlainOutbox(self._settings, group_id=self._group_id)

    def task_outbox(self, plan: TaskPlan, batch_bytes: int | None) -> Outbox:
        if not self._settings.exactly_once:
            return PlainOutbox(self._settings, group_id=self._group_id, batch_bytes=batch_bytes)
        return self._transactional(
            transactional_ids(self._group_id, plan.task_id),
            group_id=self._group_id,
            inputs=plan.inputs,
            number_of=CommitStamp.number_in,
            batch_bytes=batch_bytes,
        )

    def output_log(self, topic: str) -> OutputLog:
        """The log of an output from outside of stream tasks, in that topic."""
        return KafkaOutputLog(topic, self.cluster(), self.changelog(), self._writer)

    def output_outbox(self, transactional_id: str) -> Outbox:
        """An outbox for one transaction without input offsets."""
        return self._transactional([transactional_id], group_id=None)

    def forget_topics(self) -> None:
        """Ask anew about topics: others may have changed them since."""
        wire = self._wire()
        if wire is not None:
            wire.forget_topics()

    def audit_log_reader(self) -> AuditLogReader:
        return KafkaAuditLogReader(self._settings)

    def monitoring_client(self) -> MonitoringClient:
        return KafkaMonitoringClient(self._settings)

    def check_settings(self) -> None:
        """InvalidSetting if a client refuses its settings."""
        consumer(self._settings, self._group_id, Trouble()).close()
        producer(self._settings, {}, Trouble())

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
        if "_writer" in self.__dict__:
            self._writer.close()
        self._groups.close()
        self._admin.close()

    def _transactional(
        self,
        transactional_ids: Sequence[str],
        *,
        group_id: str | None,
        inputs: Sequence[TopicPartition] = (),
        number_of: NumberOf = no_number,
        batch_bytes: int | None = None,
    ) -> Outbox:
        wire = self._wire()
        if wire is not None:
            return wire.outbox(
                transactional_ids,
                group_id=group_id,
                inputs=inputs,
                number_of=number_of,
                batch_bytes=batch_bytes,
            )
        return TransactionalOutbox(
            self._settings,
            transactional_ids=transactional_ids,
            group_id=group_id,
            batch_bytes=batch_bytes,
            inputs=inputs,
            number_of=number_of,
            groups=self._groups,
        )

    def _wire(self) -> OwnClient | None:
        """Return our own client, unless librdkafka was chosen or has to do what is asked."""
        if self._settings.kafka_client is not KafkaClient.WIRE:
            return None
        with self._lock:
            if not self._has_asked:
                self._made = _wire_client(self._settings, self._groups)
                self._has_asked = True
            return self._made

    @cached_property
    def _admin(self) -> Admin:
        return Admin(self._settings)

    @cached_property
    def _writer(self) -> LogWriter:
        """Kept: a client of librdkafka waits for half a second before its first record.

        It asks for a producer id before it is connected, and again after that time.
        """
        wire = self._wire()
        if wire is not None:
            return wire.writer()
        outbox = PlainOutbox(self._settings, group_id=self._group_id)
        outbox.open()
        return outbox


def _wire_client(settings: Settings, groups: Groups) -> OwnClient | None:
    try:
        from statestore.kafka.wire.client import WireClient
    except ImportError as missing:
        # Another version of kafka-python, or another package of its name.
        tell_unused(str(missing))
        return None
    return WireClient.of(settings, groups)
