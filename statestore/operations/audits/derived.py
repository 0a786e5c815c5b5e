"""The rows of a store that are in no changelog: read to the end, and computed again.

    session store      the list of the sessions of each key        from the rows of the sessions
    window store       the rows that find the windows of a key     from the rows of the windows
    store with history the segments of versions and of deletes     from their times
    rows that expire   the rows that find what expires next        from the times of rows
    rows with times    the latest of the times                     from the times of rows
    every store        offsets, positions, format, times           by their form

The changelog does not have these rows, so comparing it with the store says nothing of them. The
code that restores makes them when it writes rows. This module makes them in its own way, from the
formats that the modules of stores/ describe, and shares only the constants of those formats.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from statestore.model.records import SESSION_BYTES, WINDOW_BYTES
from statestore.operations.audits.checks import AuditCheck, Fault
from statestore.ports import Engine, Table
from statestore.stores import in_windows, keyvalue, offsets
from statestore.stores.kinds.registry import kind_named
from statestore.stores.specs import SessionSpec, WindowSpec
from statestore.stores.versioned import layout

_TIME: Final = struct.Struct(">q")
_BIASED: Final = struct.Struct(">Q")
_LENGTH: Final = struct.Struct(">I")
_FOUND_BY_KEY: Final = b"\xff"
_NO_CLOCK: Final = layout.clock_row(layout.TIME_MIN, layout.TIME_MIN)


def derived_faults(
    engine: Engine,
    kind: str,
    *,
    any_start: bool,
    expires: bool,
    interval_ms: int | None,
    timed: bool = False,
) -> Iterator[Fault]:
    """Yield the rows that contradict others, having read every table to its end.

    `any_start`: windows may start at any time. `expires`: rows have a time to live. `interval_ms`:
    the length of the segments of a store with history. `timed`: rows have times.
    """
    data, meta = engine.table(keyvalue.TABLE), engine.table(offsets.TABLE)
    wrong = list(_rows_beside(meta, kind_named(kind).beside))
    if wrong:
        pass  # What cannot be read proves nothing of other rows.
    elif kind == SessionSpec.kind:
        wrong += _wrong(_lists(data), _found_by_key(data))
    elif kind == WindowSpec.kind:
        wrong += _wrong(_windows_by_key(data) if any_start else {}, _found_by_key(data))
    elif kind == layout.KIND:
        wrong += _wrong_history(engine, interval_ms)
    elif expires:
        wrong += _wrong_expiry(data, meta)
    if timed and not wrong:
        wrong += _wrong_times(data, meta)
    yield from (Fault(AuditCheck.DERIVED_ROWS, key) for key in dict.fromkeys(wrong))


def _rows_beside(meta: Table, kinds: bytes) -> Iterator[bytes]:
    """Yield the rows beside the offsets that have no form that is known, or are not of `kinds`."""
    for row, value in meta.scan():
        match row[:1]:
            case kind if kind not in b"opcf" + kinds:
                fits = False
            case b"o" | b"p":
                name = row[1:-5]
                fits = bool(name) and row[-5:-4] == b"\0"
                fits = fits and len(value) == _TIME.size and value < b"\x80"
            case b"t":
                fits = len(value) == _TIME.size
            case b"x":
                fits = len(row) > _TIME.size and not value
            case b"c" | b"m" | b"n":
                fits = len(row) == 1 and len(value) == _TIME.size
            case b"e" | b"v":
                fits = len(row) == 1 and not value
            case _:
                fits = row == b"f"
        if not fits:
            yield row


def _lists(data: Table) -> dict[bytes, bytes]:
    """Return the list of sessions that each key must have: in order, as their rows begin."""
    spans: dict[bytes, list[bytes]] = {}
    for row, _ in data.scan(None, in_windows.UNLOGGED):
        if row != in_windows.TIME_ROW:
            spans.setdefault(row[SESSION_BYTES:], []).append(row[:SESSION_BYTES])
    return {_FOUND_BY_KEY + key: b"".join(sorted(found)) for key, found in spans.items()}


def _windows_by_key(data: Table) -> dict[bytes, bytes]:
    """Return the rows that find windows by their key: its length, the key, the start."""
    return {
        _FOUND_BY_KEY + _LENGTH.pack(len(row) - WINDOW_BYTES) + row[8:] + row[:8]: b""
        for row, _ in data.scan(None, in_windows.UNLOGGED)
        if row != in_windows.TIME_ROW
    }


def _found_by_key(data: Table) -> dict[bytes, bytes]:
    return dict(data.scan(in_windows.UNLOGGED))


def _wrong(wanted: Mapping[bytes, bytes], found: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the rows that are missing, different, or too many."""
    missing = [row for row, value in wanted.items() if found.get(row) != value]
    return missing + [row for row in found if row not in wanted]


