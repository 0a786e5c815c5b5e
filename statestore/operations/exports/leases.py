"""Leases at a target: exports may be uploaded, or files may be removed, but never both at once.

An upload relies on files that it found at the target, so nobody may remove them or set them aside
meanwhile.
Each writes its own lease first and then looks for the other's. If both begin at the same time, at
least one of them sees the other and gives way. The lease of a process that died runs out.

A store that was opened on an export holds the files that it is linked to by a lease of its own
(layout/linked_files.py), which no upload minds and every prune respects.
"""

import logging
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from statestore.errors import HostFailure, Locked, StateStoreError, TargetNotShared, Unavailable
from statestore.layout import documents, linked_files
from statestore.layout.documents import TimeMs
from statestore.layout.linked_files import LinkLease
from statestore.ports import Clock, Target

_log = logging.getLogger(__name__)
LEASE_MS = 600_000
"""How long a process that died keeps others away. A living one renews three times within it."""


class _Lease(msgspec.Struct, frozen=True):
    expires_ms: TimeMs


class Leases:
    """The leases of one application at one target."""

    def __init__(
        self, target: Target, folder: str, clock: Clock, *, lease_ms: int = LEASE_MS
    ) -> None:
        self._target = target
        self._uploads = f"{folder}/uploads"
        self._prunings = f"{folder}/prunings"
        self._links = f"{folder}/{linked_files.FOLDER}"
        self._clock = clock
        self._lease_ms = lease_ms

    @contextmanager
    def uploading(self, export_id: str) -> Iterator["Upload"]:
        """Prevent files from being removed meanwhile; Locked while somebody removes some."""
        name = f"{self._uploads}/{export_id}.json"
        self._write(name)
        try:
            self._give_way(self._prunings, "exports are being pruned, or damaged files set aside")
            upload = Upload(self, name, f"{self._uploads}/{export_id}")
            with self._renewed(name):
                yield upload
        finally:
            self._give_back([name])

    @contextmanager
    def removing(self) -> Iterator["Removal"]:
        """Prevent uploads and other removals meanwhile; Locked while there is one."""
        name = f"{self._prunings}/{secrets.token_hex(4)}.json"
        self._write(name)
        try:
            self._give_way(
                self._prunings, "another process removes files or sets them aside", but=name
            )
            self._give_way(self._uploads, "an export is being uploaded")
            with self._renewed(name):
                yield Removal(self, name)
        finally:
            self._give_back([name])

    def see(self, folder: str) -> None:
        """TargetNotShared unless the lease of the upload into `folder` is seen from here.

        The lease has a random name and was written by the process that began the upload. If it is
        not seen, this process sees another place under the same address.
        """
        if self._target.read(f"{folder}.json") is None:
            raise TargetNotShared(
                f"{self._target.url} on {socket.gethostname()}: the export in progress ({folder}) "
                "is not there: the target must be the same place for driver and workers: a folder "
                "on a volume they share, or an object store"
            )

    def linked(self) -> set[str]:
        """The checksums of what stores are linked to; an unreadable lease holds nothing."""
        found = set[str]()
        for name in self._target.names(self._links):
            if self.holds(name):
                with suppress(HostFailure):
                    data = self._target.read(name) or b""
                    lease = documents.decode(data, LinkLease, name, way_out="let it expire")
                    found.update(lease.files)
        return found

    def check_none_removes(self) -> None:
        """Locked while somebody removes files, who may not have seen a lease written just now."""
        self._give_way(self._prunings, "exports are being pruned, or damaged files set aside")

    def left_over(self) -> list[str]:
        """What uploads, prunes and stores that died left behind. Call it only while pruning."""
        found = self._target.names(self._uploads) | self._target.names(self._prunings)
        found |= self._target.names(self._links)
        return sorted(name for name in found if not self.holds(name))

    def holds(self, name: str) -> bool:
        """Whether that lease exists and has not run out."""
        data = self._target.read(name) if name.endswith(".json") else None
        if data is None:
            return False
        try:
            lease = documents.decode(data, _Lease, name, way_out="let it expire")
        except HostFailure:
            return False
        return lease.expires_ms > self._clock.now_ms()

    def _give_way(self, folder: str, what: str, *, but: str | None = None) -> None:
        for name in self._target.names(folder):
            if name != but and self.holds(name):
                raise Locked(
                    f"{what} ({name} at {self._target.url}): try again when that is done, or, if "
                    f"its process died, in {self._lease_ms // 1000} s"
                )

    def _write(self, name: str) -> None:
        lease = _Lease(self._clock.now_ms() + self._lease_ms)
        self._target.write(name, msgspec.json.encode(lease))

    @contextmanager
    def _renewed(self, name: str) -> Iterator[None]:
        """Renew the lease from a thread, unless it has run out."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(self._lease_ms / 3000):
                try:
                    if not self.holds(name):
                        return
                    self._write(name)
                except StateStoreError as error:
                    _log.warning("lease %s: %s", name, error)

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _give_back(self, names: list[str]) -> None:
        try:
            self._target.remove(names)
        except StateStoreError as error:
            # The first error is the one to report; the lease runs out by itself.
            _log.warning("lease %s: %s", names[0], error)


class Removal:
    """The right to remove files, or to set them aside, until it is given back."""

    def __init__(self, leases: Leases, name: str) -> None:
        self._leases = leases
        self._name = name

    def check(self) -> None:
        """Unavailable once the lease has run out, because an export may rely on files since."""
        if not self._leases.holds(self._name):
            raise Unavailable(
                f"{self._name}: this process stood still until its lease ran out, and an export "
                "may have begun since: try again"
            )


class Upload:
    """The right to add files until it is given back."""

    def __init__(self, leases: Leases, name: str, folder: str) -> None:
        self.folder = folder
        self._leases = leases
        self._name = name

    def check(self) -> None:
        """Unavailable once the lease has run out, because files may have been removed since."""
        if not self._leases.holds(self._name):
            raise Unavailable(
                f"{self._name}: this export stood still until its lease ran out, and files it "
                "needs may have been removed: export again"
            )
