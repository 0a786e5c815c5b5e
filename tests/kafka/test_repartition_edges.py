"""A change of partitions where topics, offsets and ids are not as the application left them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from statestore.ports import TopicSpec
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import App, assert_refused, counted
from tests.kafka.test_repartition import PIPELINE, audited, changed, exact

pytestmark = pytest.mark.kafka


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40]
    made = App(kafka, name, tmp_path / "state", pipeline=PIPELINE)
    made.create_topics(partitions=4)
    yield made
    made.end_children()


def admin(app: App) -> AdminClient:
    return AdminClient({"bootstrap.servers": app.kafka.bootstrap_servers})


def alter(app: App, topic: str, settings: Mapping[str, str | None]) -> None:
    """Set settings of a topic, or drop those that are None, as an administrator does."""
    entries = [
        ConfigEntry(
            key,
            value,
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for key, value in settings.items()
    ]
    wanted = ConfigResource(ResourceType.TOPIC, f"{app.name}-{topic}", incremental_configs=entries)
    client = admin(app)  # Its handle has to outlive the request.
    (pending,) = client.incremental_alter_configs([wanted]).values()
    pending.result()


def specs(app: App) -> dict[str, TopicSpec]:
    """What was set on each topic of the application, apart from its partitions."""
    with Runtime(app.run_settings()) as runtime:
        found = runtime.cluster.specs(sorted(app.topics()))
    return {name: spec._replace(partitions=0) for name, spec in found.items()}


def refused(app: App, *says: str) -> None:
    """The command, as a user calls it, changes nothing and says why."""
    with app.unchanged():
        ended = app.run("--partitions=6", "--grow-inputs", command="repartition")
        assert_refused(ended, 2, "Misuse", *says)


@pytest.mark.thorough
def test_ids_that_begin_alike(app: App, tmp_path: Path) -> None:
    other = replace(app, name=f"{app.name}-b", state_dir=tmp_path / "other", children=[])
    other.create_topics(partitions=4)
    for one in (app, other):
        one.produce(range(300))
        one.drained()
    with other.unchanged():
        changed(app, "--partitions=6", "--grow-inputs")
        app.produce(range(300, 600))
        app.drained()
    exact(app, range(600))
    other.produce(range(300, 500))
    other.drained()
    exact(other, range(500))
    with app.unchanged():
        changed(other, "--partitions=3", "--recreate-inputs", "--yes")
        other.drained()
    exact(other, range(500))
    for one in (app, other):
        audited(one)


@pytest.mark.thorough
def test_what_was_set_on_topics_outlives_the_change(app: App) -> None:
    app.produce(range(300))
    app.drained()
    alter(app, "counts-changelog", {"segment.ms": "3600000", "min.insync.replicas": "1"})
    alter(app, "per-key-changelog", {"max.message.bytes": "2000000", "compression.type": "lz4"})
    alter(app, "by-user-repartition", {"segment.bytes": "20000000"})
    alter(app, "in", {"retention.ms": None, "max.message.bytes": "3000000"})
    before = specs(app)
    assert before[f"{app.name}-in"].config == {"max.message.bytes": "3000000"}
    changed(app, "--partitions=3", "--recreate-inputs", "--yes")
    # Nothing is lost, and no default of the brokers has become a setting of a topic.
    assert specs(app) == before
    app.produce(range(300, 400))
    app.drained()
    exact(app, range(400))


def test_refusals_by_offsets_and_settings_that_no_start_would_go_on_from(app: App) -> None:
    app.produce(range(300))
    app.drained()
    # One broker never acknowledges what two have to have.
    alter(app, "counts-changelog", {"min.insync.replicas": "2"})
    refused(app, "counts-changelog", "min.insync.replicas=2 and 1 replicas", "kafka-configs")
    alter(app, "counts-changelog", {"min.insync.replicas": None})
    alter(app, "counts-changelog", {"cleanup.policy": "compact,delete"})
    refused(app, "cleanup.policy=compact,delete", "set cleanup.policy=compact")
    alter(app, "counts-changelog", {"cleanup.policy": "compact"})
    app.forget_offsets()
    refused(app, "start it first")


@pytest.mark.thorough
def test_a_changelog_that_lost_its_first_records(app: App) -> None:
    app.produce(range(300))
    app.drained()
    app.produce(range(300))
    app.drained()
    topic = f"{app.name}-counts-changelog"
    partition = min(p for p, (_, end) in app.bounds(topic).items() if end > 1)
    # Each user was counted again after that, so no row is lost with these.
    alter(app, "counts-changelog", {"cleanup.policy": "delete", "retention.ms": "-1"})
    client = admin(app)
    (pending,) = client.delete_records([KafkaPartition(topic, partition, 1)]).values()
    pending.result()
    alter(app, "counts-changelog", {"cleanup.policy": "compact", "retention.ms": None})
    refused(
        app,
        f"{topic}-{partition} begins at offset 1",
        "statestore audit",
        "--accept-removed-records",
    )
    audited(app)
    changed(app, "--partitions=6", "--grow-inputs", "--accept-removed-records")
    app.drained()
    assert app.stored("counts", 1) == {user: 2 * n for user, n in counted(range(300)).items()}
