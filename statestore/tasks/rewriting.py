"""Writes rows of a store anew, chunk by chunk, for its stream task.

They are those that older serdes wrote, or all versions, if the log does not have a record for each
(docs/adr/0037).

A chunk becomes pending writes of the store, and the task commits them as it commits any others: the
changelog and the store have all of a chunk, or nothing of it. Rows say which serde wrote them, so
whoever begins again finds what is left.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final, NamedTuple

from statestore import serdes
from statestore.errors import Misuse, RecordFailed
from statestore.stores import keyvalue
from statestore.stores.kinds.kind import StoreKind
from statestore.stores.kinds.registry import kind_of
from statestore.stores.migration import MigratingSerde
from statestore.stores.reads import Pair, RowScan
from statestore.stores.versioned import layout
from statestore.tasks.owned import OwnedStore

_ROWS_AT_ONCE: Final = 10_000
_BYTES_AT_ONCE: Final = 4 << 20


class Place(NamedTuple):
    """A row of one of the tables of a store; None: before the first one."""

    table: str
    row: bytes | None


class Chunk(NamedTuple):
    """What was staged: how many rows, and the last row looked at; None: there are no more."""

    rows: int
    last: Place | None


class _Valued(NamedTuple):
    """A row that has a value: the key to name it by, what comes before the value, and the value."""

    key: bytes
    head: bytes
    value: bytes


_AnewOf = Callable[[bytes, bytes], bytes | None]
"""Returns what a row becomes; None: it stays as it is."""
_Split = Callable[[bytes, bytes], _Valued | None]


class _Anew(NamedTuple):
    """Rows to write, and the last row looked at; None: there are no more."""

    writes: dict[bytes, bytes]
    last: bytes | None


def stage(opened: OwnedStore, after: Place | None) -> Chunk:
    """Stage the next rows of older serdes that come after this row; None begins."""
    spec = opened.spec
    assert isinstance(spec.value_serde, MigratingSerde)
    kind = kind_of(spec)
    if kind.keeps_history:
        return _stage_versions(opened, spec.value_serde, after or Place(layout.LATEST, None))
    table, row = opened.table(), None if after is None else after.row
    found = _anew(
        table.scan_kept(row, kind.unlogged_from),
        row,
        _migrated(opened.name, spec.value_serde, _rows_of(kind)),
    )
    times = kind.times_of(list(found.writes))
    if found.writes and times is not None:
        table.put_all(found.writes, times)
    elif found.writes:
        table.put_anew(found.writes)
    last = None if found.last is None else Place(keyvalue.TABLE, found.last)
    return Chunk(len(found.writes), last)


def stage_log(opened: OwnedStore, after: Place | None) -> Chunk:
    """Stage the next versions that come after this row, to be logged as they are; None begins.

    The latest of a key come last: with them, what a log of another form has of the key is void.
    """
    table, after = opened.versions(), after or Place(layout.HISTORY, None)
    if after.table == layout.HISTORY:
        bound = table.time.bound
        history = _anew(
            table.history.scan(after.row),
            after.row,
            lambda row, version: version if _shows(row, bound) else None,
        )
        table.log_anew({}, history.writes, to_the_end=False)
        last = (
            Place(layout.LATEST, None) if history.last is None else Place(after.table, history.last)
        )
        return Chunk(len(history.writes), last)
    latest = _anew(table.scan_latest(after.row), after.row, lambda _row, version: version)
    is_end = latest.last is None
    table.log_anew(latest.writes, {}, to_the_end=is_end)
    # The end is a record, too.
    return Chunk(len(latest.writes) + is_end, None if is_end else Place(layout.LATEST, latest.last))


def _stage_versions(opened: OwnedStore, serde: MigratingSerde[Any], after: Place) -> Chunk:
    """Stage versions: first the latest of each key, then those that are history."""
    table = opened.versions()
    if after.table == layout.LATEST:
        made = _migrated(opened.name, serde, _of_latest)
        latest = _anew(table.scan_latest(after.row), after.row, made)
        if latest.writes:
            table.put_anew(latest.writes, {})
        return Chunk(
            len(latest.writes),
            Place(layout.HISTORY, None) if latest.last is None else Place(after.table, latest.last),
        )
    bound = table.time.bound

    def of_history(row: bytes, version: bytes) -> _Valued | None:
        return _of_latest(layout.key_of(row), version) if _shows(row, bound) else None

    made = _migrated(opened.name, serde, of_history)
    history = _anew(table.history.scan(after.row), after.row, made)
    if history.writes:
        table.put_anew({}, history.writes)
    last = None if history.last is None else Place(layout.HISTORY, history.last)
    return Chunk(len(history.writes), last)


def _shows(row: bytes, bound: int) -> bool:
    """Tell whether a row of a history is a version that has not expired.

    What has expired is never read again, whatever the store's next retention is.
    """
    return not row.startswith(layout.NOT_VERSIONS) and layout.valid_to(row) > bound


def _rows_of(kind: StoreKind) -> _Split:
    """Return what finds the rows with a value in the one table of a store."""
    without = kind.own_rows

    def split(row: bytes, value: bytes) -> _Valued | None:
        return None if row in without else _Valued(row, b"", value)

    return split


def _of_latest(key: bytes, version: bytes) -> _Valued | None:
    if layout.is_tombstone(version):
        return None
    return _Valued(key, version[: layout.HEAD_SIZE], version[layout.PAYLOAD])


def _anew(rows: RowScan[Pair], after: bytes | None, made_of: _AnewOf) -> _Anew:
    """Return what the next rows after this one become."""
    writes: dict[bytes, bytes] = {}
    size, last = 0, None
    with rows:
        for row, data in islice(rows, _ROWS_AT_ONCE + 1):
            if row == after:
                continue
            last = row
            made = made_of(row, data)
            if made is None:
                continue
            writes[row] = made
            size += len(row) + len(data)
            if size >= _BYTES_AT_ONCE:
                break
    return _Anew(writes, last)


def _migrated(store: str, serde: MigratingSerde[Any], split: _Split) -> _AnewOf:
    """Return what gives rows of older serdes as the newest one writes them."""

    def made_of(row: bytes, data: bytes) -> bytes | None:
        found = split(row, data)
        if found is None or serde.is_newest(found.value):
            return None
        return found.head + _converted(store, found, serde)

    return made_of


def _converted(store: str, found: _Valued, serde: MigratingSerde[Any]) -> bytes:
    try:
        return serde.serialize(serde.deserialize(found.value))
    except Exception as error:
        if isinstance(error, Misuse):
            raise
        raise RecordFailed(
            f"store {store}, row {serdes.printable(found.key[:200])}: its value "
            f"{serdes.printable(found.value[:200])} cannot be migrated: {type(error).__name__}: "
            f"{error}; correct the migration, then start again"
        ) from error
