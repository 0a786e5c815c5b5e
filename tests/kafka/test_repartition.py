"""Another number of partitions on a real broker: as users change it, killed at every step."""

import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statestore.faults import CrashPoint
from statestore.layout.audits import AuditVerdict
from statestore.operations.audits.perform import audit
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import App, assert_refused, counted, updates_in_order

pytestmark = pytest.mark.kafka

PIPELINE = "tests.kafka.repartition_pipelines:several"
PLACED = "tests.kafka.repartition_pipelines:placed"
POINTS = [
    CrashPoint.REPARTITION_INPUTS_GROWN,
    f"{CrashPoint.REPARTITION_COPIED}:2",
    CrashPoint.REPARTITION_JOURNALLED,
    f"{CrashPoint.REPARTITION_TOPIC_MADE}:2",
    CrashPoint.REPARTITION_COMMITTED,
    CrashPoint.REPARTITION_FOLDERS_REMOVED,
    CrashPoint.REPARTITION_DEPLOYED,
    CrashPoint.REPARTITION_DONE,
]
"""In the order of their steps: a change that was killed at one goes on to the next."""


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40]
    made = App(kafka, name, tmp_path / "state", pipeline=PIPELINE)
    made.create_topics(partitions=4)
    yield made
    made.end_children()


def changed(app: App, *more: str) -> dict[str, Any]:
    ended = app.run(*more, command="repartition")
    assert ended.code == 0, ended.err[-4000:]
    return ended.summary


def audited(app: App) -> None:
    """Every store equals its changelog."""
    where = {"state.dir": str(app.state_dir), "bootstrap.servers": app.kafka.bootstrap_servers}
    with Runtime({"application.id": app.name, **where}) as runtime:
        record = audit(runtime)
    assert record.verdict is AuditVerdict.RIGHT
    assert all(store.equal for store in record.stores)


def exact(app: App, numbers: range) -> None:
    """Nothing is counted twice or not at all, in no store and no output."""
    assert updates_last(app) == counted(numbers)
    assert app.stored("counts", 1) == counted(numbers)
    assert app.stored("per-key", 0) == dict(Counter(f"k{n}" for n in numbers))


def updates_last(app: App) -> dict[str, int]:
    return {row.key: row.value for row in sorted(app.read(), key=lambda row: row.value)}


@pytest.mark.thorough
def test_from_four_to_six_to_three_with_all_counts_exact(app: App) -> None:
    app.produce(range(3000))
    app.drained()
    report = changed(app, "--partitions=6", "--grow-inputs")
    assert {part["after"] for part in report["sub_topologies"]} == {6}
    app.produce(range(3000, 6000))
    app.drained()
    exact(app, range(6000))
    audited(app)
    changed(app, "--partitions=3", "--recreate-inputs", "--yes")
    assert app.drained()["restored_records"] > 0
    exact(app, range(6000))
    app.produce(range(6000, 9000))
    app.drained()
    exact(app, range(9000))
    audited(app)
    updates_in_order(sorted(app.read(), key=lambda row: (row.key, row.value)))
    assert not [topic for topic in app.topics() if topic.endswith("-repartitioning")]


@pytest.mark.thorough
def test_killed_at_each_step_it_goes_on_and_loses_nothing(app: App) -> None:
    app.produce(range(500))
    app.drained()
    for point in POINTS:
        ended = app.run("--partitions=6", "--grow-inputs", command="repartition", crash_at=point)
        assert ended.code == -signal.SIGKILL, f"{point} was not reached: {ended.err[-3000:]}"
        if point != CrashPoint.REPARTITION_DONE:
            assert app.run().code == 2
    assert not [topic for topic in app.topics() if topic.endswith("-repartitioning")]
    app.produce(range(500, 1000))
    app.drained()
    exact(app, range(1000))
    audited(app)


@pytest.mark.thorough
def test_a_dry_run_changes_nothing_and_says_what_would_be_done(app: App) -> None:
    app.produce(range(100))
    app.drained()
    with app.unchanged():
        report = changed(app, "--partitions=6", "--grow-inputs", "--dry-run")
    assert not report["applied"]
    assert {store["placed_by"] for store in report["stores"]} == {"crc32", "murmur2"}
    topics = {topic["topic"].removeprefix(app.name): topic for topic in report["topics"]}
    assert topics["-in"]["begins_anew"] is False
    assert topics["-by-user-repartition"]["after"] == 6


@pytest.mark.thorough
def test_wrong_counts_and_unprocessed_records_are_refused_before_anything(app: App) -> None:
    app.produce(range(200))
    app.drained()
    with app.unchanged():
        for wrong, says in {"0": "from 1 to", "3": "too few"}.items():
            ended = app.run(f"--partitions={wrong}", command="repartition")
            assert_refused(ended, 2, "Misuse", says)
        ended = app.run("--partitions=6", command="repartition")
        assert_refused(ended, 2, "Misuse", "--grow-inputs")
        assert app.run("--partitions=six", command="repartition").code == 2
        assert changed(app, "--partitions=4")["anything"] is False
    app.produce(range(200, 400))
    with app.unchanged():
        ended = app.run("--partitions=6", "--grow-inputs", command="repartition")
        assert_refused(ended, 2, "Misuse", "process everything to the end first")


def test_an_input_that_has_grown_is_named_with_the_command_that_divides_the_state(
    app: App,
) -> None:
    app.produce(range(300))
    app.drained()
    app.grow_topic("in", 7)
    app.produce(range(300, 600))
    with app.unchanged():
        for ended in (app.run(), app.checked()):
            assert ended.code == 2
            assert "statestore repartition" in ended.message, ended.message
    changed(app, "--partitions=7")
    app.drained()
    exact(app, range(600))


@pytest.mark.thorough
def test_a_partitioner_of_the_pipeline_places_the_rows_before_and_after(app: App) -> None:
    app = replace(app, pipeline=PLACED)
    app.produce(range(1000))
    app.drained()
    point = f"{CrashPoint.REPARTITION_TOPIC_MADE}:3"
    ended = app.run("--partitions=7", "--grow-inputs", command="repartition", crash_at=point)
    assert ended.code == -signal.SIGKILL, ended.err[-3000:]
    report = changed(app, "--partitions=7")
    assert {store["placed_by"] for store in report["stores"]} == {"own"}
    app.produce(range(1000, 2000))
    app.drained()
    changed(app, "--partitions=3", "--recreate-inputs", "--yes")
    app.produce(range(2000, 3000))
    app.drained()
    updates_in_order(sorted(app.read(), key=lambda row: (row.key, row.value)))
    assert updates_last(app) == app.stored("counts", 1) == counted(range(3000))
    audited(app)
