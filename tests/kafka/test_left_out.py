"""Records that are in no result, on a real broker: counted exactly over kills, and seen later.

Shows I34.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statestore.faults import CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.left_out_pipelines import MINUTE_MS
from tests.kafka.run_rig import SMALL_COMMITS, START_MS, USERS, App, name_of, user

pytestmark = pytest.mark.kafka

PIPELINE = "tests.kafka.left_out_pipelines:leaving_out"
COUNT = 1000
POISON = set(range(7, COUNT, 100))
UNKNOWN = {user(n) for n in range(3)}
LATE = [n for n in range(COUNT) if n % 2 and n not in POISON]
NAMELESS = [n for n in range(COUNT) if user(n) in UNKNOWN and n not in POISON]


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    name = name_of(request.node.name)
    settings = {
        "processing.exception.handler": "dead_letter",
        "errors.dead.letter.queue.topic.name": f"{name}-dead",
    }
    made = App(kafka, name, tmp_path / "state", PIPELINE, settings)
    made.create_topics(partitions=1, names=1, dead=1)
    names = [(user(n), b'"name"', START_MS - 1) for n in range(USERS) if user(n) not in UNKNOWN]
    made.produce_raw(names, topic="names")
    made.produce_raw([(user(n), value_of(n), time_of(n)) for n in range(COUNT)])
    yield made
    made.end_children()


def value_of(number: int) -> bytes:
    return json.dumps({"refuse": number in POISON}).encode()


def time_of(number: int) -> int:
    return START_MS if number % 2 else START_MS + 10 * MINUTE_MS


def counted(told: dict[str, Any]) -> dict[str, int]:
    """By fate, node and reason, of a summary or a status."""
    found = {
        f"{fate} {one['node']} {one['reason']}": one["records"]
        for fate in ("dropped", "dead_letters", "unmatched")
        for one in told[fate]
    }
    for fate in ("dropped", "dead_letters", "unmatched"):
        total = told[f"{fate.removesuffix('s')}_records"]
        assert total == sum(one["records"] for one in told[fate])
    return found


WHOLE = {
    "dropped per-minute late": len(LATE),
    "dropped checked processing": len(POISON),
    "dead_letters checked processing": len(POISON),
    "unmatched named no_match": len(NAMELESS),
}


def status_of(app: App) -> dict[str, Any]:
    told: dict[str, Any] = app.drained(command="status")
    return told


@pytest.mark.parametrize(
    "guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.thorough)]
)
def test_a_run_and_the_status_after_it_say_what_was_left_out(app: App, guarantee: str) -> None:
    flag = f"--processing-guarantee={guarantee}"
    ended = app.run(flag)
    assert ended.code == 0, ended.err[-4000:]
    assert counted(ended.summary) == WHOLE
    (warned,) = [line for line in ended.err.splitlines() if "grace" in line]
    share = f"{len(LATE):,} of {COUNT + USERS - len(UNKNOWN):,} records"
    assert share in warned
    assert "10 of them into the dead letter topic" in warned
    status = status_of(app)
    assert counted(status["last_run"]) == counted(status["all_runs"]) == WHOLE
    app.drained(flag)
    status = status_of(app)
    assert counted(status["last_run"]) == {}
    assert counted(status["all_runs"]) == WHOLE


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.COMMIT_LOG_DONE,
        pytest.param(CrashPoint.COMMIT_OFFSETS_SENT, marks=pytest.mark.thorough),
    ],
)
def test_a_killed_run_leaves_what_it_committed_to_see_and_no_more(
    app: App, point: CrashPoint
) -> None:
    ended = app.run(*SMALL_COMMITS, crash_at=f"{point}:4")
    assert ended.code == -signal.SIGKILL, ended.err[-2000:]
    before = status_of(app)
    assert before["last_run"]["records_in"] == app_committed(app)
    killed = counted(before["last_run"])
    summary = app.drained(*SMALL_COMMITS)
    rest = counted(summary)
    status = status_of(app)
    assert counted(status["last_run"]) == rest
    assert counted(status["all_runs"]) == WHOLE
    assert {name: killed.get(name, 0) + rest.get(name, 0) for name in WHOLE} == WHOLE


def test_workers_that_die_again_and_again_count_each_record_once(app: App) -> None:
    ended = app.run("--workers=2", *SMALL_COMMITS, crash_at=f"{CrashPoint.COMMIT_LOG_DONE}:4")
    assert ended.code == 0, ended.err[-4000:]
    assert "another one takes over" in ended.err
    assert counted(ended.summary) == WHOLE
    assert counted(status_of(app)["all_runs"]) == WHOLE


def app_committed(app: App) -> int:
    """The records of both inputs that the group has committed."""
    return sum(app.committed("in").values()) + sum(app.committed("names").values())
