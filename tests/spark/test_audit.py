"""Audits on Spark: Great Expectations' suites on faults planted one by one, in one session."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import msgspec
import pytest
from pyspark.sql import SparkSession

from statestore.commands.arguments import StateArguments
from statestore.layout.audits import AuditFailure, AuditRecord, AuditVerdict
from statestore.operations.audits.audit import EXAMPLES
from statestore.operations.audits.checks import AuditCheck
from statestore.operations.audits.perform import audit
from statestore.operations.deployed import DeployedWriter, publish_deployed, read_deployed
from statestore.runtime import Runtime
from statestore.spark.datasource import TransactionalStore
from statestore.testing.local_kafka import LocalKafka
from tests.audit_rig import (
    COUNTS,
    PLANTS,
    TOGETHER,
    Audited,
    audited,
    holds_row,
    too_early,
    wrong_partition,
)
from tests.builders import ROOT

SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def sound(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return audited(kafka, "sparked", tmp_path_factory.mktemp("sound") / "state")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").appName("audits")
    session = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.dataSource.register(TransactionalStore)
    yield session
    session.stop()


def arguments(one: Audited) -> StateArguments:
    settings = {key: str(value) for key, value in one.settings().items()}
    return StateArguments(application_id=one.app.name, overrides=settings)


def sparked(spark: SparkSession, one: Audited) -> AuditRecord:
    # Great Expectations takes seconds to import: each process that collects tests would pay them.
    on_spark = importlib.import_module("statestore.spark.audit")
    record: AuditRecord = on_spark.audit_on_spark(lambda: spark, arguments(one))
    return record


def docs_of(record: AuditRecord) -> str:
    """All the text of its Data Docs."""
    assert record.data_docs is not None
    folder = Path(unquote(urlparse(record.data_docs).path)).parent
    pages = folder.glob("validations/**/*.html")
    return " ".join(page.read_text(encoding="utf-8") for page in pages)


def test_sound_stores_pass_as_they_do_without_spark(
    spark: SparkSession, sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    plain = audit(Runtime(one.settings()))
    record = sparked(spark, one)
    assert record.failures == []
    assert record.verdict is AuditVerdict.RIGHT
    assert record.stores == plain.stores
    assert record.places == plain.places
    assert "no key in a wrong partition" in docs_of(record)


def test_rows_that_a_partitioner_places_are_judged_by_no_hash(
    spark: SparkSession, sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    wrong_partition(one)
    layout = Runtime(one.settings()).layout
    deployed = read_deployed(layout)
    stores = {
        name: msgspec.structs.replace(store, placed_apart=True)
        for name, store in deployed.stores.items()
    }
    assert sparked(spark, one).verdict is AuditVerdict.WRONG
    publish_deployed(layout, msgspec.structs.replace(deployed, stores=stores))
    record = sparked(spark, one)
    assert record.verdict is AuditVerdict.RIGHT, record.failures
    assert record.stores == audit(Runtime(one.settings())).stores
    assert record.placement_not_checked() == sorted(stores)


def test_rows_of_a_serde_that_is_not_recorded_are_told_as_without_spark(
    spark: SparkSession, sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    layout = Runtime(one.settings()).layout
    deployed = read_deployed(layout)
    assert all(store.value_writers for store in deployed.stores.values())
    newest = [DeployedWriter(1, "JSON")]
    forgetful = msgspec.structs.replace(deployed.stores[COUNTS], value_writers=newest)
    stores = {**deployed.stores, COUNTS: forgetful}
    publish_deployed(layout, msgspec.structs.replace(deployed, stores=stores))
    plain, record = audit(Runtime(one.settings())), sparked(spark, one)
    assert {failure.check for failure in record.failures} == {AuditCheck.KNOWN_WRITERS}
    assert told(record.failures) == told(plain.failures)
    assert record.stores == plain.stores
    assert AuditCheck.KNOWN_WRITERS in docs_of(record)


def test_each_expectation_finds_its_faults_and_names_the_keys(
    spark: SparkSession, sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    planted = [PLANTS[name](one) for name in TOGETHER]
    record = sparked(spark, one)
    assert record.verdict is AuditVerdict.WRONG
    docs = docs_of(record)
    for key, checks in planted:
        for check in checks:
            failures = [failure for failure in record.failures if failure.check == check]
            assert failures, check
            named = " ".join(text for failure in failures for text in failure.keys)
            assert key in named or check == AuditCheck.ROW_COUNTS, (check, key)
        assert key in docs
    assert record.stores == audit(Runtime(one.settings())).stores


def told(failures: list[AuditFailure]) -> list[tuple[object, ...]]:
    """All that is said of them."""
    # Of many keys each names some.
    rows = [
        (f.check, f.store, f.stream_task, f.count, *(sorted(f.keys) if f.count <= EXAMPLES else []))
        for f in failures
    ]
    return sorted((*row, failure.detail) for row, failure in zip(rows, failures, strict=True))


@pytest.mark.parametrize("planting", ["together", "too early", "offset"])
def test_what_is_wrong_is_told_in_the_words_of_the_command_line(
    spark: SparkSession, sound: Audited, tmp_path: Path, planting: str
) -> None:
    one = sound.copy(tmp_path / "state")
    match planting:
        case "together":
            for name in TOGETHER:
                PLANTS[name](one)
        case "too early":
            too_early(one)
        case _:
            assert sparked(spark, one).passed
            one.stand(COUNTS, 1, one.log_end(COUNTS, 1) - 3)
    other = one.copy(tmp_path / "other")
    assert told(sparked(spark, one).failures) == told(audit(Runtime(other.settings())).failures)


def test_a_red_audit_says_so_first_and_last_and_little_else(sound: Audited, tmp_path: Path) -> None:
    one = sound.copy(tmp_path / "state")
    key, _ = PLANTS[TOGETHER[0]](one)
    pairs = {key: value for key, value in one.settings().items() if key != "application.id"}
    flags = [f"--set={key}={value}" for key, value in pairs.items()]
    flags.append(f"--application-id={one.app.name}")
    done = subprocess.run(
        [str(SPARK_SUBMIT), "--master=local[2]", "jobs/audit.py", *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    # spark-submit mixes what Python logs into the output.
    said = done.stdout.splitlines()
    assert done.returncode == 12, done.stdout[-4000:]
    ours = [line for line in said if line.startswith(("verdict:", "failed:", "statestore:"))]
    assert ours[0] == "verdict: wrong"
    assert ours[-1] == said[-1]
    assert said[-1].startswith("statestore: AuditFailed: the stores of ")
    assert any(key in line for line in ours if line.startswith("failed: "))
    assert len([line for line in said if " INFO " in line]) < 40, said
    assert "expect_" not in done.stdout
    (line,) = [line for line in said if line.startswith("{")]
    assert json.loads(line)["verdict"] == "wrong"


def test_what_was_persisted_too_early_fails_its_expectation(
    spark: SparkSession, sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    key, checks = too_early(one)
    record = sparked(spark, one)
    named = {failure.check: failure.keys for failure in record.failures}
    assert checks <= named.keys()
    assert key in named[AuditCheck.NOTHING_PENDING]
    assert record.stores == audit(Runtime(one.settings())).stores


def test_a_row_that_does_not_follow_from_the_others_fails_its_expectation(
    spark: SparkSession, sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    row = min(row for row in one.rows("sessions", 0) if row.startswith(b"\xff"))
    one.write("sessions", 0, {row: None})
    found, plain = sparked(spark, one), audit(Runtime(one.settings()))
    assert [failure.check for failure in found.failures] == ["derived rows follow from the others"]
    assert found.failures == plain.failures


def test_an_offset_that_went_back_fails_its_expectation(
    spark: SparkSession, sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    assert sparked(spark, one).passed
    one.stand(COUNTS, 1, one.log_end(COUNTS, 1) - 3)
    failed = {failure.check: failure for failure in sparked(spark, one).failures}
    assert failed["offsets never go back"].stream_task == "1_1"


def test_what_is_gone_and_what_cannot_be_read_is_a_verdict_that_names_it(
    spark: SparkSession, sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    key = min(one.rows(COUNTS, 0))
    path = next(p for p in one.folder(COUNTS, 0).glob("*.sst") if holds_row(p, key))
    data = bytearray(path.read_bytes())
    data[data.index(key)] ^= 0xFF
    path.write_bytes(data)
    shutil.rmtree(one.folder("rates", 1))
    record = sparked(spark, one)
    assert record.verdict is AuditVerdict.WRONG
    failed = {(failure.check, failure.store): failure for failure in record.failures}
    assert str(path) in failed[AuditCheck.READABLE, COUNTS].detail
    assert (AuditCheck.PRESENT, "rates") in failed
    assert (AuditCheck.NONE_MISSING, COUNTS) not in failed, (
        "what was not read is not said to be missing"
    )
    plain = audit(Runtime(one.settings()))
    assert {(f.check, f.store) for f in plain.failures} <= failed.keys()
    assert record.stores == plain.stores
