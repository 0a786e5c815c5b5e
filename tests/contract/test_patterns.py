"""Sources that find their topics by a pattern, over RocksDB and a broker in memory: run after run.

Shows I41.
"""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import statestore as ss
from statestore import faults, serdes
from statestore.errors import InvalidTopology, Misuse, NotCopartitioned, UnknownStore
from statestore.faults import CrashPoint
from statestore.kafka.partitioner import murmur2_partitions
from statestore.layout.folders import StateLayout
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.clones.clone import clone_export
from statestore.operations.deployed import read_deployed
from statestore.operations.exports.create import create_export_for_clones
from statestore.operations.relocation.apply import relocate
from statestore.operations.relocation.relocation_plan import Choices
from statestore.operations.reset import ResetTo, reset
from statestore.operations.running.create_topics import Partitions, create_topics
from statestore.operations.running.run import PlannedTask, RunRequest, RunSummary
from statestore.operations.running.runner import (
    check_run,
    run_request,
    serve_here,
    serve_planned,
    start_run,
)
from statestore.operations.running.waiting_input import waiting_input
from statestore.operations.status.status import read_status
from statestore.ports import TopicSpec
from statestore.runtime import Runtime
from statestore.testing import TopologyTestDriver
from statestore.testing.memory_broker import MemoryBroker
from tests.builders import ManualClock

APP = "app"
OUT = "totals"


class Killed(BaseException):
    """A death at a crash point."""


def counting(
    pattern: str = "orders-.*", *, begins: ss.AutoOffsetReset | None = None
) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    orders = b.stream(re.compile(pattern), name="orders", offset_reset=begins)
    orders.group_by_key().count("sums").to_stream().to(OUT, value_serde=serdes.JSON)
    return b.build()


def by_value() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    again = b.stream(re.compile("orders-.*"), name="orders").select_key(lambda _k, v: str(v))
    again.group_by_key(name="by-value").count("sums").to_stream().to(OUT, value_serde=serdes.JSON)
    return b.build()


@dataclass
class World:
    """A broker in memory with one matching topic of two partitions, and a state dir."""

    state_dir: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    clock: Any = field(default_factory=ManualClock)
    settings: dict[str, object] = field(default_factory=dict)
    app: str = APP
    sent: int = 0

    def __post_init__(self) -> None:
        self.create("orders-a", 2)
        self.create(OUT, 2)

    def create(self, name: str, partitions: int) -> None:
        self.broker.cluster(APP).create([TopicSpec(name, partitions, {})])

    def drop(self, name: str) -> None:
        self.broker.cluster("nobody").remove([name], "nobody")

    def send(self, topic: str, key: str, count: int = 1, partition: int | None = None) -> None:
        if partition is None:
            width = self.broker.cluster(APP).partitions([topic])[topic]
            (partition,) = murmur2_partitions([key.encode()], width)
        for _ in range(count):
            self.sent += 1
            record = Record(key.encode(), json.dumps(self.sent).encode(), self.sent)
            self.broker.produce(TopicPartition(topic, partition), record)

    def runtime(self, **settings: object) -> Runtime:
        known: dict[str, object] = {
            "application.id": self.app,
            "state.dir": str(self.state_dir),
            "bootstrap.servers": "memory:9092",
            "processing.guarantee": "exactly_once",
            **self.settings,
            **settings,
        }
        return Runtime(known, clock=self.clock, brokers=self.broker.clients)

    def run(self, topology: ss.Topology | None = None) -> RunSummary:
        with (
            self.runtime() as runtime,
            start_run(runtime, topology or counting(), RunRequest()) as started,
        ):
            return serve_here(started, Event())

    def planned(self, topology: ss.Topology | None = None) -> list[PlannedTask]:
        with (
            self.runtime() as runtime,
            start_run(runtime, topology or counting(), RunRequest()) as started,
        ):
            return [task for wave in started.waves() for task in wave]

    def sums(self, topic: str = OUT) -> dict[str, Any]:
        rows = self.broker.records(topic)
        return {(row.key or b"").decode(): json.loads(row.value or b"") for row in rows}

    def layout(self) -> StateLayout:
        return StateLayout(self.state_dir, self.app)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.on_reach(None)


