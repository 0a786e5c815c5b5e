"""Snapshots of stream tasks: at rest, of an owner at work, leased, refused; the store of them.

Shows I14.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import (
    HostFailure,
    Misuse,
    StoreClosed,
    TaskCorrupted,
    Unavailable,
    UnknownStore,
)
from statestore.layout.owners import read_owner
from statestore.layout.snapshots import TaskSnapshots, new_id
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.looking.task_snapshots import Snapshot, Snapshots
from statestore.runtime.databases import RocksDatabases
from statestore.tasks.task import StreamTask
from tests.builders import DEADLINE_S, eventually
from tests.contract.task_rig import APPLICATION, TASK, TaskRig, rows_of

COUNTS = ss.persistent_key_value_store("counts", key_serde=serdes.STRING, value_serde=serdes.INT64)
LATEST = ss.persistent_key_value_store("latest")
RECENT = ss.in_memory_key_value_store("recent")
SETTINGS = {"statestore.snapshot.lease.ms": 10_000, "commit.interval.ms": 100}
LOG = TopicPartition(f"{APPLICATION}-latest-changelog", 0)


class Keep:
    """Keeps the last value of each key, in a file and in memory."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._stores = [context.store("latest"), context.store("recent")]

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        for store in self._stores:
            store.put(record.key, record.value)


def keeping() -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.stream("in").process(Keep, LATEST, RECENT, name="keep")
    return builder.build()


@pytest.fixture
def rig(tmp_path: Path) -> TaskRig:
    return TaskRig(keeping(), tmp_path, settings=SETTINGS)


def asker(rig: TaskRig, **settings: object) -> Snapshots:
    given = {key.replace("_", "."): value for key, value in settings.items()}
    known = ss.Settings.from_mapping({**rig.known().to_mapping(), **given})
    return Snapshots(rig.runtime.with_settings(known))


def served(task: StreamTask, take: Callable[[], Snapshot]) -> Snapshot:
    """What another thread gets while the task works."""
    got: list[Snapshot | BaseException] = []

    def ask() -> None:
        try:
            got.append(take())
        except BaseException as error:  # noqa: BLE001 - raised below
            got.append(error)

    thread = threading.Thread(target=ask)
    thread.start()

    def done() -> bool:
        task.step(0)
        assert task._edges.clock is not None
        task._edges.clock.advance(100)  # type: ignore[attr-defined]  # a ManualClock
        return bool(got)

    eventually(done, "the owner answers")
    thread.join(DEADLINE_S)
    (found,) = got
    if isinstance(found, BaseException):
        raise found
    return found


def rows_in(snapshot: Snapshot, store: str = "latest") -> dict[bytes, bytes]:
    engine = RocksDatabases().read(snapshot.store_dir(store))
    rows = dict(engine.table("data").scan())
    engine.close()
    return rows


def folded(rig: TaskRig, end: int) -> dict[bytes, bytes]:
    """The changelog below an offset, by itself."""
    rows: dict[bytes, bytes] = {}
    for record in rig.broker.records(LOG.topic):
        assert record.key is not None
        assert record.offset is not None
        if record.offset < end and record.value is None:
            rows.pop(record.key, None)
        elif record.offset < end:
            rows[record.key] = record.value or b""
    return rows


def test_twenty_snapshots_of_an_owner_at_work_are_each_the_changelog_at_their_offsets(
    rig: TaskRig,
) -> None:
    task, numbers = rig.start(), set()
    for number in range(20):
        rig.send("in", [(f"k{number % 7}", str(number)), (f"n{number}", "x")])
        with served(task, lambda: asker(rig).take(TASK)) as snapshot:
            at = snapshot.manifest.stores["latest"]
            assert rows_in(snapshot) == folded(rig, at.offsets().get(LOG, 0))
            numbers.add(snapshot.manifest.commit_number)
    assert len(numbers) > 10
    assert task.report.snapshots == 20
    rig.end()


