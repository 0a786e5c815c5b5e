"""The versions of an application's global tables on disk.

    <state.dir>/<application id>/global/<number>/.version.json <store>/
                                 global/.<nonce>/            a version that is being made
                                 global/<number>/.damaged    by a reader who met damage

No store has a name that begins with a dot, so files of ours have such names.

A version is made in a folder of its own, mostly of hard links to the files of the last one, and
appears by one rename. From then on nobody writes to its stores. So it needs no owner: whoever
dies over a new version leaves the last one as it was.

Keeps I38.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from statestore.errors import HostFailure, Unavailable
from statestore.layout import documents, files
from statestore.layout.documents import Count, Ordinal, StoreName, Text, TimeMs, Topic, Word
from statestore.layout.files import folders_in, publish, sync_folder
from statestore.layout.folders import StateLayout

VERSION: Final = 1
_RECORD: Final = ".version.json"
_DAMAGED: Final = ".damaged"
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")
_WAY_OUT: Final = "remove the folder: the next run makes a new one from the topics"


class GlobalContent(msgspec.Struct, frozen=True):
    """What a store of a global table has.

    `topic_id`: what the cluster calls the topic. `offsets`: the offset NEXT to read, by partition.
    `complete_ms`: when it had all that the topic held.
    """

    topic: Topic
    topic_id: Word
    offsets: dict[Ordinal, Count] = {}
    complete_ms: TimeMs | None = None


class FileContent(msgspec.Struct, frozen=True):
    """What a store of a lookup has: the rows of a file.

    `tag`: what the file system called the file's content. `terms`: how its rows were made.
    `read_ms`: when the file was read last and was found to have this content.
    """

    url: Text
    sha256: Word
    tag: Text
    rows: Count
    terms: list[Text]
    read_ms: TimeMs


class GlobalVersion(msgspec.Struct, frozen=True):
    """The content of `.version.json`: all stores of one version, of topics and of files."""

    stores: dict[StoreName, GlobalContent] = {}
    files: dict[StoreName, FileContent] = {}
    version: Count = VERSION


@dataclass(frozen=True)
class GlobalVersions:
    """The folders of the versions of one application. Reading creates nothing."""

    layout: StateLayout

    @property
    def folder(self) -> Path:
        return self.layout.application_dir / "global"

    def numbers(self) -> list[int]:
        """Return the numbers of the versions that appeared, in order."""
        return sorted(int(name) for name in folders_in(self.folder) if _NUMBER.fullmatch(name))

    def newest(self) -> int | None:
        """Return the number of the last version; None: there is none yet."""
        return next(reversed(self.numbers()), None)

    def path(self, number: int) -> Path:
        return self.folder / str(number)

    def read(self, folder: Path) -> GlobalVersion:
        """Return what the version in a folder has; nothing if its record is missing."""
        found = documents.read(folder / _RECORD, GlobalVersion, way_out=_WAY_OUT, version=VERSION)
        return found or GlobalVersion()

    def current(self) -> GlobalVersion:
        """Return what the last version has; nothing if there is none."""
        number = self.newest()
        return GlobalVersion() if number is None else self.read(self.path(number))

    def damaged(self, folder: Path) -> bool:
        """Return whether a reader met damage in a version."""
        return (folder / _DAMAGED).exists()

    def mark_damaged(self, number: int) -> None:
        """Have the next refresh make all stores anew, as the files of a version are damaged."""
        with suppress(OSError):
            (self.path(number) / _DAMAGED).touch()

    def unfinished(self) -> Iterator[Path]:
        """Yield the folders of versions that did not appear."""
        for name in folders_in(self.folder):
            if name.startswith("."):
                yield self.folder / name

    def begin(self, nonce: str) -> Path:
        """Create and return the folder of a new version."""
        folder = self.folder / f".{nonce}"
        self.layout.create(folder)
        return folder

    def note(self, folder: Path, content: GlobalVersion) -> None:
        """Write what the version in a folder has."""
        publish(folder / _RECORD, msgspec.json.encode(content))

    def publish(self, folder: Path) -> int:
        """Give a new version the next number, and return it."""
        number = (self.newest() or 0) + 1
        while True:
            try:
                folder.rename(self.path(number))
            except OSError as error:
                if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                    raise HostFailure(
                        f"cannot rename {folder} to {number}: {error.strerror}; fix the volume"
                    ) from error
                # Another run of this application, which does not know of this one, was faster.
                number += 1
            else:
                break
        sync_folder(self.folder)
        return number

    def remove(self, folder: Path) -> None:
        """Remove a version, whether it appeared or not."""
        files.remove(folder, "start again")

    def require(self, number: int) -> Path:
        """Return the folder of a version; Unavailable if it is gone."""
        folder = self.path(number)
        if not folder.is_dir():
            raise Unavailable(
                f"version {number} of the global tables is not in {self.folder}: another run has "
                "begun since; start again"
            )
        return folder
