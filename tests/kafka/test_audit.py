"""Audits of stores on a real broker: sound ones, spoilt ones, and one that is being written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import statestore as ss
from statestore.cli import cli
from statestore.errors import AuditFailed, NotChecked, StateStoreError
from statestore.layout.audits import AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.operations.audits.audit import require_pass
from statestore.operations.audits.checks import AuditCheck
from statestore.operations.audits.perform import audit
from statestore.operations.exports.create import create_export
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.spark.datasource import TransactionalStore
from statestore.testing.local_kafka import LocalKafka
from tests import audit_rig
from tests.audit_rig import COUNTS, PLANTS, TOGETHER, Audited, audited
from tests.kafka.audit_pipelines import KEYS, WINDOW_MS
from tests.kafka.run_pipelines import PREFIX_VARIABLE, latest
from tests.kafka.run_rig import START_MS, App, end_of, running

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def sound(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    one = audited(kafka, "audited", tmp_path_factory.mktemp("sound") / "state")
    yield one
    one.app.end_children()


def verdict(one: Audited, *stores: str, **settings: object) -> AuditRecord:
    return audit(Runtime(one.settings(**settings)), stores)


def read_all(options: dict[str, str]) -> list[Any]:
    """What the Data Source reads, without Spark."""
    source = TransactionalStore(options)
    reader = source.reader(source.schema())
    lots = [lot for one in reader.partitions() for lot in reader.read(one)]
    return sorted((row for lot in lots for row in lot.to_pylist()), key=str)  # type: ignore[union-attr]


def command(one: Audited, *more: str) -> tuple[int, dict[str, Any], str]:
    """`statestore audit --json` in this process: exit code, the line, the message."""
    app = one.app
    flags = [
        f"--application-id={app.name}",
        f"--state-dir={app.state_dir}",
        f"--bootstrap-servers={app.kafka.bootstrap_servers}",
    ]
    done = CliRunner().invoke(cli, ["audit", "--json", *flags, *more])
    line = json.loads(done.stdout)
    match done.exception:
        case None:
            return done.exit_code, line, ""
        case StateStoreError() as error:
            return error.exit_code, line, str(error)
    raise done.exception


def test_sound_stores_of_every_kind_pass_and_the_verdict_is_kept(
    sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    record = verdict(one)
    assert record.failures == []
    assert record.verdict is AuditVerdict.RIGHT
    stores = {store.store: store for store in record.stores}
    assert stores.keys() == {"counts", "windows", "sessions", "rates"}
    for store in stores.values():
        assert store.rows == store.rows_of_log == store.equal
    assert (stores[COUNTS].rows, stores[COUNTS].placement) == (KEYS, "murmur2")
    assert (stores["windows"].rows, stores["windows"].placement) == (400 + 2, "crc32")
    assert (stores["sessions"].rows, stores["sessions"].placement) == (400 + 2, "crc32")
    assert (stores["rates"].rows, stores["rates"].kind) == (200, "versioned")
    layout = StateLayout(one.app.state_dir, one.app.name)
    assert Audits(layout).last() == record
    places = {place.partition: place for place in record.places if place.store == COUNTS}
    for partition in range(2):
        # After the last record comes the control record of its transaction.
        end = one.log_end(COUNTS, partition)
        assert (places[partition].offset_next, places[partition].log_end) == (end - 1, end)
    assert list(layout.application_dir.glob("*/snapshots/*")) == []


def test_a_table_with_its_source_topic_as_log_is_judged_by_what_it_takes_of_it(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, "source-log")
    given = {"topology.optimization": "all", "deserialization.exception.handler": "continue"}
    app = App(kafka, "source-log", tmp_path / "state", settings=given).create_topics()
    one = Audited(app, {})
    app.produce([*range(50), *range(20)])
    app.produce_raw([("k1", b"no json", START_MS), ("k2", None, START_MS)])
    ss.run(latest(), one.settings())
    app.produce(range(90, 95))  # not processed yet
    assert verdict(one).failures == []
    (store,) = verdict(one).stores
    assert (store.store, store.rows, store.rows_of_log, store.equal) == ("rows", 49, 49, 49)
    key = min(one.rows("rows", 1))
    one.write("rows", 1, {key: b'{"user":"nobody","number":0}'})
    (failure,) = verdict(one).failures
    assert (failure.check, failure.stream_task) == (AuditCheck.EQUAL_VALUES, "0_1")
    assert key.decode() in " ".join(failure.keys)


def test_many_faults_at_once_are_all_found_and_named(sound: Audited, tmp_path: Path) -> None:
    one = sound.copy(tmp_path / "state")
    planted = [PLANTS[name](one) for name in TOGETHER]
    record = verdict(one)
    assert record.verdict is AuditVerdict.WRONG
    assert {check for _, checks in planted for check in checks} <= {
        failure.check for failure in record.failures
    }
    named = " ".join(text for failure in record.failures for text in failure.keys)
    assert [key for key, _ in planted if key not in named] == []


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_wrong_is_found_and_named(sound: Audited, tmp_path: Path, plant: str) -> None:
    one = sound.copy(tmp_path / "state")
    key, checks = PLANTS[plant](one)
    record = verdict(one)
    assert record.verdict is AuditVerdict.WRONG
    failed = {failure.check: failure for failure in record.failures}
    assert checks <= failed.keys()
    named = " ".join(text for failure in record.failures for text in failure.keys)
    assert key in named
    with pytest.raises(AuditFailed) as told:
        require_pass(record)
    assert key in str(told.value)


def test_an_offset_that_went_back_is_found_by_the_next_audit(
    sound: Audited, tmp_path: Path
) -> None:
    one = sound.copy(tmp_path / "state")
    assert verdict(one).passed
    one.stand(COUNTS, 1, one.log_end(COUNTS, 1) - 3)
    failed = {failure.check: failure for failure in verdict(one).failures}
    assert failed[AuditCheck.FORWARD_OFFSETS].stream_task == "1_1"


def test_a_damaged_store_is_wrong_and_named(sound: Audited, tmp_path: Path) -> None:
    one = sound.copy(tmp_path / "state")
    for path in one.folder(COUNTS, 0).glob("*.sst"):
        path.write_bytes(path.read_bytes()[:100])
    failed = {(failure.check, failure.store) for failure in verdict(one).failures}
    assert (AuditCheck.READABLE, COUNTS) in failed


def test_the_command_ends_with_the_verdicts_exit_code(sound: Audited, tmp_path: Path) -> None:
    one = sound.copy(tmp_path / "state")
    code, line, _ = command(one, "--store=counts")
    assert (code, line["verdict"], line["error"]) == (0, "right", None)
    assert [store["store"] for store in line["stores"]] == ["counts"]
    key, _ = audit_rig.wrong_value(one)
    code, line, message = command(one)
    assert (code, line["verdict"], line["error"]["class"]) == (12, "wrong", "AuditFailed")
    assert line["error"]["action"] == "fail"
    assert "equal values: store 'counts' of task 1_0: the store has other values" in message
    assert key in message
    code, line, message = command(one, "--store=nobody")
    assert (code, line["error"]["class"]) == (2, "UnknownStore")
    assert "no store 'nobody'" in message


def test_nothing_compared_is_no_pass(sound: Audited, tmp_path: Path) -> None:
    app = sound.app
    for partition in range(2):
        folder = tmp_path / "state" / app.name / f"0_{partition}" / "rocksdb"
        ss.open_store(ss.persistent_key_value_store(COUNTS), folder).close()
    one = Audited(app, {}).copy(tmp_path / "unused")
    empty = {**one.settings(), "state.dir": str(tmp_path / "state")}
    record = audit(Runtime(empty))
    assert record.verdict is AuditVerdict.NOTHING_CHECKED
    with pytest.raises(NotChecked):
        require_pass(record)


def test_without_the_log_there_is_no_verdict(sound: Audited, tmp_path: Path) -> None:
    app = sound.app
    folder = tmp_path / "state" / app.name / "0_0" / "rocksdb"
    with ss.open_store(ss.persistent_key_value_store("lonely"), folder) as store:
        store.put(b"a", b"1")
        store.commit()
    settings = {**sound.settings(), "state.dir": str(tmp_path / "state")}
    with pytest.raises(StateStoreError, match="audited-lonely-changelog"):
        audit(Runtime(settings))


def test_an_export_is_audited_at_its_own_offsets(sound: Audited, tmp_path: Path) -> None:
    one = sound.copy(tmp_path / "state")
    settings = Settings.of(one.settings(**{"statestore.export.target": str(tmp_path / "exports")}))
    sound_export = create_export(Runtime(settings)).export_id
    key, _ = audit_rig.wrong_value(one)
    spoilt = create_export(Runtime(settings)).export_id
    record = audit(Runtime(settings), export=sound_export)
    assert (record.verdict, record.source) == (AuditVerdict.RIGHT, sound_export)
    assert {store.store: store.rows for store in record.stores} == {
        "counts": KEYS,
        "windows": 402,
        "sessions": 402,
        "rates": 200,
    }
    found = audit(Runtime(settings), ["counts"], export="latest")
    assert found.source == spoilt
    assert [failure.keys for failure in found.failures] == [[key]]
    options = {
        "state_dir": str(one.app.state_dir),
        "application_id": one.app.name,
        "target": str(tmp_path / "exports"),
        "export": sound_export,
    }
    assert len(read_all({**options, "store": "rates"})) == 200
    assert len(read_all({**options, "store": "counts", "partition": "1"})) < KEYS


@pytest.mark.parametrize("store", ["counts", "windows", "sessions", "rates"])
def test_the_data_source_reads_a_folded_changelog_as_it_reads_the_store(
    sound: Audited, store: str
) -> None:
    app = sound.app
    named = {
        "state_dir": str(app.state_dir),
        "application_id": app.name,
        "bootstrap_servers": app.kafka.bootstrap_servers,
        "store": store,
    }

    live = read_all(named)
    logged = read_all({**named, "changelog": "true"})
    # A key that another test planted in the log stays there.
    assert [row for row in logged if not row["key"].startswith("y")] == live
    assert len(live) == {"counts": KEYS, "windows": 400, "sessions": 400, "rates": 200}[store]
    if store == "sessions":
        assert all(row["window_start"] == row["window_end"] for row in live)
    if store == "windows":
        row = live[0]
        assert (row["window_end"] - row["window_start"]).total_seconds() * 1000 == WINDOW_MS
        assert sum(row["value"] for row in live) == 400


@pytest.mark.slow
def test_a_live_application_is_audited_between_its_commits_and_goes_on(
    sound: Audited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = sound.app.kafka
    one = audited(kafka, "live", tmp_path / "state", records=40)
    monkeypatch.setenv(PREFIX_VARIABLE, "live")
    app, sent = one.app, 40
    process = app.start("--run-for=60s")
    out = f"{app.name}-out"
    for _ in range(3):
        reached = app.bounds(out)
        app.produce(range(sent, sent + 2000))
        sent += 2000
        running(app, process, lambda before=reached: app.bounds(out) != before)  # type: ignore[misc]
        record = verdict(one)
        assert record.failures == []
        assert record.verdict is AuditVerdict.RIGHT
    process.terminate()
    assert end_of(process, 0).code == 0
    app.drained()
    assert verdict(one).passed
    assert sum({row.key: row.value for row in app.read()}.values()) == sent