def test_what_is_pending_is_in_no_snapshot(rig: TaskRig) -> None:
    task = rig.start()
    rig.send("in", [("a", "1")])
    task.step(0)
    task.step_commit()
    store: Any = task.store("latest")
    store.put(b"pending", b"1")
    with served(task, lambda: asker(rig).take(TASK)) as snapshot:
        assert rows_in(snapshot) == {b"a": b"1"}
    assert rows_of(task, "latest") == {b"a": b"1", b"pending": b"1"}
    rig.end()


def test_a_store_in_memory_is_in_no_snapshot_and_the_error_says_why(rig: TaskRig) -> None:
    task = rig.start()
    with (
        served(task, lambda: asker(rig).take(TASK)) as snapshot,
        pytest.raises(Misuse, match="'recent' of task 0_0 is in no snapshot: it is in memory"),
    ):
        snapshot.store_dir("recent")
    rig.end()


def test_a_task_at_rest_is_linked_by_whoever_asks_and_its_owner_file_stays(rig: TaskRig) -> None:
    task = rig.start()
    rig.send("in", [("a", "1"), ("b", "2")])
    task.step(0)
    rig.end()
    before = read_owner(rig.folder)
    with asker(rig).take(TASK) as snapshot:
        assert rows_in(snapshot) == {b"a": b"1", b"b": b"2"}
        assert snapshot.manifest.commit_number is None
        assert snapshot.manifest.stores["latest"].positions() == {TopicPartition("in", 0): 1}
    assert read_owner(rig.folder) == before
    assert list((rig.folder / "snapshots").iterdir()) == []


def test_an_owner_that_lets_go_leaves_the_snapshot_to_whoever_asked(rig: TaskRig) -> None:
    task = rig.start()
    rig.send("in", [("a", "1")])
    task.step(0)
    got: list[Snapshot] = []
    thread = threading.Thread(target=lambda: got.append(asker(rig).take(TASK)))
    thread.start()
    eventually(lambda: bool(TaskSnapshots(rig.folder).requests()), "it asks")
    rig.end()
    thread.join(DEADLINE_S)
    assert rows_in(got[0]) == {b"a": b"1"}
    assert TaskSnapshots(rig.folder).requests() == []


def test_an_owner_that_does_not_answer_is_named_and_the_request_taken_back(rig: TaskRig) -> None:
    rig.start()
    with pytest.raises(Unavailable, match=r"task 0_0: process \d+ on .* within 30 ms"):
        asker(rig, statestore_snapshot_wait_ms=30).take(TASK)
    assert TaskSnapshots(rig.folder).requests() == []
    rig.end()


