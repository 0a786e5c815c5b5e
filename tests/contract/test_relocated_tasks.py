"""Stream tasks before and after a topology change: what each kind of store finds there."""

from contextlib import closing
from pathlib import Path

import pytest

import statestore as ss
from statestore.layout.files import read_checkpoint
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.looking.task_snapshots import Snapshot, Snapshots
from statestore.operations.running.run import Run, RunRequest
from statestore.runtime.databases import RocksDatabases
from statestore.stores.keyvalue import TABLE
from statestore.stores.versioned.store import TransactionalVersionedStore
from tests.contract.task_rig import APPLICATION, TaskRig
from tests.contract.user_stores import Notes, UserStore, rows_in, supplier

CHANGELOG = TopicPartition(f"{APPLICATION}-book-changelog", 0)
VERSIONS = ss.persistent_versioned_key_value_store("versions", 86_400_000)
WORLDS = {
    "manages its offsets": supplier(manages=True),
    "commits, without offsets": supplier(),
    "writes through": supplier(through=True),
}


class Remember:
    """Keeps every value of a key, at times 10 ms apart."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._versions = context.store(VERSIONS)
        self._time_ms = 0

    def process(self, record: ss.Record[bytes, bytes]) -> None:
        self._time_ms += 10
        self._versions.put(record.key, record.value, self._time_ms)


def topology(spec: ss.StoreSupplier[UserStore], *, behind_another: bool) -> ss.Topology:
    """The user's store, alone or behind a sub-topology that is new."""
    builder = ss.StreamsBuilder(key_serde=ss.serdes.STRING, value_serde=ss.serdes.STRING)
    if behind_another:
        builder.stream("new").group_by_key().count("news").to_stream().to("new-out")
    builder.stream("in").process(Notes, spec, name="notes").to("out")
    return builder.build()


def versions(*, behind_another: bool) -> ss.Topology:
    builder = ss.StreamsBuilder()
    if behind_another:
        builder.stream("new").group_by_key().count("news").to_stream().to("new-out")
    builder.stream("in").process(Remember, VERSIONS, name="remember")
    return builder.build()


def latest(*, behind_another: bool) -> ss.Topology:
    builder = ss.StreamsBuilder()
    if behind_another:
        builder.stream("new").group_by_key().count("news").to_stream().to("new-out")
    builder.table("in", materialized="latest", name="latest")
    return builder.build()


def snapshot_of(rig: TaskRig) -> Snapshot:
    asker = Snapshots(rig.runtime)
    return asker.take(rig.task_id)


def rows_of(snapshot: Snapshot) -> dict[bytes, bytes]:
    with closing(RocksDatabases().read(snapshot.store_dir("latest"))) as engine:
        return dict(engine.table(TABLE).scan(None, None, reverse=False))


def deployed_behind(rig: TaskRig, changed: ss.Topology) -> TaskRig:
    """The changed topology over the same state and broker; its task of the store is 1_0."""
    after = TaskRig(
        changed,
        rig.root,
        rig.guarantee,
        broker=rig.broker,
        clock=rig.clock,
        task_id=TaskId(1, 0),
        lives=rig.lives,
    )
    with Run(after.runtime, changed, RunRequest()):
        pass
    return after


def commit_two(rig: TaskRig) -> None:
    """a=2 b=1 committed, the task running."""
    task = rig.start()
    rig.send("in", [("a", "1"), ("b", "1"), ("a", "2")])
    task.step(0)
    task.step_commit()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("world", WORLDS)
def test_a_users_own_store_goes_on_where_it_stood(
    world: str, guarantee: str, tmp_path: Path
) -> None:
    rig = TaskRig(topology(WORLDS[world], behind_another=False), tmp_path, guarantee)
    commit_two(rig)
    rig.end()
    entry = read_checkpoint(rig.folder)[CHANGELOG]
    after = deployed_behind(rig, topology(WORLDS[world], behind_another=True))
    assert read_checkpoint(rig.folder) == {}
    assert read_checkpoint(after.folder) == {CHANGELOG: entry}
    task = after.start()
    assert (task.report.restored_records, task.report.quarantined) == (0, [])
    after.send("in", [("a", "3")])
    task.step(0)
    after.end()
    assert rows_in(after.store_dir("book")) == {"a": "3", "b": "1"}
    assert after.broker.records("out")[-1].value == b"2"


