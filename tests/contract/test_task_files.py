"""Files beside a stream task's stores: `.checkpoint`, `.position`, quarantine (S5, S12, S16).

Shows I7.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import FormatTooNew
from statestore.layout.files import read_checkpoint, write_checkpoint
from statestore.model.ids import Position, TopicPartition
from statestore.model.records import Record
from statestore.operations.running.run import Run, RunRequest
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.tasks.task import StreamTask
from statestore.testing.driver import TopologyTestDriver
from tests.contract.conftest import rocks_rows
from tests.contract.task_rig import APPLICATION, TaskRig, rows_of
from tests.contract.test_store_files import raw_write

CHANGELOG = TopicPartition(f"{APPLICATION}-table-changelog", 0)
OTHER = TopicPartition("gone-changelog", 0)
DAY_MS = 86_400_000


def topology(*, persistent: bool = True) -> ss.Topology:
    make = ss.persistent_key_value_store if persistent else ss.in_memory_key_value_store
    builder = ss.StreamsBuilder()
    builder.table("in", materialized=ss.Materialized(make("table"))).to_stream(name="s").to("out")
    return builder.build()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TaskRig]:
    made = TaskRig(topology(), tmp_path)
    yield made
    made.end()


def two_rows(rig: TaskRig) -> StreamTask:
    """a=1 b=1 committed, the task running."""
    task = rig.start()
    commit(rig, "a", "b")
    return task


def commit(rig: TaskRig, *keys: str) -> None:
    """Rows key=1."""
    rig.send("in", [(key, "1") for key in keys])
    rig.running[0].step(0)
    rig.running[0].step_commit()


def staged_of(task: StreamTask) -> "TransactionalKeyValueStore[bytes, bytes]":
    store = task.store("table")
    assert isinstance(store, TransactionalKeyValueStore)
    return store


def log_end(rig: TaskRig) -> int:
    return rig.broker.changelog().bounds([CHANGELOG])[CHANGELOG].end


# .checkpoint


def test_it_is_written_at_start_and_at_close_and_at_no_commit(rig: TaskRig) -> None:
    rig.start()
    assert read_checkpoint(rig.folder) == {}
    rig.end()
    task = two_rows(rig)
    assert read_checkpoint(rig.folder) == {}
    rig.end()
    stood = staged_of(task).committed_offset(CHANGELOG)
    assert read_checkpoint(rig.folder) == {CHANGELOG: stood}
    (rig.folder / ".checkpoint").unlink()
    rig.start()
    # Past the marker that ends the transaction, which restore has passed over.
    assert read_checkpoint(rig.folder) == {CHANGELOG: log_end(rig)}


def test_after_a_crash_the_start_writes_where_the_store_stands_not_what_the_file_said(
    rig: TaskRig,
) -> None:
    two_rows(rig)
    rig.crash()
    write_checkpoint(rig.folder, {CHANGELOG: 1})
    rig.start()
    assert read_checkpoint(rig.folder) == {CHANGELOG: log_end(rig)}


def test_a_store_in_memory_has_no_entry_and_is_restored_at_every_start(tmp_path: Path) -> None:
    rig = TaskRig(topology(persistent=False), tmp_path)
    two_rows(rig)
    rig.end()
    assert read_checkpoint(rig.folder) == {}
    for _ in range(2):
        task = rig.start()
        assert task.report.restored_records == 2
        assert rows_of(task, "table") == {b"a": b"1", b"b": b"1"}
        assert staged_of(task).committed_offset(CHANGELOG) is None
        rig.end()


def test_what_it_says_of_other_stores_stays(rig: TaskRig) -> None:
    two_rows(rig)
    rig.end()
    write_checkpoint(rig.folder, {CHANGELOG: 1, OTHER: 17})
    rig.start()
    rig.end()
    assert read_checkpoint(rig.folder)[OTHER] == 17


def without_offset(rig: TaskRig) -> None:
    """Take the store's own offset away: as it is after years with Kafka Streams' files."""
    key = b"o" + CHANGELOG.topic.encode() + bytes(5)
    assert key in rocks_rows(rig.store_dir("table"), "offsets")
    raw_write(rig.store_dir("table"), "offsets", key, None)


def test_an_entry_is_adopted_by_a_store_with_rows_and_no_offset(rig: TaskRig) -> None:
    two_rows(rig)
    rig.end()
    stood = read_checkpoint(rig.folder)[CHANGELOG]
    without_offset(rig)
    task = rig.start()
    assert (task.report.quarantined, task.report.restored_records) == ([], 0)
    assert staged_of(task).durable_offset(CHANGELOG) == stood


def test_an_entry_of_kafka_streams_is_the_last_applied_and_replays_one_record(
    rig: TaskRig,
) -> None:
    two_rows(rig)
    rig.end()
    without_offset(rig)
    write_checkpoint(rig.folder, {CHANGELOG: 1})  # of the two records 0 and 1
    task = rig.start()
    assert (task.report.quarantined, task.report.restored_records) == ([], 1)
    assert rows_of(task, "table") == {b"a": b"1", b"b": b"1"}


@pytest.mark.parametrize("entries", [{}, {CHANGELOG: -4}, {CHANGELOG: -2}])
def test_rows_without_any_offset_are_quarantined_and_restored(
    rig: TaskRig, entries: dict[TopicPartition, int]
) -> None:
    two_rows(rig)
    rig.end()
    without_offset(rig)
    write_checkpoint(rig.folder, entries)
    task = rig.start()
    assert (task.report.quarantined, rig.quarantine()) == (["table"], ["no-offset"])
    assert rows_of(task, "table") == {b"a": b"1", b"b": b"1"}


def test_an_entry_does_not_go_over_the_stores_own_offset(rig: TaskRig) -> None:
    two_rows(rig)
    rig.end()
    write_checkpoint(rig.folder, {CHANGELOG: 0})
    assert rig.start().report.restored_records == 0


def test_a_store_that_lost_its_files_does_not_adopt_what_it_no_longer_has(rig: TaskRig) -> None:
    two_rows(rig)
    rig.end()
    for path in rig.store_dir("table").iterdir():
        path.unlink()
    task = rig.start()
    assert task.report.restored_records == 2
    assert rows_of(task, "table") == {b"a": b"1", b"b": b"1"}


def test_one_that_cannot_be_read_is_reported_and_taken_for_none(
    rig: TaskRig, caplog: pytest.LogCaptureFixture
) -> None:
    two_rows(rig)
    rig.end()
    (rig.folder / ".checkpoint").write_text("scribble")
    task = rig.start()
    assert task.report.restored_records == 0
    assert "is not a version 0 checkpoint" in caplog.text
    assert read_checkpoint(rig.folder) == {CHANGELOG: log_end(rig)}


# .position


def test_a_position_file_is_merged_into_the_store_and_deleted(rig: TaskRig) -> None:
    two_rows(rig)
    rig.end()
    beside, inside = rig.layout.position_files(rig.task()._plan.task_id, "table")
    assert beside == rig.folder / "table.position"
    beside.write_text("0\n2\nin 0 0\nold 3 41\n")
    inside.write_text("0\n1\nold 3 40\n")
    task = rig.start()
    position = Position.of({"in": {0: 1}, "old": {3: 41}})
    assert staged_of(task).position() == position
    assert not beside.exists()
    assert not inside.exists()
    rig.crash()
    assert staged_of(rig.start()).position() == position


def test_a_position_file_of_a_new_store_is_adopted_too(rig: TaskRig) -> None:
    rig.folder.mkdir(parents=True)
    (rig.folder / "table.position").write_text("0\n1\nold 3 41\n")
    assert staged_of(rig.start()).position() == Position.of({"old": {3: 41}})


def test_readers_are_bound_by_the_position_of_the_last_commit(rig: TaskRig) -> None:
    task = two_rows(rig)
    store = staged_of(task)
    bound = ss.PositionBound.at(Position.of({"in": {0: 1}}))
    assert store.reader("READ_COMMITTED", bound).get(b"a") == b"1"
    ahead = store.reader("READ_COMMITTED", ss.PositionBound.at(Position.of({"in": {0: 2}})))
    with pytest.raises(ss.errors.NotUpToBound):
        ahead.get(b"a")
    commit(rig, "c")
    assert ahead.get(b"c") == b"1"


def test_a_bound_merged_over_all_tasks_waits_for_what_a_store_can_have_and_nothing_else() -> None:
    """Each store of two waits for its own partition; other tasks' and other topics are not its."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("in").group_by_key().count("counts")
    b.stream("elsewhere").to("out")
    with TopologyTestDriver(b.build(), partitions=2) as driver:
        both = [Record(f"k{i}", "v", i, partition=i % 2) for i in range(3)]
        driver.pipe_all("in", both)
        stores = [driver.store("counts", partition) for partition in (0, 1)]
        merged = stores[0].position().merge(stores[1].position())
        assert merged == Position.of({"in": {0: 1, 1: 0}})
        merged = merged.merge(Position.of({"elsewhere": {0: 7, 1: 7}, "in": {5: 9}}))
        bound = ss.PositionBound.at(merged)
        further = ss.PositionBound.at(merged.merge(Position.of({"in": {1: 1}})))
        for level in ss.IsolationLevel:
            assert [store.reader(level, bound).get(f"k{i}") for i, store in enumerate(stores)] == [
                1,
                1,
            ]
            assert stores[0].reader(level, further).get("k0") == 1
            with pytest.raises(ss.errors.NotUpToBound):
                stores[1].reader(level, further).get("k1")
        driver.pipe("in", "k1", "v", 3, partition=1)
        assert stores[1].reader("READ_COMMITTED", further).get("k1") == 2


