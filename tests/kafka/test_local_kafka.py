"""LocalKafka and `statestore kafka` against real broker processes."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from statestore.errors import HostFailure, InvalidSetting, Misuse, Unavailable
from statestore.kafka.testing import admin, describe_cluster, wait_until_ready
from statestore.testing.kafka_jars import java, kafka_libs, scratch_dir
from statestore.testing.kafka_node import is_free
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S

pytestmark = pytest.mark.kafka

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka() as cluster:
        yield cluster


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scratch folder of the test's own that shares only the jars."""
    jars = kafka_libs().parent
    (tmp_path / jars.name).symlink_to(jars)
    monkeypatch.setenv("STATESTORE_SCRATCH", str(tmp_path))
    return tmp_path


def produce(kafka: LocalKafka, topic: str, values: list[bytes], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def consume(kafka: LocalKafka, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "test",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    messages: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(messages) < count and time.monotonic() < deadline:
        got = consumer.consume(count - len(messages), 0.2)
        messages += [message for message in got if message.error() is None]
    consumer.close()
    return [message.value() for message in messages]


@pytest.mark.parametrize(("brokers", "ports"), [(2, 9999), (3, [9997, 9998]), (1, [9998, 9999])])
def test_a_proxy_leads_to_one_broker(brokers: int, ports: int | list[int]) -> None:
    with pytest.raises(Misuse, match=f"a proxy_port for each of the {brokers}"):
        LocalKafka(brokers, proxy_port=ports)


def test_broker_inside_with_is_ready_and_listens_on_loopback_only(kafka: LocalKafka) -> None:
    host, port = kafka.bootstrap_servers.split(":")
    assert host == "127.0.0.1"
    cluster = describe_cluster(admin(kafka.bootstrap_servers), timeout_ms=60_000)
    assert [(broker.host, broker.port) for broker in cluster.brokers] == [(host, int(port))]
    connections = psutil.Process(kafka.pid()).net_connections("tcp")
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_records_round_trip_through_a_created_topic(kafka: LocalKafka) -> None:
    kafka.create_topic("round-trip", partitions=2)
    produce(kafka, "round-trip", [b"one", b"two"], partition=1)
    assert consume(kafka, "round-trip", 2, partition=1) == [b"one", b"two"]


def test_create_topic_sets_partitions_and_refuses_what_cannot_be(kafka: LocalKafka) -> None:
    kafka.create_topic("seven", 7, {"cleanup.policy": "compact", "min.compaction.lag.ms": 5})
    partitions = (
        admin(kafka.bootstrap_servers)
        .list_topics("seven", timeout=DEADLINE_S)
        .topics["seven"]
        .partitions
    )
    assert len(partitions) == 7
    with pytest.raises(Misuse, match=r"'seven'.*exists"):
        kafka.create_topic("seven")
    with pytest.raises(Misuse, match=r"no\.such\.key"):
        kafka.create_topic("eight", config={"no.such.key": 1})


def test_topics_are_not_made_by_asking_for_them(kafka: LocalKafka) -> None:
    client = admin(kafka.bootstrap_servers)
    assert (
        not client.list_topics("never-created", timeout=DEADLINE_S)
        .topics["never-created"]
        .partitions
    )


def test_broker_is_formatted_with_transaction_version_2(kafka: LocalKafka) -> None:
    assert finalized_features(kafka.bootstrap_servers)["transaction.version"] == 2


def test_transactions_commit_and_abort(kafka: LocalKafka) -> None:
    kafka.create_topic("transactions", partitions=1)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t", "log_level": 0}
    )
    producer.init_transactions(DEADLINE_S)
    for value, finish in (
        (b"dropped", producer.abort_transaction),
        (b"kept", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce("transactions", value)
        producer.flush(DEADLINE_S)
        finish(DEADLINE_S)
    assert consume(kafka, "transactions", 1) == [b"kept"]


@pytest.mark.thorough
def test_second_cluster_beside_the_first_shares_nothing(kafka: LocalKafka) -> None:
    config = {"log.retention.check.interval.ms": 1234}
    with LocalKafka(config=config) as other:
        properties = psutil.Process(other.pid()).cmdline()[-1]
        assert "log.retention.check.interval.ms=1234\n" in Path(properties).read_text()
        other.create_topic("here-only")
        ids = {
            describe_cluster(admin(one.bootstrap_servers), timeout_ms=60_000).cluster_id
            for one in (kafka, other)
        }
        assert len(ids) == 2
        assert (
            "here-only" not in admin(kafka.bootstrap_servers).list_topics(timeout=DEADLINE_S).topics
        )
        process = psutil.Process(other.pid())
    assert not process.is_running()
    assert not Path(properties).exists()
    with pytest.raises(Misuse, match="with LocalKafka"):
        other.create_topic("too-late")


@pytest.mark.slow
def test_killed_and_stopped_broker_comes_back_on_its_port_with_its_data(tmp_path: Path) -> None:
    with LocalKafka(data_dir=tmp_path) as kafka:
        address = kafka.bootstrap_servers
        kafka.create_topic("kept", partitions=1)
        produce(kafka, "kept", [b"before"])
        killed = kafka.pid(0)
        kafka.kill_broker(0)
        assert not psutil.pid_exists(killed)
        with pytest.raises(Misuse, match="broker 0 does not run"):
            kafka.stop_broker(0)
        kafka.start_broker(0)
        with pytest.raises(Misuse, match="broker 0 runs already"):
            kafka.start_broker(0)
        produce(kafka, "kept", [b"after kill"])
        kafka.stop_broker(0)
        kafka.start_broker(0)
        assert kafka.bootstrap_servers == address
        assert consume(kafka, "kept", 2) == [b"before", b"after kill"]
    with LocalKafka(data_dir=tmp_path) as again:
        assert consume(again, "kept", 2) == [b"before", b"after kill"]


@pytest.mark.slow
def test_three_brokers_replicate_and_survive_a_kill() -> None:
    with LocalKafka(3) as kafka:
        assert len(kafka.bootstrap_servers.split(",")) == 3
        kafka.create_topic("replicated", partitions=3)
        topic = (
            admin(kafka.bootstrap_servers)
            .list_topics("replicated", timeout=DEADLINE_S)
            .topics["replicated"]
        )
        assert [len(partition.replicas) for partition in topic.partitions.values()] == [3, 3, 3]
        leader = topic.partitions[0].leader
        produce(kafka, "replicated", [b"one"])
        kafka.kill_broker(leader)
        produce(kafka, "replicated", [b"two"])
        assert consume(kafka, "replicated", 2) == [b"one", b"two"]


PARENT = """
import sys
from statestore.testing.local_kafka import LocalKafka
with LocalKafka() as kafka:
    print(kafka.pid(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (Linux) makes this promise")
def test_broker_dies_with_its_killed_parent_and_the_next_start_removes_its_files(
    scratch: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout
        broker = psutil.Process(int(parent.stdout.readline()))
        folders = [path for path in (scratch / "local-kafka").iterdir() if path.is_dir()]
        parent.kill()
        broker.wait(DEADLINE_S)
    assert len(folders) == 1
    assert folders[0].exists()
    with pytest.raises(InvalidSetting), LocalKafka(config={"listeners": "x"}):
        pass
    assert not folders[0].exists()


def test_broker_that_ends_at_start_is_reported_with_the_end_of_its_log(scratch: Path) -> None:
    config = {"log.retention.check.interval.ms": "soon"}
    with (
        pytest.raises(Unavailable, match=r"log\.retention\.check\.interval\.ms"),
        LocalKafka(config=config),
    ):
        pass
    assert not [path for path in (scratch / "local-kafka").iterdir() if path.is_dir()]


def test_nobody_at_an_address_is_unavailable_after_the_deadline() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match=r"not ready after 0\.3 s"):
            wait_until_ready(f"127.0.0.1:{silent.getsockname()[1]}", timeout_ms=300)


def test_missing_java_or_maven_names_the_packages_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATESTORE_SCRATCH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for needs_program in (java, kafka_libs):
        with pytest.raises(HostFailure, match="apt-get install openjdk-17-jre-headless maven"):
            needs_program()
    assert scratch_dir() == tmp_path


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    script = "from statestore.testing.kafka_command import kafka; kafka()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.fixture
def free_port(scratch: Path) -> Iterator[str]:
    """A port for `kafka start`, which is stopped at the end whatever happened."""
    port = next(port for port in range(19_100 + os.getpid() % 500, 20_000) if is_free(port))
    yield str(port)
    command("stop")
    assert not (scratch / "kafka" / "broker.json").exists()


@pytest.mark.thorough
def test_started_broker_outlives_the_command_keeps_data_and_stops(free_port: str) -> None:
    assert command("status").returncode == 1
    first = command("start", "--port", free_port, "--json")
    assert first.returncode == 0, first.stderr
    started = json.loads(first.stdout)
    assert started["bootstrap_servers"] == f"127.0.0.1:{free_port}"
    assert started["running"]
    assert not started["already_running"]
    broker = psutil.Process(started["pid"])
    cluster_id = describe_cluster(admin(started["bootstrap_servers"]), timeout_ms=60_000).cluster_id

    second = command("start")
    assert (second.returncode, "runs already" in second.stdout) == (0, True)
    other_port = command("start", "--port", "1")
    assert (other_port.returncode, "stop it first" in other_port.stderr) == (1, True)
    assert json.loads(command("status", "--json").stdout)["pid"] == broker.pid

    assert command("stop").returncode == 0
    assert not broker.is_running()
    assert command("status").returncode == 1
    assert command("stop").stdout == "Kafka does not run\n"

    restarted = json.loads(command("start", "--port", free_port, "--json").stdout)
    client = admin(restarted["bootstrap_servers"])
    assert describe_cluster(client, timeout_ms=60_000).cluster_id == cluster_id


@pytest.mark.thorough
def test_a_broker_with_a_folder_of_its_own_runs_beside_another(
    free_port: str, tmp_path: Path
) -> None:
    first = json.loads(command("start", "--port", free_port, "--json").stdout)
    other_port = next(port for port in range(int(free_port) + 1, 20_000) if is_free(port))
    own = ("--data-dir", str(tmp_path / "own"))
    second = command("start", *own, "--port", str(other_port), "--json")
    assert second.returncode == 0, second.stderr
    started = json.loads(second.stdout)
    assert started["bootstrap_servers"] == f"127.0.0.1:{other_port}"
    assert json.loads(command("status", "--json").stdout)["pid"] == first["pid"]
    assert json.loads(command("status", *own, "--json").stdout)["pid"] == started["pid"]
    assert "runs already" in command("start", *own).stdout

    assert command("stop").returncode == 0
    assert not psutil.pid_exists(first["pid"])
    # The only one that is left needs no name.
    assert json.loads(command("status", "--json").stdout)["pid"] == started["pid"]
    assert command("stop").stdout == "Kafka is stopped\n"
    assert not psutil.pid_exists(started["pid"])
    assert command("status").returncode == 1


def test_stop_spares_a_process_that_only_has_the_recorded_pid(scratch: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        record = {
            "pid": bystander.pid,
            "started_at": psutil.Process(bystander.pid).create_time() - 100,
            "port": 1,
            "bootstrap_servers": "127.0.0.1:1",
            "data_dir": "",
            "log": "",
        }
        (scratch / "kafka").mkdir()
        (scratch / "kafka" / "broker.json").write_text(json.dumps(record))
        assert command("status").returncode == 1
        assert command("stop").stdout == "Kafka does not run\n"
        assert bystander.poll() is None
        bystander.send_signal(signal.SIGKILL)


def test_taken_port_is_named_together_with_the_way_out(scratch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command("start", "--port", str(port))
    assert done.returncode != 0
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr
    assert "--port" in done.stderr
    assert not (scratch / "kafka" / "broker.json").exists()


def finalized_features(address: str) -> dict[str, int]:
    """The cluster's feature levels from a bare ApiVersions request: the client offers none."""
    host, port = address.split(":")
    request = struct.pack(">hhi", 18, 3, 1) + b"\xff\xff\x00" + b"\x05test" + b"\x021" + b"\x00"
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            size = struct.unpack(">i", stream.read(4))[0]
            answer = Answer(stream.read(size))
    answer.fields(">ih")  # correlation id, error code
    for _ in range(answer.varint() - 1):
        answer.fields(">hhh")  # api key, lowest and highest version
        answer.skip_tags()
    answer.fields(">i")  # throttle time
    for _ in range(answer.varint()):
        tag, length = answer.varint(), answer.varint()
        content = Answer(answer.take(length))
        if tag == 2:
            return dict(content.feature() for _ in range(content.varint() - 1))
    return {}


class Answer:
    """Reads the pieces of a Kafka response of flexible version."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def take(self, size: int) -> bytes:
        taken, self._content = self._content[:size], self._content[size:]
        return taken

    def fields(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())

    def feature(self) -> tuple[str, int]:
        name = self.take(self.varint() - 1).decode()
        level, _ = self.fields(">hh")
        self.skip_tags()
        return name, level
