"""The `.checkpoint` file of a stream task: how far its stores were up to their logs (SEMANTICS S5).

It is written at the start and at the close, and at commits only if a store does not manage its own
offsets. Its entries are believed only by a store with rows that has no offset of its own. Under
exactly_once the entry of a store that does not manage its offsets is taken back before the store
changes, and written again only after a clean close (I10): after a crash there is none, and the
store is restored from its whole log.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from statestore.errors import HostFailure
from statestore.layout import files
from statestore.layout.folders import StateLayout
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.tasks.owned import OwnedStore

_log = logging.getLogger(__name__)


class CheckpointFile:
    """The file of one task; what it says of stores that are not open stays in it."""

    def __init__(
        self,
        task_id: TaskId,
        layout: StateLayout,
        stores: Mapping[str, OwnedStore],
        *,
        exactly_once: bool,
    ) -> None:
        """`stores`: those that are open, at any time."""
        self._task_id = task_id
        self._layout = layout
        self._stores = stores
        self._exactly_once = exactly_once
        self._entries: dict[TopicPartition, int] | None = None
        self._clean: dict[str, bool] = {}
        self._changed = False

    def adopt(self, opened: OwnedStore) -> None:
        """Have a store take over what files say of it, this one and `.position`.

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
        """The store of this log is gone."""
        self._read_entries().pop(tp, None)

    def before_write(self) -> None:
        """Take back what the file says of stores that are about to change."""
        if not self._changed:
            self._changed = True
            if self._exactly_once and self._has_unmanaged():
                self.write()

    def restored(self) -> None:
        """All stores are up to their logs, and nothing has changed since."""
        self._changed = False

    def committed(self) -> None:
        """Write the file, where a store's offset lies nowhere else."""
        if not self._exactly_once and self._has_unmanaged():
            self.write()

    def closed(self, opened: OwnedStore, offset: int | None, *, clean: bool) -> None:
        """A store was closed, at this offset."""
        if offset is not None and self._entries is not None:
            self._entries[opened.log.tp] = offset
        self._clean[opened.name] = clean and offset is not None

    def write(self) -> None:
        """Write the file, if any store is open or was."""
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
        """The offsets in a file, without negative ones, by which Kafka Streams says: none."""
        try:
            read = files.read_offsets(path)
        except HostFailure as error:
            _log.warning("task %s: %s; going on without it", self._task_id, error)
            return {}
        return {tp: offset for tp, offset in read.items() if offset >= 0}
