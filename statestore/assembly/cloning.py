"""Clones put together: an export of a stopped application opened under another id, and dropped."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from statestore.assembly.exporting import export_under_lock
from statestore.assembly.opening import open_to_rewrite
from statestore.assembly.surroundings import SystemClock, checked_cluster, exports_of, layout_of
from statestore.errors import HostFailure, Misuse
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.outbox import PlainOutbox
from statestore.kafka.removal import remove
from statestore.operations.clones.clone import Clone, CloneReport
from statestore.operations.clones.record import own_topics, read_record
from statestore.operations.exports.catalog import LATEST, Progress, Silent
from statestore.operations.exports.create import ExportReport
from statestore.settings import Settings
from statestore.topology.graph import Topology
from statestore.topology.logs import logs


def export_for_clone(
    topology: Topology, settings: Settings, progress: Progress | None = None
) -> ExportReport:
    """Export a stopped application with its group's offsets: what a clone can be made of.

    Locked while it runs; Unavailable if its last run did not end cleanly.
    """
    return export_under_lock(topology, settings, progress or Silent())


def clone_export(
    topology: Topology,
    settings: Settings,
    clone_id: str,
    *,
    export: str = LATEST,
    progress: Progress | None = None,
) -> CloneReport:
    """Open an export of the application of `settings` under `clone_id`, in the same state dir.

    The clone then runs like any application, with `application.id` = `clone_id` and else the same
    pipeline and settings; its sinks are topics of its own (`CloneReport.topics`). Nothing of the
    original is touched.
    """
    settings.require("application.id", "state.dir", "bootstrap.servers")
    exports = exports_of(settings)
    manifest = exports.read(export)
    known = dataclasses.replace(settings, application_id=clone_id)
    cluster = checked_cluster(known)
    try:
        return Clone(
            topology,
            known,
            layout_of(known),
            exports,
            manifest,
            cluster,
            KafkaChangelog(known),
            PlainOutbox(known, group_id=clone_id),
            open_to_rewrite,
            lambda: drop_clone(known),
            SystemClock(),
            logs(topology, settings).topics(),
            progress or Silent(),
        ).apply()
    finally:
        cluster.close()


def drop_clone(settings: Settings) -> Sequence[str]:
    """Remove the clone of that `application.id`: its topics, its group, its folder; the topics.

    Misuse if it is no clone, Locked while it runs.
    """
    settings.require("application.id", "state.dir", "bootstrap.servers")
    layout = layout_of(settings)
    record = read_record(layout)
    if record is None:
        raise Misuse(f"{layout.application_dir} is no clone: nothing is removed")
    folder = layout.application_dir
    with layout.alone(wait_ms=0, clock=SystemClock(), locks=settings.volume_locks):
        topics = own_topics(layout, record)
        remove(settings, topics, layout.application_id)
        # What names the topics goes last, so that a death can be repeated.
        for path in sorted(folder.iterdir(), key=lambda path: path.name == "clone.json"):
            if path.name not in {".lock", "owner.json"}:
                _remove(path)
    _remove(folder)
    return topics


def _remove(path: Path) -> None:
    """A file or a folder; of a link, as to another volume, what it leads to as well."""
    try:
        there = path.resolve()
        if there.is_dir():
            shutil.rmtree(there)
        if path.is_symlink() or path.is_file():
            path.unlink()
    except OSError as error:
        raise HostFailure(
            f"cannot remove {path}: {error.strerror}; make it writable, then drop the clone again"
        ) from error
