"""Exports put together: made, listed, verified, pruned, brought back, read."""

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack

from statestore.assembly.opening import is_empty
from statestore.assembly.reading import snapshots_of
from statestore.assembly.surroundings import SystemClock, checked_cluster, exports_of, layout_of
from statestore.kafka.changelog import KafkaChangelog
from statestore.model.ids import TopicPartition
from statestore.operations.at_rest import existing_application
from statestore.operations.exports.catalog import LATEST, Progress, Silent
from statestore.operations.exports.create import Export, ExportReport
from statestore.operations.exports.cut import Cutting
from statestore.operations.exports.restore import Choice, Log, Restore, RestoreReport
from statestore.settings import Settings
from statestore.topology.graph import Topology
from statestore.topology.logs import logs


def create_export(settings: Settings, progress: Progress | None = None) -> ExportReport:
    """Export all stores of an application, beside its run or between two."""
    return exporting(settings, progress).create()


def export_under_lock(topology: Topology, settings: Settings, progress: Progress) -> ExportReport:
    """The same while the application is stopped, with what the log says of it then."""
    settings.require("bootstrap.servers")
    export = exporting(settings, progress)
    layout = export.layout
    with ExitStack() as held:
        claim = layout.claim(
            wait_ms=settings.lock_wait_ms, clock=export.clock, locks=settings.volume_locks
        )
        held.callback(claim.release)
        cluster = checked_cluster(settings)
        held.callback(cluster.close)
        cutting = Cutting(
            topology,
            layout.application_id,
            cluster,
            KafkaChangelog(settings),
            logs(topology, settings).topics(),
        )
        return dataclasses.replace(export, cut=cutting.take).create()


def restore_export(
    settings: Settings,
    export: str = LATEST,
    choice: Choice | None = None,
    progress: Progress | None = None,
    *,
    dry_run: bool = False,
) -> RestoreReport:
    """Bring stores back from an export; the next start replays what their changelogs have since.

    ExportTooOld where keys deleted since could come back. `dry_run`: nothing is touched.
    """
    settings.require("application.id", "state.dir")
    exports = exports_of(settings)
    manifest = exports.read(export)
    cluster = checked_cluster(settings)

    def ask_log(tps: Sequence[TopicPartition]) -> Log:
        counts = cluster.partitions(sorted({tp.topic for tp in tps}))
        there = [tp for tp in tps if tp.partition < counts.get(tp.topic, 0)]
        retention = {
            topic: int(said["delete.retention.ms"])
            for topic, said in cluster.topic_settings(sorted(counts)).items()
            if "compact" in said["cleanup.policy"]
        }
        return Log(cluster.bounds(there), retention)

    try:
        restore = Restore(
            layout_of(settings),
            exports,
            manifest,
            SystemClock(),
            ask_log,
            is_empty,
            choice or Choice(),
            lock_wait_ms=settings.lock_wait_ms,
            locks=settings.volume_locks,
            progress=progress or Silent(),
        )
        return restore.plan() if dry_run else restore.apply()
    finally:
        cluster.close()


def exporting(settings: Settings, progress: Progress | None = None) -> Export:
    """An export to be made, step by step where several processes share the work."""
    settings.require("application.id", "state.dir")
    return Export(
        existing_application(layout_of(settings)),
        snapshots_of(settings),
        exports_of(settings),
        SystemClock(),
        KafkaChangelog(settings) if settings.bootstrap_servers else None,
        progress or Silent(),
    )
