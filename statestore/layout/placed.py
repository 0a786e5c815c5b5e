"""A store that came from an export: until when its changelog can still bring it up to date.

    <store>/.from-export.json    until the store has all that its changelog had when it was placed

A changelog forgets deletes after a while. A store that was placed in time, and started on too late,
would have deleted keys come back.
"""

from pathlib import Path

import msgspec

from statestore.errors import HostFailure
from statestore.layout import documents
from statestore.layout.documents import Count
from statestore.layout.files import publish

_NAME = ".from-export.json"


class Placed(msgspec.Struct, frozen=True):
    """`deadline_ms`: when the changelog may begin to forget; `end`: where it ended."""

    deadline_ms: Count
    end: Count


def write(folder: Path, placed: Placed) -> None:
    """Say so in a store's folder, before it is put into its place."""
    publish(folder / _NAME, msgspec.json.encode(placed))


def read(folder: Path) -> Placed | None:
    """None if the store came from no export; one that is not readable is overdue."""
    try:
        return documents.read(folder / _NAME, Placed, way_out="restore the export again")
    except HostFailure:
        return Placed(0, 2**63 - 1)


def forget(folder: Path) -> None:
    """The store has all it lacked, for good."""
    (folder / _NAME).unlink(missing_ok=True)
