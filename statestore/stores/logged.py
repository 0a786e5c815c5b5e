"""The records of changelogs as bytes: the times of plain ones, and those of stores with history.

A plain changelog has a key, a value, and the time of the change as the record's time. Kafka's
client takes the time 0 for "now" and refuses less. So a change of the time 1 or before has the
record's time 1, and its true time in the header `statestore-time`.

The changelog of a store with history has a key of its own for each version (docs/adr/0037):

    key             value      timestamp  header statestore-log
    <key> <time>    <value>    1                                  a version
    <key> <time>    (empty)    1                                  a version that is a delete
    <key> <time>    null       1                                  a version that has expired
    <key> <time>    null       now        deleted                 a delete that has expired
    c               <times>    now        forgotten               how far versions are forgotten
    <key>           null       now        moved                   plain records of a key are void

A value of zero bytes only, or of none, has one zero byte more. The timestamp 1 without a header,
which no plain changelog has, marks these records, because a log may begin as a plain one: that of
an older version, or of a plain store. Times are 8 bytes as in the rows of the store; `<times>` are
the stream time, the bound of history, and the time before which all versions that ended are
forgotten.

Pure: nothing is sent or read here.
"""

from collections.abc import Sequence
from itertools import repeat
from operator import add
from typing import Final, NamedTuple, cast

from statestore.model.batch import Batch
from statestore.model.records import BYTES, Header
from statestore.stores.staged_table import Changes
from statestore.stores.versioned import layout

STAMP: Final = 1
"""The timestamp of records whose time is elsewhere."""
_TIME_HEADER: Final = "statestore-time"
_LOG_HEADER: Final = "statestore-log"
_FORGOTTEN_KEY: Final = b"c"
_TIME_BYTES: Final = 8
_NONE: Final[tuple[Header, ...]] = ()
_DELETED: Final[tuple[Header, ...]] = ((_LOG_HEADER, b"deleted"),)
_FORGOTTEN: Final[tuple[Header, ...]] = ((_LOG_HEADER, b"forgotten"),)
_MOVED: Final[tuple[Header, ...]] = ((_LOG_HEADER, b"moved"),)


# Plain changelogs.


def sendable(times: list[int]) -> tuple[list[int], list[tuple[Header, ...]] | None]:
    """Return the timestamps of plain changelog records, and their headers if any needs one."""
    if min(times, default=STAMP + 1) > STAMP:
        return times, None
    headers: list[tuple[Header, ...]] = [
        ((_TIME_HEADER, b"%d" % t),) if t <= STAMP else () for t in times
    ]
    return [max(time, STAMP) for time in times], headers


def true_times(batch: Batch) -> list[int]:
    """Return the true times of the changes in plain changelog records."""
    if STAMP not in batch.timestamps or batch.headers is None:
        return batch.timestamps
    return [
        _true(batch.headers[i]) if time == STAMP else time
        for i, time in enumerate(batch.timestamps)
    ]


def has_versions(batch: Batch) -> bool:
    """Return whether records of what should be a plain changelog are those of a versioned store."""
    if STAMP not in batch.timestamps:
        return False
    headers = batch.headers or [()] * len(batch)
    rows = zip(batch.keys.encoded(BYTES), batch.timestamps, headers, strict=True)
    # The time of a version is in its key.
    return any(
        time == STAMP and not head and key is not None and len(key) >= _TIME_BYTES
        for key, time, head in rows
    )


def _true(headers: Sequence[Header]) -> int:
    return time_in(dict(headers).get(_TIME_HEADER), STAMP)


def time_in(header: bytes | None, otherwise_ms: int) -> int:
    """Return the time that a header says, or the other one if it is none that we wrote."""
    try:
        time = otherwise_ms if header is None else int(header)
    except ValueError:
        return otherwise_ms
    return time if layout.TIME_MIN <= time <= layout.TIME_MAX else otherwise_ms


# Changelogs of versions.


class Forgotten(NamedTuple):
    """The stream time and the bound of history, and before which time nothing ended is left."""

    now: int
    bound: int
    below_ms: int


