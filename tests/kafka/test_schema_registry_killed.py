"""Killed runs of a pipeline whose schemas are in a registry: every record is counted once."""

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from statestore.faults import CrashPoint
from tests import processes
from tests.builders import ROOT
from tests.kafka.registry_pipelines import ORDERS, TOTALS, URL_VARIABLE, Order, Total
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import DEADLINE_S, STATESTORE, App, end_of
from tests.schema_registry_rig import Registry, local_registry

pytestmark = pytest.mark.kafka
POINTS = (CrashPoint.COMMIT_RECORDS_SENT, CrashPoint.COMMIT_OFFSETS_SENT, CrashPoint.COMMIT_DONE)
SMALL = ("--set=commit.interval.ms=20", "--set=statestore.batch.max.records=100")
PIPELINE = "tests.kafka.registry_pipelines:totals"
USERS, EACH = 7, 500


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """The test that stops it is the last one."""
    with (
        local_registry(tmp_path_factory.mktemp("registry")) as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(URL_VARIABLE, made.url)
        yield made


def produce(app: App, numbers: range) -> None:
    topic = f"{app.name}-in"
    serde = ORDERS.at(topic, "value")
    producer = Producer({"bootstrap.servers": app.kafka.bootstrap_servers, "log_level": 0})
    for number in numbers:
        order = Order(f"user-{number % USERS}", number)
        producer.produce(topic, key=f"k{number % 3}", value=serde.serialize(order))
    assert producer.flush(DEADLINE_S) == 0


def outputs(app: App) -> dict[str, list[Total]]:
    """What each user's total was, in order."""
    topic, found = f"{app.name}-out", defaultdict(list)
    serde = TOTALS.at(topic, "value")
    consumer = Consumer(
        {
            "bootstrap.servers": app.kafka.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    left = set(app.bounds(topic))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
    deadline = time.monotonic() + DEADLINE_S
    while left:
        assert time.monotonic() < deadline, f"deadline: reading {topic}"
        for message in consumer.consume(1000, 0.1):
            if message.error():
                left.discard(message.partition())
            else:
                key, value = message.key(), message.value()
                assert key is not None
                assert value is not None
                found[key.decode()].append(serde.deserialize(value))
    consumer.close()
    return found


def shown(app: App, *words: str) -> "subprocess.CompletedProcess[str]":
    """`statestore stores`, beside the application."""
    return processes.run(
        [
            str(STATESTORE),
            "stores",
            *words,
            f"--application-id={app.name}",
            f"--state-dir={app.state_dir}",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), PREFIX_VARIABLE: app.name},
        cwd=app.state_dir.parent,
        timeout=DEADLINE_S,
    )


def test_killed_runs_lose_and_double_nothing(app: App, registry: Registry) -> None:
    for topic in ("in", "out"):
        app.delete_topic(f"{app.name}-{topic}")
    app.create_topics()
    for round_, point in enumerate(POINTS):
        produce(app, range(EACH * round_, EACH * (round_ + 1)))
        process = app.start(*SMALL, pipeline=PIPELINE, crash_at=f"{point}:3")
        ended = end_of(process, time.monotonic())
        assert ended.code == -signal.SIGKILL, f"{point} was not reached: {ended.err[-2000:]}"
    app.drained(*SMALL, pipeline=PIPELINE)
    found = outputs(app)
    for user in range(USERS):
        numbers = range(user, EACH * len(POINTS), USERS)
        totals = found[f"user-{user}"]
        assert [total.count for total in totals] == list(range(1, len(numbers) + 1))
        assert totals[-1].sum == sum(numbers)
    last = found["user-3"][-1]
    for more in ([f"--pipeline={PIPELINE}"], []):
        told = shown(app, "get", "totals", "user-3", *more)
        if more:
            assert (told.returncode, json.loads(told.stdout)) == (0, msgspec.to_builtins(last))
        else:
            assert "pass --pipeline" in told.stderr
    assert {f"{app.name}-totals-changelog-value", f"{app.name}-totals-repartition-value"} <= set(
        registry.subjects()
    )


def test_a_run_without_its_registry_may_be_repeated(app: App, registry: Registry) -> None:
    for topic in ("in", "out"):
        app.delete_topic(f"{app.name}-{topic}")
    app.create_topics()
    produce(app, range(EACH))
    registry.stop()
    ended = app.run(*SMALL, pipeline=PIPELINE)
    assert ended.code == 7, ended.err[-2000:]
    assert "does not answer" in ended.message
    assert "may be repeated" in ended.message
    assert app.committed() in ({}, {0: 0, 1: 0})
