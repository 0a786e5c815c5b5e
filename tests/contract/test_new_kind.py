"""A kind of store that one file adds, and registers, is a kind for the whole library.

`mirrored_stores` is that file. Nothing else knows the kind: not what opens, logs and restores,
moves, exports, audits and serves its stores, nor what shows their rows.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner

import statestore as ss
from statestore import serdes
from statestore.cli import cli
from statestore.errors import Misuse
from statestore.layout.audits import AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.audits.checks import AuditCheck
from statestore.operations.audits.perform import audit
from statestore.operations.clones.clone import clone_export
from statestore.operations.exports.create import create_export, create_export_for_clones
from statestore.operations.exports.restore_export import restore_export
from statestore.operations.relocation.apply import relocate
from statestore.operations.relocation.relocation_plan import Choices
from statestore.operations.running.run import RunRequest, RunSummary
from statestore.operations.running.runner import serve_here, start_run
from statestore.ports import TopicSpec
from statestore.reading.questions import Range
from statestore.runtime import Runtime
from statestore.runtime.databases import RocksDatabases
from statestore.serving.service import StateService
from statestore.spark.datasource import TransactionalStore
from statestore.stores import keyvalue
from statestore.testing.driver import TopologyTestDriver
from statestore.testing.memory_broker import MemoryBroker
from statestore.ui.browser import Browsed, Question
from tests.builders import ManualClock, eventually
from tests.contract.mirrored_stores import MirroredSpec, MirroredStore, row_of
from tests.relocation_rig import in_memory_folder

WORDS = MirroredSpec("words", serdes.STRING, serdes.INT64)
PARTITIONS = 2
SENT = [("apple", 1), ("fig", 2), ("ant", 3), ("bee", 4), ("fig", 5), ("ant", None), ("cod", 6)]
KEPT = [("apple", 1), ("bee", 4), ("cod", 6), ("fig", 5)]


class Keep:
    """Puts the value of each record into the store; None deletes."""

    def __init__(self, context: "ss.ProcessorContext[Any, Any]") -> None:
        self._words: MirroredStore = context.store("words")

    def process(self, record: "ss.Record[str, Any]") -> None:
        self._words.put_all([(record.key, record.value)])


def topology(*, moved: bool = False) -> ss.Topology:
    """`moved`: another sub-topology goes before that of the store."""
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    if moved:
        builder.stream("new").group_by_key().count("news")
    builder.stream("in").process(Keep, WORDS, name="keep")
    return builder.build()


@dataclass
class World:
    """A broker in memory, and a state dir."""

    root: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)

    def __post_init__(self) -> None:
        topics = [TopicSpec(name, PARTITIONS, {}) for name in ("in", "new")]
        self.broker.cluster("app").create(topics)
        with self.runtime() as runtime:
            for time_ms, (key, value) in enumerate(SENT, start=1000):
                data = key.encode(), None if value is None else serdes.INT64.serialize(value)
                (place,) = runtime.partitioners["murmur2"]([data[0]], PARTITIONS)
                self.broker.produce(TopicPartition("in", place), ss.Record(*data, time_ms))
        self.run()

    @property
    def flags(self) -> tuple[str, ...]:
        return "--state-dir", str(self.root / "state"), "--application-id", "app"

    @property
    def layout(self) -> StateLayout:
        return StateLayout(self.root / "state", "app")

    def runtime(self, application_id: str = "app") -> Runtime:
        settings = {
            "application.id": application_id,
            "state.dir": str(self.root / "state"),
            "bootstrap.servers": "memory:9092",
            "processing.guarantee": "exactly_once",
            "statestore.export.target": str(self.root / "exports"),
        }
        return Runtime(settings, clock=ManualClock(), brokers=self.broker.clients)

    def run(self, pipeline: ss.Topology | None = None) -> RunSummary:
        with (
            self.runtime() as runtime,
            start_run(runtime, pipeline or topology(), RunRequest()) as started,
        ):
            return serve_here(started, Event())

    def rows(self, application_id: str = "app", **options: str) -> list[tuple[str, int]]:
        """What the Data Source shows."""
        named = {"state_dir": str(self.root / "state"), "application_id": application_id}
        source = TransactionalStore({**named, "store": "words", **options})
        schema = source.schema()
        assert schema.names == ["stream_task", "partition", "key", "value"]
        reader = source.reader(schema)
        batches: list[Any] = [each for part in reader.partitions() for each in reader.read(part)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        return sorted((row["key"], row["value"]) for row in rows)


@pytest.fixture
def world() -> Iterator[World]:
    with in_memory_folder() as folder:
        yield World(folder)


@pytest.fixture(scope="module")
def shown() -> Iterator[World]:
    """One at which several tests only look."""
    with in_memory_folder() as folder:
        yield World(folder)


def test_a_pipeline_under_test_has_it() -> None:
    with TopologyTestDriver(topology()) as driver:
        for key, value in SENT:
            driver.pipe("in", key, value)
        words: MirroredStore = driver.store("words")
        assert [tuple(entry[:2]) for entry in words.entries()] == KEPT
        assert [words.get(key) for key in ("fig", "ant")] == [5, None]


def test_on_its_own_it_is_opened_committed_and_read_again(tmp_path: Path) -> None:
    for again in (False, True):
        with ss.open_store(WORDS, tmp_path) as store:  # type: ignore[call-overload]
            assert store.get("fig") == (5 if again else None)
            store.put_all(SENT)
            store.commit()
            store.put_all([("fig", 7)])
            store.rollback()
            assert [tuple(entry[:2]) for entry in store.entries("b", "cz")] == KEPT[1:3]
    with pytest.raises(Misuse, match="holds a mirrored store, not a keyvalue one"):
        ss.open_store(ss.persistent_key_value_store("words"), tmp_path)


def test_its_changelog_has_keys_and_no_rows_that_follow(shown: World) -> None:
    logged = {record.key: record.value for record in shown.broker.records("app-words-changelog")}
    kept = {key.encode(): serdes.INT64.serialize(value) for key, value in KEPT}
    assert logged == {**kept, b"ant": None}


def test_a_lost_store_is_restored_from_its_changelog(world: World) -> None:
    rmtree(world.root / "state")
    assert world.run().restored_records == len({key for key, _ in SENT})
    assert world.rows() == KEPT


def test_the_command_line_reads_it(shown: World) -> None:
    def said(*command: str) -> Any:
        result = CliRunner().invoke(cli, ["stores", *command, *shown.flags, "--json"])
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.output.splitlines()]

    assert {row["kind"] for row in said("ls")} == {"mirrored"}
    assert said("get", "words", "fig")[0]["value"] == 5
    found = said("range", "words", "b", "d")
    assert sorted((row["key"], row["value"]) for row in found) == KEPT[1:3]
    assert said("count", "words")[0]["count"] == len(KEPT)
    refused = CliRunner().invoke(cli, ["stores", "history", "words", "fig", *shown.flags])
    assert "store 'words' is a mirrored store, which does not keep its history" in str(
        refused.exception
    )
    with ss.open_snapshot(shown.root / "state", "app", "words") as words:
        assert [tuple(entry[:2]) for entry in words.entries()] == KEPT


def test_an_export_is_read_restored_and_cloned(world: World) -> None:
    with world.runtime() as runtime:
        create_export(runtime)
        assert world.rows(export="latest", target=str(world.root / "exports")) == KEPT
        rmtree(world.root / "state")
        restore_export(runtime)
    assert world.rows() == KEPT
    assert world.run().restored_records == 0
    with world.runtime() as runtime:
        create_export_for_clones(runtime, topology())
        clone_export(runtime, topology(), "trial")
    assert world.rows("trial") == KEPT
    seeded = {record.key for record in world.broker.records("trial-words-changelog")}
    assert seeded == {key.encode() for key, _ in KEPT}


def test_an_audit_passes_sound_files_and_finds_a_row_that_is_gone(world: World) -> None:
    with world.runtime() as runtime:
        create_export(runtime)
        for export in (None, "latest"):
            record = audit(runtime, export=export)
            assert record.verdict is AuditVerdict.RIGHT
            assert [(one.kind, one.equal) for one in record.stores] == [("mirrored", len(KEPT))]
        (path,) = [
            world.layout.store_dir(task, "words")
            for task in world.layout.tasks()
            if _has(world.layout.store_dir(task, "words"), row_of(b"fig"))
        ]
        engine = RocksDatabases().rewrite(path)
        engine.write({keyvalue.TABLE: {row_of(b"fig"): None}})
        engine.flush()
        engine.close()
        record = audit(runtime)
    assert record.verdict is AuditVerdict.WRONG
    assert AuditCheck.NONE_MISSING in {failure.check for failure in record.failures}


def _has(path: Path, row: bytes) -> bool:
    engine = RocksDatabases().read(path)
    try:
        return engine.table(keyvalue.TABLE).get(row) is not None
    finally:
        engine.close()


def test_it_moves_to_where_another_topology_looks_for_it(world: World) -> None:
    with world.runtime() as runtime:
        report = relocate(runtime, topology(moved=True), Choices(), dry_run=False, offline=False)
    assert {move.store for move in report.plan.moves} == {"words"}
    assert world.run(topology(moved=True)).restored_records == 0
    assert TaskId(1, 0) in world.layout.tasks()
    assert world.rows() == KEPT


def test_a_server_answers_for_it(shown: World) -> None:
    runtime = Runtime(shown.runtime().settings, brokers=shown.broker.clients)
    with StateService(runtime) as service:
        eventually(lambda: not service.unready(), "the store is copied")
        (about,) = service.stores()
        assert (about.kind, about.served) == ("mirrored", True)
        found = service.get("words", [b"fig", b"ant"]).rows
        assert [row and serdes.INT64.deserialize(row.value) for row in found] == [5, None]
        page = service.range("words", Range(), limit=3, page_token=None)
        assert [row and row.key.decode() for row in page.rows] == [key for key, _ in KEPT[:3]]
        with pytest.raises(Misuse, match="store 'words' keeps no versions"):
            service.history("words", b"fig", limit=1)
        with pytest.raises(Misuse, match="store 'words' has no windows"):
            service.windows("words", b"fig", limit=1)


def test_the_page_and_the_data_source_show_its_rows(shown: World) -> None:
    with shown.runtime() as runtime:
        browsed = Browsed.of(runtime, Question("words"))
    assert (browsed.kind, browsed.problem, browsed.has_history) == ("mirrored", "", False)
    assert browsed.columns == ["stream task", "key", "value"]
    assert sorted((key, int(value)) for _, key, value in browsed.rows) == KEPT
    assert shown.rows() == KEPT


def test_the_data_source_shows_its_changelog(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "statestore.spark.reading.store_reader.Runtime",
        lambda settings: Runtime(settings, brokers=world.broker.clients),
    )
    assert world.rows(changelog="true", bootstrap_servers="memory:9092") == KEPT
