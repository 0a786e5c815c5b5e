"""What `statestore.testing` asks of a cluster of its own, and no production command does.

A local broker is waited for, described and given topics. Drills delete and truncate the topics of
their scratch application, and of no other application.

Every failure is raised as one of `statestore.errors`: `Misuse` if the same request would fail
again, `Unavailable` if it may succeed later.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from time import monotonic
from typing import NamedTuple, TypeVar

import tenacity
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from statestore.errors import Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.cluster import KafkaCluster
from statestore.kafka.error_codes import translated
from statestore.settings import Settings

T = TypeVar("T")

ClientConfig = Mapping[str, str | int | float | bool]

# The timeout of one request while waiting; between two requests other conditions are checked.
_PROBE_MS = 500
_PAUSE_S = 0.03

# While a broker starts, refused connections are expected. The client tries often and logs nothing,
# because the waiting function reports what went wrong.
_IMPATIENT: ClientConfig = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "socket.connection.setup.timeout.ms": 2000,
    "log_level": 0,
}


class Broker(NamedTuple):
    """A live broker as the cluster advertises it."""

    node_id: int
    host: str
    port: int


class ClusterDescription(NamedTuple):
    """A cluster as one of its brokers sees it; `brokers` has the live brokers, by node id."""

    cluster_id: str
    brokers: tuple[Broker, ...]


class TopicPlan(NamedTuple):
    """A topic to create; with `replication` None the broker's default applies."""

    name: str
    partitions: int
    replication: int | None = None
    config: Mapping[str, str] = {}


def admin(bootstrap_servers: str, config: ClientConfig | None = None) -> AdminClient:
    """Create an admin client; it connects on first use, so a wrong address is not an error yet."""
    try:
        return AdminClient({**(config or {}), "bootstrap.servers": bootstrap_servers})
    except KafkaException as failure:
        raise translated(failure, f"create an admin client for {bootstrap_servers}") from failure


def describe_cluster(client: AdminClient, *, timeout_ms: int) -> ClusterDescription:
    """Fetch the cluster id and the live brokers."""
    pending = client.describe_cluster(request_timeout=timeout_ms / 1000)
    answer = _result(pending, "describe the cluster")
    brokers = sorted(Broker(node.id, node.host, node.port) for node in answer.nodes)
    return ClusterDescription(answer.cluster_id or "", tuple(brokers))


def wait_until_ready(
    bootstrap_servers: str,
    *,
    timeout_ms: int,
    node_ids: Collection[int] = (),
    give_up: Callable[[], None] = lambda: None,
) -> ClusterDescription:
    """Wait until at least one broker and all brokers in `node_ids` are live.

    `Unavailable` if this takes longer than `timeout_ms`. `give_up` is called between requests and
    ends the wait by raising an error.
    """
    client = admin(bootstrap_servers, _IMPATIENT)

    def probe() -> ClusterDescription | None:
        give_up()
        try:
            cluster = describe_cluster(client, timeout_ms=min(_PROBE_MS, timeout_ms))
        except Unavailable:
            return None
        live = {broker.node_id for broker in cluster.brokers}
        return cluster if live and live.issuperset(node_ids) else None

    return _poll(probe, f"{bootstrap_servers} is not ready", timeout_ms=timeout_ms)


def create_topics(client: AdminClient, topics: Sequence[TopicPlan], *, timeout_ms: int) -> None:
    """Create topics and wait until every partition has a leader; `Misuse` if a topic exists."""
    if not topics:
        return
    new = [
        NewTopic(
            topic.name,
            num_partitions=topic.partitions,
            replication_factor=-1 if topic.replication is None else topic.replication,
            config=dict(topic.config),
        )
        for topic in topics
    ]
    try:
        pending = client.create_topics(new, request_timeout=timeout_ms / 1000)
    except (KafkaException, ValueError) as failure:
        names = ", ".join(topic.name for topic in topics)
        raise translated(failure, f"create the topics {names}") from failure
    for name, future in pending.items():
        _result(future, f"create the topic '{name}'")
    for topic in topics:
        _wait_for_leaders(client, topic, timeout_ms=timeout_ms)


def _result(pending: "Future[T]", doing: str) -> T:
    try:
        return pending.result()
    except (KafkaException, ValueError) as failure:
        raise translated(failure, doing) from failure


def _wait_for_leaders(client: AdminClient, topic: TopicPlan, *, timeout_ms: int) -> None:
    """Wait until the brokers' metadata has the topic, which happens a moment after the answer."""

    def probe() -> bool | None:
        try:
            metadata = client.list_topics(topic.name, timeout=_PROBE_MS / 1000)
        except KafkaException:
            return None
        partitions = metadata.topics[topic.name].partitions.values()
        led = sum(partition.leader >= 0 for partition in partitions)
        return True if led == topic.partitions else None

    _poll(
        probe,
        f"the new topic '{topic.name}' has partitions without a leader",
        timeout_ms=timeout_ms,
    )


def _poll(probe: Callable[[], T | None], complaint: str, *, timeout_ms: int) -> T:
    """Return the first answer of `probe` that is not None; its exceptions end the wait."""
    try:
        found = tenacity.Retrying(
            stop=tenacity.stop_after_delay(timeout_ms / 1000),
            wait=tenacity.wait_fixed(_PAUSE_S),
            retry=tenacity.retry_if_result(lambda answer: answer is None),
        )(probe)
    except tenacity.RetryError as failure:
        raise Unavailable(f"{complaint} after {timeout_ms / 1000:g} s") from failure
    assert found is not None
    return found


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
            since_s = monotonic()
            pending = admin.client.delete_records(below, request_timeout=admin.timeout_s)
            for tp, future in pending.items():
                doing = f"purge {tp.topic}-{tp.partition} below {tp.offset}"
                admin.answer(future, doing, since_s=since_s)
        finally:
            _set_policy(admin, topic, {"cleanup.policy": "compact"})


def _set_policy(admin: Admin, topic: str, config: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    since_s = monotonic()
    (done,) = admin.client.incremental_alter_configs(
        [wanted], request_timeout=admin.timeout_s
    ).values()
    admin.answer(done, f"set the policy of {topic}", since_s=since_s)