# A format newer than ours (S12).


def newer(rig: TaskRig) -> None:
    row = msgspec.json.encode({"kind": "keyvalue", "version": 2})
    raw_write(rig.store_dir("table"), "offsets", b"f", row)


def test_exactly_once_a_newer_format_is_quarantined_and_restored(rig: TaskRig) -> None:
    two_rows(rig)
    rig.end()
    newer(rig)
    task = rig.start()
    assert (task.report.quarantined, rig.quarantine()) == (["table"], ["newer-format"])
    assert rows_of(task, "table") == {b"a": b"1", b"b": b"1"}


def test_at_least_once_a_newer_format_is_refused_and_stays(tmp_path: Path) -> None:
    rig = TaskRig(topology(), tmp_path, "at_least_once")
    two_rows(rig)
    rig.end()
    newer(rig)
    with pytest.raises(FormatTooNew, match="upgrade statestore"):
        rig.start()
    assert rig.quarantine() == []
    assert set(rocks_rows(rig.store_dir("table"), "data")) == {b"a", b"b"}


# Quarantine (S16).


def quarantined(rig: TaskRig) -> Path:
    two_rows(rig)
    rig.end()
    (rig.store_dir("table") / "CURRENT").unlink()
    rig.start()
    (folder,) = (rig.layout.application_dir / "quarantine").iterdir()
    return folder


