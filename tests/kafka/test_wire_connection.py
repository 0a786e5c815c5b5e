"""Our own client's connections: what a cluster says of itself, logins, and what is no broker."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from time import monotonic

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from statestore.errors import InvalidSetting, TopicMissing, Unavailable
from statestore.kafka.wire.cluster import ClusterMap, Links
from statestore.kafka.wire.connection import Connection, Disconnected
from statestore.kafka.wire.security import Security
from statestore.model.broker_addresses import BrokerAddress
from statestore.model.ids import TopicPartition
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.kafka.run_rig import name_of

pytestmark = pytest.mark.kafka
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def asking() -> Iterator[LocalKafka]:
    """A broker that asks for passwords, by PLAIN alone."""
    config = {"sasl.enabled.mechanisms": "PLAIN"}
    with LocalKafka(users={"me": "secret-1"}, config=config) as kafka:
        yield kafka


def cluster(servers: str, **settings: str) -> ClusterMap:
    given = {"application.id": "app", "bootstrap.servers": servers}
    given["default.api.timeout.ms"] = settings.pop("timeout_ms", "20000")
    return ClusterMap(Settings.from_mapping(given | settings), "consumer")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a:1", BrokerAddress("a", 1)),
        ("a", BrokerAddress("a", 9092)),
        ("SSL://a.b:12", BrokerAddress("a.b", 12)),
        ("[::1]:7", BrokerAddress("::1", 7)),
        ("::1", BrokerAddress("::1", 9092)),
    ],
)
def test_addresses_are_read_as_librdkafka_reads_them(text: str, address: BrokerAddress) -> None:
    assert BrokerAddress.of(text) == address
    for wrong in ("a:b", ":1", "a:", "a:²", "a:0", "a:65536", f"a:{'9' * 5000}"):
        with pytest.raises(InvalidSetting, match="is not host:port"):
            BrokerAddress.of(wrong)


def test_a_cluster_tells_where_partitions_and_coordinators_are(
    kafka: LocalKafka, request: pytest.FixtureRequest
) -> None:
    topic = name_of(request.node.name)
    kafka.create_topic(topic, 3)
    found = cluster(f"{NOBODY},{kafka.bootstrap_servers}")
    assert found.has_transactions()
    assert found.partitions(topic) == 3
    tps = [TopicPartition(topic, place) for place in range(3)]
    leaders = found.leaders(tps)
    assert set(leaders) == set(tps)
    found.moved(tps[:1])
    assert found.leaders(tps) == leaders
    assert found.topic_of(leaders[tps[0]].topic_id) == topic
    for kind in ("group", "transaction"):
        node = found.coordinator(kind, "some")
        links = Links(found)
        assert links.to(node, monotonic() + DEADLINE_S) is links.to(node, monotonic() + DEADLINE_S)
        links.close()
    with pytest.raises(TopicMissing, match=f"find partition {topic}-3"):
        found.leaders([TopicPartition(topic, 3)])
    with pytest.raises(TopicMissing, match="create the topic or correct its name"):
        found.partitions(f"{topic}-other")
    found.close()


@pytest.mark.parametrize("timeout_ms", ["200", "1000", "3000"])
def test_a_topic_that_does_not_exist_is_missing_however_short_the_patience(
    kafka: LocalKafka, request: pytest.FixtureRequest, timeout_ms: str
) -> None:
    topic = name_of(request.node.name)
    with closing(cluster(kafka.bootstrap_servers, timeout_ms=timeout_ms)) as found:
        found.has_transactions()
        with pytest.raises(TopicMissing, match="create the topic or correct its name"):
            found.partitions(topic)
        with pytest.raises(TopicMissing, match="create the topic or correct its name"):
            found.leaders([TopicPartition(topic, 0)])


def test_a_user_logs_in_and_a_wrong_password_is_an_invalid_setting(asking: LocalKafka) -> None:
    user = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    user |= {"sasl.username": "me", "sasl.password": "secret-1"}
    found = cluster(asking.sasl_servers, **user)
    assert found.has_transactions()
    found.close()
    with pytest.raises(InvalidSetting, match=r"refuses this user .*sasl.password") as told:
        cluster(asking.sasl_servers, **(user | {"sasl.password": "secret-2"})).has_transactions()
    assert "secret" not in str(told.value)
    with pytest.raises(InvalidSetting, match=r"does not take sasl.mechanism SCRAM-SHA-256: .*PLAI"):
        cluster(
            asking.sasl_servers, **(user | {"sasl.mechanism": "SCRAM-SHA-256"})
        ).has_transactions()
    with (
        closing(cluster(asking.sasl_servers, timeout_ms="300")) as silent,
        pytest.raises(Unavailable, match="could not find the partitions of any"),
    ):
        silent.partitions("any")


def test_nobody_who_answers_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=rf"{NOBODY} did not answer .*\(.*refused\)"):
        cluster(NOBODY, timeout_ms="100").has_transactions()


def test_what_is_no_broker_is_told_from_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = BrokerAddress("127.0.0.1", server.getsockname()[1])
        with pytest.raises(Disconnected, match="no answer to ApiVersionsRequest"):
            Connection(address, Security(), client_id="a", deadline_s=monotonic() + 0.1)
    for said in (b"HTTP/1.1 400 Bad Request", b"\0\0\0\1\0\0", b"\xff\xff\xff\xff"):
        with answering(said) as address, pytest.raises(Disconnected, match="is it Kafka"):
            Connection(address, Security(), client_id="a", deadline_s=monotonic() + DEADLINE_S)
    for said in (b"\0\0\0\x10", b""):
        with answering(said) as address, pytest.raises(Disconnected, match="closed the connection"):
            Connection(address, Security(), client_id="a", deadline_s=monotonic() + DEADLINE_S)
    with (
        answering(b"\0\0\0\x08" + b"\x7f" * 8) as address,
        pytest.raises(Disconnected, match="sent what is no ApiVersionsResponse"),
    ):
        Connection(address, Security(), client_id="a", deadline_s=monotonic() + DEADLINE_S)


@contextmanager
def answering(said: bytes) -> Iterator[BrokerAddress]:
    """A server that says the same to everyone, once he has asked, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            with server.accept()[0] as caller:
                caller.recv(1 << 16)
                caller.sendall(said)

        told = pool.submit(answer)
        yield BrokerAddress("127.0.0.1", server.getsockname()[1])
        told.result()


def test_an_answer_that_comes_late_is_read_by_the_next_call(kafka: LocalKafka) -> None:
    address = BrokerAddress.of(kafka.bootstrap_servers)
    link = Connection(address, Security(), client_id="a", deadline_s=monotonic() + DEADLINE_S)
    asked = MetadataRequest(version=12, topics=[])
    link.send(asked, MetadataResponse, deadline_s=monotonic() + DEADLINE_S)
    link.send(asked, MetadataResponse, deadline_s=monotonic() + DEADLINE_S)
    assert link.waiting == 2
    found = [link.read(deadline_s=monotonic())]
    while found[-1] is None or link.waiting:
        found.append(link.read(deadline_s=monotonic() + DEADLINE_S))
    answers = [one for one in found if one is not None]
    assert len(answers) == 2
    assert answers[0].cluster_id == answers[1].cluster_id
    link.close()
    link.close()
    with pytest.raises(Disconnected):
        link.send(asked, MetadataResponse, deadline_s=monotonic() + DEADLINE_S)
