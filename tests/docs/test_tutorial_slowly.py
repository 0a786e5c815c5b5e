"""The tutorial shows the same to a reader who pauses while the broker expires old records."""

import sys
import time
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from statestore.testing.local_kafka import LocalKafka
from tests.builders import ROOT
from tests.docs.shell_page import Step, steps, type_into_shell

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

EXPIRE_ALWAYS = {"log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 500}
A_WEEK = {"retention.ms": 604_800_000}
LONG_AGO_MS = 1_356_998_400_000
STEP_S = 150
DEADLINE_S = 60
INSTALLED = ("python3 -m venv", ". .venv", "pip install", "statestore kafka")


def test_the_tutorial_shows_the_same_with_a_pass_of_retention_after_each_record(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    with LocalKafka(config=EXPIRE_ALWAYS) as kafka:
        todo = [
            step
            for step in steps(page.replace("localhost:9092", kafka.bootstrap_servers))
            if not step.command.startswith(INSTALLED)
        ]
        passes = Passes(kafka)
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        env = {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        paused: list[Step] = []
        for done in type_into_shell(todo, tmp_path, env, timeout_s=STEP_S):
            assert done.fault() is None, done.fault()
            if done.step.command.startswith(("python produce.py", "statestore run")):
                passes.wait()
                paused.append(done.step)
        assert len(paused) > 4


class Passes:
    """Waits until the broker has looked through all logs for what to expire."""

    def __init__(self, kafka: LocalKafka) -> None:
        self._kafka = kafka
        self._numbers = count()

    def wait(self) -> None:
        # The second record comes after the pass that took the first began: the pass that takes it
        # has met all that was there before.
        for _ in range(2):
            self._one()

    def _one(self) -> None:
        topic = f"control-{next(self._numbers)}"
        self._kafka.create_topic(topic, 1, A_WEEK)
        servers = {"bootstrap.servers": self._kafka.bootstrap_servers}
        producer = Producer(servers)
        producer.produce(topic, b"old", timestamp=LONG_AGO_MS)
        assert producer.flush(DEADLINE_S) == 0
        consumer = Consumer({**servers, "group.id": "control"})
        deadline = time.monotonic() + DEADLINE_S
        while consumer.get_watermark_offsets(TopicPartition(topic, 0))[0] == 0:
            assert time.monotonic() < deadline, "the broker expires nothing"
        consumer.close()