# New topics.


def test_a_new_topic_joins_at_the_next_run_with_all_its_partitions(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "statestore")
    world.send("orders-a", "a", 3)
    world.send("orders-a", "b", 2)
    assert world.run().records_in == 5
    world.create("orders-b", 2)
    world.create("bills-a", 2)
    world.send("orders-b", "a", 2)
    world.send("orders-b", "b")
    world.send("bills-a", "a", 5)
    caplog.clear()
    assert world.run().records_in == 3
    assert world.sums() == {"a": 5, "b": 3}
    assert "new topics match 'orders-.*': orders-b" in caplog.text
    caplog.clear()
    assert world.run().records_in == 0
    assert "match" not in caplog.text


def test_a_new_topic_is_no_change_of_topology(world: World) -> None:
    world.send("orders-a", "a")
    world.run()
    before = read_deployed(world.layout())
    world.create("orders-b", 2)
    with world.runtime() as runtime:
        preview = check_run(runtime, counting(), RunRequest())
        assert relocate_plan_is_empty(runtime)
    assert not preview.relocation.plan.touches_disk
    world.run()
    after = read_deployed(world.layout())
    assert after.fingerprint == before.fingerprint
    assert after.sub_topologies[0].source_topics == ["orders-a", "orders-b"]
    assert after.sub_topologies[0].patterns == ["orders-.*"]


def relocate_plan_is_empty(runtime: Runtime) -> bool:
    report = relocate(runtime, counting(), Choices(), dry_run=False, offline=False)
    return not report.plan.touches_disk


def test_a_topic_that_is_created_during_a_run_is_not_read_by_half_of_its_tasks(
    world: World,
) -> None:
    """The planner resolves, once; a task that starts later does not look for itself."""
    world.send("orders-a", "a")
    world.send("orders-a", "b")
    topology, request, stop = counting(), RunRequest(), Event()
    with world.runtime() as runtime, start_run(runtime, topology, request) as started:
        (wave,) = started.waves()
        first, second = wave
        serve_planned(runtime, topology, [first], request, slots=1, stop=stop)
        world.create("orders-b", 2)
        world.send("orders-b", "a")
        world.send("orders-b", "b")
        serve_planned(runtime, topology, [second], request, slots=1, stop=stop)
    assert world.sums() == {"a": 1, "b": 1}
    assert world.run().records_in == 2
    assert world.sums() == {"a": 2, "b": 2}


