"""The requests of a run's driver to a cluster: check it, read offsets, create and purge topics."""

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from time import monotonic
from typing import Any

import tenacity
from confluent_kafka import (
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin._config import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from statestore.errors import (
    BrokerTooOld,
    InvalidSetting,
    NotCopartitioned,
    Unavailable,
)
from statestore.kafka.admin import LATEST, PAUSE_S, Admin, Answers, failed_with
from statestore.kafka.epochs import abort_open_transactions
from statestore.kafka.error_codes import is_transient, is_unanswered, kafka_error, translated
from statestore.kafka.groups import Groups, read_group
from statestore.kafka.partitioner import key_hashes
from statestore.kafka.source import KafkaSource
from statestore.model import time_marks
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.records import BYTES
from statestore.ports import Bounds, GroupOffset, KeyHashes, TopicSpec
from statestore.settings import Settings

_log = logging.getLogger(__name__)

# A running cluster answers at once, so a wrong address need not cost the whole timeout.
_CHECK_MS = 10_000
_CONTROLLER_S = 5.0
_DROPPED_IN_4_0 = "inter.broker.protocol.version"
_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND})
_LONGEST_TRANSACTION = "transaction.max.timeout.ms"
# A hash is judged by this many keys of a topic.
_KEYS = 100
# The limit for a topic with few or no keys.
_RECORDS_MAX = 10_000
_WAIT_MS = 500
# Records that are fetched ahead are discarded.
_LITTLE = {
    "consumer.queued.min.messages": "1000",
    "consumer.queued.max.messages.kbytes": "1024",
    "consumer.max.partition.fetch.bytes": "65536",
}


