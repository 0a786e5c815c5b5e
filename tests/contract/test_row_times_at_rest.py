"""The times of rows on disk: through restarts, deaths, restores, older stores and an upgrade."""

import shutil
from pathlib import Path

import pytest

import statestore as ss
from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.runtime.databases import RocksDatabases
from statestore.stores import offsets
from statestore.testing.memory_broker import MemoryBroker
from tests.contract.task_rig import APPLICATION, TaskRig

IN = TopicPartition("in", 0)
KEYS = [f"k{i}" for i in range(300)]


def counted() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("in").group_by_key().count("kept").to_stream().to("out")
    return b.build()


def tabled(*, history_ms: int | None) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.table("in", materialized=ss.Materialized("kept", history_retention=history_ms))
    return b.build()


def process(rig: TaskRig, time_ms: int, value: str = "v", *, then: str = "end") -> None:
    """A record of each key in one life of the task."""
    task = rig.start()
    for key in KEYS:
        rig.broker.produce(IN, Record(key.encode(), value.encode(), time_ms))
    task.step(0)
    task.step_commit()
    getattr(rig, then)()


def stamps(broker: MemoryBroker) -> set[int]:
    """The times of the last output of each key."""
    return {record.timestamp_ms for record in broker.records("out")[-len(KEYS) :]}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("then", ["end", "crash"])
def test_the_times_of_rows_survive_clean_ends_and_deaths(
    then: str, guarantee: str, tmp_path: Path
) -> None:
    rig = TaskRig(counted(), tmp_path, guarantee)
    for time_ms, wanted in ((1000, 1000), (500, 1000), (600, 1000), (1001, 1001)):
        process(rig, time_ms, then=then)
        assert stamps(rig.broker) == {wanted}


def test_a_lost_store_has_its_times_again_from_the_changelog(tmp_path: Path) -> None:
    rig = TaskRig(counted(), tmp_path)
    process(rig, 1000)
    shutil.rmtree(rig.store_dir("kept"))
    process(rig, 500)
    assert stamps(rig.broker) == {1000}
    logged = rig.broker.records(f"{APPLICATION}-kept-changelog")
    assert {record.timestamp_ms for record in logged} == {1000}


def test_a_store_of_an_older_version_takes_its_times_from_what_comes(tmp_path: Path) -> None:
    rig = TaskRig(counted(), tmp_path)
    process(rig, 1000)
    engine = RocksDatabases().rewrite(rig.store_dir("kept"))
    meta = engine.table(offsets.TABLE)
    times = [key for key, _ in meta.scan() if key[:1] in (b"t", b"m")]
    assert len(times) == len(KEYS) + 1
    engine.write({offsets.TABLE: dict.fromkeys(times)})
    engine.flush()
    engine.close()
    for time_ms, wanted in ((500, 500), (400, 500), (700, 700)):
        process(rig, time_ms)
        assert stamps(rig.broker) == {wanted}


def test_a_row_deleted_leaves_no_time_behind(tmp_path: Path) -> None:
    rig = TaskRig(tabled(history_ms=None), tmp_path)
    process(rig, 1000)
    task = rig.start()
    for key in KEYS[1:]:
        rig.broker.produce(IN, Record(key.encode(), None, 1100))
    task.step(0)
    rig.end()
    engine = RocksDatabases().read(rig.store_dir("kept"))
    found = [key for key, _ in engine.table(offsets.TABLE).scan(b"t", b"u")]
    engine.close()
    assert found == [b"tk0"]


def test_a_table_restored_with_history_tells_late_updates_by_its_records_own_times(
    tmp_path: Path,
) -> None:
    rig = TaskRig(tabled(history_ms=None), tmp_path)
    task = rig.start()
    for key in KEYS:
        rig.broker.produce(IN, Record(key.encode(), b"nine", 9_000))
    rig.broker.produce(IN, Record(b"other", b"noon", 12_000))
    task.step(0)
    rig.end()
    shutil.rmtree(rig.store_dir("kept"))  # as an upgrade sets it aside
    after = TaskRig(tabled(history_ms=100_000), tmp_path, broker=rig.broker, clock=rig.clock)
    task = after.start()
    for key in KEYS:
        after.broker.produce(IN, Record(key.encode(), b"ten", 10_000))
    task.step(0)
    task.step_commit()
    store = task.store("kept")
    found = {store.get(key) for key in KEYS}  # type: ignore[attr-defined]  # a versioned store
    after.end()
    assert found == {ss.VersionedRecord("ten", 10_000, None)}
