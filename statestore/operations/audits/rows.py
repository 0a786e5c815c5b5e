"""Both sides of an audit: a store's rows from a snapshot, and what its log makes of them.

Either side gives the same kind of rows: a key as the log has it, when the version begins and ends
(0 and None in stores without history), and the value. Rows of history that has expired, and
tombstones, are on neither side: what they say is when the version before them ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from statestore.errors import Misuse
from statestore.model.ids import TopicPartition
from statestore.ports import AuditLogReader, Engine, LogRecords
from statestore.stores import keyvalue, offsets, serdes, versioned_layout, windows
from statestore.stores.specs import WindowRows

WINDOW: Final = WindowRows.kind
_ROWS: Final = 10_000


class Subject(msgspec.Struct, frozen=True):
    """A store of one stream task, and all that is needed to read both sides of it, anywhere.

    `path`: its files in a snapshot; "" where they are to be fetched from an `export`.
    `offset_next`: where it stands in its log; `log_end`: the last stable offset, asked for after
    the snapshot; `last_offset`: `offset_next` as the audit before saw it. `bound_ms`: versions that
    end then or before are gone. `compactable_ms`: records older than that may have been removed by
    compaction. `is_source`: the log is the topic its table is made of, and has records that are
    none of the table's. `is_missing`: it was deployed, and has no files: its side has no row.
    `home`: where its files lie, for people, if they are looked at elsewhere.
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
    compactable_ms: int
    key_serde: str | None
    value_serde: str | None = None
    is_source: bool = False
    is_missing: bool = False
    home: str = ""
    export: str | None = None

    @property
    def log(self) -> TopicPartition:
        """The partition of its log."""
        return TopicPartition(self.topic, self.partition)

    @property
    def versioned(self) -> bool:
        """Whether it keeps history."""
        return self.kind == versioned_layout.KIND


class Rows(NamedTuple):
    """Rows of either side, by column."""

    keys: list[bytes | None]
    begins: list[int]
    ends: list[int | None]
    values: list[bytes]

    def taken(self, places: Sequence[int]) -> "Rows":
        """Only the rows there."""
        keys, begins, ends, values = self
        return Rows(
            [keys[i] for i in places],
            [begins[i] for i in places],
            [ends[i] for i in places],
            [values[i] for i in places],
        )

    def valid_at(self, time_ms: int, bound_ms: int) -> "Rows":
        """Only the versions valid then; before the bound of history only those that still are."""
        spans = enumerate(zip(self.begins, self.ends, strict=True))
        return self.taken(
            [
                place
                for place, (begins, ends) in spans
                if begins <= time_ms and (ends is None or (ends > time_ms >= bound_ms))
            ]
        )


class Row(NamedTuple):
    """What a side says of one key and beginning."""

    value: bytes
    ends: int | None


class Fold(NamedTuple):
    """What a log up to the store's offset makes of it, and which keys it goes on to.

    `known`: keys with a record up to that offset; `later`: the last value after it, None a delete.
    """

    rows: dict[tuple[bytes | None, int], Row]
    known: frozenset[bytes | None]
    later: dict[bytes | None, bytes | None]

    def lots(self) -> Iterator[Rows]:
        """The rows, in lots."""
        found = ((key, begins, row.ends, row.value) for (key, begins), row in self.rows.items())
        return _lots(found)


def facts_of(engine: Engine, where: str) -> tuple[str | None, int]:
    """What kind of store lies there, None if it does not say, and the bound of its history."""
    known = offsets.read_format(engine.table(offsets.TABLE), where)
    kind = None if known is None else known.kind
    bound = versioned_layout.TIME_MIN
    if kind == versioned_layout.KIND:
        clock = engine.table(versioned_layout.HISTORY).get(versioned_layout.CLOCK_KEY)
        if clock is not None:
            bound = max(bound, versioned_layout.read_clock(clock)[1])
    return kind, bound


