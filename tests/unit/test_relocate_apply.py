"""A relocation acts as planned, refuses before it changes anything, and is finished by the next.

Shows I9.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.errors import FormatTooNew
from statestore.layout import owners
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.relocation.apply import RelocationReport
from statestore.operations.relocation.disk import journal_file
from statestore.operations.relocation.relocation_plan import Choices
from statestore.tasks.input_checkpoint import REFRESH_MS, InputCheckpoint
from tests.builders import ManualClock
from tests.relocation_rig import (
    Rig,
    changelog,
    expected_entries,
    expected_stores,
    in_memory_folder,
    refused,
    topology_of,
)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with in_memory_folder() as folder:
        yield Rig(folder)


# Moves.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("A|B", "B|A"),
        ("A|B|C", "C|A|B"),
        ("A B|C", "A|B|C"),
        ("A|B|C", "A B C"),
        ("A|B", "N|A|B"),
        ("A B|C D", "C B|A D"),
    ],
    ids=["swap", "cycle", "split", "merge", "one added", "crosswise"],
)
def test_stores_and_their_entries_lie_where_the_topology_looks(
    rig: Rig, before: str, after: str
) -> None:
    rig.deploy(before).relocation(after).apply()
    wanted = {place: rows for place, rows in expected_stores(after).items() if "N" not in place}
    assert rig.stores() == wanted
    entries = {
        task: {tp: offset for tp, offset in said.items() if "-N-" not in tp.topic}
        for task, said in expected_entries(after).items()
    }
    assert rig.entries() == {task: said for task, said in entries.items() if said}
    assert rig.deployed_fingerprint() == topology_of(after).fingerprint()
    assert not journal_file(rig.layout).exists()


def test_positions_go_with_their_stores(rig: Rig) -> None:
    rig.deploy("A|B").relocation("B|A").apply()
    beside, inside = rig.layout.position_files(TaskId(1, 1), "A")
    assert not beside.exists()
    assert inside.read_text(encoding="utf-8") == f"0\n1\nin 1 {ord('A')}\n"


def test_a_stale_position_of_a_store_that_is_gone_is_not_taken_for_the_new_ones(rig: Rig) -> None:
    rig.deploy("A|B")
    beside, _ = rig.layout.position_files(TaskId(1, 0), "A")
    beside.write_text("0\n1\nin 0 999999\n", encoding="utf-8")
    rig.relocation("B|A").apply()
    assert not beside.exists()
    assert "999999" in beside.with_name("A.position.stale").read_text(encoding="utf-8")


def test_back_to_the_old_topology_is_back_to_the_old_places(rig: Rig) -> None:
    rig.deploy("A|B C")
    before = rig.stores(), rig.entries()
    rig.relocation("B|C A").apply()
    assert rig.stores() != before[0]
    rig.relocation("A|B C").apply()
    assert (rig.stores(), rig.entries()) == before


def test_what_the_topology_does_not_have_stays_as_it_is(rig: Rig) -> None:
    rig.deploy("A|B|C")
    rig.relocation("B|A").apply()
    assert {place for place in rig.stores() if "C" in place} == {"2_0/C", "2_1/C"}
    assert set(rig.entries()["2_1"]) == {changelog("C", 1)}


def test_nothing_to_move_changes_nothing_but_the_fingerprint(rig: Rig) -> None:
    rig.deploy("A|B")
    before = rig.tree()
    rig.relocation("A|B|N").apply()
    after = rig.tree()
    assert after.pop("topology.json") != before.pop("topology.json")
    assert after == before


def test_a_store_of_many_files_is_renamed_not_copied(rig: Rig) -> None:
    path = rig.deploy("A|B").layout.store_dir(TaskId(0, 0), "A") / "rows"
    inode = path.stat().st_ino
    rig.relocation("B|A").apply()
    assert (rig.layout.store_dir(TaskId(1, 0), "A") / "rows").stat().st_ino == inode


def test_a_report_says_what_would_be_done_and_touches_nothing(rig: Rig) -> None:
    rig.deploy("A|B")
    before = rig.tree()
    report = rig.relocation("B|A").report()
    assert rig.tree() == before
    assert not report.applied
    assert [(m.store, m.source, m.target, m.size_bytes) for m in report.plan.moves] == [
        ("A", "0_0", "1_0", 3),
        ("A", "0_1", "1_1", 3),
        ("B", "1_0", "0_0", 3),
        ("B", "1_1", "0_1", 3),
    ]
    done = rig.relocation("B|A").apply_locked()
    assert done == RelocationReport("shop", True, [], report.plan)


def test_what_is_remembered_of_an_input_goes_to_the_task_that_reads_it_now(rig: Rig) -> None:
    rig.deploy("A|B")
    moved, gone = TopicPartition("in-1-A", 1), TopicPartition("gone", 1)
    before = InputCheckpoint(rig.layout.task_dir(TaskId(0, 1)), rig.clock)
    before.committed({moved: 500, gone: 7})
    rig.clock.advance(2 * REFRESH_MS)
    rig.relocation("B|A").apply()
    now = InputCheckpoint(rig.layout.task_dir(TaskId(1, 1)), rig.clock)
    assert now.read() == {moved: 500}
    assert now.is_old(), "it is as long ago as it was"
    now.committed({moved: 600})
    now.write()
    rig.relocation("B|A").apply()
    assert now.read() == {moved: 600}


def test_a_mark_that_cannot_be_read_is_refused(rig: Rig) -> None:
    rig.deploy("A|B")
    (rig.layout.task_dir(TaskId(0, 1)) / "inputs.json").write_text("{", encoding="utf-8")
    assert "inputs.json is not readable" in refused(rig, "B|A")


# Copies.


def test_an_empty_copy_goes_aside_and_the_other_takes_its_place(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    rig.layout.store_dir(TaskId(1, 0), "A").mkdir()
    rig.relocation("B|A").apply()
    assert rig.stores() == expected_stores("B|A", partitions=1)
    assert rig.quarantined() == {"A-0 empty": ""}


def test_the_copy_to_keep_takes_the_place_of_the_other(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    rig.put("A", TaskId(1, 0), "the wrong rows")
    assert "--keep 0_0 or --keep 1_0" in refused(rig, "B|A")
    rig.relocation("B|A", choices=Choices(keep=frozenset({TaskId(0, 0)}))).apply()
    assert rig.stores() == expected_stores("B|A", partitions=1)
    assert rig.entries() == expected_entries("B|A", partitions=1)
    assert rig.quarantined() == {"A-0 other-copy": "the wrong rows"}


def test_the_entry_of_the_copy_that_goes_aside_goes_too(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    rig.put("A", TaskId(1, 0), "the right rows")
    rig.relocation("B|A", choices=Choices(keep=frozenset({TaskId(1, 0)}))).apply()
    assert rig.stores()["1_0/A"] == "the right rows"
    assert changelog("A", 0) not in rig.entries()["0_0"]
    assert rig.entries()["1_0"][changelog("A", 0)] == 100 + ord("A")


def test_copies_of_several_partitions_get_names_of_their_own_in_quarantine(rig: Rig) -> None:
    rig.deploy("A|B", partitions=3)
    for partition in range(3):
        rig.layout.store_dir(TaskId(1, partition), "A").mkdir()
    rig.relocation("B|A").apply()
    assert rig.stores() == expected_stores("B|A", partitions=3)
    assert len(rig.quarantined()) == 3


# Refusals: each with its own message, and nothing changed.


def test_without_automatic_relocation_every_place_is_listed_with_the_command(rig: Rig) -> None:
    rig.deploy("A|B")
    said = refused(rig, "B|A", automatic=False)
    for place in ("A: in 0_0, should be in 1_0", "B: in 1_1, should be in 0_1"):
        assert place in said
    assert "`statestore relocate --application-id shop`" in said
    assert rig.settled == []


def test_without_automatic_relocation_an_empty_copy_is_left_alone(rig: Rig) -> None:
    rig.deploy("A|B")
    rig.layout.store_dir(TaskId(1, 0), "A").mkdir()
    rig.relocation("A|B", automatic=False).apply()
    assert rig.stores()["1_0/A"] == ""


def test_a_task_that_is_owned_is_locked_and_nothing_is_settled(rig: Rig) -> None:
    rig.deploy("A|B")
    folder = rig.layout.task_dir(TaskId(1, 1))
    held = owners.claim(folder, what="", wait_ms=0, clock=ManualClock())
    assert f"task 1_1 ({folder}) is owned by process" in refused(rig, "B|A")
    assert rig.settled == []
    held.release()
    rig.relocation("B|A").apply()


def test_a_topology_file_of_a_newer_version_is_refused(rig: Rig) -> None:
    rig.deploy("A|B").layout.topology_file.write_text('{"version": 2, "stores": 7}')
    with pytest.raises(FormatTooNew, match=r"topology\.json has version 2.*upgrade statestore"):
        rig.relocation("B|A").apply()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"version": 1, "stores": 7}'])
def test_a_topology_file_of_somebody_else_is_refused(rig: Rig, content: str) -> None:
    rig.deploy("A|B").layout.topology_file.write_text(content)
    assert "is not readable" in refused(rig, "B|A")


def test_task_folders_on_different_volumes_are_refused(rig: Rig, tmp_path: Path) -> None:
    if tmp_path.stat().st_dev == rig.folder.stat().st_dev:
        pytest.skip("this machine has one volume only")
    task = rig.deploy("A|B", partitions=1).layout.task_dir(TaskId(1, 0))
    (task / "rocksdb").rename(task / "before")
    (task / "rocksdb").symlink_to(tmp_path)
    assert "on different volumes" in refused(rig, "B|A")