def test_a_users_own_store_that_was_not_closed_is_trusted_no_more_than_before(
    tmp_path: Path,
) -> None:
    world = WORLDS["commits, without offsets"]
    rig = TaskRig(topology(world, behind_another=False), tmp_path)
    commit_two(rig)
    rig.crash()
    after = deployed_behind(rig, topology(world, behind_another=True))
    task = after.start()
    assert task.report.quarantined == ["book"]
    after.end()
    assert rows_in(after.store_dir("book")) == {"a": "2", "b": "1"}


def test_a_versioned_store_keeps_its_history_and_its_time(tmp_path: Path) -> None:
    rig = TaskRig(versions(behind_another=False), tmp_path)
    commit_two(rig)
    rig.end()
    after = deployed_behind(rig, versions(behind_another=True))
    task = after.start()
    assert task.report.restored_records == 0
    found = task.store("versions")
    assert isinstance(found, TransactionalVersionedStore)
    with found.history(b"a") as history:
        assert [(v.value, v.timestamp_ms) for v in history] == [(b"2", 30), (b"1", 10)]
    assert found.observed_stream_time() == 30
    after.end()


def test_what_a_crash_left_behind_the_log_is_all_that_is_restored(tmp_path: Path) -> None:
    rig = TaskRig(versions(behind_another=False), tmp_path)
    commit_two(rig)
    rig.end()
    task = rig.start()
    rig.send("in", [("c", "1"), ("d", "1")])
    task.step(0)
    task.step_commit()
    rig.crash()
    after = deployed_behind(rig, versions(behind_another=True))
    assert after.start().report.restored_records == 2
    after.end()


def test_a_snapshot_outlives_the_move_and_the_next_one_is_of_the_new_place(tmp_path: Path) -> None:
    rig = TaskRig(latest(behind_another=False), tmp_path)
    commit_two(rig)
    rig.end()
    before = snapshot_of(rig)
    offsets = before.manifest.stores["latest"].offsets()
    after = deployed_behind(rig, latest(behind_another=True))
    task = after.start()
    assert task.report.restored_records == 0
    after.send("in", [("a", "3")])
    task.step(0)
    task.step_commit()
    after.end()
    assert rows_of(before) == {b"a": b"2", b"b": b"1"}
    with snapshot_of(after) as moved:
        assert rows_of(moved) == {b"a": b"3", b"b": b"1"}
        now = moved.manifest.stores["latest"].offsets()
    assert now.keys() == offsets.keys()
    assert all(now[tp] > offsets[tp] for tp in offsets)
    before.release()


class Clocked:
    """Tells the stream times at which its punctuation fires."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context = context
        context.schedule(100, ss.PunctuationType.STREAM_TIME, self._tell)

    def process(self, record: ss.Record[str, str]) -> None:
        """Nothing: only time counts."""

    def _tell(self, time_ms: int) -> None:
        self._context.forward(ss.Record("fired", str(time_ms), time_ms))


def clocked(*, merged: bool) -> ss.Topology:
    """Two inputs, each with a processor of its own, or both with one."""
    builder = ss.StreamsBuilder(key_serde=ss.serdes.STRING, value_serde=ss.serdes.STRING)
    busy, ahead = builder.stream("busy"), builder.stream("ahead")
    if merged:
        busy.merge(ahead).process(Clocked, name="clocked").to("out")
    else:
        busy.process(Clocked, name="of-busy").to("out")
        ahead.process(Clocked, name="of-ahead").to("out")
    return builder.build()


def test_stream_time_of_a_merged_task_is_the_latest_of_its_inputs(tmp_path: Path) -> None:
    split, merged = clocked(merged=False), clocked(merged=True)
    rig = TaskRig(split, tmp_path)
    other = TaskRig(split, tmp_path, broker=rig.broker, clock=rig.clock, task_id=TaskId(1, 0))
    task = rig.start()
    for time_ms in (100, 110, 120):  # commits oftener than the other, which is further on
        rig.broker.produce(TopicPartition("busy", 0), ss.Record(b"k", b"v", time_ms))
        task.step(0)
        task.step_commit()
    rig.end()
    task = other.start()
    other.broker.produce(TopicPartition("ahead", 0), ss.Record(b"k", b"v", 950))
    task.step(0)
    task.step_commit()
    other.end()
    after = TaskRig(merged, tmp_path, broker=rig.broker, clock=rig.clock)
    before = len(after.broker.records("out"))
    task = after.start()
    for time_ms in (480, 960):
        after.broker.produce(TopicPartition("busy", 0), ss.Record(b"k", b"v", time_ms))
        task.step(0)
    after.end()
    fired = [record.value for record in after.broker.records("out")[before:]]
    assert fired == [], "no multiple of 100 lies between 950 and 960"
