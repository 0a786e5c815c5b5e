"""What only an engine on disk can get wrong: crashes, locks, damaged files, full volumes, exits."""

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from statestore.engines.rocks import RocksEngine, RocksTuning, open_rocks, stored_tables
from statestore.errors import HostFailure, Locked, Misuse, StoreClosed, TaskCorrupted
from tests.builders import DEADLINE_S
from tests.contract.conftest import MEMORY, TABLES, fails, rocks_rows
from tests.contract.rocks_child import KEYS, write
from tests.tiers import first_of

ROOT = Path(__file__).resolve().parents[2]
TUNING = RocksTuning(memory=MEMORY)
SIGKILLED = -9


def child(verb: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "tests.contract.rocks_child", verb, folder],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_child(verb: str, folder: Path, *, code: int = 0) -> dict[str, Any]:
    """All it said, as one dict; its exit code is part of the claim."""
    process = child(verb, folder)
    said, complaint = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, complaint
    return {key: value for line in said.splitlines() for key, value in json.loads(line).items()}


def open_plain(folder: Path) -> RocksEngine:
    return open_rocks(folder, tables=TABLES, tuning=TUNING)


def commit_on_disk(folder: Path) -> int:
    """The number of the commit found; every row and the offset must carry it."""
    data, offsets = rocks_rows(folder, "data"), rocks_rows(folder, "offsets")
    numbers = {value.partition(b".")[0] for value in data.values()} | set(offsets.values())
    assert len(numbers) <= 1, f"torn: rows of commits {numbers}"
    assert len(data) == (KEYS if numbers else 0)
    return int(numbers.pop()) if numbers else 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "db"


def test_flush_makes_all_tables_durable_at_once(folder: Path) -> None:
    run_child("flush_then_die", folder, code=SIGKILLED)
    assert commit_on_disk(folder) == 1


def test_checkpoint_holds_unflushed_writes_and_survives_the_death_of_its_maker(
    folder: Path,
) -> None:
    run_child("checkpoint_then_die", folder, code=SIGKILLED)
    assert commit_on_disk(folder.with_name("checkpoint")) == 1
    sst = next(folder.with_name("checkpoint").glob("*.sst"))
    assert sst.stat().st_nlink == 2


def test_with_the_log_on_each_write_survives_a_kill_without_flush(folder: Path) -> None:
    run_child("log_then_die", folder, code=SIGKILLED)
    assert commit_on_disk(folder) == 2


@pytest.mark.parametrize("kills", first_of([4, 16]))
def test_a_kill_at_any_moment_leaves_one_whole_commit_no_older_than_the_last_flush(
    folder: Path, kills: int
) -> None:
    for kill in range(kills):
        process = child("write_until_killed", folder)
        assert process.stdout is not None
        durable = 0
        for _ in range(kill % 4 + 1):
            durable = json.loads(process.stdout.readline())["durable"]
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        assert commit_on_disk(folder) >= durable


def test_a_process_that_ends_without_close_loses_nothing(folder: Path) -> None:
    run_child("leave_open", folder)
    assert commit_on_disk(folder) == 2