def stored_rows(engine: Engine, kind: str, bound_ms: int) -> Iterator[Rows]:
    """Every row of a store's files, in lots."""
    pairs = engine.table(keyvalue.TABLE).scan()
    if kind == versioned_layout.KIND:
        yield from _lots(_latest(pairs))
        yield from _lots(_history(engine.table(versioned_layout.HISTORY).scan(), bound_ms))
        return
    while lot := list(islice(pairs, _ROWS)):
        found: list[bytes | None] = [key for key, _ in lot]
        keys = windows.keys_of([key for key, _ in lot]) if kind == WINDOW else found
        yield Rows(keys, [0] * len(lot), [None] * len(lot), [value for _, value in lot])


def fold(audit_log: AuditLogReader, subject: Subject) -> Fold:
    """The log up to the store's offset; what follows is read to an end asked for after that.

    So whatever compaction removed meanwhile, the record it gave way to is among the later ones. A
    record without a key is of no row.
    """
    tp = subject.log
    start, end = audit_log.bounds(tp)
    cut = max(start, min(subject.offset_next, end))
    known: Iterable[bytes | None]
    if subject.versioned:
        versions: dict[bytes | None, dict[int, bytes | None]] = {}
        for records in audit_log.read(tp, start, cut):
            for key, value, time in zip(*records, strict=True):
                if key is not None:
                    versions.setdefault(key, {})[time] = value
        known, rows = versions, dict(_versions(versions, subject.bound_ms))
    else:
        held: dict[bytes | None, bytes | None] = {}
        for records in _kept(audit_log.read(tp, start, cut), subject):
            held.update(zip(records.keys, records.values, strict=True))
        held.pop(None, None)
        known = held
        rows = {(key, 0): Row(value, None) for key, value in held.items() if value is not None}
    later: dict[bytes | None, bytes | None] = {}
    for records in _kept(audit_log.read(tp, cut, audit_log.bounds(tp).end), subject):
        later.update(zip(records.keys, records.values, strict=True))
    later.pop(None, None)
    return Fold(rows, frozenset(known), later)


def placing_keys(keys: list[bytes | None], kind: str, key_serde: str | None) -> list[bytes]:
    """Of those keys that say where they belong, the bytes a producer would hash."""
    if kind == WINDOW or (key_serde is not None and serdes.of_windowed(key_serde) is not None):
        return [key[:-8] for key in keys if key is not None and key != windows.TIME_ROW]
    return [key for key in keys if key is not None]


def _kept(stretches: Iterator[LogRecords], subject: Subject) -> Iterator[LogRecords]:
    """Of a source topic what its table takes: records with a key that can be decoded."""
    if not subject.is_source:
        yield from stretches
        return
    key_fits, value_fits = _fits(subject.key_serde), _fits(subject.value_serde)
    for records in stretches:
        kept = [
            place
            for place, (key, value, _) in enumerate(zip(*records, strict=True))
            if key is not None and key_fits(key) and value_fits(value)
        ]
        yield LogRecords(
            [records.keys[place] for place in kept],
            [records.values[place] for place in kept],
            [records.times[place] for place in kept],
        )


def _fits(serde_name: str | None) -> Callable[[bytes | None], bool]:
    """Whether data can be decoded; with a serde nobody here knows, all can."""
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


def _lots(rows: Iterable[tuple[bytes | None, int, int | None, bytes]]) -> Iterator[Rows]:
    left = iter(rows)
    while lot := list(islice(left, _ROWS)):
        keys, begins, ends, values = map(list, zip(*lot, strict=True))
        yield Rows(keys, begins, ends, values)


def _versions(
    versions: Mapping[bytes | None, Mapping[int, bytes | None]], bound_ms: int
) -> Iterator[tuple[tuple[bytes | None, int], Row]]:
    for key, by_time in versions.items():
        times = sorted(by_time)
        ends: list[int | None] = [*times[1:], None]
        for begins, end in zip(times, ends, strict=True):
            value = by_time[begins]
            if value is not None and (end is None or end > bound_ms):
                yield (key, begins), Row(value, end)
