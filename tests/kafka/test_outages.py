"""Brokers that stop under a run, for a moment or for half a minute: results are exact."""

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewTopic

from statestore.errors import StateStoreError, Unavailable
from statestore.kafka.error_codes import translated
from statestore.kafka.testing import admin
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.kafka.run_rig import App, counted, end_of, running, updates_in_order

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOTAL = 3000
OUTAGE_S = 30.0
# The client waits for any connection to change before it looks for its coordinator again.
SOON = "--set=producer.connections.max.idle.ms=1000"


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka() as broker:
        yield broker


def is_written_but_not_committed(app: App) -> bool:
    """Whether a transaction holds records of the repartition topic open."""
    topic = f"{app.name}-by-user-repartition"
    if topic not in app.topics():
        return False
    plain = Consumer(
        {
            "bootstrap.servers": app.kafka.bootstrap_servers,
            "group.id": "watermarks",
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        marks = {p: plain.get_watermark_offsets(TopicPartition(topic, p), 10) for p in range(2)}
    finally:
        plain.close()
    return any(marks[p][1] > stable for p, (_, stable) in app.bounds(topic).items())


def assert_exact(app: App, total: int) -> None:
    assert updates_in_order(app.read()) == counted(range(total)) == app.stored()


def test_a_broker_restarted_in_the_middle_of_a_transaction_loses_and_doubles_nothing(
    app: App,
) -> None:
    process = app.start("--run-for=100s", "--set=commit.interval.ms=4000", SOON)
    # The first records are committed at once, those after them when the interval is over.
    running(app, process, lambda: sum(app.committed().values()) == 20)
    app.produce(range(20, TOTAL))
    running(app, process, lambda: is_written_but_not_committed(app))
    app.kafka.stop_broker(0)
    app.kafka.start_broker(0)
    app.produce(range(TOTAL, TOTAL + 500))
    running(app, process, lambda: sum(app.committed().values()) == TOTAL + 500)
    process.send_signal(signal.SIGTERM)
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err[-4000:]
    app.drained()
    assert_exact(app, TOTAL + 500)


@pytest.mark.parametrize("patience_ms", [60_000, 5_000])
def test_a_broker_gone_for_half_a_minute_loses_and_doubles_nothing(
    app: App, patience_ms: int
) -> None:
    """With patience for it the run goes on by itself; without, it ends and the next one goes on."""
    patience = f"--set=default.api.timeout.ms={patience_ms}"
    process = app.start("--run-for=300s", "--set=statestore.batch.max.records=50", SOON, patience)
    app.produce(range(20, TOTAL))
    running(app, process, lambda: 0 < sum(app.committed().values()) < TOTAL)
    app.kafka.kill_broker(0)
    down_s = time.monotonic()
    is_patient = patience_ms > OUTAGE_S * 1000
    code = None
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(OUTAGE_S if is_patient else 4 * OUTAGE_S)
    # The outage is the point, however soon the run has given up.
    threading.Event().wait(max(0.0, OUTAGE_S - (time.monotonic() - down_s)))
    app.kafka.start_broker(0)
    app.produce(range(TOTAL, TOTAL + 500))
    if is_patient:
        assert code is None, end_of(process, 0).err[-4000:]
        running(app, process, lambda: sum(app.committed().values()) == TOTAL + 500)
        process.send_signal(signal.SIGTERM)
        assert end_of(process, 0).code == 0
    else:
        assert code == 7, end_of(process, 0).err[-4000:]
    app.drained()
    assert_exact(app, TOTAL + 500)


def test_whatever_a_broker_that_comes_back_says_of_a_new_topic_asks_for_patience(
    kafka: LocalKafka,
) -> None:
    """As long as the controller lets no broker in, it refuses it by the code of another fault."""
    soon = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
    client, up = admin(kafka.bootstrap_servers, soon), threading.Event()

    def ask() -> list[StateStoreError]:
        refused = []
        for number in count():
            is_up = up.is_set()
            topic = NewTopic(f"early-{number}", 1, 1)
            try:
                client.create_topics([topic], request_timeout=1)[topic.topic].result()
            except KafkaException as failure:
                refused.append(translated(failure, "create a topic"))
            else:
                if is_up:
                    break
        return refused

    with ThreadPoolExecutor(1) as aside:
        asking = aside.submit(ask)
        for _ in range(2):
            kafka.stop_broker(0)
            kafka.start_broker(0)
        up.set()
        refused = asking.result(DEADLINE_S)
    assert refused
    assert [error for error in refused if not isinstance(error, Unavailable)] == []