def test_a_quarantined_store_waits_for_the_first_commit_of_the_one_in_its_place(
    rig: TaskRig,
) -> None:
    quarantined(rig)
    ((folder, record),) = rig.layout.quarantined()
    assert (record.store, record.partition, record.reason) == ("table", 0, "unreadable")
    assert record.restored_ms is None
    rig.clock.advance(99 * DAY_MS)
    assert rig.layout.sweep_quarantine(7 * DAY_MS, rig.clock.now_ms()) == []
    commit(rig, "c")
    ((_, record),) = rig.layout.quarantined()
    assert record.restored_ms == rig.clock.now_ms()
    assert folder.is_dir()


def test_the_first_commit_is_remembered_where_it_comes_in_a_later_run(rig: TaskRig) -> None:
    quarantined(rig)
    rig.crash()
    rig.clock.advance(DAY_MS)
    rig.start()
    commit(rig, "c")
    ((_, record),) = rig.layout.quarantined()
    assert record.restored_ms == rig.clock.now_ms()


def test_a_run_removes_it_when_its_days_are_over_and_says_so(
    rig: TaskRig, caplog: pytest.LogCaptureFixture
) -> None:
    folder = quarantined(rig)
    commit(rig, "c")
    rig.end()
    waits = [(6 * DAY_MS, True), (DAY_MS - 1, True), (1, False)]
    for wait_ms, there in waits:
        rig.clock.advance(wait_ms)
        caplog.clear()
        with (
            caplog.at_level(logging.INFO),
            Run(rig.runtime, rig.topology, RunRequest()),
        ):
            pass
        assert folder.exists() is there
        assert (f"removed {folder}" in caplog.text) is not there


def test_an_interrupted_removal_is_taken_up_again(rig: TaskRig) -> None:
    folder = quarantined(rig)
    commit(rig, "c")
    rig.end()
    for path in folder.glob("*.sst"):
        path.unlink()
    (folder / "sub").mkdir()
    assert rig.layout.sweep_quarantine(0, rig.clock.now_ms()) == [folder]
    assert not folder.exists()
