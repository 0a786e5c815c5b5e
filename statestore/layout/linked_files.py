"""Stores whose data files are links into an export on a mounted folder, until they were copied.

    <store>/000012.sst              a link to <target>/<application id>/files/<2>/<sha256>
            .linked.json            where its links lead, with sizes and checksums
            .000012.sst.copying     a copy in progress
    <target>/<application id>/links/<token>.json     keeps a prune from removing what it names

RocksDB reads data files and removes them, but never writes into one, so an export does not change
under a store that is linked to it: a compaction removes links, and a checkpoint has links of its
own. A link is replaced by its copy with one rename, under the open database.

    lease       before the first link                       links.leased
    per file    copied beside its link and verified         links.copied
                renamed over its link                       links.replaced
    release     the lease ends soon                         links.released

Keeps I44.
"""

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from statestore.errors import HostFailure, TaskCorrupted
from statestore.faults import CrashPoint, reach
from statestore.layout import documents
from statestore.layout.documents import (
    ApplicationName,
    Count,
    ExportName,
    FileName,
    Sha256,
    Text,
    TimeMs,
)
from statestore.layout.files import opener, publish, sync_folder

DATA: Final = (".sst", ".blob")
"""How the names of RocksDB's data files end."""
COPYING: Final = ".copying"
"""How the name of an unfinished copy ends."""
FOLDER: Final = "links"
"""The folder of the leases, beside the exports."""
HELD_MS: Final = 7 * 86_400_000
"""How long a lease keeps files; every start on the store renews it."""
_LET_GO_MS: Final = 3_600_000
"""How long it still does once all files were copied: readers may have snapshots with links."""
_NOTE: Final = ".linked.json"
_VERSION: Final = 1
_CHUNK: Final = 4 << 20
_LEFT_FREE_BYTES: Final = 64 << 20
"""What copies leave to the database, which has to write while they are made."""

FolderPath = Annotated[str, msgspec.Meta(pattern=r"\A/[^\x00]{0,4000}\Z")]
"""The absolute path of a target's folder; what lies below is looked at before it is used."""
Token = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]


class LinkedFile(msgspec.Struct, frozen=True):
    """One data file, and the content at the target that its link leads to."""

    name: FileName
    size_bytes: Count
    sha256: Sha256


class Linked(msgspec.Struct, frozen=True):
    """The data files that a store was opened on, in the folder `target`.

    `token` names its lease, and no other store has the same.
    """

    target: FolderPath
    application_id: ApplicationName
    export_id: ExportName
    token: Token
    files: list[LinkedFile]
    version: Count = _VERSION

    @classmethod
    def of(
        cls, target: Path, application_id: str, export_id: str, files: list[LinkedFile]
    ) -> "Linked":
        """Describe links that nothing holds yet."""
        return cls(str(target), application_id, export_id, _new_token(), files)

    def content(self, file: LinkedFile) -> Path:
        """Return where the content of a file lies."""
        return self._folder / "files" / file.sha256[:2] / file.sha256

    @property
    def lease(self) -> Path:
        """The path of the lease."""
        return self._folder / FOLDER / f"{self.token}.json"

    @property
    def _folder(self) -> Path:
        return Path(self.target) / self.application_id


class LinkLease(msgspec.Struct, frozen=True):
    """What keeps files from being removed; `store` is for people."""

    expires_ms: TimeMs
    store: Text
    files: list[Sha256]


class LinkBroken(TaskCorrupted):
    """A file that a store is linked to is not what was exported."""


class NotReadable(HostFailure):
    """A file that a store is linked to cannot be read now."""


def place(linked: Linked, folder: Path) -> None:
    """Make the links in the new folder of a store; LinkBroken names a content that is not whole.

    HostFailure if the volume can have no links.
    """
    for file in linked.files:
        if (why := _why_not(linked, file)) is not None:
            raise LinkBroken(why)
        try:
            (folder / file.name).symlink_to(linked.content(file))
        except OSError as error:
            raise HostFailure(f"{folder} can have no links: {error.strerror}") from error
    publish(folder / _NOTE, msgspec.json.encode(linked))


def read_linked(folder: Path) -> Linked | None:
    """Read what a store is linked to; None if it has no such note.

    TaskCorrupted if the note cannot be read.
    """
    try:
        return documents.read(folder / _NOTE, Linked, way_out="restore it", version=_VERSION)
    except HostFailure as error:
        raise TaskCorrupted(str(error)) from error


def checked(folder: Path) -> Linked | None:
    """Return what a store is linked to, None if to nothing; sweep unfinished copies.

    TaskCorrupted if a link does not lead to what was exported, or to a place where it is not now.
    """
    linked = read_linked(folder)
    with suppress(FileNotFoundError):
        for path in folder.glob(f".*{COPYING}"):
            path.unlink(missing_ok=True)
    links = _links_in(folder)
    if linked is None:
        if links:
            raise TaskCorrupted(
                f"{folder}: {links[0].name} is a link to {links[0].readlink()}, and nothing says "
                "which restore made it"
            )
        return None
    known = {file.name: file for file in linked.files}
    for link in links:
        file = known.get(link.name)
        if file is None or link.readlink() != linked.content(file):
            raise TaskCorrupted(
                f"{folder}: {link.name} leads to {link.readlink()}, where export "
                f"{linked.export_id} at {linked.target} did not put it"
            )
        if (why := _why_not(linked, file)) is not None:
            raise TaskCorrupted(
                f"{folder} is linked to export {linked.export_id} at {linked.target}: {why}: is it "
                "mounted?"
            )
    return linked


