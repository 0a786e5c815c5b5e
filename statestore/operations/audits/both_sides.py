"""Both sides of an audit: the rows of a store in a snapshot, and the rows that its log produces.

Both sides have the same kind of rows: a key as it is in the log, the times at which the version
begins and ends, and the value. In stores without history the beginning is 0, and in place of the
end is the time of the row if the store keeps those, None otherwise. Neither side has rows of
expired history or tombstones; a tombstone only ends the version before it.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from statestore import serdes
from statestore.errors import Misuse, TaskCorrupted
from statestore.layout.activity_files import NoProgress, Progress
from statestore.layout.snapshots import StoreOffsets
from statestore.model.batch import in_lots
from statestore.model.ids import TopicPartition
from statestore.model.records import SESSION_BYTES, WINDOW_BYTES
from statestore.operations.audits.checks import AuditCheck, Fault
from statestore.ports import AuditLogReader, Engine, LogRecords, Table
from statestore.serdes import composed
from statestore.stores import in_windows, keyvalue, offsets
from statestore.stores.kinds.registry import kind_named
from statestore.stores.specs import SessionSpec, WindowSpec
from statestore.stores.versioned import layout as versioned_layout
from statestore.stores.versioned.forgetting import WHOLE_ROW

_TIME: Final = struct.Struct(">q")
_SPANS: Final = {WindowSpec.kind: WINDOW_BYTES, SessionSpec.kind: SESSION_BYTES}


class Subject(msgspec.Struct, frozen=True):
    """A store of one stream task, with all that any process needs to read both sides of it.

    `path`: its files in a snapshot; "" if they have to be fetched from an `export`.
    `offset_next`: the store's offset in its log. `log_end`: the log's last stable offset, read
    after the snapshot was taken. `last_offset`: `offset_next` in the previous audit. `bound_ms`:
    versions that end at this time or before it have expired. `is_whole`: as in
    `AuditFacts`. `is_source`: the log is the table's source topic, which also
    has records that are not in the table. `is_missing`: the store was deployed but has no files,
    so its side has no rows. `shown_path`: the folder of its files, for messages, if `path` is
    another.
    `writers`: the names of the serdes that wrote its values, by generation, if they were recorded.
    `retention_ms`: the shortest that its history was deployed with; None: that is not known.
    `any_start`, `expires` and `interval_ms`: as in `derived_faults`. `timed`: its rows have the
    times that its log has. `now_ms`: as in `AuditFacts`. `offsets`: those that the manifest of the
    export has, as `StoreOffsets`.
    """

    store: str
    stream_task: str
    kind: str
    path: str
    topic: str
    partition: int
    partitions: int
    offset_next: int
    log_end: int
    last_offset: int | None
    bound_ms: int
    is_whole: bool
    key_serde: str | None
    value_serde: str | None = None
    is_source: bool = False
    is_missing: bool = False
    shown_path: str = ""
    export: str | None = None
    placed_apart: bool = False
    writers: dict[int, str] = {}
    retention_ms: int | None = None
    any_start: bool = False
    expires: bool = False
    interval_ms: int | None = None
    timed: bool = False
    now_ms: int | None = None
    offsets: StoreOffsets | None = None

    @property
    def log(self) -> TopicPartition:
        """The partition of the store's log."""
        return TopicPartition(self.topic, self.partition)

    @property
    def versioned(self) -> bool:
        """True if the store keeps history."""
        return self.kind == versioned_layout.KIND


class AuditRows(NamedTuple):
    """Rows of one side, by column."""

    keys: list[bytes | None]
    begins: list[int]
    ends: list[int | None]
    values: list[bytes]

    def taken(self, places: Sequence[int]) -> "AuditRows":
        """Return only the rows at these indexes."""
        keys, begins, ends, values = self
        return AuditRows(
            [keys[i] for i in places],
            [begins[i] for i in places],
            [ends[i] for i in places],
            [values[i] for i in places],
        )

    def valid_at(self, time_ms: int, bound_ms: int) -> "AuditRows":
        """Return only the versions that were valid at `time_ms`.

        For a time before the bound of history, only versions that are still valid are known.
        """
        spans = enumerate(zip(self.begins, self.ends, strict=True))
        return self.taken(
            [
                place
                for place, (begins, ends) in spans
                if begins <= time_ms and (ends is None or (ends > time_ms >= bound_ms))
            ]
        )


