"""A store restored past a commit that its task did not live to write stands at that commit (I1)."""

from collections.abc import Callable
from pathlib import Path

import pytest

import statestore as ss
from statestore import faults
from statestore.faults import CrashPoint
from statestore.model.ids import Position, TopicPartition
from tests.contract.task_rig import TaskRig, rows_of
from tests.contract.user_stores import supplier
from tests.relocation_rig import Died

IN = TopicPartition("in", 0)
KEYS = 1000


def plain(builder: ss.StreamsBuilder) -> None:
    builder.table("in", materialized="kept")


def in_memory(builder: ss.StreamsBuilder) -> None:
    builder.table("in", materialized=ss.Materialized(ss.in_memory_key_value_store("kept")))


def versioned(builder: ss.StreamsBuilder) -> None:
    builder.table("in", materialized=ss.Materialized("kept", history_retention=1000))


def windowed(builder: ss.StreamsBuilder) -> None:
    windows = ss.TumblingWindows(1000, retention=1000)
    builder.stream("in").group_by_key().windowed_by(windows).count("kept")


def in_sessions(builder: ss.StreamsBuilder) -> None:
    builder.stream("in").group_by_key().windowed_by(ss.SessionWindows(1000)).count("kept")


KINDS = [plain, in_memory, versioned, windowed, in_sessions]


def rig_of(kind: Callable[[ss.StreamsBuilder], None], folder: Path) -> TaskRig:
    builder = ss.StreamsBuilder()
    kind(builder)
    return TaskRig(builder.build(), folder)


def feed(rig: TaskRig, keys: range) -> None:
    rig.send("in", ((f"k{n}", "1") for n in keys))


def dies_at(point: CrashPoint, rig: TaskRig) -> None:
    """The task's next commit is cut short there."""

    def reached(here: CrashPoint) -> None:
        if here is point:
            raise Died(here)

    task = rig.running[0]
    while task.step(0):
        pass
    faults.on_reach(reached)
    try:
        with pytest.raises(Died):
            task.step_commit()
    finally:
        faults.on_reach(None)
    rig.crash()


@pytest.mark.parametrize("kind", KINDS)
def test_a_death_just_behind_the_log_commit_leaves_no_position_behind_its_rows(
    kind: Callable[[ss.StreamsBuilder], None], tmp_path: Path
) -> None:
    rig = rig_of(kind, tmp_path)
    task = rig.start()
    feed(rig, range(KEYS))
    while task.step(0):
        pass
    task.step_commit()
    feed(rig, range(KEYS, 2 * KEYS))
    dies_at(CrashPoint.COMMIT_LOG_DONE, rig)
    store = rig.start().store("kept")
    position: Position = store.position()  # type: ignore[attr-defined] # every store of ours has one
    assert position.as_dict() == {IN: 2 * KEYS - 1}
    rig.end()
    reopened = rig.start().store("kept")
    assert reopened.position().as_dict() == {IN: 2 * KEYS - 1}  # type: ignore[attr-defined]


def test_a_position_moves_also_where_the_commit_changed_nothing_in_the_store(
    tmp_path: Path,
) -> None:
    builder = ss.StreamsBuilder()
    stream = builder.stream("in")
    stream.filter(lambda key, _value: key < b"k5").group_by_key().count("kept")
    rig = TaskRig(builder.build(), tmp_path)
    rig.start()
    feed(rig, range(400, 500))
    while rig.running[0].step(0):
        pass
    rig.running[0].step_commit()
    feed(rig, range(600, 700))
    dies_at(CrashPoint.COMMIT_LOG_DONE, rig)
    task = rig.start()
    assert len(rows_of(task, "kept")) == 100
    assert task.store("kept").position().as_dict() == {IN: 199}  # type: ignore[attr-defined]


@pytest.mark.parametrize("manages", [True, False])
def test_a_store_of_a_users_own_is_told_its_position_with_what_is_restored(
    tmp_path: Path, manages: bool
) -> None:
    class Keeping:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self._store = context.store("kept")

        def process(self, record: "ss.Record[bytes, bytes]") -> None:
            self._store.put(record.key.decode(), "1")

    builder = ss.StreamsBuilder()
    builder.stream("in").process(Keeping, supplier("kept", manages=manages), name="keeping")
    rig = TaskRig(builder.build(), tmp_path)
    rig.start()
    feed(rig, range(10))
    dies_at(CrashPoint.COMMIT_LOG_DONE, rig)
    store = rig.start().store("kept")
    assert store.position().as_dict() == {IN: 9}  # type: ignore[attr-defined]
