"""Stores, their changes, and exactly-once output through a server of Spark Connect."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import statestore as ss
from statestore import serdes
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.kafka.writing_rig import Sink
from tests.spark.cluster_rig import CHECKOUT, RUN_S, connect_server, environment

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]
KEYS = 20


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("server")) as (_, address):
        yield address


def test_a_client_reads_stores_and_their_changes_and_writes_each_row_once(
    kafka: LocalKafka, remote: str, tmp_path: Path
) -> None:
    sink = Sink(kafka, "connected").create()
    kafka.create_topic("connect-in", partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(KEYS):
        producer.produce("connect-in", serdes.INT64.serialize(number), str(number))
    producer.flush()
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.stream("connect-in").group_by_key().reduce(lambda so_far, number: so_far + number, "sums")
    settings = {
        "application.id": "connect-app",
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "processing.guarantee": "exactly_once",
    }
    assert ss.run(b.build(), settings).caught_up
    asked = {
        "state_dir": str(tmp_path / "state"),
        "application_id": "connect-app",
        "store": "sums",
        "servers": kafka.bootstrap_servers,
        "topic": sink.name,
    }
    command = [sys.executable, "-m", "tests.spark.connect_program", remote, json.dumps(asked)]
    done = subprocess.run(
        [*command, str(tmp_path)],
        env=environment(CHECKOUT),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    told = json.loads(done.stdout.partition("RESULT ")[2])
    rows = sorted([str(number), number] for number in range(KEYS))
    assert told == {"rows": rows, "split": rows, "found": [7]}
    # One batch that was saved twice, and the rows of the store by two queries.
    batch, store = Counter(map(str, range(50))), Counter(map(str, range(KEYS)))
    assert sink.read() == batch + store + store


EXACTLY_ONCE = ("--set", "processing.guarantee=exactly_once")
COUNTING = """
import os
import statestore as ss

def counting():
    b = ss.StreamsBuilder()
    b.stream("jobs-in").group_by_key().count("counts").to_stream().to("jobs-out")
    return b.build()
"""


class Jobs:
    """The jobs of this package as clients of a server; they and its workers find the pipeline."""

    def __init__(self, kafka: LocalKafka, folder: Path, address: str) -> None:
        self.kafka, self._folder, self._address = kafka, folder, address
        for topic in ("jobs-in", "jobs-out"):
            kafka.create_topic(topic, partitions=2)

    def start(self, job: str, *flags: str) -> "subprocess.Popen[str]":
        of_all = ["--application-id", "jobs", "--bootstrap-servers", self.kafka.bootstrap_servers]
        command = [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *of_all]
        return subprocess.Popen(
            [*command, "--state-dir", str(self._folder / "state"), *EXACTLY_ONCE, *flags],
            env=environment({**with_pipeline(self._folder), "SPARK_REMOTE": self._address}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, job: str, *flags: str) -> str:
        process = self.start(job, *flags)
        said, _ = process.communicate(timeout=RUN_S)
        assert process.returncode == 0, said[-6000:]
        return said

    def produce(self, numbers: range) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number in numbers:
            producer.produce("jobs-in", b"v", str(number % KEYS), partition=number % 2)
        producer.flush()

    def counts(self) -> list[tuple[bytes, int]]:
        """The committed counts, in order by partition."""
        spec = {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "counts"}
        consumer = Consumer({**spec, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition("jobs-out", it, 0) for it in range(2)])
        found = []
        while message := consumer.poll(3.0):
            assert message.error() is None
            found.append((message.key() or b"", int.from_bytes(message.value() or b"", "big")))
        consumer.close()
        return found


def with_pipeline(folder: Path) -> dict[str, str]:
    return {**CHECKOUT, "PYTHONPATH": f"{folder}:{CHECKOUT['PYTHONPATH']}"}


# Spark notes late that a client is gone, and ends later what it did for it.
SOON = {
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "5s",
    "spark.connect.execute.manager.detachedTimeout": "2s",
    "spark.connect.execute.manager.checkInterval": "1s",
}


@pytest.fixture
def jobs(kafka: LocalKafka, tmp_path: Path) -> Iterator[Jobs]:
    (tmp_path / "counted.py").write_text(COUNTING)
    server = tmp_path / "server"
    server.mkdir()
    with connect_server(server, with_pipeline(tmp_path), SOON) as (_, address):
        yield Jobs(kafka, tmp_path, address)


def test_jobs_that_are_clients_run_audit_and_export_and_end_with_their_client(
    jobs: Jobs, tmp_path: Path
) -> None:
    jobs.produce(range(2 * KEYS))
    assert '"records_in":40' in jobs.run("process", "--pipeline", "counted:counting")
    assert sorted(jobs.counts()) == [(str(key).encode(), 2) for key in sorted(range(KEYS), key=str)]
    assert '"verdict":"right"' in jobs.run("audit")
    assert "2 stores" in jobs.run("export", "--target", (tmp_path / "exports").as_uri())

    # What the server does for a client ends with the client.
    going_on = jobs.start("process", "--pipeline", "counted:counting", "--run-for", "10m")
    jobs.produce(range(KEYS))
    eventually(lambda: max(count for _, count in jobs.counts()) == 3, "it works", RUN_S)
    going_on.terminate()
    said, _ = going_on.communicate(timeout=DEADLINE_S)
    assert going_on.returncode != 0, said
    jobs.produce(range(KEYS))
    assert '"caught_up":true' in jobs.run("process", "--pipeline", "counted:counting")
    keys = [str(key).encode() for key in range(KEYS)]
    assert sorted(jobs.counts()) == sorted((key, count) for key in keys for count in (2, 3, 4))

    # What it does for a client that is killed goes on for a while, and counts.
    going_on = jobs.start("process", "--pipeline", "counted:counting", "--run-for", "10m")
    jobs.produce(range(KEYS))
    eventually(lambda: max(count for _, count in jobs.counts()) == 5, "it works again", RUN_S)
    going_on.kill()
    going_on.communicate(timeout=DEADLINE_S)
    jobs.produce(range(KEYS))
    said = jobs.run("process", "--pipeline", "counted:counting")
    assert "it answers when one of its slots is free" in said
    assert sorted(jobs.counts()) == sorted((key, count) for key in keys for count in range(2, 7))