class KafkaCluster:
    """`ports.Cluster` on a real cluster; the group is the application's."""

    def __init__(
        self, settings: Settings, admin: Admin | None = None, groups: Groups | None = None
    ) -> None:
        """Use the connections of `admin` and `groups` if given; the maker closes those."""
        self._settings = settings
        self._admin = admin or Admin(settings)
        self._groups = groups

    def topics(self) -> list[str]:
        """Return the names of all topics that may be described."""
        return self._admin.topics()

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the partition counts of the topics that exist; missing topics are absent."""
        return self._admin.partitions(topics)

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create missing topics and wait until they can be used.

        NotCopartitioned if an existing topic has another number of partitions.
        """
        existing = self.partitions([spec.name for spec in topics])
        missing = [spec for spec in topics if spec.name not in existing]
        if missing:
            self._create_missing(missing)
            existing |= self._await_partitions(missing)
        for spec in topics:
            if existing[spec.name] != spec.partitions:
                raise NotCopartitioned(
                    f"topic {spec.name} has {existing[spec.name]} partitions, "
                    f"not {spec.partitions} like its inputs: existing topics are never altered; "
                    "delete it if its records are not needed, or give the inputs as many partitions"
                )

    def topic_settings(self, topics: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """Return the effective settings, explicit or default, of topics that exist."""
        told = self._configured(topics).items()
        return {
            topic: {key: entry.value or "" for key, entry in entries.items()}
            for topic, entries in told
        }

    def specs(self, topics: Sequence[str]) -> dict[str, TopicSpec]:
        """Return how the topics that exist would be created again."""
        there = self._admin.described(topics)
        told = self._configured(sorted(there))
        return {
            topic: TopicSpec(
                topic,
                len(found.partitions),
                {key: it.value for key, it in told[topic].items() if it.value and _is_own(it)},
                min(len(partition.replicas) for partition in found.partitions),
            )
            for topic, found in there.items()
        }

    def _configured(self, topics: Sequence[str]) -> dict[str, dict[str, ConfigEntry]]:
        if not topics:
            return {}
        admin, since_s = self._admin, monotonic()
        asked = admin.client.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic) for topic in topics],
            request_timeout=admin.timeout_s,
        )
        found: dict[str, dict[str, ConfigEntry]] = {}
        for resource, pending in asked.items():
            doing = f"read the settings of {resource.name}"
            found[resource.name] = admin.answer(pending, doing, since_s=since_s)
        return found

    def raise_compaction_lag(self, topic: str, lag_ms: int) -> int | None:
        """Raise the topic's `min.compaction.lag.ms` to at least `lag_ms` and return its old value.

        None if the topic does not exist.
        """
        if topic not in self.partitions([topic]):
            return None
        admin, key = self._admin, "min.compaction.lag.ms"
        before = int(self.topic_settings([topic])[topic][key])
        if before < lag_ms:
            entry = ConfigEntry(key, str(lag_ms), incremental_operation=AlterConfigOpType.SET)
            since_s = monotonic()
            wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            altered = admin.client.incremental_alter_configs(
                [wanted], request_timeout=admin.timeout_s
            )
            (done,) = altered.values()
            admin.answer(done, f"raise {key} of {topic}", since_s=since_s)
        return before

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the cluster's ids of the topics that exist; a topic created again gets another."""
        return {name: str(found.topic_id) for name, found in self._admin.described(topics).items()}

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the log start and the last stable offset of each partition."""
        return self._admin.bounds(tps)

    def undecided(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions in which a transaction is open."""
        return self._admin.undecided(tps)

    def offsets_at(self, tps: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Return per partition the first offset at or after that time, else the last stable one."""
        # Times below zero have special meanings in the request.
        spec = OffsetSpec.for_timestamp(max(time_ms, 0))
        found = self._admin.offsets(tps, spec, "find an offset by time")
        ends = self._admin.offsets(tps, LATEST, "read the last stable offset")
        return {tp: end if found[tp] < 0 else min(found[tp], end) for tp, end in ends.items()}

    def group_offsets(
        self, tps: Sequence[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, GroupOffset]:
        """Return the group's committed offsets; Unavailable if a transaction is open too long."""
        if self._groups is None:
            return read_group(self._settings, tps, stable=stable)
        return self._groups.read(tps, stable=stable)

    def key_hashes(
        self, topics: Mapping[str, int], windowed: Mapping[str, int] | None = None
    ) -> dict[str, KeyHashes]:
        """Check which hash places each topic's first 100 keys."""
        tps = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
        return first_key_hashes(self._settings, topics, self.bounds(tps), windowed)

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Purge records below these offsets."""
        if not offsets:
            return
        admin, since_s = self._admin, monotonic()
        asked = [KafkaPartition(*tp, at) for tp, at in offsets.items()]
        pending = admin.of_leaders(
            lambda: admin.client.delete_records(asked, request_timeout=admin.timeout_s)
        )
        for tp, future in pending.items():
            doing = f"purge {tp.topic}-{tp.partition} below {tp.offset}"
            admin.answer(future, doing, since_s=since_s)

    def grow(self, partitions: Mapping[str, int]) -> None:
        """Give these topics so many partitions, if they have fewer, and wait until they do."""
        there = self.partitions(sorted(partitions))
        wanted = {name: n for name, n in partitions.items() if there.get(name, n) < n}
        if not wanted:
            return
        admin, since_s = self._admin, monotonic()
        asked = admin.client.create_partitions(
            [NewPartitions(name, count) for name, count in wanted.items()],
            request_timeout=admin.timeout_s,
        )
        for name, pending in asked.items():
            admin.answer(pending, f"add partitions to topic {name}", since_s=since_s)
        self._await_partitions([TopicSpec(name, n, {}) for name, n in wanted.items()])

    def remove(self, topics: Sequence[str], group_id: str | None) -> None:
        """Remove these topics and the group's offsets; those that are already gone are ignored.

        With `group_id` None, the group stays, without its offsets in these topics.
        """
        client, timeout_s = self._admin.client, self._admin.timeout_s
        existing = sorted(self.partitions(topics))
        # The client refuses an empty list.
        pending = client.delete_topics(existing, operation_timeout=timeout_s) if existing else {}
        for name, future in pending.items():
            _await_removal(future, f"delete topic {name}")
        if existing:
            self._await_gone(existing)
        groups = [] if group_id is None else [group_id]
        for name, future in (client.delete_consumer_groups(groups) if groups else {}).items():
            _await_removal(future, f"delete group {name}")

    def abort_open_transactions(self, transactional_ids: Sequence[str]) -> None:
        """Fence every producer with one of these ids and abort its open transaction."""
        abort_open_transactions(self._settings, transactional_ids)

    def check(self) -> None:
        """Raise Unavailable if no broker answers soon; under exactly_once check the brokers too.

        BrokerTooOld if a broker is older than Kafka 4.0; InvalidSetting if the brokers do not allow
        transactions to be open for as long as transaction.timeout.ms.
        """
        timeout_ms = min(_CHECK_MS, self._settings.request_timeout_ms)
        quick = Admin(self._settings, timeout_ms=timeout_ms)
        for node_id in quick.connect():
            if self._settings.exactly_once:
                settings = _broker_settings(quick, node_id)
                judge_protocol(settings)
                judge_timeout(self._settings.transaction_timeout_ms, settings or {})

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def _create_missing(self, topics: Sequence[TopicSpec]) -> None:
        replication = self._settings.replication_factor
        new = [
            NewTopic(
                spec.name,
                num_partitions=spec.partitions,
                replication_factor=spec.replicas or replication,
                config=dict(spec.config),
            )
            for spec in topics
        ]
        names = ", ".join(spec.name for spec in topics)

        def request() -> Answers[str]:
            # A client that does not know the controller waits silently, so the metadata is
            # requested again.
            self._admin.connect()
            timeout_s = min(_CONTROLLER_S, self._admin.timeout_s)
            return self._admin.client.create_topics(new, request_timeout=timeout_s)

        def should_retry(pending: Answers[str]) -> bool:
            failures = [future.exception() for future in pending.values()]
            return any(is_unanswered(failure) or is_transient(failure) for failure in failures)

        since_s = monotonic()
        try:
            pending = self._admin.settled(request, should_retry)
        except KafkaException as failure:
            raise translated(failure, f"create topics {names}") from failure
        for name, future in pending.items():
            # Another driver may have created it; its partition count is compared like any other.
            if not failed_with(future, KafkaError.TOPIC_ALREADY_EXISTS):
                self._admin.answer(future, f"create topic {name}", since_s=since_s)

    def _await_gone(self, topics: Sequence[str]) -> None:
        """Wait until the brokers' metadata has the topics no longer, a moment after that."""
        try:
            tenacity.Retrying(
                stop=tenacity.stop_after_delay(self._admin.timeout_s),
                wait=tenacity.wait_fixed(PAUSE_S),
                retry=tenacity.retry_if_result(bool),
            )(self.partitions, topics)
        except tenacity.RetryError as late:
            raise Unavailable(
                f"topics {', '.join(topics)} were deleted but are still there after "
                f"{self._admin.timeout_s:g} s: are all brokers up?"
            ) from late

    def _await_partitions(self, topics: Sequence[TopicSpec]) -> dict[str, int]:
        """Wait until the brokers' metadata has the topics, a moment after they were created."""
        names = [spec.name for spec in topics]
        try:
            return tenacity.Retrying(
                stop=tenacity.stop_after_delay(self._admin.timeout_s),
                wait=tenacity.wait_fixed(PAUSE_S),
                retry=tenacity.retry_if_result(
                    lambda found: any(found.get(t.name, 0) < t.partitions for t in topics)
                ),
            )(self.partitions, names)
        except tenacity.RetryError as late:
            raise Unavailable(
                f"topics {', '.join(names)} were created but did not appear within "
                f"{self._admin.timeout_s:g} s: are all brokers up?"
            ) from late


def judge_protocol(broker_settings: Collection[str] | None) -> None:
    """Raise BrokerTooOld if a broker that has settings of these names is older than Kafka 4.0.

    Kafka 4.0 brought the transaction protocol without torn transactions, and removed the setting
    that this function looks for. None means that the settings could not be read, which is only a
    warning.
    """
    if broker_settings is None:
        _log.warning(
            "this user may not read the brokers' settings, so their version is not known: "
            "exactly-once needs Kafka 4.0 or newer"
        )
    elif _DROPPED_IN_4_0 in broker_settings:
        raise BrokerTooOld(
            "a broker is older than Kafka 4.0, so transactions can be torn: upgrade it, or run "
            "with processing.guarantee = at_least_once"
        )


def judge_timeout(timeout_ms: int, broker_settings: Mapping[str, str | None]) -> None:
    """Raise InvalidSetting if a broker with these settings refuses a timeout that long."""
    limit = broker_settings.get(_LONGEST_TRANSACTION)
    if limit is not None and timeout_ms > int(limit):
        raise InvalidSetting(
            f"transaction.timeout.ms {timeout_ms} is above the brokers' limit, "
            f"{_LONGEST_TRANSACTION} {limit}: lower it, or raise theirs"
        )


def _broker_settings(admin: Admin, node_id: int) -> Mapping[str, str | None] | None:
    resource, since_s = ConfigResource(ResourceType.BROKER, str(node_id)), monotonic()
    (pending,) = admin.client.describe_configs([resource], request_timeout=admin.timeout_s).values()
    if failed_with(pending, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return None
    entries = admin.answer(pending, f"read the settings of broker {node_id}", since_s=since_s)
    return {name: entry.value for name, entry in entries.items()}


def _await_removal(pending: "Future[Any]", doing: str) -> None:
    try:
        pending.result()
    except KafkaException as failure:
        error = kafka_error(failure)
        if error is None or error.code() not in _GONE:
            raise translated(failure, doing) from failure


def first_key_hashes(
    settings: Settings,
    topics: Mapping[str, int],
    bounds: Mapping[TopicPartition, Bounds],
    windowed: Mapping[str, int] | None,
) -> dict[str, KeyHashes]:
    """Check which hash fits the first keys of each topic.

    `topics` maps names to partition counts; `windowed` maps the topics with windowed keys to
    how many bytes of a key its window takes.
    """
    unread = {tp: bound for tp, bound in bounds.items() if bound.end > bound.start}
    rows: dict[str, list[tuple[int, bytes | None]]] = {topic: [] for topic in topics}
    if unread:
        little = replace(settings, clients={**settings.clients, **_LITTLE})
        with closing(KafkaSource(little, group_id=settings.application_id)) as source:
            source.start({tp: bound.start for tp, bound in unread.items()})
            while unread:
                for batch in source.poll(_KEYS * len(topics), _WAIT_MS):
                    assert batch.topic is not None
                    assert batch.partition is not None
                    rows[batch.topic] += [(batch.partition, key) for key in _keys_of(batch)]
                enough = {topic for topic, found in rows.items() if _is_enough(found)}
                done = [
                    tp
                    for tp, bound in unread.items()
                    if tp.topic in enough or source.position(tp) >= bound.end
                ]
                source.pause(done)
                for tp in done:
                    del unread[tp]
    return {
        topic: key_hashes(found, topics[topic], _KEYS, span_bytes=(windowed or {}).get(topic, 0))
        for topic, found in rows.items()
    }


def _keys_of(batch: Batch) -> list[bytes | None]:
    """Return the keys of records; none of time marks, which are in every partition."""
    keys = list(batch.keys.encoded(BYTES))
    for place in time_marks.among(batch):
        keys[place] = None
    return keys


def _is_enough(rows: list[tuple[int, bytes | None]]) -> bool:
    return len(rows) >= _RECORDS_MAX or sum(1 for _, key in rows if key) >= _KEYS


def _is_own(entry: ConfigEntry) -> bool:
    """Whether a setting was set on the topic itself; the client has the source as a number."""
    return ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
