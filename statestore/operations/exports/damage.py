"""Contents of an export that are not what they were, and the folder where they are set aside.

A later export does not upload a content that the target has under the same name with the same
size. Therefore a damaged one would be part of every later export, unless it is set aside:

    lease     from now on no export is uploaded and no prune removes files
    judge     read each suspected content again, as it may have been replaced meanwhile
    record    damaged/<sha256>.<found>.json                     verify.recorded
    move      the content, to damaged/<sha256>.<found>          verify.set-aside

`<found>` is the beginning of the checksum that the content has now, so that whatever died is
repeated under the same names. Nothing is deleted, and a prune leaves the folder alone.

Keeps I17.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from statestore.errors import ExportDamaged, Locked, Misuse, StateStoreError, Unavailable
from statestore.faults import CrashPoint, reach
from statestore.layout.documents import (
    ApplicationName,
    Count,
    ExportName,
    FileName,
    Sha256,
    StoreName,
    TaskName,
    TimeMs,
)
from statestore.operations.exports.leases import Leases
from statestore.operations.exports.manifest import ExportedFile, ExportManifest, StoreOfTask
from statestore.ports import Clock, Target

_FOUND_DIGITS = 16
# What is longer than its manifest says is read so much further: it has another checksum, or the
# manifest is wrong. A file that grew without end is damaged either way.
_BEYOND_MAX = 1 << 28
_SHOWN_MAX = 3


class Suspect(NamedTuple):
    """A file of an export whose content was missing or wrong when it was read."""

    file: ExportedFile
    at: StoreOfTask

    def __str__(self) -> str:
        return f"file {self.file.name} of store {self.at.name!r} of task {self.at.task}"


class DamageRecord(msgspec.Struct, frozen=True):
    """What is recorded of a content that was set aside."""

    application_id: ApplicationName
    export_id: ExportName
    stream_task: TaskName
    store: StoreName
    file: FileName
    sha256: Sha256
    found_sha256: Sha256  # Of what was read, where the content is far longer than it should be.
    found_bytes: Count
    set_aside_ms: TimeMs


class Judgement(NamedTuple):
    """What is still wrong when all suspects were read again, in words.

    `repaired`: the next export uploads these contents again. `lies`: the manifest is wrong.
    """

    repaired: list[str]
    lies: list[str]


class Damage:
    """The damaged contents of one application at one target."""

    def __init__(self, target: Target, application_id: str, clock: Clock, leases: Leases) -> None:
        self._target = target
        self._application_id = application_id
        self._clock = clock
        self._leases = leases

    @property
    def folder(self) -> str:
        return f"{self._application_id}/damaged"

    def content(self, sha256: str) -> str:
        """The name of a content at the target."""
        return f"{self._application_id}/files/{sha256[:2]}/{sha256}"

    def set_aside(self) -> set[str]:
        """The checksums of the contents that were set aside at any time."""
        found = self._target.names(self.folder)
        return {name.rpartition("/")[2].partition(".")[0] for name in found}

    def settle(
        self, manifest: ExportManifest, manifest_name: str, found: Sequence[Suspect]
    ) -> None:
        """Set aside what is damaged. ExportDamaged says what is wrong, and what repairs it.

        It returns if every suspect is whole by now. Misuse if the export was pruned meanwhile.
        """
        if self._target.read(manifest_name) is None:
            raise Misuse(f"export {manifest.export_id} was pruned just now: name another")
        try:
            judged = self._judge(manifest, found)
        except StateStoreError as error:
            kind = type(error) if isinstance(error, Locked | Unavailable) else ExportDamaged
            raise kind(
                f"{_listed(map(str, found))} of export {manifest.export_id} at {self._target.url}: "
                "missing, or not as exported, and not set aside yet, so that later exports rely on "
                f"it: {error}; then run `statestore exports verify {manifest.export_id}` again"
            ) from error
        if judged.lies:
            raise ExportDamaged(
                f"{self._target.url}/{manifest_name} is not what an export wrote: "
                f"{_listed(judged.lies)}; use another export"
            )
        if judged.repaired:
            raise ExportDamaged(
                f"{_listed(judged.repaired)}; damaged files are kept in "
                f"{self._target.url}/{self.folder}. The next `statestore export` uploads again "
                "what the stores still have of this, which repairs every export that shares it; "
                "until then use `statestore exports restore --full`, which goes by the changelogs "
                "alone"
            )

    def _judge(self, manifest: ExportManifest, found: Sequence[Suspect]) -> Judgement:
        judged = Judgement([], [])
        with self._leases.removing() as removal:
            there = self._target.names(f"{self._application_id}/files")
            for one in found:
                name = self.content(one.file.sha256)
                size = there.get(name)
                digest = None
                read_max = one.file.size_bytes + _BEYOND_MAX
                if size is not None:
                    digest = self._target.fetch(name, None, bytes_max=min(size, read_max))
                if size is None or digest is None:
                    judged.repaired.append(f"{one} ({self._target.url}/{name}) is missing")
                elif digest != one.file.sha256 or size > read_max:
                    removal.check()
                    self._move(manifest, one, digest, size)
                    judged.repaired.append(
                        f"{one} ({self._target.url}/{name}) was not what it was when it was "
                        "exported, and was set aside"
                    )
                elif size != one.file.size_bytes:
                    said = one.file.size_bytes
                    judged.lies.append(f"size_bytes of {one} is {said}, its content has {size}")
        return judged

    def _move(self, manifest: ExportManifest, one: Suspect, digest: str, size: int) -> None:
        aside = f"{self.folder}/{one.file.sha256}.{digest[:_FOUND_DIGITS]}"
        record = DamageRecord(
            self._application_id,
            manifest.export_id,
            str(one.at.task),
            one.at.name,
            one.file.name,
            one.file.sha256,
            digest,
            size,
            self._clock.now_ms(),
        )
        self._target.write(f"{aside}.json", msgspec.json.encode(record))
        reach(CrashPoint.VERIFY_RECORDED)
        self._target.move(self.content(one.file.sha256), aside)
        reach(CrashPoint.VERIFY_SET_ASIDE)


def _listed(texts: Iterable[str]) -> str:
    shown = list(texts)
    more = len(shown) - _SHOWN_MAX
    return "; ".join(shown[:_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
