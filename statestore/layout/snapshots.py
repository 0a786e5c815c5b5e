"""Snapshots of a stream task: requested, published atomically, leased and removed.

<task id>/snapshot-request-<id>            a request to the owner, answered at its next commit
<task id>/snapshots/<id>/<store>/          the store's files: hard links that are never written
                         snapshot.json     the manifest: offsets, time, what is missing
                         lease.json        how long to keep it; then any process removes it
                         .commits/         the commits since then, if asked for (commit_feeds.py)
<task id>/snapshots/.<id>/                 an unfinished snapshot, also leased

Nothing here outlives a power failure: whoever asked is gone, and what is left expires. So an owner
waits for no disk but that of its stores.

Keeps I14.
"""

import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from statestore.errors import HostFailure
from statestore.layout import documents
from statestore.layout.documents import (
    Count,
    Number,
    Ordinal,
    StoreName,
    TaskName,
    Text,
    TimeMs,
    Topic,
)
from statestore.layout.files import folders_in, publish_unsynced
from statestore.model.ids import TopicPartition

_REQUEST = "snapshot-request-"
_MANIFEST = "snapshot.json"
_LEASE = "lease.json"
_SnapshotName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,18}-[0-9]{1,10}-[0-9a-f]{8}\Z")]
_UNLEASED_MS = 600_000  # the time for which a folder is kept whose lease is not written yet


class StoreOffsets(msgspec.Struct, frozen=True):
    """The offsets of a store: changelog offsets NEXT to read, input offsets LAST processed."""

    changelog: list[tuple[Topic, Ordinal, Count]]
    position: list[tuple[Topic, Ordinal, Number]]

    @classmethod
    def of(
        cls, changelog: Mapping[TopicPartition, int], position: Mapping[TopicPartition, int]
    ) -> "StoreOffsets":
        """Create it from offsets by partition."""
        return cls(
            [(*tp, offset) for tp, offset in sorted(changelog.items())],
            [(*tp, offset) for tp, offset in sorted(position.items())],
        )

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the changelog offsets, NEXT to read."""
        return {TopicPartition(topic, p): offset for topic, p, offset in self.changelog}

    def positions(self) -> dict[TopicPartition, int]:
        """Return the input offsets, LAST processed."""
        return {TopicPartition(topic, p): offset for topic, p, offset in self.position}


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of a snapshot.

    If an owner took the snapshot, all stores are as of one commit, whose number is
    `commit_number`. It is None if the task was at rest: after a crash, the stores may then be as of
    different commits. `left_out` has the stores that are missing, and why; `unreadable` has those
    of them whose files are damaged.
    """

    stream_task: TaskName
    taken_ms: TimeMs
    commit_number: Count | None
    stores: dict[StoreName, StoreOffsets]
    left_out: dict[StoreName, Text] = {}
    unreadable: list[StoreName] = []
    committed_ms: TimeMs | None = None
    """When that commit was made; None: not in the present run, or the task was at rest."""


class Request(msgspec.Struct, frozen=True):
    """A request to the owner: until when the caller waits, and how long to lease the snapshot.

    `follow`: whether the caller also wants every commit that comes after it.
    """

    expires_ms: TimeMs
    lease_ms: TimeMs
    follow: bool = False


class _SnapshotLease(msgspec.Struct, frozen=True):
    expires_ms: TimeMs


def new_id(now_ms: int) -> str:
    """Return a unique id; ids sort by time."""
    return f"{now_ms}-{os.getpid()}-{secrets.token_hex(4)}"


def _made_ms(snapshot_id: str) -> int:
    """Return the time in an id; 0 if the text is not such an id."""
    made, _, _ = snapshot_id.partition("-")
    return int(made) if made.isdecimal() else 0