class LoggedVersions(NamedTuple):
    """What records say: versions in their order, and what a log has besides.

    `is_whole`: whether, after these records, the log has a record for each version; None: they do
    not tell.
    """

    keys: list[bytes]
    values: list[bytes | None]
    times: list[int]
    forgotten: Forgotten | None = None
    is_whole: bool | None = None


def versions(keys: Sequence[bytes], rows: Sequence[bytes]) -> Changes:
    """Return the records of versions, whose rows are those of the store."""
    made = list(map(add, keys, [row[layout.STAMP] for row in rows]))
    values = [row[layout.PAYLOAD] for row in rows]
    if not all(map(bytes.strip, values, repeat(b"\0"))):
        values = list(map(_escaped, rows, values))
    return Changes(made, list(values), [STAMP] * len(made))


def of_the_log(
    expired: Sequence[bytes],
    deletes: Sequence[bytes],
    moved: Sequence[bytes],
    forgotten: Forgotten | None,
    now_ms: int,
) -> Changes:
    """Return the records that are no versions: `expired` and `deletes` by the keys of theirs."""
    keys = [*expired, *deletes, *moved]
    values: list[bytes | None] = [None] * len(keys)
    headers = [_NONE] * len(expired) + [_DELETED] * len(deletes) + [_MOVED] * len(moved)
    if forgotten is not None:
        keys.append(_FORGOTTEN_KEY)
        values.append(b"".join(map(layout.stamp_of, forgotten)))
        headers.append(_FORGOTTEN)
    later_ms = max(now_ms, STAMP + 1)
    return Changes(keys, values, [later_ms if some else STAMP for some in headers], headers)


def read_versions(batch: Batch, *, is_whole: bool) -> LoggedVersions:
    """Return the versions in changelog records that have keys; those that expired are left out.

    `is_whole`: the records before these had a record for each version, so none is plain.
    """
    if batch.headers is None and batch.timestamps.count(STAMP) == len(batch):
        return _read_marked(batch.keys.objects, batch.values.objects)
    return _read_each(batch, is_whole=is_whole)


def _read_marked(keys: list[bytes], values: list[bytes | None]) -> LoggedVersions:
    if None in values:
        there = [i for i, value in enumerate(values) if value is not None]
        keys, values = [keys[i] for i in there], [values[i] for i in there]
    known = cast("list[bytes]", values)
    if not all(map(bytes.strip, known, repeat(b"\0"))):
        values = list(map(_unescaped, known))
    times = layout.times_of([key[-layout.STAMP_SIZE :] for key in keys])
    return LoggedVersions([key[: -layout.STAMP_SIZE] for key in keys], values, times)


def _read_each(batch: Batch, *, is_whole: bool) -> LoggedVersions:
    found: list[tuple[bytes, int, bytes | None]] = []
    forgotten, told = None, None
    columns = zip(batch.keys.objects, batch.values.objects, batch.timestamps, strict=True)
    for i, (key, value, stamp) in enumerate(columns):
        is_marked = stamp == STAMP
        headers: dict[str, bytes | None] = {}
        if batch.headers is not None and not (is_marked and is_whole):
            headers = dict(batch.headers[i])
        match headers.get(_LOG_HEADER):
            case b"moved":
                pass
            case b"forgotten":
                forgotten = _read_forgotten(value or b"")
                is_whole = told = True
            case b"deleted":
                found.append((*_split(key), None))
            case _ if is_marked and _TIME_HEADER not in headers:
                if value is not None:
                    found.append((*_split(key), _unescaped(value)))
            case _:
                time = time_in(headers.get(_TIME_HEADER), stamp)
                found.append((key, time, value))
                is_whole = told = False
    keys, times, values = map(list, zip(*found, strict=True)) if found else ([], [], [])
    return LoggedVersions(keys, values, times, forgotten, told)


