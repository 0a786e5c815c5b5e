"""Writes the rows of a store anew that older serdes wrote, chunk by chunk, for its stream task.

A chunk becomes pending writes of the store, and the task commits them as it commits any others: the
changelog and the store have all of a chunk, or nothing of it. Rows say which serde wrote them, so
whoever begins again finds what is left.
"""

from itertools import islice
from typing import Final, NamedTuple

from statestore.errors import Misuse, RecordFailed
from statestore.stores import serdes
from statestore.stores.in_windows import TIME_ROW, UNLOGGED, start_of
from statestore.stores.migration import MigratingSerde
from statestore.stores.specs import KeyValueSpec, SessionSpec, StoreSpec, VersionedSpec, WindowSpec
from statestore.tasks.owned import OwnedStore

_ROWS_AT_ONCE: Final = 10_000
_BYTES_AT_ONCE: Final = 4 << 20


class Chunk(NamedTuple):
    """What was staged: how many rows, and the last row looked at; None: there are no more."""

    rows: int
    last: bytes | None


def why_not(spec: StoreSpec) -> str | None:
    """Return why the rows of a store are not written anew; None: they are."""
    if not isinstance(spec.value_serde, MigratingSerde):
        return "it has no migration"
    if isinstance(spec, VersionedSpec):
        return "its versions keep their bytes until they expire, and are converted when read"
    return None


def stage(opened: OwnedStore, after: bytes | None) -> Chunk:
    """Stage the next rows of older serdes that come after this row; None begins."""
    spec = opened.spec
    assert isinstance(spec, KeyValueSpec | WindowSpec | SessionSpec)
    assert isinstance(spec.value_serde, MigratingSerde)
    table, serde = opened.table(), spec.value_serde
    in_windows = not isinstance(spec, KeyValueSpec)
    writes: dict[bytes, bytes | None] = {}
    size, last = 0, None
    with table.scan_kept(after, UNLOGGED if in_windows else None) as rows:
        looked_at = 0
        for row, value in islice(rows, _ROWS_AT_ONCE + 1):
            if row == after:
                continue
            looked_at += 1
            last = row
            if serde.is_newest(value) or (in_windows and row in (TIME_ROW, UNLOGGED)):
                continue
            writes[row] = _anew(opened.name, row, value, serde)
            size += len(row) + len(value)
            if size >= _BYTES_AT_ONCE:
                break
        if not looked_at:
            last = None
    if writes and isinstance(spec, SessionSpec):
        table.put_all(writes, list(map(start_of, writes)))  # The time of a session is its end.
    elif writes:
        table.put_anew(writes)
    return Chunk(len(writes), last)


def _anew(store: str, row: bytes, value: bytes, serde: MigratingSerde[object]) -> bytes:
    try:
        return serde.serialize(serde.deserialize(value))
    except Exception as error:
        if isinstance(error, Misuse):
            raise
        raise RecordFailed(
            f"store {store}, row {serdes.printable(row[:200])}: its value "
            f"{serdes.printable(value[:200])} cannot be migrated: {type(error).__name__}: {error}; "
            "correct the migration, then start again"
        ) from error
