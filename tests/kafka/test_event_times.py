"""Event times far from the broker's clock, on a real broker: inputs may have any.

A broker by default refuses records more than an hour ahead of its clock. Internal topics take all;
those of the user's are left as they are.
"""

import json
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import App, assert_refused, counted, name_of, updates_in_order, user

pytestmark = pytest.mark.kafka

ANY = {"message.timestamp.after.max.ms": 2**63 - 1, "retention.ms": -1}
COUNT = 300
YEAR_1970, YEAR_2099 = 1_000_000, 4_070_908_800_000
EVERY_OTHER, FEW = range(1, COUNT, 2), (11, 150, 299)


def produce(app: App, ahead: Collection[int]) -> set[int]:
    """Records of 1970, those `ahead` of 2099; returns their times."""
    times = {n: (YEAR_2099 if n in ahead else YEAR_1970) + n for n in range(COUNT)}
    values = [json.dumps({"user": user(n), "number": n}).encode() for n in range(COUNT)]
    app.produce_raw([(f"k{n}", values[n], time_ms) for n, time_ms in times.items()])
    return set(times.values())


def take_any_time(kafka: LocalKafka, topic: str) -> None:
    """What an administrator does with `kafka-configs --alter`."""
    name, value = "message.timestamp.after.max.ms", str(2**63 - 1)
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (done,) = admin.incremental_alter_configs([wanted]).values()
    done.result()


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    """Counts by user, through a repartition topic and with a changelog; `out` takes any time."""
    made = App(kafka, name_of(request.node.name), tmp_path / "state")
    for topic in ("in", "out"):
        kafka.create_topic(f"{made.name}-{topic}", 2, ANY)
    yield made
    made.end_children()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_any_times_of_the_input_go_through_repartition_topics_and_changelogs(
    app: App, guarantee: str
) -> None:
    times = produce(app, EVERY_OTHER)
    flag = f"--processing-guarantee={guarantee}"
    assert app.drained(flag)["dropped_records"] == 0
    assert updates_in_order(app.read()) == app.stored() == counted(range(COUNT))
    assert {row.timestamp_ms for row in app.read()} <= times
    # And back from the changelog, on a new volume.
    (app.state_dir / app.name).rename(app.state_dir / "lost")
    assert app.drained(flag)["records_in"] == 0
    assert app.stored() == counted(range(COUNT))


def test_a_sink_that_refuses_a_time_is_named_with_the_setting_to_raise(
    kafka: LocalKafka, app: App
) -> None:
    produce(app, FEW)
    app.delete_topic(f"{app.name}-out")
    kafka.create_topic(f"{app.name}-out", 2, {"retention.ms": -1})
    ended = app.run()
    assert_refused(ended, 5, "RecordFailed", f"{app.name}-out", "message.timestamp.after.max.ms")
    summary = app.drained("--set=production.exception.handler=continue")
    assert summary["caught_up"]
    assert summary["dropped_records"] == len(FEW)
    assert app.stored() == counted([n for n in range(COUNT) if n not in FEW])


def test_internal_topics_that_were_there_are_left_alone_and_named_at_each_start(
    kafka: LocalKafka, app: App
) -> None:
    produce(app, EVERY_OTHER)
    limited = f"{app.name}-counts-changelog"
    kafka.create_topic(limited, 2, {"cleanup.policy": "compact"})
    ended = app.run()
    assert_refused(ended, 5, "RecordFailed", limited, "message.timestamp.after.max.ms")
    assert f"{limited} has message.timestamp.after.max.ms=3600000" in ended.err
    take_any_time(kafka, limited)
    ended = app.run()
    assert ended.code == 0
    assert "message.timestamp" not in ended.err
    assert updates_in_order(app.read()) == app.stored() == counted(range(COUNT))
