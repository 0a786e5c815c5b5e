"""Logins with a lifetime: a connection renews its session, and no caller notices (KIP-368)."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from time import monotonic

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from statestore.kafka.wire.appends import AppendOptions, Appends
from statestore.kafka.wire.cluster import ClusterMap, Links
from statestore.kafka.wire.connection import Connection
from statestore.kafka.wire.coordinators import PlainId
from statestore.kafka.wire.outbox import WireOutbox
from statestore.kafka.wire.security import Security
from statestore.model.broker_addresses import BrokerAddress
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.kafka.run_rig import PASSWORD, USER, App, counted, end_of, running, updates_in_order
from tests.kafka.writing_rig import committed

pytestmark = pytest.mark.kafka
LIFETIME_S = 2.0
LIFETIMES = 3.5
MECHANISMS = ["PLAIN", pytest.param("SCRAM-SHA-256", marks=pytest.mark.thorough), "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    config = {"connections.max.reauth.ms": int(LIFETIME_S * 1000)}
    with LocalKafka(users={USER: PASSWORD}, config=config) as broker:
        yield broker


def user(mechanism: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }


def settings(kafka: LocalKafka, mechanism: str = "SCRAM-SHA-256") -> Settings:
    given = {"application.id": "sessions", "bootstrap.servers": kafka.sasl_servers}
    given["default.api.timeout.ms"] = "20000"
    return Settings.from_mapping(given | user(mechanism))


@pytest.fixture
def cluster(kafka: LocalKafka) -> Iterator[ClusterMap]:
    with closing(ClusterMap(settings(kafka), "producer")) as made:
        yield made


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_connection_outlives_its_sessions(kafka: LocalKafka, mechanism: str) -> None:
    address = BrokerAddress.of(kafka.sasl_servers)
    security = Security.of(user(mechanism))
    link = Connection(address, security, client_id="a", deadline_s=monotonic() + DEADLINE_S)
    descriptor, pause = link.fileno(), threading.Event()
    over_s = monotonic() + LIFETIMES * LIFETIME_S
    while monotonic() < over_s:
        asked = MetadataRequest(version=12, topics=[])
        found = link.ask(asked, MetadataResponse, deadline_s=monotonic() + DEADLINE_S)
        assert len(found.brokers) == 1
        pause.wait(0.02)
    assert link.fileno() == descriptor
    assert not link.is_expired
    # The broker told a lifetime, which is over at some time.
    eventually(lambda: link.is_expired, "the session is over")
    link.close()


def test_answers_that_come_before_a_new_login_are_kept_in_order(kafka: LocalKafka) -> None:
    address = BrokerAddress.of(kafka.sasl_servers)
    security = Security.of(user("SCRAM-SHA-512"))
    link = Connection(address, security, client_id="a", deadline_s=monotonic() + DEADLINE_S)
    descriptor, pause = link.fileno(), threading.Event()
    kafka.create_topic("kept-a", 1)
    kafka.create_topic("kept-b", 2)
    kinds = MetadataRequest.MetadataRequestTopic
    over_s, sent, read = monotonic() + LIFETIMES * LIFETIME_S, 0, 0
    expected = ["kept-a", "kept-b"]
    while monotonic() < over_s or link.waiting:
        if monotonic() < over_s:
            asked = MetadataRequest(version=12, topics=[kinds(name=expected[sent % 2])])
            link.send(asked, MetadataResponse, deadline_s=monotonic() + DEADLINE_S)
            sent += 1
            pause.wait(0.005)
        # There are always a few that nobody has read.
        if link.waiting > 4 or monotonic() >= over_s:
            (topic,) = link.read(deadline_s=monotonic() + DEADLINE_S).topics
            assert topic.name == expected[read % 2]
            read += 1
    assert read == sent
    assert link.fileno() == descriptor
    link.close()


def test_connections_that_idled_past_their_sessions_are_made_anew(cluster: ClusterMap) -> None:
    assert cluster.has_transactions()
    node = cluster.coordinator("group", "sessions")
    with closing(Links(cluster)) as links:
        first = links.to(node, monotonic() + DEADLINE_S)
        assert links.to(node, monotonic() + DEADLINE_S) is first
        eventually(lambda: first.is_expired, "the session is over")
        second = links.to(node, monotonic() + DEADLINE_S)
        assert second is not first
        assert first.fileno() < 0
        assert not second.is_expired
        # So is the one that the map asks on.
        cluster.forget_topics()
        assert cluster.has_transactions()


def test_appends_without_a_pause_keep_their_order(kafka: LocalKafka, cluster: ClusterMap) -> None:
    kafka.create_topic("appended", 2)
    with closing(Links(cluster)) as links:
        appends = Appends(cluster, links, AppendOptions.of(settings(kafka), 1000))
        appends.begin(PlainId.of(cluster))
        over_s, count = monotonic() + LIFETIMES * LIFETIME_S, 0
        tp = TopicPartition("appended", 0)
        first = links.to(cluster.leaders([tp])[tp].node, monotonic() + DEADLINE_S)
        while monotonic() < over_s:
            for partition in range(2):
                values = [b"%d" % n + bytes(200) for n in range(count, count + 20)]
                given = Records("appended", values, values, [5] * 20, partition=partition)
                appends.add(given, tracked=False)
            count += 20
        appends.finish(monotonic() + DEADLINE_S)
        assert first.fileno() >= 0, "the connection was made anew"
    rows = committed(kafka.bootstrap_servers, "appended")
    for partition in range(2):
        found = [
            int((row.value() or b"").rstrip(b"\0")) for row in rows if row.partition() == partition
        ]
        assert found == list(range(count))


def test_transactions_go_on_over_sessions(kafka: LocalKafka, cluster: ClusterMap) -> None:
    kafka.create_topic("committed", 1)
    outbox = WireOutbox(settings(kafka), cluster, transactional_ids=["s-0", "s-1"], group_id=None)
    with closing(outbox):
        outbox.open()
        over_s, number, pause = monotonic() + LIFETIMES * LIFETIME_S, 0, threading.Event()
        while monotonic() < over_s:
            outbox.begin(number)
            value = [b"%d" % number]
            outbox.send(Records("committed", value, value, [5], partition=0))
            outbox.commit()
            number += 1
            pause.wait(0.02)
    found = [int(row.value() or b"") for row in committed(kafka.bootstrap_servers, "committed")]
    assert found == list(range(number))


@pytest.fixture
def app_settings(user_settings: Mapping[str, object]) -> Mapping[str, object]:
    return user_settings


@pytest.mark.parametrize(
    "mechanism", [pytest.param("PLAIN", marks=pytest.mark.thorough), "SCRAM-SHA-512"]
)
@pytest.mark.parametrize("client", ["wire", pytest.param("librdkafka", marks=pytest.mark.thorough)])
def test_a_run_of_many_sessions_counts_each_record_once(
    app: App, mechanism: str, client: str
) -> None:
    by = [f"--set=sasl.mechanism={mechanism}", f"--set=kafka.client={client}"]
    servers = f"--bootstrap-servers={app.kafka.sasl_servers}"
    process = app.start("--run-for=300s", servers, *by, "--set=commit.interval.ms=50")
    over_s, count, pause = monotonic() + LIFETIMES * LIFETIME_S, 20, threading.Event()
    running(app, process, lambda: sum(app.committed().values()) == 20)
    while monotonic() < over_s:
        app.produce(range(count, count + 5))
        count += 5
        pause.wait(0.1)
    # It rests for as long as a session, and goes on.
    pause.wait(LIFETIME_S)
    app.produce(range(count, count + 5))
    count += 5
    running(app, process, lambda: sum(app.committed().values()) == count)
    process.terminate()
    ended = end_of(process, 0)
    assert ended.code in {0, -15}, ended.err
    assert "Disconnected" not in ended.err
    assert "not used" not in ended.err
    # What was on its way between the two steps of the pipeline is left for the next run.
    app.drained(servers, *by)
    assert updates_in_order(app.read()) == counted(range(count)) == app.stored()
