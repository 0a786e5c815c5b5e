"""Around a relocation: old transactional ids, owners and their epochs, locks, the log."""

import logging
from collections.abc import Iterator

import msgspec
import pytest

from statestore import faults
from statestore.errors import HostFailure, Locked
from statestore.faults import CrashPoint
from statestore.layout import owners
from statestore.layout.owners import Claim, Owner
from statestore.model.ids import TaskId
from statestore.tasks.plan import transactional_ids
from tests.builders import ManualClock
from tests.relocation_rig import (
    Rig,
    expected_stores,
    in_memory_folder,
    refused,
    tasks_of,
)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with in_memory_folder() as folder:
        yield Rig(folder)


def ids_of(topology: str) -> list[str]:
    """All transactional ids of its tasks."""
    return [one for task in tasks_of(topology) for one in transactional_ids("shop", task)]


def test_every_id_of_the_last_deployment_is_settled_before_anything_changes(rig: Rig) -> None:
    rig.deploy("A|B")
    before = rig.tree()

    def settle(ids: list[str]) -> None:
        assert rig.tree() == before
        rig.settled.extend(ids)

    rig.relocation("B|A", settle=settle).apply()
    assert rig.settled == ids_of("A|B")


def test_ids_are_settled_though_no_store_moves(rig: Rig) -> None:
    rig.deploy("A|B").relocation("A").apply()
    assert rig.settled == ids_of("A|B")


def test_the_same_topology_settles_nothing(rig: Rig) -> None:
    rig.deploy("A|B").relocation("A|B").apply()
    assert rig.settled == []


def test_a_broker_that_does_not_answer_leaves_everything_as_it_was(rig: Rig) -> None:
    def settle(_ids: list[str]) -> None:
        raise HostFailure("nobody there")

    rig.deploy("A|B")
    assert refused(rig, "B|A", settle=settle) == "nobody there"


def test_offline_a_task_that_was_not_closed_cleanly_is_refused(rig: Rig) -> None:
    rig.deploy("A|B")
    folder = rig.layout.task_dir(TaskId(0, 1))
    owners.claim(folder, what="", wait_ms=0, clock=ManualClock()).abandon()
    said = refused(rig, "B|A", settle=None)
    assert "--offline: task 0_1 was not closed cleanly by process" in said
    assert "leave out --offline" in said
    owners.claim(folder, what="", wait_ms=0, clock=ManualClock()).release()
    rig.relocation("B|A", settle=None).apply()
    assert rig.stores() == expected_stores("B|A")


def owner(rig: Rig, task: TaskId) -> Owner:
    found = owners.read_owner(rig.layout.task_dir(task))
    assert found is not None
    return found


def test_whoever_thinks_a_folder_is_his_sees_a_newer_epoch(rig: Rig) -> None:
    rig.deploy("A|B")
    folder = rig.layout.task_dir(TaskId(0, 0))
    zombie = owners.claim(folder, what="", wait_ms=0, clock=ManualClock())
    zombie.lose()
    assert zombie.still_ours()
    rig.relocation("B|A").apply()
    assert not zombie.still_ours()


def test_a_folder_inherits_the_doubts_about_the_owner_of_what_comes_into_it(rig: Rig) -> None:
    rig.deploy("A|B")
    path = rig.layout.task_dir(TaskId(0, 0)) / "owner.json"
    epochs = [owner(rig, TaskId(ordinal, 0)).epoch for ordinal in (0, 1)]
    elsewhere = msgspec.structs.replace(owner(rig, TaskId(0, 0)), host="elsewhere", released=False)
    path.write_bytes(msgspec.json.encode(elsewhere))
    rig.relocation("B|A").apply()
    for ordinal in (0, 1):
        now = owner(rig, TaskId(ordinal, 0))
        assert now.epoch > max(epochs)
    assert owner(rig, TaskId(1, 0)).host == "elsewhere"
    assert not owner(rig, TaskId(1, 0)).provably_dead()
    assert owner(rig, TaskId(1, 1)).host == "here"
    assert owner(rig, TaskId(1, 1)).released


