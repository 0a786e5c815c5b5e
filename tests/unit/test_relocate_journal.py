"""The journal of a relocation: whoever comes next finishes it, or is told why not."""

from collections.abc import Iterator

import pytest

from statestore import faults
from statestore.errors import FormatTooNew, HostFailure, TopologyMismatch
from statestore.faults import CrashPoint
from statestore.model.ids import TaskId
from statestore.operations.relocation.disk import journal_file
from tests.relocation_rig import (
    Died,
    Rig,
    expected_stores,
    in_memory_folder,
    refused,
    topology_of,
)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with in_memory_folder() as folder:
        yield Rig(folder)


def died(rig: Rig, text: str, point: CrashPoint, visit: int = 1) -> None:
    """A relocation that dies there."""
    left = [visit]

    def reached(at: CrashPoint) -> None:
        left[0] -= at is point
        if not left[0]:
            raise Died(at)

    faults.on_reach(reached)
    try:
        with pytest.raises(Died):
            rig.relocation(text).apply()
    finally:
        faults.on_reach(None)


def test_a_relocation_that_was_begun_is_finished_whatever_the_setting_says(rig: Rig) -> None:
    rig.deploy("A|B")
    died(rig, "B|A", CrashPoint.RELOCATE_RENAMED)
    rig.relocation("B|A", automatic=False).apply()
    assert rig.stores() == expected_stores("B|A")


def test_a_report_of_one_that_was_begun_says_what_is_left_of_it(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    died(rig, "B|A", CrashPoint.RELOCATE_RENAMED, visit=2)
    report = rig.relocation("B|A").report()
    assert [move.store for move in report.begun] == ["B"]


def test_one_begun_for_another_topology_is_refused_until_it_is_finished(rig: Rig) -> None:
    rig.deploy("A|B")
    died(rig, "B|A", CrashPoint.RELOCATE_RENAMED)
    fingerprint = topology_of("B|A").fingerprint()
    said = refused(rig, "A|B")
    assert f"for another topology (fingerprint {fingerprint}) was begun and not finished" in said
    rig.relocation("B|A").apply()
    rig.relocation("A|B").apply()
    assert rig.stores() == expected_stores("A|B")


def test_one_begun_is_finished_by_a_topology_with_the_same_places(rig: Rig) -> None:
    rig.deploy("A|B")
    died(rig, "B|A", CrashPoint.RELOCATE_RENAMED)
    rig.relocation("B|A|N").apply()
    assert rig.stores() == expected_stores("B|A")
    assert rig.deployed_fingerprint() == topology_of("B|A|N").fingerprint()


def test_a_journal_of_a_newer_version_is_refused(rig: Rig) -> None:
    journal_file(rig.deploy("A|B").layout).write_text('{"version": 2}')
    with pytest.raises(FormatTooNew, match=r"relocation\.json has version 2.*that began it"):
        rig.relocation("B|A").apply()


def test_a_journal_that_cannot_be_read_is_refused(rig: Rig) -> None:
    journal_file(rig.deploy("A|B").layout).write_text("{")
    assert "is not readable" in refused(rig, "B|A")


def test_a_journal_of_another_application_is_refused(rig: Rig) -> None:
    rig.deploy("A|B")
    died(rig, "B|A", CrashPoint.RELOCATE_JOURNALLED)
    path = journal_file(rig.layout)
    path.write_text(path.read_text().replace('"application_id":"shop"', '"application_id":"bar"'))
    assert "is of application bar, not shop" in refused(rig, "B|A")


def test_a_store_that_vanished_under_a_journal_is_told(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    died(rig, "B|A", CrashPoint.RELOCATE_JOURNALLED)
    rig.layout.store_dir(TaskId(0, 0), "A").rename(rig.folder / "elsewhere")
    with pytest.raises(HostFailure, match="neither is there: bring the store back"):
        rig.relocation("B|A").apply()


def test_a_place_taken_under_a_journal_is_never_overwritten(rig: Rig) -> None:
    rig.deploy("A|B", partitions=1)
    died(rig, "B|A", CrashPoint.RELOCATE_JOURNALLED)
    rig.put("A", TaskId(1, 0), "came in between")
    with pytest.raises(TopologyMismatch, match="has come to be since"):
        rig.relocation("B|A").apply()
    assert rig.stores()["1_0/A"] == "came in between"
    assert rig.stores()["0_0/A"] == "A-0"
