"""An application of two stores over RocksDB and a broker in memory, exported to a folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import statestore as ss
from statestore.model.ids import TopicPartition
from statestore.operations.deployed import describe_deployment, publish_deployed
from statestore.operations.exports.catalog import LATEST, Exports, FetchedStore
from statestore.operations.exports.create import ExportReport, create_export
from statestore.operations.exports.manifest import StoreOfTask
from statestore.operations.exports.restore_export import Choice, LogState, Restore, RestoreReport
from statestore.ports import Bounds, Target
from statestore.runtime import Runtime, SystemClock
from statestore.runtime.databases import RocksDatabases
from statestore.targets import FsspecTarget
from tests.contract.task_rig import APPLICATION, TaskRig

WEEK_MS = 7 * 86_400_000
SETTINGS = {"statestore.snapshot.lease.ms": 600_000, "commit.interval.ms": 100}
LATEST_STORE = ss.persistent_key_value_store("latest")
COPIES = ss.persistent_key_value_store("copies")
RECENT = ss.in_memory_key_value_store("recent")


class Keep:
    """Keeps the last value of each key, twice on disk and once in memory."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._stores = [context.store(spec.name) for spec in (LATEST_STORE, COPIES, RECENT)]

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        for store in self._stores:
            if record.value:
                store.put(record.key, record.value)
            else:
                store.discard(record.key)


def keeping() -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.stream("in").process(Keep, LATEST_STORE, COPIES, RECENT, name="keep")
    return builder.build()


@dataclass
class ExportRig:
    """`tasks` runs it; exports go to `target`, or elsewhere. `bounds`, `cluster_has`: what a
    broker says.
    """

    root: Path
    delete_retention_ms: int = WEEK_MS
    bounds: Bounds | None = None
    cluster_has: bool = True
    elsewhere: Target | None = None
    keeps: Callable[[], ss.Topology] = keeping
    tasks: TaskRig = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = TaskRig(self.keeps(), self.root / "lives", settings=SETTINGS)
        self.deploy()

    @property
    def target(self) -> Path:
        return self.root / "exports"

    @property
    def runtime(self) -> Runtime:
        """Of the present life, over the broker in memory."""
        settings = {**self.tasks.known().to_mapping(), "statestore.export.target": str(self.target)}
        return Runtime(
            settings,
            clock=self.tasks.clock,
            brokers=self.tasks.broker.clients,
            open_target=lambda url: self.elsewhere or FsspecTarget(url),
        )

    @property
    def exports(self) -> Exports:
        return Exports.of(self.runtime)

    def deploy(self) -> None:
        topology = self.tasks.topology
        read, _ = topology.topics()
        counts = topology.partition_counts(dict.fromkeys(read, 1))
        layout = self.tasks.layout
        layout.create(layout.application_dir)
        publish_deployed(
            layout, describe_deployment(topology, self.tasks.known().processing_guarantee, counts)
        )

    def send(self, *rows: tuple[str, str]) -> None:
        self.tasks.send("in", rows)

    def drain(self) -> None:
        """A run to the end of what was sent, that ends cleanly."""
        task = self.tasks.start()
        while task.step(0):
            pass
        self.tasks.end()

    def export(self) -> ExportReport:
        return create_export(self.runtime)

    def export_without_brokers(self) -> ExportReport:
        settings = replace(self.runtime.settings, bootstrap_servers="")
        return create_export(self.runtime.with_settings(settings))

    def restoring(self, export: str = LATEST, **choice: Any) -> Restore:
        manifest = self.exports.read(export)
        return Restore(self.runtime, manifest, self.log, Choice(**choice))

    def restore(self, export: str = LATEST, **choice: Any) -> RestoreReport:
        return self.restoring(export, **choice).apply()

    def log(self, tps: Sequence[TopicPartition]) -> LogState:
        cluster = self.tasks.broker.cluster(APPLICATION)
        topics = sorted(cluster.partitions(sorted({tp.topic for tp in tps})))
        bounds = cluster.bounds(tps) if self.bounds is None else dict.fromkeys(tps, self.bounds)
        return LogState(
            bounds if self.cluster_has else {}, dict.fromkeys(topics, self.delete_retention_ms)
        )

    def set_clock(self) -> None:
        """Let the rig's clock say what this machine's does."""
        clock = self.tasks.clock
        clock.advance(SystemClock().now_ms() - clock.now_ms())

    def lose_volume(self) -> None:
        """The next life begins with an empty state dir."""
        assert not self.tasks.running
        self.tasks.lives += 1

    def exported(self, store: str = "latest", export: str = LATEST) -> dict[bytes, bytes]:
        """The rows of a store in an export."""
        exports = self.exports
        (at,) = (at for at in exports.read(export).stores() if at.name == store)
        return rows_of(exports, at)

    def folded(self, end: int, store: str = "latest") -> dict[bytes, bytes]:
        """The changelog below an offset, by itself."""
        rows: dict[bytes, bytes] = {}
        for record in self.tasks.broker.records(f"{APPLICATION}-{store}-changelog"):
            assert record.key is not None
            assert record.offset is not None
            if record.offset < end and record.value is None:
                rows.pop(record.key, None)
            elif record.offset < end:
                rows[record.key] = record.value or b""
        return rows

    def files(self) -> dict[str, int]:
        """Everything at the target, by name, and its size."""
        found = self.target.rglob("*")
        return {str(f.relative_to(self.target)): f.stat().st_size for f in found if f.is_file()}


def rows_of(exports: Exports, at: StoreOfTask) -> dict[bytes, bytes]:
    with FetchedStore(exports, at) as fetched:
        engine = RocksDatabases().read(fetched.store_dir(at.name))
        rows = dict(engine.table("data").scan())
        engine.close()
    return rows


def offset_of(at: StoreOfTask) -> int:
    return next(iter(at.store.offsets.offsets().values()), 0)
