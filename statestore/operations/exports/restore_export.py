"""Brings stores back from an export; the next start replays the tail of their changelogs.

    check       the changelogs go on from the offsets of the stores, and still hold later deletes
    lock        the application's folder, then each task's
    per store   its files fetched beside its place and verified    import.fetched
                or links into the target, which a lease holds      links.leased, import.fetched
                a store that is replaced goes to quarantine        quarantine.renamed
                renamed into its place                             import.placed
    deploy      topology.json, if there is none                    import.deployed

A store that exists is left alone unless it is to be replaced. A restore that is repeated after a
death at any point goes on with what is missing.

Keeps I18.
"""

import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from statestore.errors import (
    ExportDamaged,
    ExportTooOld,
    HostFailure,
    Misuse,
    StateStoreError,
    TaskCorrupted,
)
from statestore.faults import CrashPoint, reach
from statestore.layout.activity_files import RESTORE, Progress, Unit
from statestore.layout.files import sync_folder
from statestore.layout.folders import ExportOrigin, write_export_origin
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.activities import activities_in
from statestore.operations.deployed import Deployed, publish_deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import LATEST, Exports
from statestore.operations.exports.manifest import ExportManifest, StoreOfTask
from statestore.ports import Bounds, Cluster

_REPLACED = "replaced"


class LogState(msgspec.Struct, frozen=True):
    """What a broker says of the logs it was asked about; topics that do not exist are absent.

    `delete_retention_ms`: of the compacted topics. Other topics keep a delete as long as its
    record. `ids`: what the cluster calls them; a topic that is created again gets another one.
    """

    bounds: dict[TopicPartition, Bounds]
    delete_retention_ms: dict[str, int]
    ids: dict[str, str] = {}


AskLog = Callable[[Sequence[TopicPartition]], LogState]
Place = tuple[str, int]
"""A store and a partition of it."""


@dataclass(frozen=True)
class Choice:
    """Which part of an export is wanted.

    `stores`, `partitions`: all, if empty. `replace`: stores that exist are set aside. `full`: no
    file is placed, so that the next start restores from the changelogs alone. `mounted`: data files
    become links into the target, if it is a folder, and the next run copies them. `places`: only
    these stores, by name and partition, if any are given.
    """

    stores: Collection[str] = ()
    partitions: Collection[int] = ()
    replace: bool = False
    full: bool = False
    mounted: bool = False
    places: Collection[Place] = ()

    def takes(self, at: StoreOfTask) -> bool:
        """Whether that store is wanted."""
        return (
            (not self.stores or at.name in self.stores)
            and (not self.partitions or at.task.partition in self.partitions)
            and (not self.places or (at.name, at.task.partition) in self.places)
        )


class PlacedStore(msgspec.Struct, frozen=True):
    """A store and the task it goes to; `replay`: how many offsets its changelog goes on for.

    There are at most that many records.
    """

    store: str
    stream_task: str
    bytes: int
    offset: int | None
    replay: int


class RestoreReport(msgspec.Struct, frozen=True):
    """What a restore did (`applied`) or would do.

    `kept`: the stores that existed. `set_aside`: the folders of the stores that are replaced.
    `by_changelog`: the stores that the next start restores from the beginning of their changelogs.
    """

    application_id: str
    export_id: str
    applied: bool
    placed: list[PlacedStore]
    kept: list[str]
    set_aside: list[str]
    by_changelog: list[str]
    bytes: int
    replay: int
    seconds: float = 0.0


class RunRestore(NamedTuple):
    """What a run brought back, and by store, or by export, why not."""

    placed: list[PlacedStore]
    refused: dict[str, str]


class _Step(NamedTuple):
    """What is done with one store, and the folder it replaces, if any.

    `placed` None: its changelog restores it. `origin`: until when a run may start on it; None means
    without a limit.
    """

    at: StoreOfTask
    destination: TaskId
    replaces: Path | None
    placed: PlacedStore | None = None
    origin: ExportOrigin | None = None


