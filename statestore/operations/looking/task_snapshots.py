"""Takes snapshots of stream tasks, by which anyone but the owner sees a store.

    take()    the task's lock is free: link its files             snapshot.linked
                                       publish them by rename     snapshot.published
              it is not: write a request                          snapshot.requested
                         wait for the owner's answer, or for the lock

What is seen is committed state. Each snapshot is leased: `renew` it while you read, and then
`release` it. One that is forgotten is removed when its lease has run out.
"""

import threading
from pathlib import Path
from typing import Self

import tenacity

from statestore.errors import (
    HostFailure,
    Locked,
    Misuse,
    StateStoreError,
    TaskCorrupted,
    Unavailable,
    UnknownStore,
)
from statestore.faults import CrashPoint, reach
from statestore.layout import owners
from statestore.layout.commit_feeds import FeedReader
from statestore.layout.snapshots import Manifest, Request, StoreOffsets, TaskSnapshots, new_id
from statestore.model.ids import TaskId
from statestore.operations.environment import Environment
from statestore.ports import Clock

_ASK_AGAIN_S = 0.02


class Snapshot:
    """A published snapshot, leased to its holder. Use `with`, or release it."""

    def __init__(
        self,
        folder: Path,
        snapshot_id: str,
        manifest: Manifest,
        *,
        clock: Clock,
        lease_ms: int,
    ) -> None:
        self.manifest = manifest
        self._snapshots = TaskSnapshots(folder)
        self._id = snapshot_id
        self._clock = clock
        self._lease_ms = lease_ms
        self._renew_s = clock.monotonic() + lease_ms / 2000

    @property
    def snapshot_id(self) -> str:
        """By what another process finds it: see `Snapshots.held`."""
        return self._id

    def store_dir(self, store: str) -> Path:
        """Return the folder of a store; an error says why it is not in the snapshot."""
        manifest = self.manifest
        task, why = manifest.stream_task, manifest.left_out.get(store)
        if why is not None:
            kind = TaskCorrupted if store in manifest.unreadable else Misuse
            raise kind(f"store {store!r} of task {task} is in no snapshot: {why}")
        if store not in manifest.stores:
            known = ", ".join(sorted(manifest.stores)) or "none"
            raise UnknownStore(f"no store {store!r} in the snapshot of task {task}; it has {known}")
        return self._snapshots.path(self._id) / store

    def store_dirs(self) -> dict[str, Path]:
        """Return the folders of all stores that it has."""
        return {store: self._snapshots.path(self._id) / store for store in self.manifest.stores}

    def feed(self) -> FeedReader | None:
        """Return what brings the commits since then; None if the task had no owner.

        The holder applies them to the files, which are its own copy.
        """
        if self.manifest.commit_number is None:
            return None
        return FeedReader(self._snapshots.path(self._id))

    def renew(self) -> None:
        """Extend the lease once half of it is over; Unavailable if the snapshot is gone."""
        now_s = self._clock.monotonic()
        if now_s < self._renew_s:
            return
        if not self._snapshots.renew(self._id, self._clock.now_ms() + self._lease_ms):
            raise _gone(self.manifest.stream_task, self._lease_ms)
        self._renew_s = now_s + self._lease_ms / 2000

    def release(self) -> None:
        """Remove it. Releasing twice is harmless."""
        self._snapshots.drop(self._id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


def _gone(stream_task: str, lease_ms: int) -> Unavailable:
    return Unavailable(
        f"the snapshot of task {stream_task} was removed when its lease of {lease_ms} ms had run "
        "out: take a new one, or raise statestore.snapshot.lease.ms"
    )


class Snapshots:
    """Takes snapshots of the tasks of one application."""

    def __init__(self, environment: Environment) -> None:
        self.layout = environment.layout
        self._settings = environment.settings
        self._clock = environment.clock
        self._databases = environment.databases

    def take(
        self, task: TaskId, *, follow: bool = False, ending: threading.Event | None = None
    ) -> Snapshot:
        """Take a snapshot of all stores of a stream task.

        `follow`: an owner also sends every commit from then on (`Snapshot.feed`).
        `ending`: once it is set, an owner is waited for no longer.
        Unavailable names an owner that did not answer within `statestore.snapshot.wait.ms`.
        """
        settings, clock = self._settings, self._clock
        folder = self.layout.task_dir(task)
        snapshots, snapshot_id = TaskSnapshots(folder), new_id(clock.now_ms())
        manifest = self._at_rest(task, snapshots, snapshot_id)
        if manifest is None:
            expires_ms = clock.now_ms() + settings.snapshot_wait_ms
            snapshots.ask(snapshot_id, Request(expires_ms, settings.snapshot_lease_ms, follow))
            try:
                reach(CrashPoint.SNAPSHOT_REQUESTED)
                manifest = self._answer(task, snapshots, snapshot_id, ending or threading.Event())
            finally:
                snapshots.withdraw(snapshot_id)
        lease_ms = settings.snapshot_lease_ms
        return Snapshot(folder, snapshot_id, manifest, clock=clock, lease_ms=lease_ms)

    def held(self, task: TaskId, snapshot_id: str) -> Snapshot:
        """Return a snapshot that another process has taken; Unavailable if it is gone.

        Its lease is renewed once a quarter of it is over.
        """
        lease_ms, now_ms = self._settings.snapshot_lease_ms, self._clock.now_ms()
        folder = self.layout.task_dir(task)
        snapshots = TaskSnapshots(folder)
        manifest, expires_ms = snapshots.manifest(snapshot_id), snapshots.expires_ms(snapshot_id)
        if manifest is None or expires_ms is None:
            raise _gone(str(task), lease_ms)
        if expires_ms - now_ms < 3 * lease_ms / 4 and not snapshots.renew(
            snapshot_id, now_ms + lease_ms
        ):
            raise _gone(str(task), lease_ms)
        return Snapshot(folder, snapshot_id, manifest, clock=self._clock, lease_ms=lease_ms)

    def sweep(self, task: TaskId) -> None:
        """Remove the snapshots of a stream task whose leases have run out, and old requests."""
        TaskSnapshots(self.layout.task_dir(task)).sweep(self._clock.now_ms())

    def _answer(
        self, task: TaskId, snapshots: TaskSnapshots, snapshot_id: str, ending: threading.Event
    ) -> Manifest:
        """Return the owner's answer, or take the snapshot here once the task has no owner."""

        def look() -> Manifest | None:
            waits = snapshots.asked(snapshot_id)
            found = snapshots.manifest(snapshot_id)
            if found is None and not waits:
                raise HostFailure(
                    f"task {task}: its owner could not take a snapshot; its log says why"
                )
            return found or self._at_rest(task, snapshots, snapshot_id)

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda found: found is None),
            wait=tenacity.wait_fixed(_ASK_AGAIN_S),
            stop=tenacity.stop_any(
                tenacity.stop_when_event_set(ending),
                tenacity.stop_after_delay(self._settings.snapshot_wait_ms / 1000),
            ),
            retry_error_callback=lambda _state: None,
        )
        manifest = tries(look)
        if manifest is None:
            owner = owners.read_owner(self.layout.task_dir(task))
            who = "its owner" if owner is None else owner.describe()
            raise Unavailable(
                f"task {task}: {who} took no snapshot within {self._settings.snapshot_wait_ms} ms: "
                "it may be restoring or stopped; try again, or raise statestore.snapshot.wait.ms"
            )
        return manifest

    def _at_rest(self, task: TaskId, snapshots: TaskSnapshots, snapshot_id: str) -> Manifest | None:
        """Take the snapshot here; None while the stream task has an owner."""
        folder, locks = self.layout.task_dir(task), self._settings.volume_locks
        try:
            with owners.at_rest(folder, what=f"task {task}", wait_ms=0, locks=locks):
                return self._copy(task, snapshots, snapshot_id)
        except Locked:
            return None

    def _copy(self, task: TaskId, snapshots: TaskSnapshots, snapshot_id: str) -> Manifest:
        now_ms = self._clock.now_ms()
        last = owners.read_owner(self.layout.task_dir(task))
        making = snapshots.begin(snapshot_id, now_ms + self._settings.snapshot_lease_ms)
        taken: dict[str, StoreOffsets] = {}
        left_out: dict[str, str] = {}
        unreadable = []
        for store in self.layout.stores(task):
            source, target = self.layout.store_dir(task, store), making / store
            try:
                self._databases.link(source, target, last is None or last.provably_dead())
                offsets = self._databases.offsets_of(target)
            except TaskCorrupted as error:
                left_out[store] = str(error).replace(str(target), str(source))
                unreadable.append(store)
                continue
            except StateStoreError:
                snapshots.drop(snapshot_id)
                raise
            if offsets is None:
                left_out[store] = f"{source} holds no built-in store"
            else:
                taken[store] = offsets
        reach(CrashPoint.SNAPSHOT_LINKED)
        manifest = Manifest(str(task), now_ms, None, taken, left_out, unreadable)
        snapshots.publish(snapshot_id, manifest)
        reach(CrashPoint.SNAPSHOT_PUBLISHED)
        return manifest
