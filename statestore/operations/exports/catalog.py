"""The exports at a target: lists, reads, verifies and prunes them, and fetches their stores.

    prune   lease                                     export.prune-leased
            the manifests that need not be kept       export.manifest-removed
            the contents no manifest names            export.files-removed

An export exists as long as its manifest does. Contents are removed after the manifests that name
them, so that a death leaves only what the next prune removes.

Keeps I17.
"""

import hashlib
import logging
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

import msgspec

from statestore.errors import (
    ExportDamaged,
    FormatTooNew,
    HostFailure,
    Locked,
    Misuse,
    TargetNotShared,
    TaskCorrupted,
    UnknownStore,
)
from statestore.faults import CrashPoint, reach
from statestore.layout import linked_files
from statestore.layout.activity_files import NoProgress, Progress
from statestore.layout.linked_files import DATA, Linked, LinkedFile
from statestore.layout.snapshots import StoreOffsets
from statestore.operations.environment import Environment
from statestore.operations.exports import manifest as manifests
from statestore.operations.exports.damage import Damage, Suspect
from statestore.operations.exports.leases import Leases, Upload
from statestore.operations.exports.manifest import ExportedFile, ExportManifest, StoreOfTask
from statestore.operations.looking.at_rest import tasks_text
from statestore.ports import Clock, Target

_log = logging.getLogger(__name__)
ReadOffsets = Callable[[Path], StoreOffsets | None]
LATEST = "latest"
_WAY_OUT = (
    "`statestore exports verify` of this export sets it aside, so that the next `statestore "
    "export` uploads it again; `statestore exports restore --full` goes by the changelogs alone"
)
SMALL = 8 << 20
"""Files of up to this size are read into memory as a whole."""


class Verified(msgspec.Struct, frozen=True):
    """What a verification has read, all of it as it was exported."""

    export_id: str
    stores: int
    files: int
    bytes: int


class Pruned(msgspec.Struct, frozen=True):
    """What a prune removed, and what is left.

    `damaged`: the exports that it could not read and that are too young to be removed. As long as
    there is one, files that no other export names stay as well, because the damaged one may name
    them.
    """

    kept: list[str]
    removed: list[str]
    files_removed: int
    bytes_removed: int
    damaged: list[str] = []


class Listed(NamedTuple):
    """An export and its manifest; `problem` says why the export cannot be used.

    The manifest is None if it cannot be read.
    """

    export_id: str
    manifest: ExportManifest | None
    problem: str | None = None


class Retention(NamedTuple):
    """Which exports stay: the newest `keep`, and all that are younger than `keep_for_ms`."""

    keep: int
    keep_for_ms: int = 0