def test_a_task_that_starts_later_does_not_ask_which_topics_match(world: World) -> None:
    """A topic that the next start refuses, as two patterns match it, does not end this run."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    b.stream(re.compile("orders-.*"), name="orders").to(OUT)
    b.stream(re.compile(".*-z"), name="last").to(OUT)
    topology, request = b.build(), RunRequest()
    world.send("orders-a", "a")
    world.send("orders-a", "b")
    with world.runtime() as runtime, start_run(runtime, topology, request) as started:
        (wave,) = started.waves()
        world.create("orders-z", 2)
        serve_planned(runtime, topology, wave, request, slots=1, stop=Event())
    assert world.sums() == {"a": 1, "b": 2}
    with pytest.raises(InvalidTopology, match="orders-z"):
        world.run(topology)


def test_a_continuous_run_reads_what_matches_when_it_starts(world: World) -> None:
    world.create("orders-b", 2)
    world.send("orders-b", "a", 2)
    with (
        world.runtime() as runtime,
        start_run(runtime, counting(), run_request(run_for=200)) as started,
    ):
        (wave,) = started.waves()
        assert {topic for task in wave for topic, _, _ in task.inputs} == {"orders-a", "orders-b"}
        assert all(task.matches == {"orders": ["orders-a", "orders-b"]} for task in wave)


@pytest.mark.parametrize("begins", ["latest", "earliest"])
def test_each_new_topic_begins_where_its_source_says(world: World, begins: str) -> None:
    at = getattr(ss.AutoOffsetReset, begins)()
    world.run(counting(begins=at))
    world.create("orders-b", 2)
    world.send("orders-b", "old", 2)
    world.run(counting(begins=at))
    world.send("orders-b", "new", 2)
    world.run(counting(begins=at))
    assert world.sums() == ({"new": 2} if begins == "latest" else {"old": 2, "new": 2})


def test_own_topics_and_dead_letters_are_never_read(world: World) -> None:
    world.settings = {"errors.dead.letter.queue.topic.name": "letters"}
    world.create("letters", 2)
    world.create("__hidden", 2)
    world.send("letters", "x")
    world.send("__hidden", "x")
    world.send("orders-a", "a")
    topology = counting(f"(?!{OUT}$).*")
    assert [world.run(topology).records_in for _ in range(2)] == [1, 0]
    assert read_deployed(world.layout()).sub_topologies[0].source_topics == ["orders-a"]


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.OFFSETS_BEGUN,
        CrashPoint.START_OFFSETS_KNOWN,
        CrashPoint.COMMIT_OFFSETS_SENT,
        CrashPoint.COMMIT_LOG_DONE,
        CrashPoint.COMMIT_STORE_WRITTEN,
    ],
)
def test_a_run_killed_as_a_topic_joins_counts_each_record_once(
    world: World, point: CrashPoint
) -> None:
    latest = ss.AutoOffsetReset.latest() if point == CrashPoint.OFFSETS_BEGUN else None
    topology = counting(begins=latest)
    world.run(topology)
    world.send("orders-a", "a", 3)
    world.run(topology)
    world.create("orders-b", 2)
    world.send("orders-a", "a", 2)
    world.send("orders-b", "b", 2)

    def die(reached: CrashPoint) -> None:
        if reached == point:
            raise Killed

    faults.on_reach(die)
    with pytest.raises(Killed):
        world.run(topology)
    faults.on_reach(None)
    world.send("orders-b", "b")
    world.run(topology)
    world.run(topology)
    # From its end on, which was when the killed run said so.
    assert world.sums() == {"a": 5, "b": 1 if latest else 3}


# No topic, fewer topics, other topics.


def test_a_run_without_a_matching_topic_ends_well_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.drop("orders-a")
    for topology in (by_value(), counting()):
        summary = world.run(topology)
        assert (summary.stream_tasks, summary.records_in, summary.caught_up) == (0, 0, True)
        assert "no topic matches 'orders-.*' of source orders" in caplog.text
        with world.runtime() as runtime:
            check_run(runtime, topology, RunRequest())
            read_status(runtime)
    world.create("orders-a", 2)
    world.send("orders-a", "a", 2)
    assert world.run().records_in == 2
    assert world.sums() == {"a": 2}


def test_two_patterns_are_joined_as_their_topics_come(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    orders = b.stream(re.compile("orders-.*"), name="orders")
    bills = b.stream(re.compile("bills-.*"), name="bills").select_key(lambda k, _v: k)
    near = ss.JoinWindows(1000)
    orders.join(bills, lambda o, bill: [o, bill], near, name="paid").to(OUT)
    topology = b.build()
    world.drop("orders-a")
    assert world.run(topology).stream_tasks == 0
    world.create("bills-a", 2)
    world.send("bills-a", "a")
    assert world.run(topology).records_in == 2
    world.create("orders-a", 3)
    with pytest.raises(NotCopartitioned):
        world.run(topology)
    world.drop("orders-a")
    world.create("orders-b", 2)
    world.send("orders-b", "a")
    assert world.run(topology).records_in == 1
    assert world.sums() == {"a": [2, 1]}


def test_another_pipeline_goes_on_where_the_last_one_was(world: World) -> None:
    """From a list of topics to a pattern, to a narrower one, and back."""
    named = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    orders = named.stream(["orders-a", "orders-b"])
    orders.group_by_key().count("sums").to_stream().to(OUT, value_serde=serdes.JSON)
    world.create("orders-b", 4)
    topologies = [named.build(), counting(), counting("orders-a"), counting(), named.build()]
    for topology in topologies:
        world.send("orders-a", "a")
        world.send("orders-b", "b")
        world.run(topology)
    world.run(counting())
    assert sum(world.sums().values()) == 2 * len(topologies)


def test_it_is_the_same_at_least_once_and_with_batches_of_one(world: World) -> None:
    world.settings = {
        "processing.guarantee": "at_least_once",
        "statestore.batch.max.records": 1,
    }
    world.send("orders-a", "a", 3)
    world.run()
    world.create("orders-b", 2)
    world.send("orders-b", "a", 3)
    world.run()
    assert world.sums() == {"a": 6}


def test_another_source_goes_on_without_a_matching_topic(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    people = b.table("orders-a", materialized="people")
    b.stream(re.compile("bills-.*"), name="bills").join(people, lambda v, p: [v, p]).to(OUT)
    topology = b.build()
    world.send("orders-a", "a")
    assert world.run(topology).records_in == 1
    world.create("bills-a", 2)
    world.send("bills-a", "a")
    world.run(topology)
    assert world.sums() == {"a": [2, 1]}


def test_a_topic_that_is_gone_is_told_once_and_the_rest_is_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.create("orders-b", 4)
    world.send("orders-b", "b", 2, partition=3)
    world.send("orders-a", "a", 2)
    world.run()
    world.drop("orders-b")
    world.send("orders-a", "a", 1)
    assert world.run().records_in == 1
    assert "topics that matched 'orders-.*' are gone: orders-b" in caplog.text
    caplog.clear()
    world.send("orders-a", "a")
    summary = world.run()
    assert "gone" not in caplog.text
    assert (summary.stream_tasks, summary.records_in) == (4, 1)
    world.drop("orders-a")
    assert world.run().records_in == 0
    world.create("orders-c", 4)
    world.send("orders-c", "b", 1, partition=3)
    world.run()
    assert world.sums() == {"a": 4, "b": 3}


def test_a_store_and_a_repartition_topic_of_one_name_are_told_apart(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    b.stream(re.compile("orders-.*")).group_by_key().count("same")
    bills = b.stream(re.compile("bills-.*")).select_key(lambda k, _v: k)
    bills.group_by_key(name="same").count("sums")
    topology = b.build()
    world.create("bills-a", 4)
    for _ in range(2):
        world.send("orders-a", "a")
        world.send("bills-a", "a")
        assert world.run(topology).stream_tasks == 2 + 4 + 4


def test_forgotten_offsets_and_a_lost_state_dir_are_refused_as_for_names(world: World) -> None:
    world.send("orders-a", "a")
    world.run()
    world.broker.state.groups.clear()
    world.state_dir /= "another"
    with pytest.raises(Misuse, match="never committed any input of task"):
        world.run()


def test_a_new_topic_with_more_partitions_than_the_stores_is_refused_and_none_of_it_read(
    world: World,
) -> None:
    world.send("orders-a", "a")
    world.run()
    world.create("orders-b", 3)
    world.send("orders-b", "a", 2)
    world.send("orders-a", "a")
    with pytest.raises(NotCopartitioned, match=r"app-sums-changelog has 2 partitions.* needs 3"):
        world.run()
    assert world.sums() == {"a": 1}
    world.drop("orders-b")
    world.run()
    assert world.sums() == {"a": 2}


def test_a_topic_that_two_patterns_match_ends_the_start(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    for name, pattern in (("one", "orders-.*"), ("two", ".*-a")):
        b.stream(re.compile(pattern), name=name).to(OUT)
    topology = b.build()
    with pytest.raises(InvalidTopology, match="'orders-a', which source one reads by a pattern"):
        world.run(topology)
    assert not world.layout().topology_file.exists()


# Beside a run.


def test_input_of_a_topic_that_no_run_has_read_waits(world: World) -> None:
    world.settings = {"errors.dead.letter.queue.topic.name": "orders-letters"}
    world.create("orders-letters", 2)
    world.run()
    with world.runtime() as runtime:

        def waiting() -> int:
            client = runtime.monitoring_client
            return waiting_input(runtime.layout, client, runtime.settings).records

        world.send("orders-letters", "x")
        assert waiting() == 0
        world.create("orders-b", 2)
        world.send("orders-b", "b", 3)
        assert waiting() == 3
        status = read_status(runtime)
        assert sorted(task.lag_records or 0 for task in status.stream_tasks) == [0, 3]
        world.run()
        assert waiting() == 0


def test_the_status_of_tasks_whose_topic_is_gone_is_known(world: World) -> None:
    world.create("orders-b", 3)
    world.run()
    world.drop("orders-b")
    with world.runtime() as runtime:
        assert [task.lag_records for task in read_status(runtime).stream_tasks] == [0, 0, 0]


def test_a_reset_begins_again_with_all_that_was_read(world: World) -> None:
    world.create("orders-b", 2)
    world.send("orders-a", "a", 2)
    world.send("orders-b", "b", 2)
    world.run()
    world.create("orders-c", 2)
    world.send("orders-c", "c")
    with world.runtime() as runtime:
        report = reset(runtime, ResetTo(latest=True), dry_run=False)
    assert {at.topic for at in report.offsets} == {"orders-a", "orders-b"}
    world.send("orders-a", "a")
    assert world.run().records_in == 2
    assert world.sums()["c"] == 1
    assert world.sums()["a"] == 1


def test_topics_can_be_made_before_one_matches(world: World) -> None:
    world.drop("orders-a")
    world.drop(OUT)
    with world.runtime() as runtime:
        with pytest.raises(Misuse, match=f"how many partitions shall {OUT} have"):
            create_topics(runtime, counting(), Partitions(), RunRequest())
        create_topics(runtime, counting(), Partitions(3), RunRequest())
    assert world.broker.cluster(APP).partitions([OUT]) == {OUT: 3}


# Clones.


def exporting(world: World) -> None:
    world.settings = {"statestore.export.target": str(world.state_dir.parent / "exports")}
    world.send("orders-a", "a", 2)
    world.run()
    with world.runtime() as runtime:
        create_export_for_clones(runtime, counting(".*-a"))


def test_a_clone_reads_what_matches_and_nothing_that_the_original_writes(world: World) -> None:
    pattern = f"(?!{OUT}$).*"
    world.settings = {"statestore.export.target": str(world.state_dir / "exports")}
    world.send("orders-a", "a", 2)
    world.run(counting(pattern))
    with world.runtime() as runtime:
        create_export_for_clones(runtime, counting(pattern))
        with pytest.raises(Misuse, match=r"app reads what .* matches.*trial-totals"):
            clone_export(runtime, counting(pattern), "trial")
    wide = "(?!totals$|trial-).*"
    world.run(counting(wide))
    with world.runtime() as runtime:
        create_export_for_clones(runtime, counting(wide))
        clone_export(runtime, counting(wide), "trial")
    world.app = "trial"
    world.create("orders-b", 2)
    world.send("orders-b", "a", 2)
    assert world.run(counting(wide)).records_in == 2
    assert world.sums("trial-totals") == {"a": 4}
    assert world.sums() == {"a": 2}


# The driver.


def test_the_driver_has_a_topic_join_when_a_record_is_piped_into_it() -> None:
    with TopologyTestDriver(counting(), partitions=2) as driver:
        with pytest.raises(UnknownStore, match="none before a record is piped"):
            driver.store("sums")
        with pytest.raises(Misuse, match=r"it reads: orders-\.\*"):
            driver.pipe("bills", "a", 1)
        driver.advance_wall_clock(10)
        driver.pipe("orders-a", "a", 1)
        driver.pipe("orders-b", "a", 1)
        driver.pipe_bytes("orders-c", b"a", b"1", partition=1)
        driver.crash()
        driver.pipe("orders-a", "a", 1)
        assert sorted(r.value for r in driver.read(OUT)) == [1, 1, 2, 3]
        assert driver.store("sums").get("a") == 3
    with pytest.raises(Misuse, match="closed"):
        driver.pipe("orders-d", "a", 1)


def test_the_driver_goes_over_a_repartition_topic() -> None:
    with TopologyTestDriver(by_value()) as driver:
        driver.pipe("orders-a", "a", 7)
        driver.pipe("orders-b", "b", 7)
        assert [r.value for r in driver.read(OUT)] == [1, 2]