def strange_versions(batch: Batch) -> list[int]:
    """Return which records, by place, a changelog of versions has from another producer.

    Their keys are too short for the time of a version, or their values for what is forgotten.
    """
    keys = batch.keys.objects
    if batch.headers is None and min(map(_length, keys), default=0) >= layout.STAMP_SIZE:
        return []
    found = []
    columns = zip(keys, batch.values.objects, batch.timestamps, strict=True)
    for i, (key, value, stamp) in enumerate(columns):
        headers = {} if batch.headers is None else dict(batch.headers[i])
        kind = headers.get(_LOG_HEADER)
        has_time = kind == b"deleted" or (
            kind != b"moved" and stamp == STAMP and _TIME_HEADER not in headers
        )
        if kind == b"forgotten":
            if len(value or b"") != 3 * layout.STAMP_SIZE:
                found.append(i)
        elif has_time and _length(key) < layout.STAMP_SIZE:
            found.append(i)
    return found


def _length(key: bytes | None) -> int:
    return layout.STAMP_SIZE if key is None else len(key)


def changed_versions(batch: Batch) -> list[tuple[int, bytes, int, bytes | None]]:
    """Return which records are versions: their places, keys, times and values, None for deletes.

    Records of what has expired, and of the log as a whole, are left out.
    """
    found: list[tuple[int, bytes, int, bytes | None]] = []
    columns = zip(batch.keys.objects, batch.values.objects, batch.timestamps, strict=True)
    for i, (key, value, stamp) in enumerate(columns):
        headers = {} if batch.headers is None else dict(batch.headers[i])
        if key is None or _LOG_HEADER in headers:
            continue
        if stamp != STAMP or _TIME_HEADER in headers:
            found.append((i, key, time_in(headers.get(_TIME_HEADER), stamp), value))
        elif value is not None:
            found.append((i, *_split(key), _unescaped(value)))
    return found


def keys_of_versions(batch: Batch) -> list[bytes | None]:
    """Return the key of the user's in each record; None for a record about the log."""
    found: list[bytes | None] = []
    columns = zip(batch.keys.objects, batch.timestamps, strict=True)
    for i, (key, stamp) in enumerate(columns):
        headers = {} if batch.headers is None else dict(batch.headers[i])
        match headers.get(_LOG_HEADER):
            case b"forgotten":
                found.append(None)
            case b"moved":
                found.append(key)
            case b"deleted":
                found.append(key[: -layout.STAMP_SIZE])
            case _ if stamp == STAMP and _TIME_HEADER not in headers:
                found.append(None if key is None else key[: -layout.STAMP_SIZE])
            case _:
                found.append(key)
    return found


def stays_whole(batch: Batch, *, is_whole: bool) -> bool:
    """Return whether, after these records, the log has a record for each version.

    `is_whole`: whether it had one before them.
    """
    for i, stamp in enumerate(batch.timestamps):
        headers = {} if batch.headers is None else dict(batch.headers[i])
        if headers.get(_LOG_HEADER) == b"forgotten":
            is_whole = True
        elif _LOG_HEADER not in headers and (stamp != STAMP or _TIME_HEADER in headers):
            is_whole = False
    return is_whole


def _split(record_key: bytes) -> tuple[bytes, int]:
    """Return the key and the time of a version."""
    (time,) = layout.times_of([record_key[-layout.STAMP_SIZE :]])
    return record_key[: -layout.STAMP_SIZE], time


def joined_times(values: Sequence[bytes]) -> bytes:
    """Return the times of a log into which several go, given what each has under its key.

    It has forgotten nothing before it looks again, as each was at another time.
    """
    found = [_read_forgotten(value) for value in values]
    latest = max(one.now for one in found), max(one.bound for one in found), layout.TIME_MIN
    return b"".join(map(layout.stamp_of, latest))


def _read_forgotten(value: bytes) -> Forgotten:
    size = layout.STAMP_SIZE
    return Forgotten(*layout.times_of([value[i : i + size] for i in range(0, 3 * size, size)]))


def _escaped(row: bytes, value: bytes) -> bytes:
    return value + b"\0" if not layout.is_tombstone(row) and not value.strip(b"\0") else value


def _unescaped(value: bytes) -> bytes | None:
    """Return a version's value, or None for a delete."""
    if value.strip(b"\0"):
        return value
    return value[:-1] if value else None
