"""One table as its owner sees it, in bytes: pending writes over committed rows.

Operators work on it in batches. Only the owner's thread uses it. A get is one look-up in a dict and
one call of the engine, and nothing else may stand in its way.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from typing import Any, Final, NamedTuple

from statestore.model.ids import Position, TopicPartition
from statestore.model.records import Header
from statestore.ports import Writes
from statestore.stores import offsets as rows
from statestore.stores.codec import Codec
from statestore.stores.pending import ENTRY_COST, MISSING, Missing
from statestore.stores.reads import Pair, RowScan, overlaid, scan_of
from statestore.stores.row_times import NO_ROW_MS, RowTimes, WriteTime
from statestore.stores.transaction import StagedEngine


class Changes(NamedTuple):
    """What a commit logs, in order, each change with the time of the record that made it.

    Of a store with history they are the records themselves, with their headers (stores/logged.py).
    """

    keys: list[bytes]
    values: list[bytes | None]
    times: list[int]
    headers: list[tuple[Header, ...]] | None = None


class StagedTable:
    """Reads and writes of one table of a StagedEngine; the `reads.Rows` of its owner."""

    def __init__(self, staged: StagedEngine, name: str, times: RowTimes | None = None) -> None:
        """`times` has the times of its rows; None if no stream task owns the table."""
        self.times: Final = times
        self._clock: Final = WriteTime() if times is None else times.clock
        self._staged: Final = staged
        self._name: Final = name
        self._overlay: Final = staged.overlay(name)
        self._entries: Final = self._overlay.entries
        self._note_one: Final = None if times is None else times.note_one
        self._table: Final = staged.table(name)
        # The engine's own, without pending writes; what it raises is the engine's, too.
        self.get_committed: Final = self._table.get
        self._metrics: Final = staged.metrics
        self.is_open: Final = staged.is_open
        self.check_open: Final = staged.check_open

    @property
    def staged_rows(self) -> Mapping[bytes, bytes | None]:
        """The pending writes, None for deletes: a look here saves a call of `get`."""
        return self._entries

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return the value, looking at pending writes first, or `default`."""
        entries = self._entries
        # Two look-ups in a dict take less time than one and a look at what it gave.
        if key in entries:
            value = entries[key]
        else:
            try:
                value = self.get_committed(key)
            except Exception as error:
                raise self._staged.failure(error) from error
        return default if value is None else value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key, in order; one call of the engine reads those not pending."""
        entries = self._entries
        self._metrics.gets += len(keys)
        try:
            if not entries:
                return self._table.get_many(keys)
            found = list(map(entries.get, keys, repeat(MISSING)))
            asked = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
            if len(asked) == len(keys):
                return self._table.get_many(keys)
            committed = iter(self._table.get_many(asked) if asked else ())
        except Exception as error:
            raise self._staged.failure(error) from error
        return [next(committed) if isinstance(value, Missing) else value for value in found]

    def get_many_to_write(self, keys: list[bytes]) -> tuple[list[bytes], list[bytes | None]]:
        """Return the keys in another order, and their values, for a store that writes them next.

        No user asked for them, so they do not count as gets.
        """
        entries = self._entries
        known = [key for key in keys if key in entries] if entries else []
        asked = [key for key in keys if key not in entries] if known else keys
        try:
            keys, values = self._table.get_many_to_write(asked)
        except Exception as error:
            raise self._staged.failure(error) from error
        if known:
            keys, values = keys + known, values + [entries[key] for key in known]
        return keys, values

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage one write; None deletes."""
        self._staged.check_open()
        self._overlay.put(key, value)
        now_ms = self._clock.now_ms
        if now_ms is not None and self._note_one is not None:
            self._note_one(key, now_ms)

    def writer(self, codec: Codec[Any, Any]) -> Callable[[Any, Any], None]:
        """Return a `put` of keys and values in place of bytes.

        A processor that writes one by one waits for little else, so each call saved here counts.
        """
        put, overlay, entries, clock = self.put, self._overlay, self._entries, self._clock
        write_key, write_value = codec.key, codec.write_value
        plain_keys, plain_values = codec.plain_keys, codec.plain_values
        # Where times are kept as rows, as those of rows that expire are, `put` has more to do.
        times = {} if self.times is None else self.times.unkept

        def write(key: Any, value: Any) -> None:
            row: bytes = key if plain_keys and type(key) is bytes else write_key(key)
            if value is None:
                put(row, None)
                return
            try:
                data: bytes = value if plain_values and type(value) is bytes else write_value(value)
            except Exception:  # noqa: BLE001  # once more, for the error that names the store
                data = codec.some_value(value)
            if times is None or not overlay.is_plain:
                put(row, data)
                return
            old = entries.get(row)
            if old is None:
                overlay.size_bytes += len(row) + len(data) + ENTRY_COST
            else:
                overlay.size_bytes += len(data) - len(old)
            entries[row] = data
            now_ms = clock.now_ms
            if now_ms is not None:
                times[row] = now_ms

        return write

    def put_all(self, writes: Writes, times: list[int] | None = None) -> None:
        """Stage many writes with their times; None: the time of what is being processed."""
        self._staged.check_open()
        self._overlay.put_all(writes)
        if self.times is not None:
            self.times.note(writes, times)

    def put_anew(self, writes: Writes) -> None:
        """Stage other bytes of rows that are there, and that keep their times."""
        rows = list(writes)
        stamped = zip(rows, self.times_of(rows), strict=True)
        times = {row: time for row, time in stamped if time is not None}
        if times:
            self.put_all({row: writes[row] for row in times}, list(times.values()))
        unknown = {row: value for row, value in writes.items() if row not in times}
        if unknown:
            self.put_all(unknown)

    def times_of(self, keys: list[bytes]) -> list[int | None]:
        """Return the time of each row; None where it is not kept."""
        return [None] * len(keys) if self.times is None else self.times.of(keys)

    def all_latest(self, times: list[int]) -> bool:
        """Tell whether no row has a later time than any of these."""
        return self.times is None or min(times, default=NO_ROW_MS) >= self.times.latest_ms

    def later(self, keys: list[bytes], times: list[int]) -> list[int]:
        """Return the later of each row's time, if that is kept, and this one."""
        return times if self.times is None else self.times.later(keys, times)

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> RowScan[Pair]:
        """Return the pairs with lo <= key <= hi in byte order, with pending writes, as of now."""
        self._staged.check_open()
        self._metrics.ranges += 1
        cursor = self._table.scan(lo, hi, reverse=reverse)
        pending = self._overlay.between(lo, hi, reverse=reverse) if self._entries else []
        return scan_of(self._staged, cursor, pending, reverse=reverse)

    def scan_kept(self, lo: bytes | None = None, hi: bytes | None = None) -> RowScan[Pair]:
        """Return the pairs that are there, also those that are not shown any more."""
        return StagedTable.scan(self, lo, hi)

    def moment(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> "OwnerMoment":
        """Return the rows as they are now, for the owner's thread, until it writes."""
        return OwnerMoment(self, lo, hi, reverse=reverse)

    def count_late(self, records: int) -> None:
        """Count records that came too late to be written."""
        self._metrics.late += records

    def seek_many(self, keys: list[bytes]) -> list[Pair | None]:
        """Return the first row at or after each key. No pending deletes may lie there."""
        try:
            committed = self._table.seek_many(keys)
        except Exception as error:
            raise self._staged.failure(error) from error
        if not self._entries:
            return committed
        pending = self._overlay.at_or_after(keys)
        return [first_of(*both) for both in zip(committed, pending, strict=True)]

    def scan_many(self, ranges: list[tuple[bytes, bytes]]) -> list[list[Pair]]:
        """Return the rows of each range as `scan` does; their starts are in order."""
        self._staged.check_open()
        self._metrics.ranges += len(ranges)
        try:
            committed = self._table.scan_many(ranges)
        except Exception as error:
            raise self._staged.failure(error) from error
        if not self._entries:
            return committed
        self._overlay.sort()
        between = self._overlay.between
        for place, (lo, hi) in enumerate(ranges):
            pending = between(lo, hi, reverse=False)
            if pending:
                committed[place] = list(overlaid(committed[place], pending, reverse=False))
        return committed

    def approximate_count(self) -> int:
        """Return about how many keys there are, counting pending ones as new."""
        self._staged.check_open()
        return self._table.approximate_count() + len(self._entries)

    # The transaction, for a store whose data is this table alone.

    def commit(
        self, offsets: Mapping[TopicPartition, int | None], position: Position | None = None
    ) -> None:
        """Commit what is pending."""
        times = {} if self.times is None else self.times.rows(self._entries)
        self._staged.commit(offsets, position, more={rows.TABLE: times})

    def restore(
        self,
        keys: list[bytes],
        values: list[bytes | None],
        times: list[int],
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Write changelog records past the pending writes, with the offsets they reach (E8)."""
        writes = dict(zip(keys, values, strict=True))
        beside: Writes = {}
        if self.times is not None:
            beside = self.times.restored(writes, dict(zip(keys, times, strict=True)))
        self._staged.restore(self._name, writes, offsets, beside)

    def changes(self, otherwise_ms: int) -> Changes:
        """Return what the next commit logs: the last value of each key.

        `otherwise_ms`: the time of writes that were not caused by a record.
        """
        keys = list(self._entries)
        times = [otherwise_ms] * len(keys)
        if self.times is not None:
            times = self.times.logged(keys, otherwise_ms)
        return Changes(keys, list(self._entries.values()), times)


class OwnerMoment:
    """The Moment of the owner, whose rows change only between its own calls."""

    def __init__(
        self, table: StagedTable, lo: bytes | None, hi: bytes | None, *, reverse: bool
    ) -> None:
        self.get_many = table.get_many
        self._open_scan = partial(table.scan, lo, hi, reverse=reverse)
        self._scan: RowScan[Pair] | None = None

    def scan(self) -> RowScan[Pair]:
        """Return the rows that the moment was opened for, on a snapshot."""
        if self._scan is None:
            self._scan = self._open_scan()
        return self._scan

    def close(self) -> None:
        """Release the snapshot. Closing twice is harmless."""
        if self._scan is not None:
            self._scan.close()


def first_of(committed: Pair | None, pending: tuple[bytes, bytes | None] | None) -> Pair | None:
    """Return the row with the smaller key; if both have the same key, the pending row."""
    if pending is None or (committed is not None and committed[0] < pending[0]):
        return committed
    key, value = pending
    assert value is not None, "a pending delete where only puts may lie"
    return key, value