class AuditRow(NamedTuple):
    """The value and the end of the version of one key that begins at one time.

    `ends` is the time of the row instead, if a store without history keeps it.
    """

    value: bytes
    ends: int | None


AuditPlace = tuple[bytes | None, int]
"""A key, and the time at which its version begins."""


class ReplayedLog(NamedTuple):
    """The rows that a log produces up to the store's offset, and those that follow.

    A row has a key and the time at which it begins. `known` has those with a record before that
    offset. `later` maps those with a record at or after it to their last value, which is None for
    a tombstone. It also has a version that ended with one of which only a later record is left.
    `faults`: what the store says of the log as a whole, and the log does not.
    """

    rows: dict[AuditPlace, AuditRow]
    known: frozenset[AuditPlace]
    later: dict[AuditPlace, bytes | None]
    faults: list[Fault] = []  # noqa: RUF012  # of a NamedTuple, and nobody adds to it

    def chunks(self) -> Iterator[AuditRows]:
        """Yield the rows in chunks."""
        found = ((key, begins, row.ends, row.value) for (key, begins), row in self.rows.items())
        return _chunks(found)


class AuditFacts(NamedTuple):
    """What the files of a store say.

    They are its kind, None if they do not say it, and the bound of its history. `is_whole`: its log
    has a record for each version, which is always so without history. `interval_ms`: the length of
    the segments of its history. `now_ms`: the stream time that goes with its history, or by which
    its rows expire; None: it says none. `occupied`: it has rows of data.
    """

    kind: str | None
    bound_ms: int = versioned_layout.TIME_MIN
    is_whole: bool = True
    interval_ms: int | None = None
    now_ms: int | None = None
    occupied: bool = False


def facts_of(engine: Engine, where: str, deployed_kind: str | None = None) -> AuditFacts:
    """Return the facts of a store's files; TaskCorrupted if they do not say them.

    If it is not of the kind that was deployed (None: not known), only its kind is returned.
    """
    meta = engine.table(offsets.TABLE)
    known = offsets.read_format(meta, where)
    occupied = next(iter(engine.table(keyvalue.TABLE).scan()), None) is not None
    if known is None:
        if next(iter(meta.scan()), None) or occupied:
            raise TaskCorrupted(f"{where}: rows without a format row: not a whole store")
        return AuditFacts(None)
    kind = known.kind
    if known.version != offsets.FORMAT_VERSION:
        kind = f"{kind} of format {known.version}"
    if kind != versioned_layout.KIND or deployed_kind not in {None, kind}:
        said = meta.get(b"n")
        now_ms = None if said is None or len(said) != _TIME.size else _TIME.unpack(said)[0]
        return AuditFacts(kind, now_ms=now_ms, occupied=occupied)
    bound, now_ms = versioned_layout.TIME_MIN, None
    clock = engine.table(versioned_layout.HISTORY).get(versioned_layout.CLOCK_KEY)
    if clock is not None:
        try:
            now_ms, bound_said = versioned_layout.read_clock(clock)[:2]
            bound = max(bound, bound_said)
        except struct.error as error:
            raise TaskCorrupted(f"{where}: the row of stream time is not readable") from error
    is_whole = all(meta.get(row) is not None for row in WHOLE_ROW) or clock is None
    return AuditFacts(kind, bound, is_whole, known.segment_interval_ms, now_ms, occupied)


