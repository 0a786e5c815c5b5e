"""Stores, their changes, and exactly-once output through a server of Spark Connect."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import statestore as ss
from statestore import serdes
from statestore.testing.local_kafka import LocalKafka
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
