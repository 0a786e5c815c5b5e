"""Audits of stores that are gone or damaged: a verdict that names them, kept for status."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.layout.audits import AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.operations.audits.checks import AuditCheck
from statestore.operations.audits.perform import audit
from statestore.operations.exports.create import create_export
from statestore.operations.status.status import read_status
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.audit_rig import COUNTS, RATES, Audited, audited, holds_row
from tests.kafka.test_audit import command

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def sound(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    one = audited(kafka, "losses", tmp_path_factory.mktemp("sound") / "state")
    yield one
    one.app.end_children()


def verdict(one: Audited, **settings: object) -> AuditRecord:
    return audit(Runtime(one.settings(**settings)))


def kept(one: Audited) -> AuditRecord | None:
    return Audits(StateLayout(one.app.state_dir, one.app.name)).last()


def whole_task(one: Audited) -> Path:
    return one.folder(COUNTS, 1).parents[1]


def whole_stores(one: Audited) -> Path:
    return one.folder(COUNTS, 1).parent


def one_store(one: Audited) -> Path:
    return one.folder(COUNTS, 1)


@pytest.mark.parametrize("lost", [whole_task, whole_stores, one_store])
def test_a_partition_of_a_store_that_is_gone_is_wrong_and_named(
    sound: Audited, tmp_path: Path, lost: "object"
) -> None:
    one = sound.copy(tmp_path / "state")
    assert callable(lost)
    task = one.folder(COUNTS, 1).parents[1].name
    shutil.rmtree(lost(one))
    code, line, message = command(one)
    assert (code, line["verdict"]) == (12, "wrong")
    gone = [failed for failed in line["failures"] if failed["check"] == AuditCheck.PRESENT]
    assert {(failed["store"], failed["stream_task"]) for failed in gone} >= {(COUNTS, task)}
    assert "it is missing" in message
    missing = [f for f in line["failures"] if f["check"] == AuditCheck.NONE_MISSING]
    assert missing, "what the log has is told by key"
    record = kept(one)
    assert record is not None
    assert record.verdict is AuditVerdict.WRONG
    assert all(place.store != COUNTS or place.partition != 1 for place in record.places)
    told = read_status(Runtime(one.settings())).audit
    assert told is not None
    assert told.verdict is AuditVerdict.WRONG


def test_every_partition_of_a_store_gone_is_wrong_too(sound: Audited, tmp_path: Path) -> None:
    one = sound.copy(tmp_path / "state")
    for partition in range(2):
        shutil.rmtree(one.folder(RATES, partition))
    record = verdict(one)
    assert record.verdict is AuditVerdict.WRONG
    gone = {f.stream_task for f in record.failures if f.check == AuditCheck.PRESENT}
    assert len(gone) == 2


def test_an_export_that_lacks_a_partition_is_wrong(sound: Audited, tmp_path: Path) -> None:
    one = sound.copy(tmp_path / "state")
    shutil.rmtree(one.folder(COUNTS, 1))
    settings = Settings.of(one.settings(**{"statestore.export.target": str(tmp_path / "exports")}))
    report = create_export(Runtime(settings))
    assert any(COUNTS in left_out for left_out in report.left_out.values())
    record = audit(Runtime(settings), export="latest")
    assert record.verdict is AuditVerdict.WRONG
    assert (AuditCheck.PRESENT, COUNTS) in {(f.check, f.store) for f in record.failures}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.unlink()  # a snapshot's file is another link to it
    path.write_bytes(data)


def test_a_flipped_byte_in_a_data_file_is_a_verdict_that_names_the_file(
    sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    key = min(one.rows(COUNTS, 0))
    path = next(p for p in one.folder(COUNTS, 0).glob("*.sst") if holds_row(p, key))
    flip(path, path.read_bytes().index(key))
    code, line, message = command(one)
    assert (code, line["verdict"], line["error"]["class"]) == (12, "wrong", "AuditFailed")
    (failed,) = line["failures"]
    assert (failed["check"], failed["store"]) == (AuditCheck.READABLE, COUNTS)
    assert str(path) in failed["detail"]
    assert str(path) in message
    record = kept(one)
    assert record is not None
    assert record.verdict is AuditVerdict.WRONG


def test_a_flipped_byte_of_an_export_is_a_verdict_that_names_the_file(
    sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    target = tmp_path / "exports"
    settings = Settings.of(one.settings(**{"statestore.export.target": str(target)}))
    create_export(Runtime(settings))
    assert audit(Runtime(settings), export="latest").passed
    biggest = max((target / one.app.name / "files").rglob("*/*"), key=lambda f: f.stat().st_size)
    flip(biggest, 20)
    record = audit(Runtime(settings), export="latest")
    assert record.verdict is AuditVerdict.WRONG
    assert record.failures
    for failed in record.failures:  # stores share what is the same in them
        assert failed.check == AuditCheck.READABLE
        assert biggest.name in failed.detail


@pytest.mark.thorough
def test_a_byte_flipped_anywhere_gives_a_verdict(sound: Audited, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    stores = [(COUNTS, 0), (RATES, 1), ("windows", 0)]
    for number in range(12):
        one = sound.copy(tmp_path / str(number))
        folder = one.folder(*chance.choice(stores))
        path = chance.choice([f for f in sorted(folder.iterdir()) if f.stat().st_size])
        at = chance.randrange(path.stat().st_size)
        flip(path, at)
        record = verdict(one)
        told = f"seed {seed}: {path.name} at {at}"
        assert record.verdict in {AuditVerdict.RIGHT, AuditVerdict.WRONG}, told
        if path.suffix == ".sst" and record.verdict is AuditVerdict.RIGHT:
            # Only what nobody reads: a property of the table, the filter of a lookup.
            assert record.failures == [], told
        shutil.rmtree(one.app.state_dir)