def as_manifest(engine: Engine, subject: Subject, where: str) -> bool:
    """Return whether exported files are of the kind of the store; TaskCorrupted if other offsets.

    The manifest says where the store stands, and its files say it too.
    """
    kind = facts_of(engine, where, subject.kind).kind
    meta, said = engine.table(offsets.TABLE), subject.offsets
    if said is not None:
        read = StoreOffsets.of(
            offsets.read_offsets(meta, where), offsets.read_position(meta, where).as_dict()
        )
        if read != said:
            raise TaskCorrupted(f"{where}: its files say other offsets than the manifest")
    return kind in {None, subject.kind}


def stored_rows(
    engine: Engine, kind: str, bound_ms: int, *, timed: bool = False
) -> Iterator[AuditRows]:
    """Yield every row of a store's files, in chunks; if `timed`, with the times of rows."""
    stamps = _Stamps(engine.table(offsets.TABLE))
    pairs = engine.table(keyvalue.TABLE).scan()
    if kind == versioned_layout.KIND:
        yield from _chunks(_latest(pairs))
        yield from _chunks(_history(engine.table(versioned_layout.HISTORY).scan(), bound_ms))
        return
    for chunk in in_lots(pairs, lambda pair: len(pair[0]) + len(pair[1])):
        keys = kind_named(kind).logged_keys([row for row, _ in chunk])
        times = [stamps.of(row) if timed else None for row, _ in chunk]
        rows = AuditRows(keys, [0] * len(chunk), times, [value for _, value in chunk])
        if None in keys:
            rows = rows.taken([place for place, key in enumerate(keys) if key is not None])
        yield rows


class _Stamps:
    """The times of rows, for one who asks for rows in their order."""

    def __init__(self, meta: Table) -> None:
        self._left = iter(meta.scan(b"t", b"u"))
        self._next = next(self._left, None)

    def of(self, row: bytes) -> int | None:
        """Return the time of a row; None if it has none."""
        at = b"t" + row
        while self._next is not None and self._next[0] < at:
            self._next = next(self._left, None)
        if self._next is None or self._next[0] != at:
            return None
        time: int = _TIME.unpack(self._next[1])[0]
        return time


def replay_log(
    audit_log: AuditLogReader, subject: Subject, progress: Progress | None = None
) -> ReplayedLog:
    """Read the log up to the store's offset, and then to an end that is asked for after that.

    So if compaction removed a record meanwhile, the record that replaced it is among the later
    ones. A record without a key belongs to no row. History goes back as far as the log and the
    deployed retention say: what a later bound of the store hides is missing.
    """
    tp, told = subject.log, progress or NoProgress()
    start, end = audit_log.bounds(tp)
    told.expect(-min(start, subject.log_end))
    cut = max(start, min(subject.offset_next, end))
    held: dict[AuditPlace, bytes | None] = {}
    row_times: dict[AuditPlace, int] = {}
    said_ms = bound_ms = versioned_layout.TIME_MIN
    for records in _counted(audit_log.read(tp, start, cut), cut - start, told):
        held.update(_placed(records, subject))
        if subject.timed:
            keys = zip(records.keys, _true_times(records), strict=True)
            row_times.update(((key, 0), time) for key, time in keys)
        clock = _clock_in(records)
        said_ms, bound_ms = max(said_ms, clock[0]), max(bound_ms, clock[1])
    later: dict[AuditPlace, bytes | None] = {}
    last = audit_log.bounds(tp).end
    told.expect(max(0, last - max(start, subject.log_end)))
    for records in _counted(audit_log.read(tp, cut, last), last - cut, told):
        later.update(_placed(records, subject))
    if not subject.versioned:
        rows = {
            at: AuditRow(value, row_times.get(at))
            for at, value in held.items()
            if value is not None
        }
        return ReplayedLog(rows, frozenset(held), later)
    faults = _clock_faults(subject, held, later, said_ms, bound_ms)
    bound_ms = max(bound_ms, _bound_allowed(subject, held))
    begun: dict[bytes | None, list[int]] = {}
    for key, begins in sorted(held):
        begun.setdefault(key, []).append(begins)
    for key, begins in later.keys() - held.keys():
        times = begun.get(key, [])
        before = bisect_left(times, begins)
        if before:
            later.setdefault((key, times[before - 1]), None)
    return ReplayedLog(dict(_versions(held, begun, bound_ms)), frozenset(held), later, faults)


