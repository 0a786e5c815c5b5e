"""Tables whose log is the topic they are made of: logged nowhere else, restored from it (E8).

Shows I16.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore import faults, serdes
from statestore.errors import RecordFailed
from statestore.faults import CrashPoint
from statestore.layout.files import read_checkpoint
from statestore.model.records import Record
from statestore.ports import GroupOffset, TopicSpec
from statestore.testing import TopologyTestDriver, memory_broker
from tests.contract.conftest import rocks_rows
from tests.contract.source_logs import IN, REUSE, begun, commit, finish, lose_disk, topology
from tests.contract.task_rig import APPLICATION, TaskRig, rows_of

SKIP = {**REUSE, "deserialization.exception.handler": "continue"}
SEED = 20130101


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TaskRig]:
    made = TaskRig(topology(), tmp_path, settings=REUSE)
    yield made
    made.end()


def offset_on_disk(rig: TaskRig) -> dict[bytes, bytes]:
    rows = rocks_rows(rig.store_dir("table"), "offsets")
    return {key: value for key, value in rows.items() if key[:1] == b"o"}


# Commit.


def test_such_a_table_has_no_changelog_and_stands_at_the_input_offset_committed(
    rig: TaskRig,
) -> None:
    rig.start()
    commit(rig, ("a", "1"), ("b", "2"))
    assert f"{APPLICATION}-table-changelog" not in rig.broker.state.topics
    commit(rig, ("a", None))
    rig.end()
    assert offset_on_disk(rig) == {b"oin\0" + bytes(4): (3).to_bytes(8)}
    assert rocks_rows(rig.store_dir("table"), "data") == {b"b": b"2"}
    assert read_checkpoint(rig.folder) == {IN: 3}


def test_an_unanswered_commit_that_happened_leaves_the_store_at_its_input_offset(
    rig: TaskRig,
) -> None:
    task = rig.start()
    commit(rig, ("a", "1"))
    begun(rig, ("b", "2"))
    rig.broker.lose_answer(f"{APPLICATION}-0_0", happened=True)
    task.step_commit()
    assert rows_of(task, "table") == {b"a": b"1", b"b": b"2"}
    rig.end()
    assert offset_on_disk(rig) == {b"oin\0" + bytes(4): (2).to_bytes(8)}


# Restore.


def test_a_lost_disk_is_restored_up_to_the_committed_input_offset_and_not_beyond(
    rig: TaskRig,
) -> None:
    rig.start()
    commit(rig, ("a", "1"), ("b", "2"), ("b", None), ("c", "3"))
    begun(rig, ("a", "9"), ("d", "4"))
    lose_disk(rig)
    task = rig.start()
    assert rows_of(task, "table") == {b"a": b"1", b"c": b"3"}
    assert task.report.restored_records == 4
    assert rig.quarantine() == []
    task.step(0)
    assert rows_of(task, "table") == {b"a": b"9", b"c": b"3", b"d": b"4"}
    task.step_commit()
    assert [r.value for r in rig.broker.records("out")] == [b"1", b"2", None, b"3", b"9", b"4"]


def test_after_a_crash_only_the_tail_is_replayed(rig: TaskRig) -> None:
    rig.start()
    commit(rig, ("a", "1"), ("b", "2"))
    rig.end()
    rig.start()
    commit(rig, ("c", "3"))
    rig.crash()
    task = rig.start()
    assert task.report.restored_records == 1
    assert rows_of(task, "table") == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_a_table_in_memory_is_restored_from_it_at_every_start(tmp_path: Path) -> None:
    rig = TaskRig(topology(persistent=False), tmp_path, settings=REUSE)
    rig.start()
    commit(rig, ("a", "1"))
    begun(rig, ("a", "2"))
    rig.crash()
    task = rig.start()
    assert rows_of(task, "table") == {b"a": b"1"}
    rig.end()


def test_a_store_beyond_the_end_of_its_topic_goes_to_quarantine(rig: TaskRig) -> None:
    rig.start()
    commit(rig, ("a", "1"), ("b", "2"))
    rig.end()
    (rig.folder / "inputs.json").unlink()
    rig.broker.state.create("in", 1, {})
    rig.send("in", [("c", "3")])
    rig.broker.state.groups[APPLICATION, IN] = GroupOffset(1, "")
    task = rig.start()
    assert rows_of(task, "table") == {b"c": b"3"}
    assert rig.quarantine() == ["offset-beyond-log"]


@pytest.mark.parametrize("handler", ["continue", "dead_letter"])
def test_what_the_table_did_not_take_is_not_restored_into_it(tmp_path: Path, handler: str) -> None:
    letters = {"errors.dead.letter.queue.topic.name": "dead"} if handler == "dead_letter" else {}
    rig = TaskRig(
        topology(),
        tmp_path,
        settings={**REUSE, **letters, "deserialization.exception.handler": handler},
    )
    rig.broker.cluster(APPLICATION).create([TopicSpec("dead", 1, {})])
    rig.start()
    rig.send("in", [("a", "1"), ("a", "{bad"), ("b", "2")])
    for key, value in ((None, b"7"), (b"\xff", b"8"), (b"b", None), (b"c", b"3")):
        rig.broker.produce(IN, Record(key, value, 0))
    finish(rig)
    processed = rows_of(rig.running[0], "table")
    assert processed == {b"a": b"1", b"c": b"3"}
    lose_disk(rig)
    task = rig.start()
    assert rows_of(task, "table") == processed
    rig.end()
    assert len(rig.broker.records("dead")) == (2 if handler == "dead_letter" else 0)


def test_what_nobody_else_decodes_is_decoded_before_the_table_takes_it(rig: TaskRig) -> None:
    rig.start()
    rig.send("in", [("a", "1"), ("a", "{bad")])
    with pytest.raises(RecordFailed, match=r"KSTREAM-SOURCE.*in-0 offset 1: cannot decode"):
        finish(rig)
    for task in rig.running:
        task.close()
    rig.running.clear()


def test_a_restore_killed_at_any_batch_goes_on_from_there(
    rig: TaskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_broker, "_STRETCH_RECORDS", 4)
    rig.start()
    commit(rig, *((f"k{i % 7}", str(i)) for i in range(30)))
    wanted = rows_of(rig.running[0], "table")
    begun(rig, ("k0", "-1"))
    lose_disk(rig)
    for visit in range(1, 10):
        task = rig.task()
        rig.running.append(task)
        faults.on_reach(dying_at(CrashPoint.RESTORE_BATCH_WRITTEN, visit))
        try:
            with pytest.raises(Died):
                task.start()
        except pytest.fail.Exception:
            assert visit == 9, "30 records are 8 batches of 4"
        finally:
            faults.on_reach(None)
        rig.crash()
    task = rig.start()
    assert rows_of(task, "table") == wanted
    finish(rig)
    assert rows_of(task, "table") == {**wanted, b"k0": b"-1"}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_random_lives_end_with_the_topic_folded(tmp_path: Path, guarantee: str) -> None:
    rng = random.Random(SEED)
    rig = TaskRig(topology(), tmp_path, guarantee=guarantee, settings=SKIP)
    wanted: dict[bytes, bytes] = {}
    for _ in range(12):
        rig.start()
        for _ in range(rng.randint(0, 3)):
            rows = [_row(rng) for _ in range(rng.randint(1, 5))]
            rig.send("in", rows)
            rig.running[0].step(0)
            if rng.random() < 0.6:
                rig.running[0].step_commit()
        rng.choice((rig.crash, rig.end, lambda: lose_disk(rig)))()
    rig.start()
    finish(rig)
    for record in rig.broker.records("in"):
        assert record.key is not None
        if record.value is None:
            wanted.pop(record.key, None)
        elif record.value != b"{":
            wanted[record.key] = record.value
    assert rows_of(rig.running[0], "table") == wanted, f"seed {SEED}"
    rig.end()


def test_the_drivers_crash_leaves_the_table_as_it_was_committed() -> None:
    with TopologyTestDriver(topology(), REUSE, partitions=2) as driver:
        driver.pipe("in", "a", 1)
        driver.pipe("in", "b", 2, partition=1)
        driver.pipe("in", "a", 3)
        driver.crash()
        assert driver.store("table").get("a") == 3
        assert driver.store("table", 1).get("b") == 2
        driver.pipe("in", "a", None)
        driver.crash()
        assert driver.store("table").get("a") is None


def test_a_task_beyond_the_partitions_of_the_topic_has_an_empty_table() -> None:
    with TopologyTestDriver(wider_than_its_table(), REUSE, partitions=2) as driver:
        driver.pipe("wide", "a", 1, partition=1)
        driver.crash()
        driver.pipe("wide", "a", 1, partition=1)
        assert [r.key for r in driver.read("passed")] == ["a", "a"]


def _row(rng: random.Random) -> tuple[str, str | None]:
    key = f"k{rng.randrange(5)}"
    return key, rng.choice((None, "{", str(rng.randrange(100)), str(rng.randrange(100))))


def wider_than_its_table() -> ss.Topology:
    """Not joined, but in one sub-topology."""
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    table = builder.table("in", materialized="table")
    merged = builder.stream("wide").merge(table.to_stream())
    merged.to("passed")
    return builder.build()


class Died(BaseException):
    """A death at a crash point, as far as one process can act it: nothing catches it."""


def dying_at(point: CrashPoint, visit: int) -> Callable[[CrashPoint], None]:
    left = iter(range(visit - 1, -1, -1))

    def reached(at: CrashPoint) -> None:
        if at is point and next(left, -1) == 0:
            raise Died(point)

    return reached