def _wrong_history(engine: Engine, interval_ms: int | None) -> Iterator[bytes]:
    """Yield the rows of a history where nobody looks for them, and keys with gaps between versions.

    Where a version ends, another one or a delete begins; the log tells when values begin.
    """
    if interval_ms is None or interval_ms <= 0:
        yield b"f"
        return
    begins: set[tuple[bytes, int]] = set()
    ends: set[tuple[bytes, int]] = set()
    deletes: dict[bytes, int] = {}
    for key, row in engine.table(layout.LATEST).scan():
        begins.add((key, layout.valid_from(row)))
        if layout.is_tombstone(row):
            deletes[key] = layout.valid_from(row)
    noted: set[bytes] = set()
    history = engine.table(layout.HISTORY)
    bound_ms = layout.read_clock(history.get(layout.CLOCK_KEY) or _NO_CLOCK)[1]
    for row, value in history.scan():
        match row[:1]:
            case b"v":
                (segment,), (length,) = _BIASED.unpack(row[1:9]), _LENGTH.unpack(row[9:13])
                key, end_ms = layout.key_of(row), layout.valid_to(row)
                fits = len(key) == length and segment - layout.BIAS == end_ms // interval_ms
                begins.add((key, layout.valid_from(value)))
                if end_ms > bound_ms:
                    ends.add((key, end_ms))
            case b"d":
                segment, key = layout.tombstone_of(row)
                fits = not value
                if key in deletes and segment == deletes[key] // interval_ms:
                    noted.add(key)
            case _:
                fits = row == layout.CLOCK_KEY
        if not fits:
            yield row
    yield from deletes.keys() - noted
    yield from {key for key, _ in ends - begins}


def _wrong_expiry(data: Table, meta: Table) -> Iterator[bytes]:
    """Yield the keys of rows without a time, or which nothing finds when they expire."""
    now = meta.get(b"n")
    if now is None:
        if next(iter(meta.scan(b"t", b"y")), None) is not None:
            yield b"n"
        return
    if _TIME.unpack(now)[0] <= 0:
        return
    if meta.get(b"e") is None:
        yield b"e"
        return
    first: dict[bytes, int] = {}
    for row, _ in meta.scan(b"x", b"y"):
        key, time = row[9:], _TIME.unpack(row[1:9])[0]
        first[key] = min(time, first.get(key, time))
    for key, _ in data.scan():
        time = meta.get(b"t" + key)
        if time is None or first.get(key, layout.TIME_MAX) > _TIME.unpack(time)[0]:
            yield key


def _wrong_times(data: Table, meta: Table) -> Iterator[bytes]:
    """Yield the times of rows that are not there, and the row `m` if a time is later than it.

    Which time a row has, the log tells.
    """
    latest_ms = layout.TIME_MIN
    for at, time in meta.scan(b"t", b"u"):
        latest_ms = max(latest_ms, _TIME.unpack(time)[0])
        if data.get(at[1:]) is None:
            yield at
    said = meta.get(b"m")
    if latest_ms > (layout.TIME_MIN if said is None else _TIME.unpack(said)[0]):
        yield b"m"