def test_an_engine_dropped_without_close_lets_go_of_its_folder(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_plain(folder)
    write(engine, 1)
    get, cursor = engine.table("data").get, engine.table("data").scan()
    del engine
    gc.collect()
    assert "not closed by its owner" in caplog.text
    open_plain(folder).close()
    with pytest.raises(StoreClosed):
        next(cursor)
    with pytest.raises(Exception, match="already closed"):
        get(b"0000")


def test_a_folder_open_in_another_process_is_locked_until_that_closes(folder: Path) -> None:
    process = child("hold", folder)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(Locked, match=str(folder)):
        open_plain(folder)
    process.communicate(timeout=DEADLINE_S)
    open_plain(folder).close()


def test_a_folder_open_in_this_process_is_locked(folder: Path) -> None:
    engine = open_plain(folder)
    with pytest.raises(Locked):
        open_plain(folder)
    engine.close()


def wrong_calls(engine: RocksEngine) -> list[Callable[[], object]]:
    text: Any = "not bytes"
    return [
        lambda: engine.write({"offsets": {b"k": text}}),
        lambda: engine.write({"data": {b"k": b"v"}, "absent": {}}),
        lambda: next(engine.table("data").scan(text)),
        lambda: engine.checkpoint(Path(sys.executable)),
    ]


def test_the_folder_is_free_at_once_whatever_is_still_held(folder: Path) -> None:
    """Cursors at every stage, bound reads and tracebacks of failed calls keep no lock."""
    held: list[object] = []
    for number in range(1, 31):
        engine = open_plain(folder)
        write(engine, number)
        data = engine.table("data")
        begun, ended = data.scan(), data.scan(reverse=True)
        held += [data, data.get, data.scan(), begun, next(begun), iter(begun), ended, list(ended)]
        held += [fails(engine, action) for action in wrong_calls(engine)]
        engine.close()
        assert commit_on_disk(folder) == number


def test_threads_that_read_during_close_are_refused_and_nothing_breaks(folder: Path) -> None:
    assert run_child("stress", folder) == {"rounds": 50}


def test_close_waits_for_a_list_get_under_way(folder: Path) -> None:
    engine = open_plain(folder)
    engine.write({"data": {b"%06d" % key: b"x" * 100 for key in range(50_000)}})
    table, keys = engine.table("data"), [b"%06d" % key for key in range(50_000)]
    begun = threading.Event()
    ends: list[Exception] = []

    def read() -> None:
        try:
            while True:
                table.get_many(keys)
                begun.set()
        except StoreClosed as error:
            ends.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(DEADLINE_S)
    engine.close()
    open_plain(folder).close()
    for thread in threads:
        thread.join()
    assert len(ends) == 3


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def shorten(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: -min(100, len(content) // 2)])


def biggest_sst(folder: Path) -> Path:
    return max(folder.glob("*.sst"), key=lambda file: file.stat().st_size)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "sst shortened": lambda folder: shorten(biggest_sst(folder)),
    "sst gone": lambda folder: biggest_sst(folder).unlink(),
    "manifest gone": lambda folder: next(folder.glob("MANIFEST-*")).unlink(),
    "manifest flipped": lambda folder: flip(next(folder.glob("MANIFEST-*"))),
    "current gone": lambda folder: (folder / "CURRENT").unlink(),
    "current garbled": lambda folder: flip(folder / "CURRENT"),
    "current empty": lambda folder: os.truncate(folder / "CURRENT", 0),
}


def one_commit(folder: Path) -> None:
    engine = open_plain(folder)
    write(engine, 1)
    engine.close()


# Of stores, test_store_damage.py has all of them in the first tier.
@pytest.mark.parametrize("damage", first_of(DAMAGES))
def test_a_damaged_folder_is_corrupted_when_opened(folder: Path, damage: str) -> None:
    one_commit(folder)
    for log in folder.glob("*.log"):  # RocksDB would notice a lost CURRENT by this file only
        log.unlink()
    DAMAGES[damage](folder)
    said = run_child("read_all", folder)["open"]
    assert said.startswith("TaskCorrupted")
    assert str(folder) in said
    if "sst" not in damage:
        assert biggest_sst(folder).exists(), "a refused database keeps its files"


def test_a_flipped_byte_is_an_error_for_every_kind_of_read_and_keeps_no_lock(folder: Path) -> None:
    one_commit(folder)
    flip(biggest_sst(folder))
    said = run_child("read_all", folder)
    assert said["open"] == said["reopen"] == "done"
    for read in ("get", "get_many", "scan", "reverse"):
        assert said[read].startswith("TaskCorrupted"), said
        assert str(folder) in said[read]


def test_sound_folders_read_as_sound(folder: Path) -> None:
    one_commit(folder)
    assert set(run_child("read_all", folder).values()) == {"done"}


def test_a_full_disk_is_a_host_failure_and_leaves_the_last_flush_whole(folder: Path) -> None:
    said = run_child("fill_disk", folder)
    assert set(said) == {"flush", "write", "checkpoint", "close"}
    assert all(outcome.startswith("HostFailure") for outcome in said.values())
    assert commit_on_disk(folder) == 1


def test_lack_of_file_descriptors_is_never_called_corruption(folder: Path) -> None:
    *refused, last = run_child("few_files", folder)["outcomes"]
    assert len(refused) >= 3
    assert all(outcome.startswith("HostFailure") for outcome in refused), refused
    assert last == "done"
    assert commit_on_disk(folder) == 3


def test_a_folder_that_may_not_be_written_is_a_host_failure(folder: Path) -> None:
    assert run_child("as_nobody", folder)["open"].startswith("HostFailure")


def test_a_file_in_place_of_the_folder_is_a_host_failure(folder: Path) -> None:
    folder.write_text("not a folder")
    with pytest.raises(HostFailure, match=str(folder)):
        open_plain(folder)


def test_tables_missing_on_disk_are_made_and_tables_unknown_to_the_caller_are_misuse(
    folder: Path,
) -> None:
    assert stored_tables(folder) == []
    one_commit(folder)
    open_rocks(folder, tables=(*TABLES, "segments"), tuning=TUNING).close()
    assert stored_tables(folder) == ["data", "default", "offsets", "segments"]
    with pytest.raises(Misuse, match="segments"):
        open_plain(folder)
    assert commit_on_disk(folder) == 1


def test_a_database_that_must_exist_is_not_made(folder: Path) -> None:
    for tuning in (
        RocksTuning(memory=MEMORY, create_if_missing=False),
        RocksTuning(memory=MEMORY, read_only=True),
    ):
        with pytest.raises(TaskCorrupted, match="no database"):
            open_rocks(folder, tables=TABLES, tuning=tuning)
        assert not folder.exists()


def test_read_only_engines_read_beside_each_other_and_refuse_writes(folder: Path) -> None:
    one_commit(folder)
    tuning = RocksTuning(memory=MEMORY, read_only=True)
    first, second = (open_rocks(folder, tables=TABLES, tuning=tuning) for _ in range(2))
    assert len(list(first.table("data").scan())) == KEYS
    assert second.table("offsets").get(b"t-0") == b"1"
    with pytest.raises(Misuse, match="read-only"):
        write(first, 2)
    with pytest.raises(Misuse, match="read-only"):
        first.checkpoint(folder.with_name("copy"))
    first.flush()
    first.close()
    second.close()
    assert commit_on_disk(folder) == 1


def test_the_hook_sees_the_options_of_every_family_and_has_the_last_word(folder: Path) -> None:
    seen: list[Options] = []

    def hook(options: Options) -> None:
        seen.append(options)
        options.set_disable_auto_compactions(True)
        options.set_level_zero_file_num_compaction_trigger(2)

    engine = open_rocks(folder, tables=TABLES, tuning=RocksTuning(memory=MEMORY, options_hook=hook))
    assert len(seen) == 4  # the database, its default family and two tables
    for number in range(1, 7):
        write(engine, number)
        engine.flush()
    engine.close()
    assert len(list(folder.glob("*.sst"))) >= 12


def test_a_store_on_disk_is_plain_rocksdb_with_raw_bytes(folder: Path, tmp_path: Path) -> None:
    one_commit(folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    db = Rdict(str(copy), access_type=AccessType.read_only())
    assert db.get_column_family("offsets").get(b"t-0") == b"1"
