"""Questions and orders to a cluster as a whole: is it there, who is in it, create topics.

Every failure leaves here as one of `statestore.errors`: `Misuse` when asking again unchanged would
fail again, `Unavailable` when it may succeed later.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

import tenacity
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from statestore.errors import Unavailable
from statestore.kafka.errors import translated

T = TypeVar("T")

ClientConfig = Mapping[str, str | int | float | bool]

# How long one question of a wait may take: the wait looks at its other conditions in between.
_PROBE_MS = 500
_PAUSE_S = 0.03

# While a broker starts, refused connections are expected: try often, and keep the client's
# own log silent, as the waiter reports what went wrong.
_IMPATIENT: ClientConfig = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "socket.connection.setup.timeout.ms": 2000,
    "log_level": 0,
}


class Broker(NamedTuple):
    """One live broker as the cluster advertises it."""

    node_id: int
    host: str
    port: int


class Cluster(NamedTuple):
    """A cluster as one of its brokers saw it; `brokers` holds the live ones, by node id."""

    cluster_id: str
    brokers: tuple[Broker, ...]


class TopicPlan(NamedTuple):
    """A topic to create; `replication` None leaves it to the broker's default."""

    name: str
    partitions: int
    replication: int | None = None
    config: Mapping[str, str] = {}


def admin(bootstrap_servers: str, config: ClientConfig | None = None) -> AdminClient:
    """An administration client; it connects on first use, so a dead address is no error yet."""
    try:
        return AdminClient({**(config or {}), "bootstrap.servers": bootstrap_servers})
    except KafkaException as failure:
        raise translated(failure, f"make an admin client for {bootstrap_servers}") from failure


def describe_cluster(client: AdminClient, *, timeout_ms: int) -> Cluster:
    """Fetch the cluster id and the live brokers."""
    pending = client.describe_cluster(request_timeout=timeout_ms / 1000)
    answer = _result(pending, "describe the cluster")
    brokers = sorted(Broker(node.id, node.host, node.port) for node in answer.nodes)
    return Cluster(answer.cluster_id or "", tuple(brokers))


def wait_until_ready(
    bootstrap_servers: str,
    *,
    timeout_ms: int,
    node_ids: Collection[int] = (),
    give_up: Callable[[], None] = lambda: None,
) -> Cluster:
    """Wait until the brokers `node_ids` (at least one of any id) are live; `Unavailable` if late.

    `give_up` is called between questions and ends the wait by raising.
    """
    client = admin(bootstrap_servers, _IMPATIENT)

    def probe() -> Cluster | None:
        give_up()
        try:
            cluster = describe_cluster(client, timeout_ms=min(_PROBE_MS, timeout_ms))
        except Unavailable:
            return None
        live = {broker.node_id for broker in cluster.brokers}
        return cluster if live and live.issuperset(node_ids) else None

    return _poll(probe, f"{bootstrap_servers} is not ready", timeout_ms=timeout_ms)


def create_topics(client: AdminClient, topics: Sequence[TopicPlan], *, timeout_ms: int) -> None:
    """Create topics and wait until every partition has a leader; an existing one is `Misuse`."""
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
    """A created topic reaches the brokers' own metadata a moment after the answer."""

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
    """The first answer of `probe` that is not None; its exceptions end the wait."""
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
