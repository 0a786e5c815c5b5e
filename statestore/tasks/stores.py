"""Opens, restores, rolls back and closes the stores of one stream task together.

A store that cannot be trusted is renamed into quarantine, and a new one in its place is restored
from its log (SEMANTICS E5, S16); the other stores of the task are not touched.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from statestore.errors import FormatTooNew, HostFailure, Misuse, TaskCorrupted, log_left
from statestore.layout import files, linked_files
from statestore.layout.activity_files import Activities
from statestore.layout.folders import (
    Quarantined,
    StateLayout,
    read_export_origin,
    remove_export_origin,
)
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.settings import Settings
from statestore.stores.kinds.opening import within
from statestore.stores.kinds.registry import kind_of
from statestore.stores.specs import StoreSpec, StoreSupplier
from statestore.tasks.linked_copies import LinkedCopies
from statestore.tasks.memory_share import Usage
from statestore.tasks.owned import OpenStore, OwnedStore, SuppliedStore
from statestore.tasks.plan import TaskEdges, TaskPlan
from statestore.tasks.restore import UNCLEAN, Restored, Restorer, StoreCorrupted
from statestore.tasks.store_log import OwnChangelog, SourceTopic, StoreLog
from statestore.topology.logs import log_of, logs_of

_log = logging.getLogger(__name__)


class TaskStores:
    """A task's open stores, by name."""

    def __init__(
        self, plan: TaskPlan, edges: TaskEdges, settings: Settings, layout: StateLayout
    ) -> None:
        self.opened: dict[str, OwnedStore] = {}
        self.quarantined: list[str] = []
        self.processed_last: dict[TopicPartition, int] = {}
        """The offset processed last of each input that has moved since the last commit (S14)."""
        self._plan = plan
        self._edges = edges
        self._exactly_once = settings.exactly_once
        self._layout = layout
        self._folder = layout.stores_dir(plan.task_id)
        self._logs = logs_of(plan.part.nodes, plan.specs, settings)
        activities = Activities(layout.application_dir, edges.clock)
        self._restorer = Restorer(
            plan.task_id, edges.changelog, edges.cluster, edges.clock, activities
        )
        self._copies = LinkedCopies(plan.task_id, activities, edges.clock)
        self._checkpoint = CheckpointFile(
            plan.task_id, layout, self.opened, exactly_once=settings.exactly_once
        )
        self._unmarked: list[tuple[Path, Quarantined]] = []

    def live_in(self, folder: Path) -> None:
        """Open stores in this folder from now on; each owner may have its own folder (E10)."""
        self._folder = folder

    def open(self, spec: StoreSpec) -> None:
        """Open a store; if it cannot be read, open a new one in its place."""
        path = self._folder / spec.name
        try:
            if not isinstance(spec, StoreSupplier):
                self._hold_links(path)
            opened = self._opened(spec, path)
        except (TaskCorrupted, FormatTooNew) as error:
            newer = isinstance(error, FormatTooNew)
            if newer and not self._exactly_once:
                raise
            self._refuse_empty_changelog(self._log_of(spec.name).tp, error)
            self._quarantine(spec.name, "newer-format" if newer else "unreadable", error)
            opened = self._opened(spec, path)
        self.opened[spec.name] = opened
        self._checkpoint.adopt(opened)
        self._check_export_origin(opened, path)

    def restore(
        self,
        committed: Mapping[TopicPartition, int],
        position: Position,
        *,
        nothing_committed: bool = False,
    ) -> Restored:
        """Bring all stores up to their logs; replace those that cannot continue from their offsets.

        `committed`: where the inputs continue. `position`: what the group has committed.
        `nothing_committed`: the application never committed, so a store whose writes were never
        committed either loses nothing by an empty changelog.
        """
        done: Restored | None = None
        while done is None:
            try:
                done = self._restorer.restore(list(self.opened.values()), committed, position)
            except StoreCorrupted as error:
                if error.name in self.quarantined:
                    raise
                self._replace(error, may_be_empty=nothing_committed and error.reason == UNCLEAN)
        self._checkpoint.restored()
        self._unmarked = [
            (folder, record)
            for folder, record in self._layout.quarantined()
            if record.restored_ms is None
            and record.partition == self._plan.task_id.partition
            and record.store in self.opened
        ]
        self._copies.begin({name: self._folder / name for name in self.opened})
        return done

    def hold_time(self, limit_ms: int | None) -> None:
        """Let rows of all stores expire as if stream time were no later than that."""
        for opened in self.opened.values():
            opened.hold_time(limit_ms)

    def reached(self, stream_time_ms: int | None) -> None:
        """Tell restored stores the stream time of the last commit, which their logs do not have."""
        if stream_time_ms is not None:
            for opened in self.opened.values():
                opened.reached(stream_time_ms)

    def replace(self, error: TaskCorrupted) -> None:
        """Replace a store that became unreadable; raise `error` if it was already replaced."""
        if error.store not in self.opened or error.store in self.quarantined:
            raise error
        self._replace(StoreCorrupted(error.store, "unreadable", str(error)))

    def usage(self) -> Usage:
        """Return the pending writes of all stores."""
        used = [opened.usage() for opened in self.opened.values()]
        return Usage(sum(u.size_bytes for u in used), sum(u.records for u in used))

    def before_write(self) -> None:
        """Remove entries of `.checkpoint` that the coming change makes untrue (S5)."""
        self._checkpoint.before_write()

    def write_checkpoint(self) -> None:
        """Write the `.checkpoint` file (SEMANTICS S5)."""
        self._checkpoint.write()

    def committed(self) -> None:
        """Write what must be on disk after a commit, which has all that was processed."""
        self.processed_last.clear()
        self._checkpoint.committed()
        while self._unmarked:
            self._layout.mark_restored(*self._unmarked.pop(), self._edges.clock.now_ms())

    def rollback(self) -> bool:
        """Drop what is pending in all stores.

        Return whether one could not roll back and was replaced; then a restore must follow.
        """
        # First, because a reader must not take what is dropped below for processed.
        self.processed_last.clear()
        replaced = False
        for opened in list(self.opened.values()):
            try:
                opened.rollback()
            except TaskCorrupted as error:
                self._replace(StoreCorrupted(opened.name, "no-rollback", str(error)))
                replaced = True
        return replaced

    def maintain(self) -> None:
        """Keep the durable lag of idle stores bounded (SEMANTICS S10).

        LinkBroken if a store was restored onto an export that turned out to be damaged.
        """
        self._copies.check()
        for opened in self.opened.values():
            opened.maintain()

    def close(self) -> None:
        """Close all stores; pending writes are dropped."""
        self.processed_last.clear()
        self._copies.stop()
        for opened in self.opened.values():
            try:
                offset = opened.offset()
            except Exception as error:  # noqa: BLE001 - a user's class raised it; the others must close
                log_left(_log, error, f"store {opened.name!r}: while closing")
                offset = None
            self._checkpoint.closed(opened, offset, clean=opened.close())

    def _hold_links(self, path: Path) -> None:
        """Keep what a store is linked to; TaskCorrupted if that is not there any more."""
        linked = linked_files.checked(path)
        if linked is not None:
            try:
                linked_files.hold(linked, path, self._edges.clock.now_ms())
            except HostFailure as error:
                _log.warning("task %s: %s: a prune may remove it", self._plan.task_id, error)

    def _opened(self, spec: StoreSpec, path: Path) -> OwnedStore:
        log, done = self._log_of(spec.name), self.processed_last
        task_id, inputs = self._plan.task_id, self._plan.inputs
        if isinstance(spec, StoreSupplier):
            return SuppliedStore(spec, path, task_id, log, self._checkpoint.before_write)
        placed = within(spec, self._layout.application_id)
        return OpenStore(self._edges.open_store(placed, path), log, inputs, done)

    def _log_of(self, store: str) -> StoreLog:
        topic = log_of(self._layout.application_id, store, self._logs.topics())
        tp = TopicPartition(topic, self._plan.task_id.partition)
        source = self._logs.sources.get(store)
        if source is not None:
            return SourceTopic(tp, source, self._plan.inputs)
        has_versions = kind_of(self._plan.specs[store]).keeps_history
        return OwnChangelog(tp, exactly_once=self._exactly_once, has_versions=has_versions)

    def _replace(self, error: StoreCorrupted, *, may_be_empty: bool = False) -> None:
        opened = self.opened[error.name]
        if not may_be_empty:
            self._refuse_empty_changelog(opened.log.tp, error)
        opened.close()
        self._quarantine(error.name, error.reason, error)
        self.open(opened.spec)

    def _check_export_origin(self, opened: OwnedStore, path: Path) -> None:
        """Replace a store that came from an export, if the start comes too late for it (I18)."""
        origin = read_export_origin(path)
        if origin is None:
            return
        if (opened.offset() or 0) >= origin.end:
            remove_export_origin(path)
        elif self._edges.clock.now_ms() >= origin.deadline_ms:
            what = "came from an export whose changelog may have forgotten deletes since"
            self._replace(StoreCorrupted(opened.name, "export-too-old", f"{path} {what}"))

    def _refuse_empty_changelog(self, tp: TopicPartition, error: Exception) -> None:
        bounds = self._edges.changelog.bounds([tp])[tp]
        if bounds.end == bounds.start and not self._plan.accept_empty_changelog:
            raise Misuse(
                f"{error}; the changelog {tp} is empty, so restoring would lose the "
                "store's rows: bring the topic back, or pass --accept-empty-changelog"
            ) from error

    def _quarantine(self, store: str, reason: str, error: Exception) -> None:
        path = self._folder / store
        self._copies.stop()
        self._checkpoint.forget(self._log_of(store).tp)
        moved = None
        if path.is_dir():
            moved = self._layout.quarantine(path, store, reason, self._edges.clock)
        self.quarantined.append(store)
        _log.error(
            "task %s: %s; moved to %s, restoring from the changelog",
            self._plan.task_id,
            error,
            moved,
        )


