"""Says that an application is being moved into its folder, in `move.json`, until it is there.

    <state.dir>/<application id>/move.json     the export, and the topics that the move creates

A start refuses while the file is there, because stores, changelogs and group belong together only
at the end. A move that is repeated removes what the one before had made, and begins again.

Keeps I45.
"""

from pathlib import Path

import msgspec

from statestore.errors import Misuse
from statestore.layout import documents
from statestore.layout.documents import ExportName, Topic
from statestore.layout.files import publish, remove
from statestore.layout.folders import StateLayout

NAME = "move.json"
_WAY_OUT = "repeat `statestore restore --moved`"


class MoveRecord(msgspec.Struct, frozen=True):
    """A move that was begun."""

    export_id: ExportName
    topics: list[Topic]


def read_move(layout: StateLayout) -> MoveRecord | None:
    """Read the record; None if no move was begun, or the last one is finished."""
    way_out = "remove the topics and the folder of the application, and move it again"
    return documents.read(_file(layout), MoveRecord, way_out=way_out)


def publish_move(layout: StateLayout, record: MoveRecord) -> None:
    """Write the record."""
    publish(_file(layout), msgspec.json.encode(record))


def end_move(layout: StateLayout) -> None:
    """Remove the record: the application is whole."""
    remove(_file(layout), _WAY_OUT)


def require_no_move(layout: StateLayout) -> None:
    """Raise Misuse if a move was begun and not finished."""
    try:
        begun = _file(layout).exists()
    except OSError:
        return  # The next read or write there reports what is wrong with the folder.
    if begun:
        raise Misuse(
            f"{layout.application_id} is being moved here, or a move died: {_WAY_OUT}, which makes "
            "it anew"
        )


def _file(layout: StateLayout) -> Path:
    return layout.application_dir / NAME
