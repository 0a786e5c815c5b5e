"""The note in a store that was restored from an export: until when its changelog has all deletes.

    <store>/.from-export.json    removed once the store has all that its changelog had at that time

A changelog drops tombstones after a while. If a run started too late on a restored store, deleted
keys would come back.
"""

from pathlib import Path

import msgspec

from statestore.errors import HostFailure
from statestore.layout import documents
from statestore.layout.documents import Count
from statestore.layout.files import publish

_NAME = ".from-export.json"


class ExportOrigin(msgspec.Struct, frozen=True):
    """What a store from an export needs from its changelog, and until when.

    From `deadline_ms` on the changelog may drop tombstones; `end` is its end at the restore.
    """

    deadline_ms: Count
    end: Count


def write(folder: Path, origin: ExportOrigin) -> None:
    """Write the note into a store's folder, before the folder is moved into its place."""
    publish(folder / _NAME, msgspec.json.encode(origin))


def read(folder: Path) -> ExportOrigin | None:
    """Read the note; None if the store has none. An unreadable note counts as overdue."""
    try:
        return documents.read(folder / _NAME, ExportOrigin, way_out="restore the export again")
    except HostFailure:
        return ExportOrigin(0, 2**63 - 1)


def remove(folder: Path) -> None:
    """Remove the note: the store has all that it lacked."""
    (folder / _NAME).unlink(missing_ok=True)