def _clock_faults(
    subject: Subject,
    held: Mapping[AuditPlace, bytes | None],
    later: Mapping[AuditPlace, bytes | None],
    said_ms: int,
    bound_ms: int,
) -> list[Fault]:
    """Return the fault of a row `c` that is not as the log says.

    The stream time of a history is that of its latest version. Compaction may have removed that
    record only if there is one after the offset. `said_ms` and `bound_ms`: what the log itself
    tells, at the least.
    """
    if subject.is_missing or subject.is_source or not subject.is_whole:
        return []
    least_ms = max((begins for _, begins in held), default=said_ms)
    least_ms = max(least_ms, said_ms)
    most_ms = max((begins for _, begins in later), default=least_ms)
    now_ms = versioned_layout.TIME_MIN if subject.now_ms is None else subject.now_ms
    fits = least_ms <= now_ms <= max(least_ms, most_ms) and subject.bound_ms >= bound_ms
    return [] if fits else [Fault(AuditCheck.STREAM_TIME, versioned_layout.CLOCK_KEY)]


def _true_times(records: LogRecords) -> list[int]:
    """Return the times of plain changes: those before 2 are in a header (stores/logged.py)."""
    if records.headers is None:
        return records.times
    said = (dict(headers).get("statestore-time") for headers in records.headers)
    return [_time(one, time) for time, one in zip(records.times, said, strict=True)]


def _time(header: bytes | None, otherwise_ms: int) -> int:
    """Return the time in a header; one that another producer wrote counts for nothing."""
    text = (header or b"").removeprefix(b"-")
    if header is None or not text.isdigit() or len(text) > 19:
        return otherwise_ms
    time = int(header)
    return time if -(1 << 63) <= time < 1 << 63 else otherwise_ms


def _placed(records: LogRecords, subject: Subject) -> Iterator[tuple[AuditPlace, bytes | None]]:
    """Yield the changes of rows with their places; the value of a delete is None."""
    if subject.versioned:
        yield from _logged_versions(records)
        return
    kept = _kept(records, subject) if subject.is_source else records
    for key, value in zip(kept.keys, kept.values, strict=True):
        if key is not None:
            yield (key, 0), value


def _logged_versions(records: LogRecords) -> Iterator[tuple[AuditPlace, bytes | None]]:
    """Yield versions as the changelog of a store with history has them (docs/adr/0037)."""
    keys, values, times, headers = records
    for i, (key, value, time) in enumerate(zip(keys, values, times, strict=True)):
        said = {} if headers is None else dict(headers[i])
        kind = said.get("statestore-log")
        if key is None or kind in (b"forgotten", b"moved"):
            continue
        if kind == b"deleted" or (time == 1 and "statestore-time" not in said):
            place = key[:-8], int.from_bytes(key[-8:], "big") - (1 << 63)
            if not value:
                yield place, None
            else:
                yield place, value if value.strip(b"\0") else value[:-1]
        else:
            yield (key, _time(said.get("statestore-time"), time)), value


def _bound_allowed(subject: Subject, held: Mapping[AuditPlace, bytes | None]) -> int:
    """Return the bound of the store's history, or the latest one that its log allows."""
    if subject.retention_ms is None or not subject.is_whole:
        return subject.bound_ms
    now_ms = max((begins for _, begins in held), default=versioned_layout.TIME_MIN)
    return min(subject.bound_ms, now_ms - subject.retention_ms)


