"""All flights with their weather through a real broker, killed in the middle, against polars."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from jobs.pipelines.flights_weather import JOINED_TOPIC
from scripts import flights_data
from statestore.faults import VARIABLE, CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.contract.test_flights_weather import Joined, expected
from tests.kafka.run_rig import STATESTORE

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

FLIGHTS = 336_776
DEADLINE_S = 600


@pytest.fixture(scope="module")
def loaded() -> Iterator[LocalKafka]:
    with LocalKafka() as broker:
        flights_data.main.callback(broker.bootstrap_servers)  # type: ignore[misc]  # click's own
        broker.create_topic(JOINED_TOPIC, 4, {"retention.ms": -1})
        yield broker


def run(broker: LocalKafka, state_dir: Path, crash_at: str = "") -> int:
    command = [
        str(STATESTORE),
        "run",
        "--json",
        "--pipeline=jobs.pipelines.flights_weather:topology",
        "--application-id=flights-weather",
        f"--bootstrap-servers={broker.bootstrap_servers}",
        f"--state-dir={state_dir}",
        "--processing-guarantee=exactly_once",
        "--set=commit.interval.ms=300",
    ]
    environment = os.environ | {VARIABLE: crash_at}
    return processes.run(command, env=environment, timeout=DEADLINE_S).returncode


def joined(broker: LocalKafka) -> Joined:
    """What readers of committed records see."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(JOINED_TOPIC, p, 0) for p in range(4)])
    found: Joined = Counter()
    left = 4
    while left:
        for message in consumer.consume(10_000, 1):
            value = message.value()
            if message.error() or value is None:
                left -= 1
                continue
            row = json.loads(value)
            names = ("carrier", "flight", "tail_number", "temp", "observed")
            key = (message.key() or b"").decode()
            found[message.timestamp()[1], key, *(row[name] for name in names)] += 1
    consumer.close()
    return found


@pytest.mark.parametrize("point", [CrashPoint.COMMIT_LOG_DONE])
def test_every_flight_is_joined_once_whatever_is_killed(
    loaded: LocalKafka, tmp_path: Path, point: CrashPoint
) -> None:
    for visit in (2, 5):
        assert run(loaded, tmp_path, f"{point}:{visit}") == -9
    assert run(loaded, tmp_path) == 0
    wanted = expected(2**62)
    assert sum(wanted.values()) == FLIGHTS
    assert joined(loaded) == wanted
