"""A byte flips under a stored row; real runs under exactly_once go on as if nothing had been."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import AccessType, Options, Rdict

from statestore.faults import CrashPoint
from statestore.layout.folders import StateLayout
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import Rig

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka() as broker:
        yield broker


def flip_rows(folder: Path) -> None:
    """One byte in the first block of each file of rows: nobody notices before it is read."""
    names = Rdict.list_cf(str(folder), Options(raw_mode=True))
    families = {name: Options(raw_mode=True) for name in names}
    db = Rdict(str(folder), Options(raw_mode=True), families, AccessType.read_only())
    files = [file["name"] for file in db.live_files() if file["start_key"].startswith(b"user-")]
    db.close()
    assert files
    for name in files:
        path = folder / name.removeprefix("/")
        content = bytearray(path.read_bytes())
        content[20] ^= 1
        path.write_bytes(content)


def reasons(rig: Rig) -> list[str]:
    layout = StateLayout(rig.state_dir, rig.application_id)
    return sorted(record.reason for _, record in layout.quarantined())


def rig_of(kafka: LocalKafka, root: Path, name: str) -> Rig:
    rig = Rig(kafka, root, application_id=name, topic_prefix=name)
    rig.create_topics()
    rig.produce(4000)
    rig.run()
    for partition in range(2):
        flip_rows(rig.state_dir / name / f"1_{partition}" / "rocksdb" / "counts")
    rig.produce(4000)
    return rig


def test_a_run_that_meets_a_flipped_byte_repairs_the_store_and_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_of(kafka, tmp_path, "flipped")
    summary = rig.run()
    assert summary["caught_up"]
    assert reasons(rig) == ["unreadable", "unreadable"]
    assert rig.findings() == []


def test_a_kill_between_quarantine_and_restore_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_of(kafka, tmp_path, "renamed")
    assert rig.run_until_crash(f"{CrashPoint.QUARANTINE_RENAMED}:1").died
    assert reasons(rig) == ["unreadable"]
    rig.run()
    assert reasons(rig) == ["unreadable", "unreadable"]
    assert rig.findings() == []
