"""A reset: where inputs begin again, what it removes and spares, and how a death is finished."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

import statestore as ss
from statestore import faults, serdes
from statestore.errors import HostFailure, Locked, Misuse, Unavailable
from statestore.faults import CrashPoint
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import Record
from statestore.operations.clone_record import CloneRecord, publish_record, read_record
from statestore.operations.deployed import (
    Deployed,
    DeployedPart,
    DeployedStore,
    publish_deployed,
)
from statestore.operations.reset import ResetReport, ResetTo, reset
from statestore.operations.running.runner import run_request, serve_here, start_run
from statestore.operations.unfinished import require_no_reset
from statestore.ports import Records, TopicSpec
from statestore.runtime import Runtime
from statestore.tasks.plan import transactional_ids
from statestore.testing.memory_broker import MemoryBroker
from tests.builders import ManualClock

APPLICATION = "app"
LOG, REPARTITION = f"{APPLICATION}-counts-changelog", f"{APPLICATION}-by-key-repartition"
INPUT = TopicPartition("in", 0)
EARLIEST = ResetTo(earliest=True)
POINTS = [point for point in CrashPoint if point.startswith("reset.")]


class Killed(BaseException):
    """A death at a crash point."""


def describe_deployment(*, source_log: str | None = None) -> Deployed:
    parts = [
        DeployedPart(0, ["in"], tasks=2, internal=[]),
        DeployedPart(1, ["by-key-repartition"], tasks=2, internal=["by-key-repartition"]),
    ]
    store = DeployedStore(1, "STRING", "INT64", persistent=True, source_topic=source_log)
    return Deployed(fingerprint="f", sub_topologies=parts, stores={"counts": store})


@dataclass
class World:
    """An application at rest that has processed 3 of 5 records, and a broker in memory."""

    state_dir: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.layout = StateLayout(self.state_dir, APPLICATION)
        self.cluster = self.broker.cluster(APPLICATION)
        self.cluster.create([TopicSpec(name, 2, {}) for name in ("in", LOG, REPARTITION, "out")])
        for time_ms in (100, 200, 300, 400, 500):
            self.broker.produce(INPUT, Record(b"k", b"v", time_ms))
        self.commit({INPUT: 3})
        for partition in range(2):
            self.layout.create(self.layout.store_dir(TaskId(1, partition), "counts"))
        self.layout.create(self.layout.application_dir / "audits")
        publish_deployed(self.layout, describe_deployment())

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        outbox = self.broker.plain_outbox(APPLICATION)
        outbox.open()
        outbox.begin()
        outbox.send_offsets(offsets, "")
        outbox.close()

    def reset(self, to: ResetTo, *, dry_run: bool = False) -> ResetReport:
        settings = {
            "application.id": self.layout.application_id,
            "state.dir": str(self.state_dir),
            "bootstrap.servers": "in-memory:9092",
        }
        with Runtime(settings, clock=self.clock, brokers=self.broker.clients) as runtime:
            return reset(runtime, to, dry_run=dry_run)

    def committed(self) -> dict[TopicPartition, int]:
        tps = [TopicPartition("in", p) for p in range(2)]
        return {tp: at.offset for tp, at in self.cluster.group_offsets(tps).items()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    ("to", "after"),
    [
        (ResetTo(), 0),
        (EARLIEST, 0),
        (ResetTo(latest=True), 5),
        (ResetTo(time_ms=250), 2),
        (ResetTo(time_ms=501), 5),
        (ResetTo(shift=-2), 1),
        (ResetTo(shift=-9), 0),
        (ResetTo(shift=1), 4),
        (ResetTo(shift=9), 5),
    ],
)
def test_inputs_begin_again_where_they_were_asked_to(world: World, to: ResetTo, after: int) -> None:
    done = world.reset(to)
    assert done.applied
    assert world.committed()[INPUT] == after
    [moved] = [at for at in done.offsets if at.partition == 0]
    assert (moved.before, moved.after) == (3, after)


def test_internal_topics_and_state_are_gone_and_nothing_else(world: World) -> None:
    done = world.reset(EARLIEST)
    assert done.topics == [REPARTITION, LOG]
    assert set(world.broker.state.topics) == {"in", "out"}
    left = {path.name for path in world.layout.application_dir.iterdir()}
    assert left == {".lock", "owner.json", "audits"}


def test_a_folder_on_another_volume_is_removed_with_the_link_to_it(
    world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    volume = tmp_path_factory.mktemp("volume") / "1_0"
    here = world.layout.task_dir(TaskId(1, 0))
    here.rename(volume)
    here.symlink_to(volume)
    world.reset(EARLIEST)
    assert not here.is_symlink()
    assert not volume.exists()


def test_a_plan_changes_nothing(world: World) -> None:
    plan = world.reset(EARLIEST, dry_run=True)
    assert not plan.applied
    assert plan.stream_tasks == ["1_0", "1_1"]
    assert world.committed()[INPUT] == 3
    assert list(world.layout.tasks())
    assert LOG in world.broker.state.topics


def test_a_topic_that_is_a_tables_log_and_somebody_elses_input_stays(world: World) -> None:
    publish_deployed(world.layout, describe_deployment(source_log="in"))
    assert world.reset(EARLIEST).topics == [REPARTITION]
    assert "in" in world.broker.state.topics


def test_a_topic_that_another_application_has_too_is_spared(world: World) -> None:
    other = StateLayout(world.state_dir, "app-counts")
    world.layout.create(other.application_dir)
    store = DeployedStore(0, "STRING", "INT64", persistent=True)
    # Store `x` of `app-counts` and store `counts-x` of `app` have one name for their changelogs.
    shape = Deployed(
        fingerprint="f",
        sub_topologies=[DeployedPart(0, ["in"], tasks=1, internal=[])],
        stores={"counts-x": store},
    )
    publish_deployed(world.layout, shape)
    publish_deployed(
        other,
        Deployed(
            fingerprint="f",
            sub_topologies=[DeployedPart(0, ["in"], tasks=1, internal=[])],
            stores={"x": store},
        ),
    )
    with pytest.raises(Misuse, match="app-counts-x-changelog is also application app-counts's"):
        world.reset(EARLIEST)
    assert world.committed()[INPUT] == 3


def test_folders_beside_the_application_that_share_no_topic_do_not_matter(world: World) -> None:
    for name in ("lost+found", "zapp", "ap"):
        folder = world.state_dir / name
        world.layout.create(folder)
        (folder / "topology.json").write_bytes(b"damaged")
    assert world.reset(EARLIEST).applied


def test_an_unreadable_application_that_may_share_a_topic_is_not_passed_over(world: World) -> None:
    folder = world.state_dir / f"{APPLICATION}-counts"
    world.layout.create(folder)
    (folder / "topology.json").write_bytes(b"damaged")
    with pytest.raises(HostFailure, match=r"topology\.json"):
        world.reset(EARLIEST)
    assert LOG in world.broker.state.topics


def test_files_that_no_start_has_written_stay_and_a_clone_stays_a_clone(world: World) -> None:
    clone = CloneRecord(
        "original", "20260101T000000000Z-0123abcd", {"out": f"{APPLICATION}-out"}, finished=True
    )
    publish_record(world.layout, clone)
    (world.layout.application_dir / "notes.txt").write_text("mine")
    world.reset(EARLIEST)
    assert read_record(world.layout) == clone
    assert (world.layout.application_dir / "notes.txt").read_text() == "mine"


def test_an_application_whose_input_is_gone_is_reset(world: World) -> None:
    world.broker.state.topics.pop("in")
    done = world.reset(EARLIEST)
    assert done.applied
    assert done.offsets == []
    assert list(world.layout.tasks()) == []


@pytest.mark.parametrize("has_folder", [True, False])
def test_what_an_owner_left_open_is_aborted_before_offsets_are_read(
    world: World, *, has_folder: bool
) -> None:
    """The transaction hides what comes after it: the end of the input is known once it ended."""
    if not has_folder:
        shutil.rmtree(world.layout.task_dir(TaskId(1, 0)))
    outbox = world.broker.outbox(transactional_ids(APPLICATION, TaskId(1, 0))[1], APPLICATION)
    outbox.open()
    outbox.begin()
    outbox.send(Records("in", [b"k"], [b"v"], [600], partition=0))
    world.broker.produce(INPUT, Record(b"k", b"v", 700))
    done = world.reset(ResetTo(latest=True))
    [moved] = [at for at in done.offsets if at.partition == 0]
    assert moved.after > 5
    assert world.committed()[INPUT] == moved.after


def test_nothing_deployed_is_nothing_to_reset(world: World) -> None:
    world.layout.topology_file.unlink()
    with pytest.raises(Misuse, match="nothing was deployed"):
        world.reset(EARLIEST)


def test_two_places_at_once_are_refused(world: World) -> None:
    with pytest.raises(Misuse, match="one place"):
        world.reset(ResetTo(latest=True, shift=-1))


def test_a_running_application_is_not_reset(world: World) -> None:
    claim = world.layout.claim(wait_ms=0, clock=world.clock)
    with pytest.raises(Locked):
        world.reset(EARLIEST)
    claim.release()
    assert LOG in world.broker.state.topics


@pytest.mark.parametrize("point", POINTS)
def test_a_reset_that_died_is_finished_as_it_was_begun(world: World, point: CrashPoint) -> None:
    def die(at: CrashPoint) -> None:
        if at == point:
            raise Killed

    faults.on_reach(die)
    try:
        with pytest.raises(Killed):
            world.reset(ResetTo(shift=-1))
    finally:
        faults.on_reach(None)
    with pytest.raises(Misuse, match="repeat `statestore reset`"):
        require_no_reset(world.layout)
    done = world.reset(EARLIEST)  # as begun, whatever is asked for now
    require_no_reset(world.layout)
    assert {at.after for at in done.offsets if at.partition == 0} == {2}
    assert world.committed()[INPUT] == 2
    assert list(world.layout.tasks()) == []
    assert set(world.broker.state.topics) == {"in", "out"}


def test_brokers_that_do_not_answer_leave_everything_as_it_was(world: World) -> None:
    world.broker.stop()
    with pytest.raises(Unavailable):
        world.reset(EARLIEST)
    world.broker.resume()
    require_no_reset(world.layout)
    assert world.committed()[INPUT] == 3
    assert list(world.layout.tasks())


# After a reset.


def counted() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("words").group_by_key().count(materialized="words")
    return b.build()


def test_an_application_whose_stores_are_fed_by_its_inputs_begins_again(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.cluster(APPLICATION).create([TopicSpec("words", 2, {})])
    words = {
        "application.id": APPLICATION,
        "state.dir": str(tmp_path),
        "bootstrap.servers": "in-memory:9092",
    }
    for _ in range(5):
        broker.produce(TopicPartition("words", 0), Record(b"k", b"v", 1))

    def run() -> int:
        with (
            Runtime(words, brokers=broker.clients) as runtime,
            start_run(runtime, counted(), run_request()) as started,
        ):
            return serve_here(started, Event()).records_in

    assert run() == 5
    for to, again in ((EARLIEST, 5), (ResetTo(shift=-2), 2), (ResetTo(latest=True), 0)):
        with Runtime(words, brokers=broker.clients) as runtime:
            reset(runtime, to)
        assert run() == again


def test_a_first_start_that_dies_after_its_first_offsets_is_begun_again(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.cluster(APPLICATION).create([TopicSpec("words", 2, {})])
    broker.produce(TopicPartition("words", 0), Record(b"k", b"v", 1))
    words = {
        "application.id": APPLICATION,
        "state.dir": str(tmp_path),
        "bootstrap.servers": "in-memory:9092",
    }
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    late = ss.AutoOffsetReset.latest()
    b.stream("words", offset_reset=late).group_by_key().count(materialized="words")
    topology = b.build()

    def run() -> int:
        with (
            Runtime(words, brokers=broker.clients) as runtime,
            start_run(runtime, topology, run_request()) as started,
        ):
            return serve_here(started, Event()).records_in

    def die(point: CrashPoint) -> None:
        if point is CrashPoint.OFFSETS_BEGUN:
            raise Killed

    faults.on_reach(die)
    try:
        with pytest.raises(Killed):
            run()
    finally:
        faults.on_reach(None)
    broker.produce(TopicPartition("words", 0), Record(b"k", b"v", 1))
    assert run() == 1
