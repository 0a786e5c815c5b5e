"""A change of the partition count in memory: each step repeated after a death, and each refusal.

I46: no start goes on in between, and no record is without a copy.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import HostFailure, Locked, Misuse, StateStoreError, TopologyMismatch
from statestore.faults import CrashPoint, on_reach
from statestore.kafka.partitioner import crc32_partition, murmur2_partition
from statestore.layout.folders import StateLayout
from statestore.model.ids import TopicPartition
from statestore.operations.repartition.apply import repartition
from statestore.operations.repartition.partition_plan import Inputs, RepartitionReport
from statestore.operations.repartition.planner import PartitionsAsked
from statestore.operations.reset import ResetTo, reset
from statestore.operations.running.run import RunRequest, RunSummary
from statestore.operations.running.runner import serve_here, start_run
from statestore.operations.status.status import read_status
from statestore.operations.unfinished import repartition_file
from statestore.ports import Records, TopicSpec
from statestore.runtime import Runtime
from statestore.spark.datasource import TransactionalStore
from statestore.testing.memory_broker import MemoryBroker
from tests.builders import ManualClock
from tests.contract import user_stores
from tests.contract.mirrored_stores import MirroredSpec, MirroredStore
from tests.relocation_rig import in_memory_folder

Hash = Callable[[bytes, int], int]
POINTS = [point for point in CrashPoint if point.startswith("repartition.")]
WORDS = MirroredSpec("words", serdes.STRING, serdes.INT64)


class Died(BaseException):
    """The process ended at a crash point."""


def counting() -> ss.Topology:
    """Counts by key, and by the first letter below a repartition."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    records = b.stream("in")
    records.group_by_key().count("counts")
    records.group_by(lambda key, _value: key[0], name="letters-by").count("letters")
    return b.build()