def test_a_folder_that_was_not_there_gets_an_owner_with_its_store(rig: Rig) -> None:
    rig.deploy("A", partitions=1).relocation("N|A").apply()
    assert owner(rig, TaskId(1, 0)).released


def claimed(rig: Rig, task: TaskId) -> Claim:
    return owners.claim(rig.layout.task_dir(task), what="", wait_ms=0, clock=rig.clock)


def test_what_a_living_owner_may_have_open_is_left_behind_by_the_next_one(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    path = rig.layout.task_dir(TaskId(0, 0)) / "owner.json"
    elsewhere = msgspec.structs.replace(owner(rig, TaskId(0, 0)), host="far", released=False)
    path.write_bytes(msgspec.json.encode(elsewhere))
    rig.relocation("B|A").apply()
    assert not claimed(rig, TaskId(1, 0)).owner.in_place


def test_stores_in_the_folder_of_an_owner_that_took_over_are_moved_from_there(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    task = rig.layout.task_dir(TaskId(0, 0))
    (task / "rocksdb").rename(task / owners.stores_name(1))
    took_over = msgspec.structs.replace(owner(rig, TaskId(0, 0)), in_place=False)
    (task / "owner.json").write_bytes(msgspec.json.encode(took_over))
    rig.relocation("B|A").apply()
    assert rig.stores() == expected_stores("B|A", partitions=1)
    for ordinal in (0, 1):
        assert claimed(rig, TaskId(ordinal, 0)).owner.in_place, "that owner was gone for good"


def test_without_locks_a_living_owner_is_not_waited_for_and_sees_a_newer_epoch(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    living = claimed(rig, TaskId(0, 0))
    rig.relocation("B|A", settings={"statestore.volume.locks": False}).apply_locked()
    assert rig.stores() == expected_stores("B|A", partitions=1)
    assert not living.still_ours()
    living.release()
    assert not claimed(rig, TaskId(1, 0)).owner.in_place, "it may still write into what it has open"


def test_every_folder_is_locked_until_the_journal_is_closed(rig: Rig) -> None:
    rig.deploy("A", partitions=1)
    held: list[CrashPoint] = []

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.RELOCATE_SETTLED:
            tasks = [TaskId(0, 0)]
        else:
            tasks = [TaskId(0, 0), TaskId(1, 0)]
        for task in tasks:
            folder = rig.layout.task_dir(task)
            with pytest.raises(Locked), owners.at_rest(folder, what="task", wait_ms=0):
                pass
        held.append(point)

    faults.on_reach(reached)
    try:
        rig.relocation("N|A").apply()
    finally:
        faults.on_reach(None)
    assert set(held) == {point for point in CrashPoint if point.startswith("relocate.")}
    for task in (TaskId(0, 0), TaskId(1, 0)):
        owners.claim(rig.layout.task_dir(task), what="", wait_ms=0, clock=ManualClock()).release()


def test_the_application_is_locked_meanwhile(rig: Rig) -> None:
    rig.deploy("A|B")
    folder = rig.layout.application_dir
    held = owners.claim(folder, what="", wait_ms=0, clock=ManualClock())
    with pytest.raises(Locked, match="application shop"):
        rig.relocation("B|A").apply_locked()
    held.release()
    rig.relocation("B|A").apply_locked()
    assert rig.stores() == expected_stores("B|A")


def test_each_rename_is_told_in_the_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.deploy("A|B", partitions=1)
    with caplog.at_level(logging.INFO):
        rig.relocation("B|A").apply()
    source, target = (rig.layout.store_dir(TaskId(ordinal, 0), "A") for ordinal in (0, 1))
    assert f"relocation: {source} is now {target}" in caplog.text