def restore_export(
    environment: Environment,
    export: str = LATEST,
    choice: Choice | None = None,
    progress: Progress | None = None,
    *,
    dry_run: bool = False,
) -> RestoreReport:
    """Bring stores back from an export; the next start replays what their changelogs have since.

    ExportTooOld if keys that were deleted since could come back. `dry_run`: nothing is touched.
    """
    environment.settings.require("application.id", "state.dir")
    manifest = Exports.of(environment).read(export)
    restore = Restore(
        environment, manifest, partial(log_of_cluster, environment.cluster), choice, progress
    )
    return restore.plan() if dry_run else restore.apply()


def log_of_cluster(cluster: Cluster, tps: Sequence[TopicPartition]) -> LogState:
    """What a cluster says of these logs; topics that do not exist are absent."""
    counts = cluster.partitions(sorted({tp.topic for tp in tps}))
    there = [tp for tp in tps if tp.partition < counts.get(tp.topic, 0)]
    retention = {
        topic: int(told["delete.retention.ms"])
        for topic, told in cluster.topic_settings(sorted(counts)).items()
        if "compact" in told["cleanup.policy"]
    }
    return LogState(cluster.bounds(there), retention, cluster.topic_ids(sorted(counts)))


class Restore:
    """Brings one export back into the state directory of the application it was made of."""

    def __init__(
        self,
        environment: Environment,
        manifest: ExportManifest,
        ask_log: AskLog,
        choice: Choice | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._manifest = manifest
        self._ask_log = ask_log
        self._choice = choice or Choice()
        self._progress = progress
        self._activities = activities_in(environment)
        self._settings = environment.settings
        self._layout = environment.layout
        self._databases = environment.databases
        self._clock = environment.clock
        self._exports = Exports.of(environment)

    def plan(self) -> RestoreReport:
        """Tell what would be done; ExportTooOld or Misuse if nothing may be done."""
        return self._report(self._steps())

    def apply(self) -> RestoreReport:
        """Bring the stores back. Locked while the application runs; nothing is touched then."""
        began_s = self._clock.monotonic()
        self._steps()  # A refusal leaves nothing behind, not even a lock file.
        with self._locked():
            steps = self._steps()
            self._sweep()
            with self._activities.underway(RESTORE, Unit.BYTES, self._progress) as told:
                told.expect(self._report(steps).bytes)
                for step in steps:
                    self._take(step, told)
            if not read_deployed(self._layout).fingerprint:
                publish_deployed(self._layout, self._deployed())
            reach(CrashPoint.IMPORT_DEPLOYED)
        seconds = round(self._clock.monotonic() - began_s, 3)
        return msgspec.structs.replace(self._report(steps), applied=True, seconds=seconds)

    def apply_in_a_run(self, deployed: Deployed, done: RunRestore) -> None:
        """Bring back what can be; `done` gets it, and why the rest is left to its changelogs.

        The caller holds the application's lock. `deployed` is what its topology says of these
        stores. It is told first, if nothing else is, so that a restore which dies is taken up by
        the next start.
        """
        tasks = {self._destination(at) for at in self._wanted()}
        wait_ms, locks = self._settings.lock_wait_ms, self._settings.volume_locks
        with self._layout.at_rest(*tasks, wait_ms=wait_ms, locks=locks):
            self._layout.check_closed(tasks)
            steps = self._steps(done.refused)
            if not steps:
                return
            if not read_deployed(self._layout).fingerprint:
                publish_deployed(self._layout, deployed)
            reach(CrashPoint.IMPORT_DEPLOYED)
            self._sweep()
            with self._activities.underway(RESTORE, Unit.BYTES, self._progress) as told:
                told.expect(self._report(steps).bytes)
                for step in steps:
                    assert step.placed is not None
                    try:
                        self._take(step, told)
                    except ExportDamaged as error:
                        done.refused[f"{step.destination}/{step.at.name}"] = str(error)
                    else:
                        done.placed.append(step.placed)

    def _deployed(self) -> Deployed:
        """What the export says was deployed; `full`: over whichever changelogs are there now."""
        deployed = self._manifest.deployed
        if not self._choice.full:
            return deployed
        stores = {
            name: msgspec.structs.replace(store, changelog_id=None)
            for name, store in deployed.stores.items()
        }
        return msgspec.structs.replace(deployed, stores=stores)

    def _wanted(self) -> list[StoreOfTask]:
        return [at for at in self._manifest.stores() if self._choice.takes(at)]

    def _steps(self, refused: dict[str, str] | None = None) -> list[_Step]:
        """What is to be done with each wanted store that is not kept.

        `refused`: gets, by store, why it cannot be brought back; None: that is an error.
        """
        wanted = self._wanted()
        self._check_choice(wanted)
        log = self._ask_log([self._log_of(at) for at in wanted])
        steps = []
        for at in wanted:
            try:
                step = self._step(at, log)
            except (ExportTooOld, Misuse) as error:
                if refused is None:
                    raise
                refused[f"{self._destination(at)}/{at.name}"] = str(error)
            else:
                steps += [] if step is None else [step]
        return steps

    def _step(self, at: StoreOfTask, log: LogState) -> _Step | None:
        """What is to be done with a store; None if it is kept."""
        found = self._found(at)
        bounds = self._bounds(at, log)
        if found is not None and not self._choice.replace:
            return None
        step = _Step(at, self._destination(at), found)
        if self._choice.full:
            return step
        self._check_history(at, log)
        deadline_ms = self._check_age(at, log)
        offset = at.store.offsets.offsets().get(self._log_of(at))
        replay = bounds.end - self._check_offset(at, offset, bounds)
        placed = PlacedStore(at.name, str(step.destination), at.store.size_bytes, offset, replay)
        origin = None if deadline_ms is None else ExportOrigin(deadline_ms, bounds.end)
        return step._replace(placed=placed, origin=origin)

    def _report(self, steps: list[_Step]) -> RestoreReport:
        taken = {(step.at.task, step.at.name) for step in steps}
        placed = [step.placed for step in steps if step.placed is not None]
        left_out = [
            f"{task.stream_task}/{store}"
            for task in self._manifest.tasks
            for store in task.left_out
        ]
        return RestoreReport(
            self._layout.application_id,
            self._manifest.export_id,
            False,
            placed,
            [
                f"{self._destination(at)}/{at.name}"
                for at in self._manifest.stores()
                if self._choice.takes(at) and (at.task, at.name) not in taken
            ],
            [str(step.replaces) for step in steps if step.replaces is not None],
            [f"{step.destination}/{step.at.name}" for step in steps if step.placed is None]
            + left_out,
            sum(one.bytes for one in placed),
            sum(one.replay for one in placed),
        )

    def _take(self, step: _Step, told: Progress) -> None:
        layout, name = self._layout, step.at.name
        making = layout.task_dir(step.destination) / f".import-{name}"
        target = layout.store_dir(step.destination, name)
        if step.placed is not None:
            export_id, mounted = self._manifest.export_id, self._choice.mounted
            try:
                if not (mounted and self._exports.link(step.at, export_id, making, target, told)):
                    self._exports.fetch(step.at, making, told)
            except StateStoreError:
                shutil.rmtree(making, ignore_errors=True)
                raise
            if step.origin is not None:
                write_export_origin(making, step.origin)
            sync_folder(making)
            reach(CrashPoint.IMPORT_FETCHED)
        if step.replaces is not None:
            layout.quarantine(step.replaces, name, _REPLACED, self._clock)
        if step.placed is None:
            return
        try:
            target.parent.mkdir(exist_ok=True)
            if target.is_dir():
                shutil.rmtree(target)  # It is empty: it holds neither a row nor an offset.
            making.rename(target)
            sync_folder(target.parent)
        except OSError as error:
            raise HostFailure(f"cannot place {target}: {error.strerror}; fix the volume") from error
        reach(CrashPoint.IMPORT_PLACED)

    def _sweep(self) -> None:
        """Remove what a restore that died had fetched, whichever stores it was asked for."""
        for task in self._layout.tasks():
            for making in self._layout.task_dir(task).glob(".import-*"):
                shutil.rmtree(making, ignore_errors=True)

    def _locked(self) -> AbstractContextManager[None]:
        self._layout.create(self._layout.application_dir)
        destinations = {self._destination(at) for at in self._manifest.stores()}
        wait_ms, locks = self._settings.lock_wait_ms, self._settings.volume_locks
        return self._layout.alone(*destinations, wait_ms=wait_ms, clock=self._clock, locks=locks)

    def _destination(self, at: StoreOfTask) -> TaskId:
        """The task in which the deployed topology looks for the store, if one is deployed."""
        known = read_deployed(self._layout).stores.get(at.name)
        return at.task if known is None else TaskId(known.sub_topology, at.task.partition)

    def _found(self, at: StoreOfTask) -> Path | None:
        """The folder of that store and partition, if it holds anything."""
        for task in self._layout.tasks():
            folder = self._layout.store_dir(task, at.name)
            same = task.partition == at.task.partition
            if same and folder.is_dir() and not self._is_empty(folder):
                return folder
        return None

    def _is_empty(self, folder: Path) -> bool:
        try:
            return self._databases.is_empty(folder)
        except TaskCorrupted:
            return False  # it may hold something, and the next start replaces it

    def _log_of(self, at: StoreOfTask) -> TopicPartition:
        topic = self._manifest.deployed.log_of(self._layout.application_id, at.name)
        return TopicPartition(topic, at.task.partition)

    def _check_choice(self, wanted: Collection[StoreOfTask]) -> None:
        manifest = self._manifest
        if manifest.application_id != self._layout.application_id:
            raise Misuse(
                f"export {manifest.export_id} is of application {manifest.application_id}, not "
                f"{self._layout.application_id}: to open it under another id, clone it (--as)"
            )
        known = {at.name for at in manifest.stores()}
        unknown = set(self._choice.stores) - known
        if unknown or not wanted:
            raise Misuse(
                f"export {manifest.export_id} has no {', '.join(sorted(unknown)) or 'such store'};"
                f" it has: {', '.join(sorted(known)) or 'none'}"
            )

    def _bounds(self, at: StoreOfTask, log: LogState) -> Bounds:
        tp = self._log_of(at)
        if tp not in log.bounds:
            raise Misuse(
                f"there is no changelog {tp}, so what came after the export is lost: is this the "
                "application's cluster?"
            )
        bounds = log.bounds[tp]
        if self._choice.full and bounds.end == bounds.start:
            raise Misuse(f"the changelog {tp} is empty: nothing could be restored from it")
        return bounds

    def _check_history(self, at: StoreOfTask, log: LogState) -> None:
        """Misuse if the changelog was created again since: its offsets say nothing then."""
        deployed, topic = self._manifest.deployed, self._log_of(at).topic
        known = deployed.stores.get(at.name)
        made, now = None if known is None else known.changelog_id, log.ids.get(topic)
        if made is not None and now is not None and made != now:
            raise Misuse(
                f"export {self._manifest.export_id} is of another history: the changelog {topic} "
                "was created again since, by a reset, by a move, or on another cluster: restore "
                "from the changelog alone, with --full"
            )

    def _check_age(self, at: StoreOfTask, log: LogState) -> int | None:
        """Until when the log keeps the deletes made since the export; None: for ever."""
        retention_ms = log.delete_retention_ms.get(self._log_of(at).topic)
        if retention_ms is None:
            return None
        age_ms = self._clock.now_ms() - at.taken_ms
        if age_ms >= retention_ms:
            raise ExportTooOld(
                f"export {self._manifest.export_id} has store {at.name!r} of task {at.task} as it "
                f"was {age_ms // 1000} s ago; its changelog keeps deletes for "
                f"{retention_ms // 1000} s (delete.retention.ms), so keys deleted since could come "
                "back: restore from the changelog alone, with --full"
            )
        return at.taken_ms + retention_ms

    def _check_offset(self, at: StoreOfTask, offset: int | None, bounds: Bounds) -> int:
        """The offset from which the next start replays."""
        tp, export_id = self._log_of(at), self._manifest.export_id
        if offset is None:
            return bounds.start
        if offset < bounds.start:
            raise ExportTooOld(
                f"export {export_id} has store {at.name!r} of task {at.task} at offset {offset} of "
                f"{tp}, whose log begins at {bounds.start}: what lies between is gone: restore "
                "from the changelog alone, with --full"
            )
        if offset > bounds.end:
            raise Misuse(
                f"export {export_id} has store {at.name!r} of task {at.task} at offset {offset} of "
                f"{tp}, whose log ends at {bounds.end}: the topic was truncated or created again: "
                "restore from the changelog alone, with --full"
            )
        return offset
