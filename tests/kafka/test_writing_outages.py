"""The broker that leads the markers is killed at each step of a write, and started again.

There are three: a broker that is alone may skip the markers of a committed transaction when it
starts again (docs/upstream/kafka-skips-markers.md).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from statestore.errors import CommitUnknown, Fenced, Unavailable
from statestore.faults import CrashPoint
from statestore.spark.writing import attempts
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.kafka.writing_rig import Sink

pytestmark = [pytest.mark.kafka, pytest.mark.thorough, pytest.mark.timeout(400)]
STEPS = [point for point in CrashPoint if point.startswith("write.")]
DIVISION = {0: ["a1", "a2", "b1", "b2"], 1: ["c1"], 3: ["d1", "d2"]}


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(brokers=3) as brokers:
        yield brokers


def leader_of(kafka: LocalKafka, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    found = admin.list_topics(topic, DEADLINE_S)
    return int(found.topics[topic].partitions[1].leader)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_broker_killed_at_any_step_loses_and_doubles_nothing(
    kafka: LocalKafka,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    step: CrashPoint,
    whole: bool,
) -> None:
    sink = Sink(kafka, f"outage-{step}-{whole}").create()
    killed = tmp_path / "killed"

    def reach(point: CrashPoint) -> None:
        if point is step and not killed.exists():
            killed.touch()
            leader = leader_of(kafka, f"{sink.name}-spark-markers")
            kafka.kill_broker(leader)
            kafka.start_broker(leader)

    monkeypatch.setattr(attempts, "reach", reach)
    # Where the client gives up, Spark repeats the batch.
    with suppress(Unavailable, CommitUnknown, Fenced):
        sink.save(0, DIVISION, whole=whole)
    assert killed.exists(), "the kill missed"
    sink.save(0, DIVISION, whole=whole)
    sink.save(1, {0: ["z"]}, whole=whole)
    assert sink.read() == Counter([*(row for rows in DIVISION.values() for row in rows), "z"])
