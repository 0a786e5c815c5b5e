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

import msgspec

from statestore.errors import HostFailure
from statestore.layout.files import folders_in, publish, sync_folder
from statestore.model import TopicPartition

_REQUEST = "snapshot-request-"
_MANIFEST = "snapshot.json"
_LEASE = "lease.json"
_UNLEASED_MS = 600_000  # a folder is made a moment before its lease is


class StoreOffsets(msgspec.Struct, frozen=True):
    """Where a store stands: changelog offsets NEXT to read, input offsets LAST processed."""

    changelog: list[tuple[str, int, int]]
    position: list[tuple[str, int, int]]

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

    stream_task: str
    taken_ms: int
    commit_number: int | None
    stores: dict[str, StoreOffsets]
    left_out: dict[str, str] = {}
    unreadable: list[str] = []


class Request(msgspec.Struct, frozen=True):
    """What the owner is asked: how long somebody waits, and for how long the answer is wanted."""

    expires_ms: int
    lease_ms: int


class _Lease(msgspec.Struct, frozen=True):
    expires_ms: int


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
        return sorted(n.removeprefix(_REQUEST) for n in names if n.startswith(_REQUEST))

    def request(self, snapshot_id: str) -> Request | None:
        """What was asked; None if it was withdrawn."""
        try:
            return msgspec.json.decode(self._request(snapshot_id).read_bytes(), type=Request)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
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
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise HostFailure(f"{path} is not readable: {error}") from error

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
            with suppress(FileNotFoundError, msgspec.DecodeError):
                lease = (folder / _LEASE).read_bytes()
                expires_ms = msgspec.json.decode(lease, type=_Lease).expires_ms
            if expires_ms <= now_ms:
                shutil.rmtree(folder, ignore_errors=True)
                stale.append(name)
        return stale

    def _request(self, snapshot_id: str) -> Path:
        return self._task_dir / f"{_REQUEST}{snapshot_id}"

    def _making(self, snapshot_id: str) -> Path:
        return self._folder / f".{snapshot_id}"