class TaskSnapshots:
    """The snapshots and requests in one task's folder."""

    def __init__(self, task_dir: Path) -> None:
        self._task_dir = task_dir
        self._folder = task_dir / "snapshots"

    def path(self, snapshot_id: str) -> Path:
        """Return the folder of a published snapshot."""
        return self._folder / snapshot_id

    # Requests.

    def ask(self, snapshot_id: str, request: Request) -> None:
        """Write a request."""
        publish_unsynced(self._request(snapshot_id), msgspec.json.encode(request))

    def asked(self, snapshot_id: str) -> bool:
        """Return whether that request is still waiting."""
        return self._request(snapshot_id).exists()

    def withdraw(self, snapshot_id: str) -> None:
        """Remove a request, because it is withdrawn or answered."""
        self._request(snapshot_id).unlink(missing_ok=True)

    def requests(self) -> list[str]:
        """Return the sorted ids of all requests."""
        try:
            names = [path.name for path in self._task_dir.iterdir()]
        except OSError as error:
            raise HostFailure(f"cannot list {self._task_dir}: {error.strerror}") from error
        asked = (name.removeprefix(_REQUEST) for name in names if name.startswith(_REQUEST))
        return sorted(name for name in asked if documents.fits(name, _SnapshotName))

    def request(self, snapshot_id: str) -> Request | None:
        """Read a request; None if it was withdrawn. An unreadable request counts as expired."""
        try:
            return documents.read(self._request(snapshot_id), Request, way_out="ask again")
        except HostFailure:
            return Request(0, 0)

    # Snapshots.

    def begin(self, snapshot_id: str, lease_expires_ms: int) -> Path:
        """Create a new folder for the stores; the caller then calls `publish` or `drop`."""
        making = self._making(snapshot_id)
        try:
            shutil.rmtree(making, ignore_errors=True)  # left by an owner that died
            making.mkdir(parents=True)
        except OSError as error:
            raise HostFailure(f"cannot create {making}: {error.strerror}") from error
        publish_unsynced(making / _LEASE, msgspec.json.encode(_SnapshotLease(lease_expires_ms)))
        return making

    def publish(self, snapshot_id: str, manifest: Manifest) -> None:
        """Publish a snapshot atomically."""
        making = self._making(snapshot_id)
        publish_unsynced(making / _MANIFEST, msgspec.json.encode(manifest))
        try:
            making.rename(self.path(snapshot_id))
        except OSError as error:
            raise HostFailure(f"cannot publish {making}: {error.strerror}") from error

    def drop(self, snapshot_id: str) -> None:
        """Remove a snapshot, published or not."""
        for folder in (self._making(snapshot_id), self.path(snapshot_id)):
            shutil.rmtree(folder, ignore_errors=True)

    def manifest(self, snapshot_id: str) -> Manifest | None:
        """Read the manifest of a published snapshot; None if it does not exist."""
        path = self.path(snapshot_id) / _MANIFEST
        return documents.read(path, Manifest, way_out="take another snapshot")

    def renew(self, snapshot_id: str, expires_ms: int) -> bool:
        """Extend the lease until `expires_ms`; return False if the snapshot is gone."""
        lease = self.path(snapshot_id) / _LEASE
        if not lease.exists():
            return False
        publish_unsynced(lease, msgspec.json.encode(_SnapshotLease(expires_ms)))
        return True

    def expires_ms(self, snapshot_id: str) -> int | None:
        """Return until when a published snapshot is leased; None if it is gone."""
        way_out = "take another snapshot"
        lease = documents.read(self.path(snapshot_id) / _LEASE, _SnapshotLease, way_out=way_out)
        return None if lease is None else lease.expires_ms

    def sweep(self, now_ms: int) -> list[str]:
        """Remove expired requests and snapshots; return their ids."""
        stale = []
        for snapshot_id in self.requests():
            request = self.request(snapshot_id)
            if request is not None and request.expires_ms <= now_ms:
                self.withdraw(snapshot_id)
                stale.append(snapshot_id)
        for name in folders_in(self._folder):
            folder = self._folder / name
            expires_ms = _made_ms(name.removeprefix(".")) + _UNLEASED_MS
            with suppress(HostFailure):
                lease = documents.read(folder / _LEASE, _SnapshotLease, way_out="let it expire")
                if lease is not None:
                    expires_ms = lease.expires_ms
            if expires_ms <= now_ms:
                shutil.rmtree(folder, ignore_errors=True)
                stale.append(name)
        return stale

    def _request(self, snapshot_id: str) -> Path:
        return self._task_dir / f"{_REQUEST}{snapshot_id}"

    def _making(self, snapshot_id: str) -> Path:
        return self._folder / f".{snapshot_id}"
