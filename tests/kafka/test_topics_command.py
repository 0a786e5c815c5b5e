"""`statestore topics` on a real broker: what it makes is what a run needs."""

import json
from pathlib import Path
from typing import Any

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import App, Ended, assert_refused, counted

pytestmark = pytest.mark.kafka
COMMAND = ("topics", "create")


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> App:
    """An application without any topic."""
    name = request.node.name.removeprefix("test_")[:60].replace("_", "-")
    return App(kafka, name, tmp_path / "state")


def rows(ended: Ended) -> dict[str, dict[str, Any]]:
    assert ended.code == 0, ended.err
    return {row["topic"]: row for row in map(json.loads, ended.out.splitlines())}


def test_a_run_finds_all_it_needs_and_creates_nothing(app: App) -> None:
    before = app.topics()
    planned = rows(app.run("--partitions=3", "--dry-run", command=COMMAND))
    assert app.topics() == before
    made = rows(app.run("--partitions=3", "--replication-factor=1", command=COMMAND))
    assert {name: row["status"] for name, row in planned.items()} == dict.fromkeys(
        made, "would be created"
    )
    assert app.topics() - before == made.keys()
    assert {(row["role"], row["partitions"], row["status"]) for row in made.values()} == {
        (role, 3, "created") for role in ("input", "output", "repartition", "changelog")
    }
    app.produce(range(20))
    assert app.drained()["records_in"] == 40
    assert app.topics() - before == made.keys()
    assert app.stored() == counted(range(20))
    again = rows(app.run("--partitions=3", command=COMMAND))
    assert {row["status"] for row in again.values()} == {"was there"}


def test_a_lost_changelog_is_not_replaced(app: App) -> None:
    app.create_topics()
    app.produce(range(10))
    app.drained()
    app.delete_topic(f"{app.name}-counts-changelog")
    with app.unchanged():
        refused = app.run(command=COMMAND)
    assert refused.code == 2
    assert "does not exist" in refused.message
    assert "--accept-empty-changelog" in refused.message


def test_a_refusal_creates_nothing_and_has_the_exit_code_of_a_start(app: App) -> None:
    app.create_topics(partitions=2)
    with app.unchanged():
        refused = app.run("--partitions=3", command=COMMAND)
    assert refused.code == 2
    assert f"topic '{app.name}-in' has 2 partitions, not 3" in refused.message


def test_a_missing_topic_is_answered_with_the_command_that_creates_it(app: App) -> None:
    assert_refused(app.run(), 2, "TopicMissing", "statestore topics create")


def test_a_check_lists_topics_and_refuses_as_a_start_does(app: App) -> None:
    with app.unchanged():
        refused = app.run(command=("topics", "check"))
    assert refused.code == 2
    assert "TopicMissing" in refused.message
    assert "statestore topics create" in refused.message
    app.create_topics(partitions=2)
    before = app.topics()
    found = rows(app.run(command=("topics", "check")))
    assert app.topics() == before
    statuses = {(row["role"], row["partitions"], row["status"]) for row in found.values()}
    assert statuses == {
        ("input", 2, "is there"),
        ("output", 2, "is there"),
        ("repartition", 2, "created by a start"),
        ("changelog", 2, "created by a start"),
    }
    app.produce(range(3))
    app.drained()
    after = rows(app.run(command=("topics", "check")))
    assert {row["status"] for row in after.values()} == {"is there"}