class Exports:
    """The exports of one application at one target."""

    def __init__(self, target: Target, application_id: str, clock: Clock) -> None:
        self.target = target
        self.application_id = application_id
        self._clock = clock
        self._leases = Leases(target, application_id, clock)
        self._damage = Damage(target, application_id, clock, self._leases)

    @classmethod
    def of(cls, environment: Environment) -> "Exports":
        """The exports of an application at its `statestore.export.target`."""
        settings, target = environment.settings, environment.target
        return cls(target, settings.application_id, environment.clock)

    def ids(self) -> list[str]:
        """The ids of all exports, oldest first."""
        names = self.target.names(f"{self.application_id}/exports")
        found = (name.rpartition("/")[2] for name in names)
        ids = (name.removesuffix(".json") for name in found if name.endswith(".json"))
        return sorted(export_id for export_id in ids if manifests.is_export_id(export_id))

    def read(self, export: str = LATEST) -> ExportManifest:
        """Read the manifest of an export, by id or the newest; Misuse names those that exist."""
        ids = self.ids()
        wanted = ids[-1] if export == LATEST and ids else export
        if wanted not in ids:
            raise Misuse(
                f"no export {export!r} of {self.application_id} at {self.target.url}; "
                f"there are: {', '.join(ids[-5:]) or 'none: run `statestore export` first'}"
            )
        manifest = self._read(wanted)
        if manifest is None:
            raise Misuse(f"export {wanted} was pruned just now: name another")
        return manifest

    def listed(self) -> Iterator[Listed]:
        """List all exports, oldest first, including those that are not whole."""
        there = self.target.names(f"{self.application_id}/files")
        set_aside = self._damage.set_aside()
        for export_id in self.ids():
            try:
                manifest = self._read(export_id)
            except (ExportDamaged, FormatTooNew) as error:
                yield Listed(export_id, None, str(error))
                continue
            if manifest is None:  # pruned just now
                continue
            lost = {
                sha256
                for sha256, size in manifest.files().items()
                if there.get(self.content(sha256)) != size
            }
            are = "is" if len(lost) == 1 else "are"
            problem = f"{len(lost)} of its files {are} not at the target" if lost else None
            if damaged := len(lost & set_aside):
                problem = f"{problem} ({damaged} set aside as damaged)"
            yield Listed(export_id, manifest, problem)

    @contextmanager
    def uploading(self) -> Iterator[tuple[str, Upload]]:
        """Give a new id, which sorts after all others, and the right to add files for it."""
        now_ms = self._clock.now_ms()
        times = [manifests.made_after(export_id) for export_id in self.ids()]
        # One that is dated far ahead is refused, and must not date all that come after it.
        latest_ms = now_ms + manifests.FUTURE_MS
        now_ms = max([now_ms, *(at_ms for at_ms in times if at_ms <= latest_ms)])
        export_id = manifests.new_export_id(now_ms, secrets.token_hex(4))
        with self._leases.uploading(export_id) as upload:
            yield export_id, upload

    def contents(self) -> dict[str, int]:
        """The checksum and the size of every content at the target."""
        found = self.target.names(f"{self.application_id}/files")
        return {name.rpartition("/")[2]: size for name, size in found.items()}

    def content(self, sha256: str) -> str:
        """The name of a content at the target."""
        return self._damage.content(sha256)

    def publish(self, manifest: ExportManifest, upload: Upload) -> None:
        """Make it an export, unless its files may have been removed meanwhile.

        TargetNotShared unless this process sees every file of it, as long as it was when it was
        read.
        """
        name = self._manifest(manifest.export_id)
        upload.check()
        self._check_seen(manifest)
        self.target.write(name, manifests.encode_manifest(manifest))
        try:
            upload.check()
        except BaseException:
            self.target.remove([name])
            raise

    def see_upload(self, folder: str) -> None:
        """TargetNotShared unless the upload that was begun into that folder is seen from here."""
        self._leases.see(folder)

    def fetch(self, at: StoreOfTask, folder: Path, progress: Progress) -> None:
        """Fetch a store's files into the new `folder`; ExportDamaged names a file that is wrong."""
        self._fetch_whole(at, at.store.files, folder, progress)

    def link(
        self, at: StoreOfTask, export_id: str, folder: Path, goes_to: Path, progress: Progress
    ) -> bool:
        """Make the new `folder` a store whose data files are links into the target.

        The other files are fetched; `goes_to` is where the store will lie. ExportDamaged names a
        file that is wrong. False, and nothing is made, if the target is no folder of this machine
        or cannot be written, if files are being removed from it, or if the store's volume can have
        no links: then `fetch`.
        """
        root = self.target.folder
        if root is None:
            return False
        data = [file for file in at.store.files if file.name.endswith(DATA)]
        linked = Linked.of(
            root,
            self.application_id,
            export_id,
            [LinkedFile(file.name, file.size_bytes, file.sha256) for file in data],
        )
        try:
            linked_files.hold(linked, goes_to, self._clock.now_ms())
            reach(CrashPoint.LINKS_LEASED)
            self._leases.check_none_removes()
        except (HostFailure, Locked) as error:
            linked_files.give_back(linked)
            _log.warning("%s is copied, not linked: %s", goes_to, error)
            return False
        try:
            others = [file for file in at.store.files if file not in data]
            self._fetch_whole(at, others, folder, progress)
            linked_files.place(linked, folder)
        except HostFailure as error:
            linked_files.give_back(linked)
            shutil.rmtree(folder, ignore_errors=True)
            _log.warning("%s is copied, not linked: %s", goes_to, error)
            return False
        except linked_files.LinkBroken as error:
            linked_files.give_back(linked)
            raise ExportDamaged(f"export {export_id}: {error}; {_WAY_OUT}") from error
        except BaseException:
            linked_files.give_back(linked)
            raise
        progress.done(sum(file.size_bytes for file in data))
        return True

    def verify(
        self,
        manifest: ExportManifest,
        progress: Progress,
        opened: ReadOffsets | None = None,
    ) -> Verified:
        """Read every content again. ExportDamaged names those that are wrong.

        Those that have changed are then set aside, so that the next export uploads them again.
        `opened`: also fetch each store, one after another, open it, and compare its offsets with
        those in the manifest.
        """
        sizes, there = manifest.files(), self.contents()
        stores = list(manifest.stores())
        found = {
            file.sha256: Suspect(file, at)
            for at in stores
            for file in at.store.files
            if there.get(file.sha256) != file.size_bytes
        }
        refusals = list[ExportDamaged]()
        if opened is None:
            progress.expect(sum(sizes.values()))
            suspects = self._read_all(stores, progress)
        else:
            progress.expect(sum(at.store.size_bytes for at in stores))
            suspects = self._open_all(stores, progress, opened, refusals)
        found |= {one.file.sha256: one for one in suspects}
        if found:
            name = self._manifest(manifest.export_id)
            self._damage.settle(manifest, name, list(found.values()))
        if refusals:
            raise refusals[0]
        return Verified(manifest.export_id, len(stores), len(sizes), sum(sizes.values()))

    def prune(self, retention: Retention) -> Pruned:
        """Remove what need not be kept; Locked while an export is being uploaded."""
        if retention.keep < 1:
            raise Misuse(f"keep {retention.keep} exports: keep at least one")
        with self._leases.removing() as removal:
            reach(CrashPoint.EXPORT_PRUNE_LEASED)
            ids = self.ids()
            since_ms = self._clock.now_ms() - retention.keep_for_ms
            kept, damaged, removed = list[str](), list[str](), list[str]()
            named: set[str] = set()
            for export_id in reversed(ids):
                try:
                    manifest = self._read(export_id)
                except ExportDamaged as error:
                    # It does not count as one of those to keep, because nobody could restore it.
                    _log.warning("%s", error)
                    young = manifests.made_after(export_id) > since_ms
                    (damaged if young or len(kept) < retention.keep else removed).append(export_id)
                    continue
                if manifest is None:  # removed by hand just now
                    continue
                if len(kept) < retention.keep or manifest.made_ms > since_ms:
                    kept.append(export_id)
                    named |= manifest.files().keys()
                else:
                    removed.append(export_id)
            for export_id in removed:
                self.target.remove([self._manifest(export_id)])
                reach(CrashPoint.EXPORT_MANIFEST_REMOVED)
            files, size_bytes = 0, 0
            if not damaged:
                named |= self._leases.linked()
                removal.check()
                files, size_bytes = self._remove_unnamed(kept, named)
        return Pruned(kept[::-1], removed[::-1], files, size_bytes, damaged[::-1])

    def _check_seen(self, manifest: ExportManifest) -> None:
        there = self.target.names(f"{self.application_id}/files")
        for at in manifest.stores():
            for file in at.store.files:
                name = self.content(file.sha256)
                if there.get(name) != file.size_bytes:
                    found = "is not there" if name not in there else f"has {there[name]} bytes"
                    raise TargetNotShared(
                        f"{self.target.url}/{name} {found}: {file.name} of store {at.name!r} of "
                        f"task {at.task}, {file.size_bytes} bytes, was stored as that: the target "
                        "is not the same place for all, or files were removed from it: nothing "
                        "was published"
                    )

    def _fetch_whole(
        self, at: StoreOfTask, files: Sequence[ExportedFile], folder: Path, progress: Progress
    ) -> None:
        for one in self._fetch(at, files, folder, progress):
            raise ExportDamaged(
                f"{one} ({self.target.url}/{self.content(one.file.sha256)}) is missing, or not "
                f"what it was when it was exported: {_WAY_OUT}"
            )

    def _fetch(
        self, at: StoreOfTask, files: Sequence[ExportedFile], folder: Path, progress: Progress
    ) -> Iterator[Suspect]:
        """Fetch files of a store into the new `folder`, and yield those that are wrong."""
        folder.mkdir(parents=True)
        for file in files:
            if not self._is_whole(file, folder / file.name):
                yield Suspect(file, at)
            progress.done(file.size_bytes)

    def _read_all(self, stores: Sequence[StoreOfTask], progress: Progress) -> list[Suspect]:
        seen, found = set[str](), list[Suspect]()
        for at in stores:
            for file in at.store.files:
                if file.sha256 not in seen:
                    seen.add(file.sha256)
                    if not self._is_whole(file, None):
                        found.append(Suspect(file, at))
                    progress.done(file.size_bytes)
        return found

    def _open_all(
        self,
        stores: Sequence[StoreOfTask],
        progress: Progress,
        opened: ReadOffsets,
        refusals: list[ExportDamaged],
    ) -> list[Suspect]:
        found = list[Suspect]()
        for at in stores:
            try:
                found += self._open(at, progress, opened)
            except ExportDamaged as error:
                refusals.append(error)
        return found

    def _open(self, at: StoreOfTask, progress: Progress, opened: ReadOffsets) -> list[Suspect]:
        with TemporaryDirectory(prefix=f"statestore-{at.task}-{at.name}-") as folder:
            store_dir = Path(folder) / at.name
            if suspects := list(self._fetch(at, at.store.files, store_dir, progress)):
                return suspects
            try:
                found = opened(store_dir)
            except TaskCorrupted as error:
                raise ExportDamaged(
                    f"store {at.name!r} of task {at.task} does not open: {error}: use another "
                    "export"
                ) from error
            if found != at.store.offsets:
                raise ExportDamaged(
                    f"store {at.name!r} of task {at.task} stands at {found}, its manifest says "
                    f"{at.store.offsets}: use another export"
                )
        return []

    def _remove_unnamed(self, kept: Collection[str], named: Collection[str]) -> tuple[int, int]:
        wanted = {self._manifest(export_id) for export_id in kept}
        wanted |= {self.content(sha256) for sha256 in named}
        there = self.target.names(f"{self.application_id}/files")
        there |= self.target.names(f"{self.application_id}/exports")
        garbage = {name: size for name, size in there.items() if name not in wanted}
        self.target.remove(sorted(garbage))
        self.target.remove(self._leases.left_over())
        reach(CrashPoint.EXPORT_FILES_REMOVED)
        return len(garbage), sum(garbage.values())

    def _is_whole(self, file: ExportedFile, into: Path | None) -> bool:
        """Read a content, or copy it to the new file `into`; whether it is as it was exported."""
        found = self.target.fetch(self.content(file.sha256), into, bytes_max=file.size_bytes)
        return found == file.sha256

    def _read(self, export_id: str) -> ExportManifest | None:
        """Read a manifest; None if it is not there."""
        name = self._manifest(export_id)
        data = self.target.read(name)
        if data is None:
            return None
        return manifests.decode_manifest(
            data,
            f"{self.target.url}/{name}",
            application_id=self.application_id,
            export_id=export_id,
            now_ms=self._clock.now_ms(),
        )

    def _manifest(self, export_id: str) -> str:
        return f"{self.application_id}/exports/{export_id}.json"