def finding() -> ss.Topology:
    """Counts of all topics that are there, by key and by the first letter below a repartition."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    records = b.stream(re.compile(".*"))
    records.group_by_key().count("counts")
    records.group_by(lambda key, _value: key[0], name="letters-by").count("letters")
    return b.build()


def keeping(keep: Callable[[Any, str], str]) -> ss.Topology:
    """A processor that puts rows under keys that it makes of those of records."""
    store = ss.persistent_key_value_store("kept", key_serde=serdes.STRING, value_serde=serdes.INT64)

    class Keep:
        def __init__(self, context: "ss.ProcessorContext[Any, Any]") -> None:
            self._context, self._kept = context, context.store(store)

        def process(self, record: "ss.Record[str, Any]") -> None:
            self._kept.put(keep(self._context, record.key), record.value)

    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.stream("in").process(Keep, store, name="keep")
    return b.build()


def mirrored() -> ss.Topology:
    """A kind of store that one file adds (test_new_kind.py)."""

    class Keep:
        def __init__(self, context: "ss.ProcessorContext[Any, Any]") -> None:
            self._words: MirroredStore = context.store("words")

        def process(self, record: "ss.Record[str, Any]") -> None:
            self._words.put_all([(record.key, record.value)])

    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.stream("in").process(Keep, WORDS, name="keep")
    return b.build()


@dataclass
class World:
    """A broker in memory, and a state dir."""

    root: Path
    pipeline: ss.Topology
    partitions: int = 2
    place: Hash = murmur2_partition
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    sent: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker.cluster("app").create([TopicSpec("in", self.partitions, {})])

    @property
    def layout(self) -> StateLayout:
        return StateLayout(self.root / "state", "app")

    def runtime(self, **more: object) -> Runtime:
        settings = {
            "application.id": "app",
            "state.dir": str(self.root / "state"),
            "bootstrap.servers": "memory:9092",
            "processing.guarantee": "exactly_once",
            "statestore.lock.wait.ms": 0,
            **more,
        }
        return Runtime(settings, clock=ManualClock(), brokers=self.broker.clients)

    def send(self, count: int, *, by: int | None = None, topic: str = "in") -> "World":
        """Some records of 50 keys; `by`: placed as if there were so many partitions."""
        for n in range(count):
            key = f"{'abcdefg'[n % 7]}{n % 50}"
            at = TopicPartition(topic, self.place(key.encode(), by or self.partitions))
            self.broker.produce(at, ss.Record(key.encode(), serdes.INT64.serialize(n), 1000 + n))
            self.sent[key] = self.sent.get(key, 0) + 1
        return self

    def run(self) -> RunSummary:
        with (
            self.runtime() as runtime,
            start_run(runtime, self.pipeline, RunRequest()) as started,
        ):
            return serve_here(started, Event())

    def change(
        self,
        partitions: int,
        inputs: Inputs = Inputs.GROW,
        *,
        partitioner: str | None = None,
        dry_run: bool = False,
    ) -> RepartitionReport:
        with self.runtime() as runtime:
            asked = PartitionsAsked(partitions, inputs, partitioner)
            report = repartition(runtime, self.pipeline, asked, dry_run=dry_run)
        if not dry_run:
            self.partitions = partitions
        return report

    def rows(self, store: str = "counts") -> dict[str, Any]:
        """What the Data Source shows; a key twice fails."""
        named = {"state_dir": str(self.root / "state"), "application_id": "app", "store": store}
        source = TransactionalStore(named)
        reader = source.reader(source.schema())
        batches: list[Any] = [b for part in reader.partitions() for b in reader.read(part)]
        found = [(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()]
        assert len(dict(found)) == len(found)
        return dict(found)

    def topics(self) -> Mapping[str, int]:
        cluster = self.broker.cluster("app")
        return cluster.partitions(cluster.topics())

    def all(self) -> Any:
        """All topics, their ids and records, the offsets, and the names of files."""
        cluster = self.broker.cluster("app")
        names = cluster.topics()
        offsets = cluster.group_offsets(
            [TopicPartition(t, p) for t, n in cluster.partitions(names).items() for p in range(n)]
        )
        records = {name: self.broker.records(name) for name in names}
        files = sorted(path for path in self.root.rglob("*") if path.suffix == ".json")
        said = {path: path.read_bytes() for path in files if path.name != "owner.json"}
        return cluster.topic_ids(names), offsets, records, said


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory_folder() as found:
        yield found


def died(world: World, point: CrashPoint, partitions: int, visit: int = 1) -> None:
    """A change that ends at a visit of a point."""
    left = [visit]

    def end(reached: CrashPoint) -> None:
        if reached is point:
            left[0] -= 1
            if not left[0]:
                raise Died

    on_reach(end)
    try:
        with pytest.raises(Died):
            world.change(partitions)
    finally:
        on_reach(None)


@pytest.mark.parametrize("place", [murmur2_partition, crc32_partition])
def test_keys_and_outputs_go_on_whichever_hash_placed_them(folder: Path, place: Hash) -> None:
    world = World(folder, counting(), place=place).send(100)
    world.run()
    report = world.change(7)
    name = "murmur2" if place is murmur2_partition else "crc32"
    assert {s.store: s.placed_by for s in report.plan.stores} == {
        "counts": name,
        "letters": "murmur2",
    }
    world.send(100).run()
    assert world.rows() == world.sent
    assert sum(world.rows("letters").values()) == 200
    world.change(3, Inputs.RECREATE)
    world.send(100).run()
    assert world.rows() == world.sent
    assert sum(world.rows("letters").values()) == 300
    assert not [topic for topic in world.topics() if topic.endswith("-repartitioning")]
    assert {world.topics()[f"app-{s}-changelog"] for s in ("counts", "letters")} == {3}


@pytest.mark.parametrize("pipeline", [counting, finding], ids=["names", "pattern"])
def test_deaths_at_every_point_are_gone_on_from_and_no_start_comes_between(
    folder: Path, pipeline: Callable[[], ss.Topology]
) -> None:
    world = World(folder, pipeline()).send(60)
    world.run()
    for point in POINTS:
        died(world, point, 3)
        if point is not CrashPoint.REPARTITION_DONE:
            with pytest.raises(StateStoreError, match="statestore repartition"):
                world.run()
        if repartition_file(world.layout).exists():
            with pytest.raises(Misuse, match="was begun and not finished"):
                world.change(4)
            with world.runtime() as runtime, pytest.raises(Misuse, match="not finished"):
                reset(runtime, ResetTo())
    world.partitions = 3
    world.send(60).run()
    assert world.rows() == world.sent
    assert not [topic for topic in world.topics() if topic.endswith("-repartitioning")]


def test_a_change_that_died_before_its_journal_leaves_the_application_as_it_was(
    folder: Path,
) -> None:
    world = World(folder, counting()).send(60)
    world.run()
    world.broker.cluster("app").grow({"in": 2})
    died(world, CrashPoint.REPARTITION_INPUTS_GROWN, 3)
    with pytest.raises(StateStoreError, match="statestore repartition"):
        world.run()
    world.change(3, Inputs.KEEP)
    world.send(60).run()
    assert world.rows() == world.sent


@pytest.mark.parametrize(
    "point", [CrashPoint.REPARTITION_JOURNALLED, CrashPoint.REPARTITION_TOPIC_MADE]
)
def test_a_volume_that_is_lost_in_a_change_is_missed_before_a_start_begins_without_state(
    folder: Path, point: CrashPoint
) -> None:
    world = World(folder, counting()).send(100)
    world.run()
    died(world, point, 7)
    kept = {
        path: path.read_bytes()
        for path in (repartition_file(world.layout), world.layout.application_dir / "topology.json")
    }
    shutil.rmtree(world.root / "state")
    before = world.all()
    with pytest.raises(Misuse, match=r"app-counts-changelog-repartitioning.*repartition\.json"):
        world.run()
    assert world.all() == before
    for path, text in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    world.change(7)
    world.send(100).run()
    assert world.rows() == world.sent


def test_an_input_that_was_created_again_with_fewer_partitions_is_refused(folder: Path) -> None:
    world = World(folder, counting()).send(60)
    world.run()
    cluster = world.broker.cluster("app")
    cluster.remove(["in"], None)
    cluster.create([TopicSpec("in", world.partitions - 1, {})])
    before = world.topics()
    with pytest.raises(Misuse, match="has lost what nobody knows to be processed"):
        world.change(world.partitions - 1)
    assert world.topics() == before


def test_status_names_the_command_for_a_grown_input_and_for_a_change_half_done(
    folder: Path,
) -> None:
    world = World(folder, counting()).send(20)
    world.run()

    def problems() -> str:
        with world.runtime() as runtime:
            return "\n".join(read_status(runtime).problems)

    assert "repartition" not in problems()
    world.broker.cluster("app").grow({"in": 5})
    assert "2: a start is refused until `statestore repartition --partitions 5`" in problems()
    died(world, CrashPoint.REPARTITION_JOURNALLED, 5)
    assert "begun and not finished" in problems()
    world.change(5)
    assert "repartition" not in problems()


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(folder: Path) -> None:
    world = World(folder, counting()).send(60)
    world.run()
    before = world.all()
    report = world.change(4, dry_run=True)
    assert world.all() == before
    assert not report.applied
    assert {(t.topic, t.role, t.before, t.after) for t in report.plan.topics} == {
        ("in", "input", 2, 4),
        ("app-letters-by-repartition", "repartition", 2, 4),
        ("app-counts-changelog", "changelog", 2, 4),
        ("app-letters-changelog", "changelog", 2, 4),
    }


def test_a_journal_that_cannot_be_written_changes_nothing_but_the_copies(folder: Path) -> None:
    world = World(folder, counting()).send(60)
    world.run()
    before = world.all()
    journal = repartition_file(world.layout)
    temporary = journal.with_name(f".{journal.name}.{os.getpid()}.tmp")

    def fill_the_volume(point: CrashPoint) -> None:
        # What `publish` writes first is in the way, as if there were no space for it.
        if point is CrashPoint.REPARTITION_COPIED:
            temporary.mkdir(exist_ok=True)

    on_reach(fill_the_volume)
    try:
        with pytest.raises(HostFailure):
            world.change(3)
    finally:
        on_reach(None)
    ids, offsets, _, said = world.all()
    assert {name: ids[name] for name in before[0]} == before[0]
    assert (offsets, said) == (before[1], before[3])
    temporary.rmdir()
    world.change(3)
    world.send(60).run()
    assert world.rows() == world.sent


@pytest.mark.parametrize(("partitions", "inputs"), [(7, Inputs.GROW), (1, Inputs.RECREATE)])
def test_an_open_transaction_in_an_input_is_refused_as_nobody_sees_its_records_yet(
    folder: Path, partitions: int, inputs: Inputs
) -> None:
    world = World(folder, counting()).send(100)
    world.run()
    producer = world.broker.outbox("theirs", "theirs")
    producer.open()
    producer.begin()
    producer.send(Records("in", [b"late"], [serdes.INT64.serialize(1)], [2000], partition=0))
    producer.flush()
    before = world.all()
    for dry_run in (True, False):
        with pytest.raises(Misuse, match="in-0 has a transaction that is open"):
            world.change(partitions, inputs, dry_run=dry_run)
    assert world.all() == before
    producer.abort()
    world.run()
    world.change(partitions, inputs)
    world.send(100).run()
    assert world.rows() == world.sent


def test_two_at_once_are_one_and_a_locked_one(folder: Path) -> None:
    world = World(folder, counting()).send(20)
    world.run()
    with (
        world.layout.alone(wait_ms=0, clock=ManualClock()),
        pytest.raises(Locked),
    ):
        world.change(3)


def test_records_under_way_are_refused_only_where_they_would_be_out_of_place(
    folder: Path,
) -> None:
    world = World(folder, counting()).send(60)
    world.run()
    world.send(60)
    before = world.all()
    with pytest.raises(Misuse, match="process everything to the end first"):
        world.change(3)
    assert world.all() == before
    world.run()
    # Producers that know the new count may have written already.
    world.broker.cluster("app").grow({"in": 3})
    world.send(60, by=3)
    world.change(3, Inputs.KEEP)
    world.run()
    assert world.rows() == world.sent


@pytest.mark.parametrize(
    ("partitions", "inputs", "says"),
    [
        (0, Inputs.GROW, "pass a number from 1 to"),
        (-1, Inputs.GROW, "pass a number from 1 to"),
        (3, Inputs.KEEP, "--grow-inputs"),
        (1, Inputs.GROW, "too few"),
    ],
)
def test_a_wrong_count_is_refused_and_the_present_one_changes_nothing(
    folder: Path, partitions: int, inputs: Inputs, says: str
) -> None:
    world = World(folder, counting()).send(20)
    world.run()
    before = world.all()
    with pytest.raises(Misuse, match=says):
        world.change(partitions, inputs)
    assert not world.change(2, inputs).applied
    assert world.all() == before


def test_rows_under_other_keys_are_refused_by_name(folder: Path) -> None:
    total = keeping(lambda context, _key: f"total of {context.task_id}")
    world = World(folder, total).send(60)
    world.run()
    before = world.all()
    with pytest.raises(Misuse, match="store kept: the row of key b'total of 0_"):
        world.change(3)
    assert world.all() == before


def test_one_partition_shows_no_hash_so_it_has_to_be_said(folder: Path) -> None:
    world = World(folder, counting(), partitions=1, place=crc32_partition).send(60)
    world.run()
    with pytest.raises(Misuse, match="--partitioner"):
        world.change(3)
    world.change(3, partitioner="crc32")
    world.send(60).run()
    assert world.rows() == world.sent


def test_a_store_of_a_users_own_class_is_divided_by_the_keys_in_its_changelog(folder: Path) -> None:
    world = World(folder, user_stores.topology(user_stores.supplier())).send(60)
    world.broker.cluster("app").create([TopicSpec("out", 2, {})])
    world.run()

    def rows() -> dict[str, str]:
        folders = [world.layout.store_dir(t, "book") for t in world.layout.tasks()]
        found = [user_stores.rows_in(f) for f in folders if (f / "rows.json").exists()]
        assert sum(map(len, found)) == len(world.sent), "each key lies in one partition"
        return {key: value for one in found for key, value in one.items()}

    before = rows()
    world.change(5)
    world.run()
    assert rows() == before
    world.send(60).run()
    rows()


def test_a_topic_of_the_pipeline_is_never_taken_for_a_copy(folder: Path) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.stream("in").group_by_key().count("counts").to_stream().to(
        "app-counts-changelog-repartitioning", key_serde=serdes.STRING, value_serde=serdes.INT64
    )
    world = World(folder, b.build()).send(20)
    world.broker.cluster("app").create([TopicSpec("app-counts-changelog-repartitioning", 2, {})])
    world.run()
    before = world.all()
    with pytest.raises(Misuse, match="give the topic another name first"):
        world.change(3)
    assert world.all() == before


def test_an_application_without_stores_or_without_records_is_changed_too(folder: Path) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.stream("in").map_values(lambda value: value + 1).to("out")
    world = World(folder / "no stores", b.build()).send(40)
    world.broker.cluster("app").create([TopicSpec("out", 2, {})])
    world.run()
    world.change(7)
    world.send(40).run()
    assert len(world.broker.records("out")) == 80
    world.change(1, Inputs.RECREATE)
    world.send(40).run()
    assert len(world.broker.records("out")) == 120
    empty = World(folder / "no records", counting())
    empty.run()
    empty.change(7)
    empty.send(40).run()
    assert empty.rows() == empty.sent


def test_another_pipeline_than_the_deployed_one_is_refused(folder: Path) -> None:
    other = World(folder, counting()).send(20)
    other.run()
    other.pipeline = keeping(lambda _context, key: key)
    with pytest.raises(TopologyMismatch, match="change one thing at a time"):
        other.change(3)


def test_a_kind_of_store_that_one_file_adds_is_divided_too(folder: Path) -> None:
    world = World(folder, mirrored()).send(50)
    world.run()
    before = world.rows("words")
    world.change(5)
    world.run()
    assert world.rows("words") == before
    assert len(before) == 50


def test_stores_that_are_lost_or_were_never_there_are_divided_from_their_changelogs(
    folder: Path,
) -> None:
    world = World(folder, counting(), partitions=4)
    for key in ("a0", "a7"):
        at = TopicPartition("in", murmur2_partition(key.encode(), 4))
        world.broker.produce(at, ss.Record(key.encode(), serdes.INT64.serialize(1), 1000))
        world.sent[key] = 1
    world.run()
    for task in list(world.layout.tasks())[::2]:
        for store in world.layout.stores(task):
            path = world.layout.store_dir(task, store)
            world.layout.quarantine(path, store, "unreadable", ManualClock())
    world.change(7, partitioner="murmur2")
    world.run()
    assert world.rows() == world.sent


def test_what_the_plan_says_can_be_written_and_read(folder: Path) -> None:
    world = World(folder, counting()).send(20)
    world.run()
    died(world, CrashPoint.REPARTITION_JOURNALLED, 3)
    said = json.loads(repartition_file(world.layout).read_bytes())
    assert said["input_partitions"] == 3
    assert {part["after"] for part in said["parts"]} == {3}
