"""Damaged files under a store, alone and in a stream task: an error or a repair, never a lie.

What each kind of damage does to an engine is in test_rocks_engine.py.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

import statestore as ss
from statestore.errors import TaskCorrupted
from statestore.tasks.task import StreamTask
from tests.builders import DEADLINE_S, child
from tests.contract.conftest import rocks_rows
from tests.contract.task_rig import TaskRig, rows_of
from tests.contract.test_rocks_engine import DAMAGES, biggest_sst, flip, shorten

SPEC = ss.persistent_key_value_store("prices")
KEYS = [b"%04d" % number for number in range(300)]
VALUE = b"1" * 100


def drop(folder: Path, table: str) -> None:
    """Lose a whole table."""
    names = Rdict.list_cf(str(folder), Options(raw_mode=True))
    db = Rdict(str(folder), Options(raw_mode=True), {n: Options(raw_mode=True) for n in names})
    db.drop_column_family(table)
    db.close()


AT_OPEN: dict[str, Callable[[Path], None]] = {
    **DAMAGES,
    "offsets without data": lambda folder: drop(folder, "data"),
    "data without offsets": lambda folder: drop(folder, "offsets"),
}

# Alone.

READING = """
import json, sys
import statestore as ss
keys = [b"%04d" % number for number in range(300)]
def said(action):
    try:
        return action()
    except ss.errors.TaskCorrupted as error:
        return f"TaskCorrupted of {error.store}: {error}"
def opened():
    global store
    store = ss.open_store(ss.persistent_key_value_store("prices"), folder)
    return "done"
def whole(values):
    values = list(values)
    return "done" if values == [b"1" * 100] * 300 else f"a lie: {len(values)} values"
reads = {
    "get": lambda: whole(store.get(key) for key in keys),
    "in": lambda: "done" if all([key in store for key in keys]) else "a lie",
    "get_many": lambda: whole(store.get_many(keys)),
    "range": lambda: whole(value for _, value in store.range(reverse=True)),
    "all beside pending": lambda: store.put(keys[0], b"1" * 100) or whole(
        value for _, value in store.all()
    ),
    "reader get": lambda: whole(map(store.reader("READ_COMMITTED").get, keys)),
    "reader get_many": lambda: whole(store.reader("READ_UNCOMMITTED").get_many(keys)),
    "reader all": lambda: whole(value for _, value in store.reader("READ_COMMITTED").all()),
    "delete_range": lambda: store.delete_range(None, None) or "done",
}
for folder in sys.argv[1:]:
    found = {"open": said(opened)}
    if found["open"] == "done":
        found |= {name: said(read) for name, read in reads.items()}
        store.rollback()
        store.close()
    print(json.dumps(found))
"""


def filled(home: Path) -> Path:
    """300 rows on disk."""
    with ss.open_store(SPEC, home) as store:
        store.put_all([(key, VALUE) for key in KEYS])
        store.commit({ss.TopicPartition("log", 0): 300})
    return home / "prices"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path)


def read_elsewhere(*folders: Path) -> list[dict[str, str]]:
    """What another process says of each way to read each of them."""
    with child(READING, *(folder.parent for folder in folders)) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    found: list[dict[str, str]] = [json.loads(line) for line in output.splitlines()]
    assert len(found) == len(folders)
    return found


def test_a_store_with_damaged_files_is_corrupted_when_opened(tmp_path: Path) -> None:
    folders = {name: filled(tmp_path / name) for name in AT_OPEN}
    for name, folder in folders.items():
        for log in folder.glob("*.log"):
            log.unlink()
        AT_OPEN[name](folder)
    for name, found in zip(folders, read_elsewhere(*folders.values()), strict=True):
        assert found["open"].startswith("TaskCorrupted"), name
        assert str(folders[name]) in found["open"], name


def test_a_flipped_byte_is_corruption_of_that_store_for_whoever_reads_it_first(
    folder: Path,
) -> None:
    flip(biggest_sst(folder))
    (found,) = read_elsewhere(folder)
    assert found.pop("open") == "done"
    for way, said in found.items():
        assert said.startswith("TaskCorrupted of prices"), (way, said)
        assert str(folder) in said


def test_files_without_rows_may_be_damaged_and_every_row_is_still_right(tmp_path: Path) -> None:
    damages: dict[str, Callable[[Path], None]]
    damages = {"flipped": flip, "shortened": shorten, "gone": Path.unlink}
    folders = {}
    for files in ("OPTIONS-*", "IDENTITY", "rocksdict-config.json"):
        for how, damage in damages.items():
            folder = filled(tmp_path / f"{files} {how}")
            damage(max(folder.glob(files)))
            folders[f"{files} {how}"] = folder
    for name, found in zip(folders, read_elsewhere(*folders.values()), strict=True):
        assert set(found.values()) == {"done"}, name


KILLED = """
import os, signal, sys
import statestore as ss
store = ss.open_store(ss.persistent_key_value_store("prices"), sys.argv[1])
for number in range(300):
    store.put(b"%04d" % number, b"1" * 100)
    store.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("sound", [True, False])