def _clock_in(records: LogRecords) -> tuple[int, int]:
    """Return what the log itself tells: stream time, and the bound before which versions are gone.

    Both are TIME_MIN if it does not tell.
    """
    told = [
        (
            int.from_bytes(value[:8], "big") - (1 << 63),
            int.from_bytes(value[8:16], "big") - (1 << 63),
        )
        for value, headers in zip(records.values, records.headers or (), strict=False)
        if value is not None and ("statestore-log", b"forgotten") in headers
    ]
    never = versioned_layout.TIME_MIN
    return max((now for now, _ in told), default=never), max((at for _, at in told), default=never)


def _counted(stretches: Iterator[LogRecords], offsets: int, told: Progress) -> Iterator[LogRecords]:
    """Tell of so many offsets as they are read, also of those that have no record."""
    counted = 0
    for records in stretches:
        yield records
        counted += len(records.keys)
        told.done(len(records.keys))
    told.done(offsets - counted)


def placing_keys(keys: list[bytes | None], kind: str, key_serde: str | None) -> list[bytes]:
    """Return the bytes that a producer would hash, for the keys that determine a partition."""
    span = _SPANS.get(kind)
    if span is not None:
        place: Callable[[bytes], bytes] | None = composed.without_last(span)
    else:
        place = None if key_serde is None else composed.placed_by(key_serde)
    if place is not None:
        return [place(key) for key in keys if key is not None and key != in_windows.TIME_ROW]
    return [key for key in keys if key is not None]


def _kept(records: LogRecords, subject: Subject) -> LogRecords:
    """Drop the records of a source topic that are not in its table.

    A table has the records with a key whose key and value can be decoded.
    """
    key_fits, value_fits = _fits(subject.key_serde), _fits(subject.value_serde)
    kept = [
        place
        for place, (key, value) in enumerate(zip(records.keys, records.values, strict=True))
        if key is not None and key_fits(key) and value_fits(value)
    ]
    return LogRecords(
        [records.keys[place] for place in kept],
        [records.values[place] for place in kept],
        [records.times[place] for place in kept],
    )


def _fits(serde_name: str | None) -> Callable[[bytes | None], bool]:
    """Return a function that tells whether data can be decoded; an unknown serde accepts all."""
    try:
        serde = serdes.BYTES if serde_name is None else serdes.by_name(serde_name)
    except Misuse:
        serde = serdes.BYTES

    def fits(data: bytes | None) -> bool:
        if data is not None:
            try:
                serde.deserialize(data)
            except Exception:  # noqa: BLE001  # a user's serde may raise anything
                return False
        return True

    return fits


def _latest(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, int, None, bytes]]:
    for key, row in pairs:
        begins, value = versioned_layout.read_version(row)
        if value is not None:
            yield key, begins, None, value


def _history(
    pairs: Iterable[tuple[bytes, bytes]], bound_ms: int
) -> Iterator[tuple[bytes, int, int, bytes]]:
    for at, row in pairs:
        if not at.startswith(versioned_layout.NOT_VERSIONS):
            begins, value = versioned_layout.read_version(row)
            ends = versioned_layout.valid_to(at)
            if value is not None and ends > bound_ms:
                yield versioned_layout.key_of(at), begins, ends, value


def _chunks(rows: Iterable[tuple[bytes | None, int, int | None, bytes]]) -> Iterator[AuditRows]:
    for chunk in in_lots(rows, lambda row: len(row[0] or b"") + len(row[3])):
        keys, begins, ends, values = map(list, zip(*chunk, strict=True))
        yield AuditRows(keys, begins, ends, values)


def _versions(
    held: Mapping[AuditPlace, bytes | None],
    begun: Mapping[bytes | None, list[int]],
    bound_ms: int,
) -> Iterator[tuple[AuditPlace, AuditRow]]:
    for key, times in begun.items():
        ends: list[int | None] = [*times[1:], None]
        for begins, end in zip(times, ends, strict=True):
            value = held[key, begins]
            if value is not None and (end is None or end > bound_ms):
                yield (key, begins), AuditRow(value, end)