class CheckpointFile:
    """The `.checkpoint` file of one task: how far its stores were up to their logs (SEMANTICS S5).

    It is written at the start and at the close, and at commits only if a store does not manage its
    own offsets. Its entries are believed only by a store with rows that has no offset of its own.
    Under exactly_once the entry of a store that does not manage its offsets is taken back before
    the store changes, and written again only after a clean close (I10): after a crash there is
    none, and the store is restored from its whole log. What the file says of stores that are not
    open stays in it.
    """

    def __init__(
        self,
        task_id: TaskId,
        layout: StateLayout,
        stores: Mapping[str, OwnedStore],
        *,
        exactly_once: bool,
    ) -> None:
        """`stores` always has the stores that are open."""
        self._task_id = task_id
        self._layout = layout
        self._stores = stores
        self._exactly_once = exactly_once
        self._entries: dict[TopicPartition, int] | None = None
        self._clean: dict[str, bool] = {}
        self._changed = False

    def adopt(self, opened: OwnedStore) -> None:
        """Have a store take over what this file and `.position` say of it.

        A store without rows takes over nothing: if it lost its files, it needs its whole log.
        """
        entry = self._read_entries().get(opened.log.tp)
        if not opened.persistent() or opened.offset() is not None or not opened.occupied():
            entry = None
        positions = []
        if opened.persistent() and opened.manages_offsets():
            positions = [
                path
                for path in self._layout.position_files(self._task_id, opened.name)
                if path.is_file()
            ]
        position = Position()
        for path in positions:
            position = position.merge(Position.of(self._read(path)))
        if entry is not None or positions:
            opened.adopt(entry, position)
            _log.info("task %s: %s adopted what its files said", self._task_id, opened.name)
        for path in positions:
            path.unlink(missing_ok=True)

    def forget(self, tp: TopicPartition) -> None:
        """Drop the entry of a log whose store is gone."""
        self._read_entries().pop(tp, None)

    def before_write(self) -> None:
        """Remove entries of stores that are about to change and do not manage their offsets."""
        if not self._changed:
            self._changed = True
            if self._exactly_once and self._has_unmanaged():
                self.write()

    def restored(self) -> None:
        """Note that all stores are up to their logs, and that nothing has changed since."""
        self._changed = False

    def committed(self) -> None:
        """Write the file if a store's offset is stored nowhere else."""
        if not self._exactly_once and self._has_unmanaged():
            self.write()

    def closed(self, opened: OwnedStore, offset: int | None, *, clean: bool) -> None:
        """Note that a store was closed at this offset."""
        if offset is not None and self._entries is not None:
            self._entries[opened.log.tp] = offset
        self._clean[opened.name] = clean and offset is not None

    def write(self) -> None:
        """Write the file if any store was opened."""
        if not self._stores:
            return
        offsets = dict(self._entries or {})
        for opened in self._stores.values():
            offset = offsets.pop(opened.log.tp, None)
            if opened.name not in self._clean:
                offset = opened.offset()
            if opened.persistent() and offset is not None and self._vouched_for(opened):
                offsets[opened.log.tp] = offset
        files.write_checkpoint(self._layout.task_dir(self._task_id), offsets)

    def _vouched_for(self, opened: OwnedStore) -> bool:
        if opened.manages_offsets() or not self._exactly_once:
            return True
        return self._clean.get(opened.name, not self._changed)

    def _has_unmanaged(self) -> bool:
        return any(o.persistent() and not o.manages_offsets() for o in self._stores.values())

    def _read_entries(self) -> dict[TopicPartition, int]:
        if self._entries is None:
            self._entries = self._read(self._layout.task_dir(self._task_id) / ".checkpoint")
        return self._entries

    def _read(self, path: Path) -> dict[TopicPartition, int]:
        """Return the offsets in a file; Kafka Streams writes negative ones where it knows none."""
        try:
            read = files.read_offsets(path)
        except HostFailure as error:
            _log.warning("task %s: %s; going on without it", self._task_id, error)
            return {}
        return {tp: offset for tp, offset in read.items() if offset >= 0}
