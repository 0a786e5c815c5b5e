"""Inputs that an application reads for the first time, from their end or from a time on."""

import signal
from datetime import timedelta

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

import statestore as ss
from statestore.faults import CrashPoint
from tests.builders import DEADLINE_S, eventually
from tests.kafka.run_pipelines import PREFIX_VARIABLE, builder, prefix
from tests.kafka.run_rig import START_MS, App

pytestmark = pytest.mark.kafka

OLD, NEW = range(20), range(20, 50)


def from_the_end() -> ss.Topology:
    return copying(ss.AutoOffsetReset.latest())


def copying(begins: ss.AutoOffsetReset | None, *more: str) -> ss.Topology:
    b = builder()
    topics = [f"{prefix()}-{name}" for name in ("in", *more)]
    b.stream(topics, offset_reset=begins).map_values(lambda value: value["number"]).to(
        f"{prefix()}-out"
    )
    return b.build()


@pytest.fixture(autouse=True)
def topics_begin_with(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, app.name)


def run(app: App, topology: ss.Topology, **settings: object) -> list[int]:
    """The numbers read so far, in order."""
    ss.run(topology, ss.Settings.from_mapping(app.run_settings(**settings)))
    return sorted(int(row.value) for row in app.read())


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_an_input_begins_at_its_end_once_and_goes_on_from_there(app: App, guarantee: str) -> None:
    settings = {"processing.guarantee": guarantee}
    latest = copying(ss.AutoOffsetReset.latest())
    assert run(app, latest, **settings) == []
    app.produce(NEW)
    assert run(app, latest, **settings) == list(NEW)
    assert run(app, latest, **settings) == list(NEW)


def test_a_table_begins_at_its_end_once(app: App) -> None:
    b = builder()
    latest = ss.AutoOffsetReset.latest()
    table = b.table(f"{app.name}-in", materialized="table", offset_reset=latest)
    table.map_values(lambda value: value["number"]).to_stream().to(f"{app.name}-out")
    topology = b.build()
    assert run(app, topology) == []
    app.produce(NEW)
    assert run(app, topology) == list(NEW)


@pytest.mark.parametrize(
    ("begins", "expected"),
    [
        (ss.AutoOffsetReset.earliest(), OLD),
        (ss.AutoOffsetReset.at_time(START_MS + 15), range(15, 20)),
        (ss.AutoOffsetReset.at_time(START_MS + 1000), []),
        (ss.AutoOffsetReset.by_duration(timedelta(days=1)), []),
        (ss.AutoOffsetReset.by_duration(timedelta(days=100_000)), OLD),
    ],
)
def test_an_input_begins_at_a_time(
    app: App, begins: ss.AutoOffsetReset, expected: range | list[int]
) -> None:
    assert run(app, copying(begins)) == list(expected)


def test_only_an_input_that_is_new_begins_at_its_end(app: App) -> None:
    assert run(app, copying(None)) == list(OLD)
    app.kafka.create_topic(f"{app.name}-more", 2, {"retention.ms": -1})
    app.produce(range(100, 110), topic="more")
    app.produce(NEW)
    latest = copying(ss.AutoOffsetReset.latest(), "more")
    assert run(app, latest) == [*OLD, *NEW]
    app.produce(range(110, 120), topic="more")
    assert run(app, latest) == [*OLD, *NEW, *range(110, 120)]


def test_a_partition_that_is_added_later_begins_at_its_start(app: App) -> None:
    latest = copying(ss.AutoOffsetReset.latest())
    assert run(app, latest) == []
    admin = AdminClient({"bootstrap.servers": app.kafka.bootstrap_servers})
    for made in admin.create_partitions([NewPartitions(f"{app.name}-in", 3)]).values():
        made.result(timeout=DEADLINE_S)
    eventually(lambda: len(app.bounds(f"{app.name}-in")) == 3, "the partition is known")
    app.produce(NEW, partition=2)
    assert run(app, latest) == list(NEW)


def test_offsets_that_were_forgotten_do_not_begin_at_the_end_again(app: App) -> None:
    latest = copying(ss.AutoOffsetReset.latest())
    run(app, latest)
    app.produce(NEW)
    run(app, latest)
    app.forget_offsets()
    app.produce(range(50, 60))
    with pytest.raises(ss.errors.RecordFailed, match="the group has no offset of input"):
        run(app, latest)


def test_a_run_killed_after_it_said_where_inputs_begin_begins_there(app: App) -> None:
    pipeline = "tests.kafka.test_first_offsets:from_the_end"
    killed = app.run(pipeline=pipeline, crash_at=CrashPoint.OFFSETS_BEGUN)
    assert killed.code == -signal.SIGKILL
    app.produce(NEW)
    assert run(app, from_the_end()) == list(NEW)
