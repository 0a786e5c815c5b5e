"""Remembers the checksums of data files from earlier exports, so that none is read a second time.

RocksDB never changes a data file, and never uses its number again within one database. A database
that was restored from an export may reuse a number, so a file is identified by its time as well.
Each stream task has one small file, `<task id>/exported.json`; without it all data files are read
again.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from statestore.errors import HostFailure
from statestore.layout import documents
from statestore.layout.documents import Count, FileName, Sha256, Text
from statestore.layout.files import publish

_NAME = "exported.json"
_DATA = (".sst", ".blob")


class Known(NamedTuple):
    """One data file: the identity of its database, its number, its size and its time."""

    identity: Text
    name: FileName
    size_bytes: Count
    changed_ns: Count

    @classmethod
    def of(cls, identity: str, path: Path) -> "Known | None":
        """Identify a file; None if its content may change under its name."""
        if path.suffix not in _DATA:
            return None
        found = path.stat()
        return cls(identity, path.name, found.st_size, found.st_mtime_ns)


class Checksums:
    """The known checksums of the files of one stream task."""

    def __init__(self, task_dir: Path) -> None:
        self._path = task_dir / _NAME
        self._known: dict[Known, str] = {}
        with suppress(HostFailure):
            rows = documents.read(self._path, list[tuple[Known, Sha256]], way_out="remove it")
            self._known = dict(rows or ())

    def get(self, known: Known | None) -> str | None:
        """The SHA-256 of a file, if it is known."""
        return None if known is None else self._known.get(known)

    def keep(self, found: Mapping[Known, str]) -> None:
        """Remember these checksums and forget all others, whose files are gone."""
        if dict(found) != self._known:
            publish(self._path, msgspec.json.encode(list(found.items())))


def identity_of(store_dir: Path) -> str:
    """The identity that RocksDB gives a database; empty if it has none."""
    with suppress(OSError):
        return (store_dir / "IDENTITY").read_text(encoding="utf-8").strip()
    return ""