def find_exported(
    manifest: ExportManifest, store: str, partition: int | None = None, *, kind: str | None = None
) -> list[StoreOfTask]:
    """Find a store in an export, in every stream task or in one partition.

    UnknownStore names the stores that exist. Misuse if the store is of another kind than `kind`.
    ExportDamaged names the stream tasks that were deployed with the store and are not in the export
    (I33).
    """
    where = f"export {manifest.export_id} of {manifest.application_id}"
    found = [at for at in manifest.stores() if at.name == store]
    if not found:
        left_out = [why for task in manifest.tasks if (why := task.left_out.get(store))]
        if left_out:
            raise Misuse(f"store {store!r} is not in {where}: {left_out[0]}")
        known = ", ".join(sorted({at.name for at in manifest.stores()})) or "none"
        raise UnknownStore(f"no store {store!r} in {where}; it has: {known}")
    if kind is not None and found[0].store.kind != kind:
        raise Misuse(
            f"store {store!r} is a {found[0].store.kind} one: it cannot be read as a {kind} one"
        )
    missing = manifest.deployed.missing(store, [at.task for at in found], partition)
    if missing:
        left_out = [why for task in manifest.tasks if (why := task.left_out.get(store))]
        raise ExportDamaged(
            f"store {store!r} has no files of {tasks_text(missing)} in {where}"
            f"{f' ({left_out[0]})' if left_out else ''}: use another export, or name a partition "
            "that it has"
        )
    chosen = [at for at in found if partition is None or at.task.partition == partition]
    if not chosen:
        tasks = ", ".join(str(at.task) for at in found)
        raise Misuse(
            f"store {store!r} has no partition {partition} in {where}; it is in stream tasks "
            f"{tasks}"
        )
    return chosen


class FetchedStore:
    """The files of one exported store in a temporary folder. Use `with`, or call `release`."""

    def __init__(
        self, exports: "Exports", at: StoreOfTask, progress: Progress | None = None
    ) -> None:
        """Fetch and verify the files; TMPDIR says where temporary folders are made."""
        self.at = at
        self._folder = TemporaryDirectory(prefix=f"statestore-{at.task}-{at.name}-")
        try:
            exports.fetch(at, Path(self._folder.name) / at.name, progress or NoProgress())
        except BaseException:
            self.release()
            raise

    def store_dir(self, store: str) -> Path:
        """The folder that holds the files."""
        return Path(self._folder.name) / store

    def renew(self) -> None:
        """Do nothing, because nobody else removes the files."""

    def release(self) -> None:
        """Remove the files. Calling it twice does no harm."""
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


def sha256_of(data: bytes) -> str:
    """The checksum that identifies a content."""
    return hashlib.sha256(data).hexdigest()
