"""The stores of one stream task together: opened, restored, rolled back, closed.

A broken one is replaced.

What cannot be trusted is renamed to quarantine and restored from its changelog (SEMANTICS E5, S16);
the other stores of the task are not touched.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from statestore import layout as folders
from statestore.errors import Misuse, TaskCorrupted
from statestore.layout import StateLayout
from statestore.model import TaskId, TopicPartition
from statestore.ports import Changelog, Clock
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import StoreSpec
from statestore.tasks import budget
from statestore.tasks.context import OpenStore
from statestore.tasks.restore import Restored, StoreCorrupted, restore

_log = logging.getLogger(__name__)
OpenStoreAt = Callable[[StoreSpec, Path], TransactionalKeyValueStore[object, object]]


class TaskStores:
    """A task's open stores, by name."""

    def __init__(
        self,
        task_id: TaskId,
        layout: StateLayout,
        open_store: OpenStoreAt,
        changelog: Changelog,
        clock: Clock,
        *,
        accept_empty_changelog: bool,
    ) -> None:
        self.opened: dict[str, OpenStore] = {}
        self.quarantined: list[str] = []
        self._task_id = task_id
        self._layout = layout
        self._open_store = open_store
        self._changelog = changelog
        self._clock = clock
        self._accept_empty_changelog = accept_empty_changelog

    def open(self, spec: StoreSpec) -> None:
        """Open one; if it is not readable, a new one in its place."""
        path = self._layout.store_dir(self._task_id, spec.name)
        try:
            store = self._open_store(spec, path)
        except TaskCorrupted as error:
            self._quarantine(spec.name, "unreadable", error)
            store = self._open_store(spec, path)
        topic = f"{self._layout.application_id}-{spec.name}-changelog"
        self.opened[spec.name] = OpenStore(store, TopicPartition(topic, self._task_id.partition))

    def restore(self) -> Restored:
        """Bring all up to their changelogs, replacing those that cannot go on from them."""
        while True:
            try:
                return restore(
                    self._task_id, list(self.opened.values()), self._changelog, self._clock
                )
            except StoreCorrupted as error:
                if error.store in self.quarantined:
                    raise
                self._replace(error)

    def usage(self) -> budget.Usage:
        """Pending writes of all."""
        staged = [opened.store.staged for opened in self.opened.values()]
        return budget.Usage(
            sum(store.uncommitted_bytes() for store in staged),
            sum(store.uncommitted_entries() for store in staged),
        )

    def rollback(self) -> None:
        """Drop what is pending in all."""
        for opened in self.opened.values():
            opened.store.staged.rollback()

    def maintain(self) -> None:
        """Keep the durable lag of idle stores bounded (SEMANTICS S10)."""
        for opened in self.opened.values():
            opened.store.staged.maintain()

    def close_one(self, name: str) -> None:
        """Close one; what is pending is dropped."""
        self.opened[name].store.staged.close()

    def write_checkpoint(self) -> None:
        """The `.checkpoint` file: at start and at close (SEMANTICS S5)."""
        offsets = {
            opened.changelog: offset
            for opened in self.opened.values()
            if (offset := opened.store.committed_offset(opened.changelog)) is not None
        }
        folders.write_checkpoint(self._layout.task_dir(self._task_id), offsets)

    def _replace(self, error: StoreCorrupted) -> None:
        opened = self.opened[error.store]
        bounds = self._changelog.bounds([opened.changelog])[opened.changelog]
        if bounds.end == bounds.start and not self._accept_empty_changelog:
            raise Misuse(
                f"{error}; the changelog {opened.changelog} is empty, so restoring would lose the "
                "store's rows: bring the topic back, or pass --accept-empty-changelog"
            ) from error
        self.close_one(error.store)
        self._quarantine(error.store, error.reason, error)
        self.open(opened.store.spec)

    def _quarantine(self, store: str, reason: str, error: Exception) -> None:
        path = self._layout.store_dir(self._task_id, store)
        moved = self._layout.quarantine(path, store, reason, self._clock)
        self.quarantined.append(store)
        _log.error(
            "task %s: %s; moved to %s, restoring from the changelog", self._task_id, error, moved
        )
