"""A task of a continuous run that has nothing to do costs the others nothing."""

import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer

import statestore as ss
from statestore import serdes
from statestore.tasks import slot
from statestore.tasks.task import StreamTask
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.kafka.writing_rig import committed

pytestmark = pytest.mark.kafka

TASKS, RECORDS = 4, 40


def test_only_tasks_with_input_get_turns(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create_topic("turns-in", TASKS)
    kafka.create_topic("turns-out", 1)
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    counted = builder.stream("turns-in").group_by_key().count("counts")
    counted.to_stream().to("turns-out", value_serde=serdes.INT64)
    settings = {
        "application.id": "turns",
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(tmp_path),
        "processing.guarantee": "exactly_once",
        "commit.interval.ms": 10,
    }
    turns: Counter[str] = Counter()
    work = StreamTask.work

    def noted(task: StreamTask, timeout_ms: int) -> int:
        turns[task.report.stream_task] += 1
        return work(task, timeout_ms)

    monkeypatch.setattr(StreamTask, "work", noted)
    # Only what comes gives a turn to a task at rest.
    monkeypatch.setattr(slot, "_LOOK_AT_REST_MS", 3_600_000)
    monkeypatch.setattr(slot, "_LOOK_MAX_MS", 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def send(partition: int, results: int) -> None:
        producer.produce("turns-in", b"v", b"k%d" % partition, partition)
        assert producer.flush(DEADLINE_S) == 0
        eventually(
            lambda: len(committed(kafka.bootstrap_servers, "turns-out")) == results,
            f"{results} results",
        )

    stop = threading.Event()
    run = threading.Thread(
        target=ss.run,
        args=(builder.build(), settings),
        kwargs={"run_for": "forever", "stop": stop},
    )
    run.start()
    try:
        for partition in range(TASKS):
            send(partition, partition + 1)
        before = Counter(turns)
        for number in range(RECORDS):
            send(0, TASKS + number + 1)
    finally:
        stop.set()
        run.join(DEADLINE_S)
    assert not run.is_alive()
    had = {task: turns[task] - before[task] for task in turns}
    busy = had.pop("0_0")
    assert busy > RECORDS
    assert len(had) == TASKS - 1
    # A broker answers a fetch without records after half a second, and later after five.
    assert max(had.values()) < busy / 2, had
