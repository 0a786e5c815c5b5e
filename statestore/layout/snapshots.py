"""Snapshots of a stream task: asked for, published whole, leased, swept away.

<task id>/snapshot-request-<id>            of the owner, which answers at its next commit
<task id>/snapshots/<id>/<store>/          the store's files: hard links, nobody writes them
                         snapshot.json     what they are: offsets, moment, what is missing
                         lease.json        until when; then anybody removes it
<task id>/snapshots/.<id>/                 in the making, leased too
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
from statestore.layout.files import folders_in, publish, sync_folder
from statestore.model.ids import TopicPartition

_REQUEST = "snapshot-request-"
_MANIFEST = "snapshot.json"
_LEASE = "lease.json"
_SnapshotName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,18}-[0-9]{1,10}-[0-9a-f]{8}\Z")]
_UNLEASED_MS = 600_000  # a folder is made a moment before its lease is


class StoreOffsets(msgspec.Struct, frozen=True):
    """Where a store stands: changelog offsets NEXT to read, input offsets LAST processed."""

    changelog: list[tuple[Topic, Ordinal, Count]]
    position: list[tuple[Topic, Ordinal, Number]]

    @classmethod
    def of(
        cls, changelog: Mapping[TopicPartition, int], position: Mapping[TopicPartition, int]
    ) -> "StoreOffsets":
        """From offsets by partition."""
        return cls(
            [(*tp, offset) for tp, offset in sorted(changelog.items())],
            [(*tp, offset) for tp, offset in sorted(position.items())],
        )

    def offsets(self) -> dict[TopicPartition, int]:
        """Of the changelog, NEXT to read."""
        return {TopicPartition(topic, p): offset for topic, p, offset in self.changelog}

    def positions(self) -> dict[TopicPartition, int]:
        """Of the inputs, LAST processed."""
        return {TopicPartition(topic, p): offset for topic, p, offset in self.position}


class Manifest(msgspec.Struct, frozen=True):
    """What a snapshot holds.

    `commit_number`: of the one commit all stores are of, where an owner took it; None where the
    task was at rest: after a crash each store may then be of a commit of its own. `left_out`:
    stores and why; `unreadable`: those among them whose files are damaged.
    """

    stream_task: TaskName
    taken_ms: TimeMs
    commit_number: Count | None
    stores: dict[StoreName, StoreOffsets]
    left_out: dict[StoreName, Text] = {}
    unreadable: list[StoreName] = []


class Request(msgspec.Struct, frozen=True):
    """What the owner is asked: how long somebody waits, and for how long the answer is wanted."""

    expires_ms: TimeMs
    lease_ms: TimeMs


class _Lease(msgspec.Struct, frozen=True):
    expires_ms: TimeMs


def new_id(now_ms: int) -> str:
    """An id nobody else has, in order of time."""
    return f"{now_ms}-{os.getpid()}-{secrets.token_hex(4)}"


def _made_ms(snapshot_id: str) -> int:
    """The time in an id; 0 if it is none of ours."""
    made, _, _ = snapshot_id.partition("-")
    return int(made) if made.isdecimal() else 0


class TaskSnapshots:
    """The snapshots and requests in one task's folder."""

    def __init__(self, task_dir: Path) -> None:
        self._task_dir = task_dir
        self._folder = task_dir / "snapshots"

    def path(self, snapshot_id: str) -> Path:
        """Where a published snapshot lies."""
        return self._folder / snapshot_id

    # Requests.

    def ask(self, snapshot_id: str, request: Request) -> None:
        """Write a request."""
        publish(self._request(snapshot_id), msgspec.json.encode(request))

    def asked(self, snapshot_id: str) -> bool:
        """Whether that request still waits."""
        return self._request(snapshot_id).exists()

    def withdraw(self, snapshot_id: str) -> None:
        """Take a request back, or off the list once it is answered."""
        self._request(snapshot_id).unlink(missing_ok=True)

    def requests(self) -> list[str]:
        """The ids asked for, in order."""
        try:
            names = [path.name for path in self._task_dir.iterdir()]
        except OSError as error:
            raise HostFailure(f"cannot look into {self._task_dir}: {error.strerror}") from error
        asked = (name.removeprefix(_REQUEST) for name in names if name.startswith(_REQUEST))
        return sorted(name for name in asked if documents.fits(name, _SnapshotName))

    def request(self, snapshot_id: str) -> Request | None:
        """What was asked; None if it was withdrawn."""
        try:
            return documents.read(self._request(snapshot_id), Request, way_out="ask again")
        except HostFailure:
            return Request(0, 0)  # of no use: long expired

    # Snapshots.

    def begin(self, snapshot_id: str, lease_expires_ms: int) -> Path:
        """A new folder to put the stores into; `publish` or `drop` it."""
        making = self._making(snapshot_id)
        try:
            shutil.rmtree(making, ignore_errors=True)  # by an owner that died over it
            making.mkdir(parents=True)
        except OSError as error:
            raise HostFailure(f"cannot make {making}: {error.strerror}") from error
        publish(making / _LEASE, msgspec.json.encode(_Lease(lease_expires_ms)))
        return making

    def publish(self, snapshot_id: str, manifest: Manifest) -> None:
        """All of it appears at once."""
        making = self._making(snapshot_id)
        publish(making / _MANIFEST, msgspec.json.encode(manifest))
        try:
            making.rename(self.path(snapshot_id))
            sync_folder(self._folder)
        except OSError as error:
            raise HostFailure(f"cannot publish {making}: {error.strerror}") from error

    def drop(self, snapshot_id: str) -> None:
        """Remove one, published or not."""
        for folder in (self._making(snapshot_id), self.path(snapshot_id)):
            shutil.rmtree(folder, ignore_errors=True)

    def manifest(self, snapshot_id: str) -> Manifest | None:
        """Of a published snapshot; None if it is not there."""
        path = self.path(snapshot_id) / _MANIFEST
        return documents.read(path, Manifest, way_out="take another snapshot")

    def renew(self, snapshot_id: str, expires_ms: int) -> bool:
        """Keep it until then; False if it is gone."""
        lease = self.path(snapshot_id) / _LEASE
        if not lease.exists():
            return False
        publish(lease, msgspec.json.encode(_Lease(expires_ms)))
        return True

    def sweep(self, now_ms: int) -> list[str]:
        """Remove what nobody waits for or reads any more; returns the ids."""
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
                lease = documents.read(folder / _LEASE, _Lease, way_out="let it expire")
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
