"""January's flights wait for their weather, both shuffled by less than the grace: against polars.

Through a real broker, once by `statestore run` and once by Spark, each killed on the way. The store
of the weather has versions, and so has what the kills leave of it.
"""

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import statestore as ss
from jobs.pipelines.flights_weather import GRACE, JOINED_TOPIC
from scripts import flights_data
from scripts.flights_data import Sample
from statestore import serdes
from statestore.commands.running import report_run
from statestore.faults import VARIABLE, CrashPoint
from statestore.model.modes import span_ms
from statestore.spark.process import run_on_spark
from statestore.testing.local_kafka import LocalKafka
from tests.contract.test_flights_weather import DAY_MS, JANUARY_MS, Joined, expected
from tests.kafka.run_rig import STATESTORE
from tests.kafka.test_flights_weather import joined
from tests.spark.local_spark import local_spark

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEED = 20_130_101
UNTIL_MS = JANUARY_MS + 31 * DAY_MS
ORIGINS = ("EWR", "JFK", "LGA")
PIPELINE = "jobs.pipelines.flights_weather:patient"
SET = ("commit.interval.ms=100", "statestore.batch.max.records=2000")
DEADLINE_S = 300


@pytest.fixture(scope="module")
def shuffled() -> Iterator[LocalKafka]:
    """A broker with January, and in each partition of flights one that ends all waiting."""
    chance = random.Random(SEED)
    with LocalKafka() as broker:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"}
        )
        for sample in (flights_data.weather(), flights_data.flights()):
            broker.create_topic(sample.topic, 4, {"retention.ms": -1})
            for i in arrivals(sample, chance):
                producer.produce(
                    sample.topic,
                    sample.values[i],
                    sample.keys[i],
                    timestamp=sample.timestamps_ms[i],
                )
                producer.poll(0)
            assert producer.flush(DEADLINE_S) == 0
        for origin in ORIGINS:
            last = {"origin": origin, "carrier": "-", "flight": 0, "time_hour": ""}
            value = serdes.JSON.serialize({**last, "sched_dep_time": 0})
            producer.produce("flights", value, b"-", timestamp=UNTIL_MS + 10 * DAY_MS)
        assert producer.flush(DEADLINE_S) == 0
        broker.create_topic(JOINED_TOPIC, 4, {"retention.ms": -1})
        yield broker


def arrivals(sample: Sample, chance: random.Random) -> list[int]:
    """The places of January's records as they arrive: none as much as the grace too late."""
    grace_ms = span_ms(GRACE)
    times = [
        (time + chance.randrange(grace_ms), i)
        for i, time in enumerate(sample.timestamps_ms)
        if time < UNTIL_MS
    ]
    return [i for _, i in sorted(times)]


def flags(broker: LocalKafka, state_dir: Path, application_id: str) -> dict[str, object]:
    return {
        **dict.fromkeys(("run_for", "config", "summary_file")),
        "until": "latest",
        "pipeline": PIPELINE,
        "application_id": application_id,
        "bootstrap_servers": broker.bootstrap_servers,
        "state_dir": str(state_dir),
        "processing_guarantee": "exactly_once",
        "pairs": SET,
        "accept_new_topology": False,
        "accept_empty_changelog": False,
    }


def check(broker: LocalKafka, before: Joined, state_dir: Path, application_id: str) -> None:
    """January has come out once since `before`, and the store has what the airports measured."""
    wanted = expected(UNTIL_MS)
    assert sum(wanted.values()) > 25_000
    assert joined(broker) == before + wanted, f"seed {SEED}"
    with ss.open_snapshot(state_dir, application_id, "weather") as weather:
        seen = {origin: list(weather.history(origin)) for origin in ORIGINS}
    hours = {origin: Counter(one.timestamp_ms for one in seen[origin]) for origin in ORIGINS}
    sample = flights_data.weather()
    measured: dict[str, Counter[int]] = {origin: Counter() for origin in ORIGINS}
    for key, time in zip(sample.keys, sample.timestamps_ms, strict=True):
        if time < UNTIL_MS and key is not None:
            measured[key.decode()][time] = 1
    assert hours == measured


def test_shuffled_flights_wait_for_shuffled_weather_whatever_is_killed(
    shuffled: LocalKafka, tmp_path: Path
) -> None:
    before = joined(shuffled)
    command = [
        str(STATESTORE),
        "run",
        "--json",
        f"--pipeline={PIPELINE}",
        "--application-id=patient",
        f"--bootstrap-servers={shuffled.bootstrap_servers}",
        f"--state-dir={tmp_path}",
        "--processing-guarantee=exactly_once",
        *(f"--set={pair}" for pair in SET),
    ]
    for crash_at in (f"{CrashPoint.COMMIT_LOG_DONE}:6", f"{CrashPoint.COMMIT_STORE_WRITTEN}:9"):
        environment = os.environ | {VARIABLE: crash_at}
        done = subprocess.run(command, env=environment, timeout=DEADLINE_S, check=False)
        assert done.returncode == -9, f"{crash_at} was not reached: it proves nothing"
    subprocess.run(command, timeout=DEADLINE_S, check=True)
    check(shuffled, before, tmp_path, "patient")


@pytest.mark.spark
def test_so_they_do_in_spark_whose_workers_are_killed(
    shuffled: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = joined(shuffled)
    with local_spark("patient", "local[2,4]"):
        token = tmp_path / "token"
        monkeypatch.setenv(VARIABLE, f"{CrashPoint.COMMIT_LOG_DONE}:3:{token}")
        summary = report_run(flags(shuffled, tmp_path / "state", "patient-spark"), run_on_spark)
        assert summary.caught_up
        assert token.exists(), "no worker was killed: it proves nothing"
    check(shuffled, before, tmp_path / "state", "patient-spark")
