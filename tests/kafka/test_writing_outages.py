"""A broker killed at each step of a write, and started again."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from statestore.errors import CommitUnknown, Fenced, Unavailable
from statestore.faults import CrashPoint
from statestore.spark.writing import attempts
from statestore.testing.local_kafka import LocalKafka
from tests.builders import eventually
from tests.kafka.writing_rig import Sink

# One in fourteen leaves a transaction open at the broker that was killed: readers wait for it
# longer than this test does. Nothing is lost or doubled, but it is not known yet whose it is.
pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]
STEPS = [point for point in CrashPoint if point.startswith("write.")]
DIVISION = {0: ["a1", "a2", "b1", "b2"], 1: ["c1"], 3: ["d1", "d2"]}


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka() as broker:
        yield broker


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
            kafka.kill_broker(0)
            kafka.start_broker(0)

    monkeypatch.setattr(attempts, "reach", reach)
    # Where the client gives up, Spark repeats the batch.
    with suppress(Unavailable, CommitUnknown, Fenced):
        sink.save(0, DIVISION, whole=whole)
    assert killed.exists(), "the kill missed"

    def is_saved() -> bool:
        """Whether the broker that came back has ended the transaction that was open."""
        with suppress(Unavailable):
            sink.save(0, DIVISION, whole=whole)
            return True
        return False

    # At the latest when the transaction has timed out.
    eventually(is_saved, "the batch is written again", deadline_s=150)
    sink.save(1, {0: ["z"]}, whole=whole)
    assert sink.read() == Counter([*(row for rows in DIVISION.values() for row in rows), "z"])
