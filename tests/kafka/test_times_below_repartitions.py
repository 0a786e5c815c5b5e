"""A backlog in order in each input partition has no late record below repartitions (E4d).

One click a second, over four partitions, is counted per user and minute without grace, as a new
user would try it. What must come out is computed here.

Shows I42.
"""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from statestore.faults import CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import App, name_of, user
from tests.kafka.time_pipelines import MINUTE_MS

pytestmark = pytest.mark.kafka

START_MS = 1_760_000_040_000
CLICKS, PARTITIONS = 1_200, 4
PIPELINE = "tests.kafka.time_pipelines:minutes"
POINTS = (CrashPoint.COMMIT_MARKED, CrashPoint.COMMIT_OFFSETS_SENT, CrashPoint.COMMIT_LOG_DONE)
STEPS = ("--set=commit.interval.ms=20", "--set=statestore.batch.max.records=40")


def time_of(number: int) -> int:
    return START_MS + 1000 * number


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    made = App(kafka, name_of(request.node.name), tmp_path / "state", pipeline=PIPELINE)
    yield made.create_topics(partitions=PARTITIONS)
    made.end_children()


def click(app: App, numbers: range) -> None:
    """Clicks in order, each in the partition of its number."""
    for partition in range(PARTITIONS):
        rows = [
            (f"k{n}", json.dumps({"user": user(n), "number": n}).encode(), time_of(n))
            for n in numbers
            if n % PARTITIONS == partition
        ]
        app.produce_raw(rows, partition=partition)


def closed_minutes(clicks: int) -> dict[str, int]:
    """The clicks of each user and minute that is over with the latest click."""
    last = time_of(clicks - 1)
    found = Counter((user(n), time_of(n) // MINUTE_MS * MINUTE_MS) for n in range(clicks))
    return {
        f"{name}@{start}": count
        for (name, start), count in found.items()
        if start + MINUTE_MS <= last
    }


def results(app: App) -> dict[str, int]:
    """What came out; each window at most once."""
    rows = app.read()
    assert len({row.key for row in rows}) == len(rows), "a window came out twice"
    return {row.key: row.value for row in rows}


WAYS = product(("minutes", "minutes_twice"), ((), ("--workers=2",), ("--run-for=8s",)))
FIRST = [("minutes_twice", ()), ("minutes", ("--workers=2",))]


@pytest.mark.parametrize(
    ("pipeline", "how"),
    [*FIRST, *(pytest.param(*way, marks=pytest.mark.thorough) for way in WAYS if way not in FIRST)],
    ids=str,
)
def test_a_backlog_in_order_has_no_late_record(
    app: App, pipeline: str, how: tuple[str, ...]
) -> None:
    click(app, range(CLICKS))
    summary = app.drained(*how, pipeline=f"tests.kafka.time_pipelines:{pipeline}")
    assert summary["dropped_records"] == 0, summary
    assert results(app) == closed_minutes(CLICKS)


def test_runs_that_are_killed_leave_no_late_record_and_tell_each_window_once(app: App) -> None:
    for round_, point in enumerate(POINTS):
        click(app, range(400 * round_, 400 * (round_ + 1)))
        ended = app.run(*STEPS, crash_at=f"{point}:{3 + 2 * round_}")
        assert ended.code == -signal.SIGKILL, f"{point} was not reached: {ended.err[-2000:]}"
    summary = app.drained(*STEPS)
    assert summary["dropped_records"] == 0, summary
    assert results(app) == closed_minutes(400 * len(POINTS))