def test_an_owner_that_cannot_take_one_goes_on_and_whoever_asked_is_told(
    rig: TaskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = rig.start()

    def full(*_: object) -> None:
        raise HostFailure("disk full")

    monkeypatch.setattr(TaskSnapshots, "publish", full)
    with pytest.raises(HostFailure, match="its owner could not take a snapshot"):
        served(task, lambda: asker(rig).take(TASK))
    monkeypatch.undo()
    with served(task, lambda: asker(rig).take(TASK)):
        pass
    rig.end()


def test_a_lease_that_ran_out_is_swept_by_the_owner_and_renewing_it_says_so(rig: TaskRig) -> None:
    task = rig.start()
    kept, lost = (served(task, lambda: asker(rig).take(TASK)) for _ in range(2))
    for _ in range(30):
        rig.clock.advance(6_000)
        kept.renew()
        task.step(0)
    assert rows_in(kept) == {}
    with pytest.raises(Unavailable, match="its lease of 10000 ms had run out"):
        lost.renew()
    kept.release()
    assert list((rig.folder / "snapshots").iterdir()) == []
    rig.end()


def test_stale_requests_are_taken_off_the_list_unanswered(rig: TaskRig) -> None:
    task = rig.start()
    (rig.folder / f"snapshot-request-{new_id(1)}").write_text("no request")
    rig.clock.advance(60_000)
    task.step(0)
    assert TaskSnapshots(rig.folder).requests() == []
    assert task.report.snapshots == 0
    rig.end()


def test_a_snapshot_whose_lease_is_not_written_yet_is_nobodys_to_sweep(tmp_path: Path) -> None:
    at_ms = 1_357_034_400_000
    snapshots, snapshot_id = TaskSnapshots(tmp_path), new_id(at_ms)
    making = snapshots.begin(snapshot_id, at_ms + 10_000)
    (making / "lease.json").unlink()
    (tmp_path / "snapshots" / "of-another-tool").mkdir()
    assert snapshots.sweep(at_ms + 10_000) == ["of-another-tool"]
    assert snapshots.sweep(at_ms + 3_600_000) == [f".{snapshot_id}"]


def test_a_damaged_store_is_named_and_the_others_are_taken(rig: TaskRig) -> None:
    rig.start()
    rig.end()
    (rig.store_dir("latest") / "CURRENT").unlink()
    with asker(rig).take(TASK) as snapshot, pytest.raises(TaskCorrupted, match="'latest'"):
        snapshot.store_dir("latest")


# The store made of them.


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Three partitions of `counts`, each with its own keys."""
    for partition in range(3):
        folder = tmp_path / "shop" / str(TaskId(0, partition)) / "rocksdb"
        with ss.open_store(COUNTS, folder) as store:
            store.put_all((f"k{n:02}", n) for n in range(partition, 30, 3))
            store.commit()
    return tmp_path


def opened(state_dir: Path, **options: Any) -> Any:
    given = {"key_serde": serdes.STRING, "value_serde": serdes.INT64, **options}
    return ss.open_snapshot(state_dir, "shop", "counts", **given)


def test_ranges_of_a_snapshot_are_merged_in_key_order_over_the_partitions(state_dir: Path) -> None:
    every = [(f"k{n:02}", n) for n in range(30)]
    with opened(state_dir) as store:
        assert list(store.all()) == every
        assert list(store.all(reverse=True)) == every[::-1]
        assert list(store.range("k03", "k11")) == every[3:12]
        assert list(store.range("k27", reverse=True)) == every[:26:-1]
        assert list(store.prefix_scan("k1")) == every[10:20]
        assert store.get("k17") == 17
        assert store.get("none", -1) == -1
        assert store.get_many(["k29", "none", "k00"]) == [29, None, 0]
        assert "k05" in store
        assert "none" not in store
        assert store.approximate_num_entries() == 30
        assert store.name == "counts"


def test_one_partition_can_be_asked_for_alone(state_dir: Path) -> None:
    with opened(state_dir, partition=1) as store:
        assert [n for _, n in store.all()] == list(range(1, 30, 3))
    with pytest.raises(Misuse, match="no partition 7"):
        opened(state_dir, partition=7)


def test_a_snapshot_stays_as_it_was_and_ends_with_close(state_dir: Path) -> None:
    with opened(state_dir) as store:
        folder = state_dir / "shop" / "0_0" / "rocksdb"
        with ss.open_store(COUNTS, folder) as live:
            live.put("k00", 99)
            live.commit()
        assert store.get("k00") == 0
        scan = store.all()
        assert store.is_open()
    assert not store.is_open()
    for use in (lambda: store.get("k00"), lambda: next(scan), store.all):
        with pytest.raises(StoreClosed):
            use()
    assert list(state_dir.rglob("snapshots/*")) == []


def test_what_cannot_be_opened_is_refused_and_leaves_nothing(state_dir: Path) -> None:
    with pytest.raises(UnknownStore, match=r"no store 'nope'.*it has: counts"):
        ss.open_snapshot(state_dir, "shop", "nope")
    with pytest.raises(Misuse, match="no application 'none'"):
        ss.open_snapshot(state_dir, "none", "counts")
    with pytest.raises(Misuse, match=r"statestore\.export\.target is not set"):
        ss.open_snapshot(state_dir, "shop", "counts", export="x")
    assert list(state_dir.rglob("snapshots/*")) == []


def test_without_serdes_and_without_a_deployed_topology_rows_are_bytes(state_dir: Path) -> None:
    with ss.open_snapshot(state_dir, "shop", "counts", partition=0) as store:
        assert store.get(b"k03") == (3).to_bytes(8)