def test_a_flipped_byte_in_the_log_of_a_killed_store_is_corruption_and_loses_no_commit_silently(
    tmp_path: Path, sound: bool
) -> None:
    """On its own a store has RocksDB's log, and each commit is durable at once (S3)."""
    with child(KILLED, tmp_path) as process:
        process.communicate(timeout=DEADLINE_S)
    folder = tmp_path / "prices"
    if not sound:
        flip(max(folder.glob("*.log"), key=lambda file: file.stat().st_size))
    (said,) = read_elsewhere(folder)
    if sound:
        assert set(said.values()) == {"done"}
    else:
        assert said["open"].startswith("TaskCorrupted"), said
        assert str(folder) in said["open"]


def test_sound_files_read_as_sound(folder: Path) -> None:
    (found,) = read_elsewhere(folder)
    assert set(found.values()) == {"done"}


# In a stream task.


class Both:
    """Writes each record to two stores, and passes on what the first had before."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context = context
        self._stores = context.store("prices"), context.store("other")

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        before = self._stores[0].get(record.key)
        for store in self._stores:
            store.put(record.key, record.value)
        self._context.forward(record.replace(value=before or b"none"))


def topology() -> ss.Topology:
    builder = ss.StreamsBuilder()
    other = ss.persistent_key_value_store("other")
    builder.stream("in").process(Both, SPEC, other, name="both").to("out")
    return builder.build()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TaskRig]:
    """Both stores hold 300 rows, the task is at rest."""
    made = TaskRig(topology(), tmp_path)
    made.start()
    for value in (b"0" * 100, VALUE):
        made.send("in", [(key.decode(), value.decode()) for key in KEYS])
        made.running[0].step(0)
        made.running[0].step_commit()
    made.end()
    yield made
    made.end()


def is_whole(rig: TaskRig, task: StreamTask) -> None:
    expected = rig.changelog("prices")
    assert len(expected) == 300
    for store in ("prices", "other"):
        assert rows_of(task, store) == expected


@pytest.mark.parametrize("damage", AT_OPEN)
def test_a_damaged_store_is_quarantined_and_restored_and_its_neighbour_left_alone(
    rig: TaskRig, damage: str
) -> None:
    neighbour = {path.name: path.stat().st_ino for path in rig.store_dir("other").glob("*.sst")}
    AT_OPEN[damage](rig.store_dir("prices"))
    task = rig.start()
    assert task.report.quarantined == ["prices"]
    assert task.report.restored_records == 600
    is_whole(rig, task)
    for name, inode in neighbour.items():
        assert (rig.store_dir("other") / name).stat().st_ino == inode


def test_damage_met_while_records_are_processed_is_repaired_and_none_is_lost_or_doubled(
    rig: TaskRig,
) -> None:
    flip(biggest_sst(rig.store_dir("prices")))
    task = rig.start()
    assert task.report.quarantined == []
    rig.send("in", [(key.decode(), "2") for key in KEYS])
    for _ in range(3):
        task.step(0)
    assert (task.report.quarantined, task.report.rewinds) == (["prices"], 1)
    rig.end()
    assert [record.value for record in rig.broker.records("out")][600:] == [VALUE] * 300
    assert rocks_rows(rig.store_dir("prices"), "data") == dict.fromkeys(KEYS, b"2")
    assert rig.quarantine() == ["unreadable"]


def test_damage_met_again_in_the_same_life_ends_it_for_a_new_start(rig: TaskRig) -> None:
    task = rig.start()
    for _ in range(2):
        staged = task._stores.opened["prices"].store.staged
        staged.make_durable()
        flip(biggest_sst(rig.store_dir("prices")))
        rig.send("in", [(key.decode(), "2") for key in KEYS])
        if task.report.quarantined:
            with pytest.raises(TaskCorrupted, match="prices"):
                task.step(0)
        else:
            task.step(0)
    rig.running.remove(task)
    task.close()
    after = rig.start()
    for _ in range(2):
        after.step(0)
    after.step_commit()
    assert rows_of(after, "prices") == dict.fromkeys(KEYS, b"2")


def test_a_manifest_cut_short_anywhere_is_healed_by_the_changelog(rig: TaskRig) -> None:
    """RocksDB may open such a one as an older or an empty database: offsets go back with it."""
    sound = rig.layout.state_dir
    manifest = next(rig.store_dir("prices").glob("MANIFEST-*"))
    size = manifest.stat().st_size
    assert size > 200
    restored: set[int] = set()
    for cut in [*range(0, size, size // 20), size - 1]:
        rig.lives += 1
        shutil.copytree(sound, rig.layout.state_dir)
        os.truncate(rig.store_dir("prices") / manifest.name, cut)
        task = rig.start()
        is_whole(rig, task)
        restored.add(task.report.restored_records)
        rig.end()
    assert 600 in restored