def left(folder: Path, linked: Linked) -> list[LinkedFile]:
    """Return the files that are still links."""
    names = {path.name for path in _links_in(folder)}
    return [file for file in linked.files if file.name in names]


def hold(linked: Linked, folder: Path, now_ms: int) -> None:
    """Write or renew the lease; HostFailure if the target cannot be written."""
    _write_lease(linked, folder, now_ms + HELD_MS)


def hold_anew(folder: Path, now_ms: int) -> None:
    """Give the store in a new folder a lease of its own, as its former owner may end the other."""
    linked = read_linked(folder)
    if linked is not None:
        linked = msgspec.structs.replace(linked, token=_new_token())
        with suppress(HostFailure):  # the next start tries again
            hold(linked, folder, now_ms)
        publish(folder / _NOTE, msgspec.json.encode(linked))


def copy_in(folder: Path, linked: Linked, file: LinkedFile) -> None:
    """Replace a link by a verified copy of what it leads to, unless it is gone meanwhile.

    LinkBroken if the content is not what was exported, NotReadable if it cannot be read, and
    HostFailure if the copy cannot be written.
    """
    link, making = folder / file.name, folder / f".{file.name}{COPYING}"
    try:
        found = os.statvfs(folder)
        if found.f_bavail * found.f_frsize < file.size_bytes + _LEFT_FREE_BYTES:
            raise HostFailure(f"{folder} has no room for a copy of {file.name}: free space")
        _copy(linked, file, making)
        reach(CrashPoint.LINKS_COPIED)
        # RocksDB may have removed it since. If it does so just now, the next open removes the copy.
        if link.is_symlink():
            making.replace(link)
            sync_folder(folder)
    except OSError as error:
        raise HostFailure(f"cannot copy to {making}: {error.strerror}; free space") from error
    finally:
        making.unlink(missing_ok=True)
    reach(CrashPoint.LINKS_REPLACED)


def release(folder: Path, linked: Linked, now_ms: int) -> None:
    """Let go of the target, once no link is left; what cannot be written there runs out."""
    with suppress(HostFailure):
        _write_lease(linked, folder, now_ms + _LET_GO_MS)
    reach(CrashPoint.LINKS_RELEASED)
    (folder / _NOTE).unlink(missing_ok=True)


def give_back(linked: Linked) -> None:
    """Remove the lease of links that were not made."""
    with suppress(OSError):
        linked.lease.unlink(missing_ok=True)


def _why_not(linked: Linked, file: LinkedFile) -> str | None:
    """Return why a content cannot be what was exported, as far as its size tells; None: it may."""
    path = linked.content(file)
    try:
        found, root = path.resolve(strict=True), Path(linked.target).resolve(strict=True)
        with open(found, "rb", opener=opener) as opened:
            size = os.fstat(opened.fileno()).st_size
    except (OSError, RuntimeError) as error:  # the latter if links lead in a circle
        return f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
    if not found.is_relative_to(root):
        return f"{path} leads out of {root}, to {found}"
    if size != file.size_bytes:
        return f"{path} has {size} bytes, and had {file.size_bytes} when it was exported"
    return None


def _copy(linked: Linked, file: LinkedFile, making: Path) -> None:
    if (why := _why_not(linked, file)) is not None:
        raise NotReadable(f"{why}: mount {linked.target} again: the store goes on with its links")
    path, digest = linked.content(file), hashlib.sha256()
    try:
        source = open(path, "rb", opener=opener)  # noqa: SIM115  # closed below; errors differ
    except OSError as error:
        raise NotReadable(f"{path} cannot be read: {error.strerror}") from error
    with source, open(making, "wb", opener=opener) as out:
        to_read = file.size_bytes + 1
        while to_read and (chunk := _read(source, path, min(_CHUNK, to_read))):
            to_read -= len(chunk)
            digest.update(chunk)
            out.write(chunk)
        if digest.hexdigest() != file.sha256:
            raise LinkBroken(
                f"{path} is not what it was when it was exported ({linked.export_id}): `statestore "
                "exports verify` sets it aside"
            )
        out.flush()
        os.fsync(out.fileno())
        found = os.fstat(source.fileno())
        # Exports tell files apart by their times.
        os.utime(making, ns=(found.st_atime_ns, found.st_mtime_ns))


def _read(source: object, path: Path, size: int) -> bytes:
    try:
        return source.read(size)  # type: ignore[attr-defined,no-any-return]
    except OSError as error:
        raise NotReadable(f"{path} cannot be read: {error.strerror}") from error


def _links_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            names = [e.name for e in found if e.is_symlink() and e.name.endswith(DATA)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostFailure(f"cannot list {folder}: {error.strerror}; make it readable") from error
    return [folder / name for name in sorted(names)]


def _write_lease(linked: Linked, folder: Path, expires_ms: int) -> None:
    lease = LinkLease(expires_ms, str(folder), [file.sha256 for file in linked.files])
    try:
        linked.lease.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostFailure(f"cannot write {linked.lease}: {error.strerror}") from error
    publish(linked.lease, msgspec.json.encode(lease))


def _new_token() -> str:
    return secrets.token_hex(8)
