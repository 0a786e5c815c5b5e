"""What stores of windows and of sessions share: their reads, and the writes of processors.

A row begins with the times of its window, so that what expires lies together, and ends with its
key. The row TIME_ROW has the store's stream time: it is staged, committed, logged and restored with
the windows whose expiry it determines. Rows from UNLOGGED on follow from the others and are in no
changelog; they find the windows of one key.

An aggregate writes the rows of its store itself. A store that processors write has the largest time
that was put, as in Kafka Streams: of a window its start, of a session its end. What has expired is
not shown any more; it is deleted little by little, so that no put has to delete a great many.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple

from statestore.errors import Misuse
from statestore.model.ids import PositionBound
from statestore.model.modes import IsolationLevel, Time, to_ms
from statestore.model.records import K, V, Windowed
from statestore.stores.codec import Codec
from statestore.stores.keyvalue import TransactionalKeyValueStore, live_rows
from statestore.stores.pending import Entries
from statestore.stores.reads import (
    Entry,
    LiveSource,
    Pair,
    Reader,
    Rows,
    RowScan,
    SourceRows,
    joined,
)
from statestore.stores.specs import FOLLOWING, InWindowsSpec
from statestore.stores.staged_table import StagedTable
from statestore.stores.transactional import TransactionalBase

TIME_ROW: Final = b"t"
UNLOGGED: Final = FOLLOWING
"""Times are not negative, so the rows of windows and of stream time come before."""
START: Final = struct.Struct(">q")
TIME_MAX: Final = (1 << 63) - 1
_SWEPT_AFTER: Final = 500
_SWEPT_AT_ONCE: Final = 2 * _SWEPT_AFTER


def start_of(row: bytes) -> int:
    """Return the time at which a row begins: the start of a window, the end of a session."""
    start: int = START.unpack_from(row)[0]
    return start


class RowShape(NamedTuple):
    """How the rows of one kind begin.

    `width`: how many bytes come before the key. `start_at`: where among them the start is.
    `what`: how messages call the windows.
    """

    width: int
    start_at: int
    what: str


class ReaderInWindows(ABC, Reader[Rows], Generic[K, V]):
    """Reads of a store of windows over any Rows.

    Over several partitions a key is looked for in each, and scans are merged in the order of rows.
    A window that has expired by its own partition's stream time does not show.
    """

    span_names: ClassVar[tuple[str, ...]] = ("start_ms", "end_ms")
    shape: ClassVar[RowShape]

    def __init__(
        self,
        parts: Sequence[Rows],
        spec: InWindowsSpec,
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(spec.name, parts, release)
        self._codec: Codec[K, V] = Codec(spec.name, spec.inner, spec.value_serde)
        self._kept_ms = spec.retention_ms

    def fetch(
        self,
        key: K,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        reverse: bool = False,
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the windows of the key between both times, inclusive, in the order of rows."""
        data, (first, last) = self._codec.key(key), _interval(from_time, to_time)
        scans = []
        for rows in self._opened():
            found = self._of_key(rows, data, first, last)
            windows = self._decoded(reversed(found) if reverse else iter(found))
            scans.append(RowScan(windows, rows.check_open))
        return joined(scans, key=self._order, reverse=reverse)

    def range(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        reverse: bool = False,
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the windows of keys with lo <= key <= hi between both times, as `fetch` does."""
        low, high = self._codec.optional_key(lo), self._codec.optional_key(hi)
        first, last = _interval(from_time, to_time)
        scans = [
            self._of_keys(rows, low, high, first, last, reverse=reverse) for rows in self._opened()
        ]
        return joined(scans, key=self._order, reverse=reverse)

    def all(self, reverse: bool = False) -> RowScan[tuple[Windowed[K], V]]:
        """Return every window of every key, in the order of rows."""
        return self.range(reverse=reverse)

    def observed_stream_time(self) -> int | None:
        """Return the largest time counted in any partition, in ms; None before the first."""
        times = [rows.get_many([TIME_ROW])[0] for rows in self._opened()]
        return max((start_of(time) for time in times if time is not None), default=None)

    # For tools that do not know the kind of the store.

    def find(self, key: K, as_of_ms: int | None = None) -> Entry | None:
        """Return the value in the last window that contains a time. Misuse without a time."""
        if as_of_ms is None:
            raise Misuse(
                f"store {self.name!r} has {self.shape.what}: pass --as-of (as_of), a time in the "
                "right one"
            )
        with self._containing(key, as_of_ms) as windows:
            found = list(windows)
        if not found:
            return None
        window, value = found[-1]
        return Entry(key, value, window.start_ms, window.end_ms)

    def entries(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        as_of_ms: int | None = None,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        """Return the windows of keys with lo <= key <= hi, in their order. A time is Misuse."""
        if as_of_ms is not None:
            raise Misuse(
                f"store {self.name!r} has {self.shape.what}, and no history: leave --as-of out"
            )
        return self.range(lo, hi, reverse=reverse).through(
            lambda pairs: (Entry(of.key, value, of.start_ms, of.end_ms) for of, value in pairs)
        )

    def everything(self) -> RowScan[Entry]:
        """Return all that a reader may see."""
        return self.entries()

    # What depends on the kind.

    @abstractmethod
    def _containing(self, key: K, time_ms: int) -> RowScan[tuple[Windowed[K], V]]:
        """Return the windows of the key that contain a time."""

    @abstractmethod
    def _of_key(self, rows: Rows, data: bytes, first: int, last: int | None) -> list[Pair]:
        """Return the rows of one key in one partition, of one moment, without what has expired."""

    @abstractmethod
    def _decoded(self, pairs: Iterator[Pair]) -> Iterator[tuple[Windowed[Any], Any]]:
        """Return the windows and values of rows."""

    @abstractmethod
    def _low_ms(self, time_row: bytes | None) -> int:
        """Return the least time with which a row may begin that has not expired."""

    @staticmethod
    @abstractmethod
    def _order(pair: tuple[Windowed[Any], Any], /) -> int:
        """Return the time by which scans of several partitions are merged."""

    # How it is done.

    def _of_keys(
        self,
        rows: Rows,
        lo: bytes | None,
        hi: bytes | None,
        first: int,
        last: int | None,
        *,
        reverse: bool = False,
    ) -> RowScan[tuple[Windowed[K], V]]:
        """Return the windows of keys with lo <= key <= hi in one partition."""
        found = self._rows_of_keys(rows, lo, hi, first, last, reverse=reverse)
        return found.through(self._decoded)

    def _rows_of_keys(
        self,
        rows: Rows,
        lo: bytes | None,
        hi: bytes | None,
        first: int,
        last: int | None,
        *,
        reverse: bool = False,
    ) -> RowScan[Pair]:
        (width, at, _), unpack = self.shape, START.unpack_from
        # Rows that do not begin with the start of their window may lie further on.
        last_row = UNLOGGED if at or last is None or last >= TIME_MAX else packed(last + 1)
        seen = rows.moment(packed(first), last_row, reverse=reverse)
        (time,) = seen.get_many([TIME_ROW])
        low = max(self._low_ms(time), first)
        high = TIME_MAX if last is None else last

        def shown(pairs: Iterator[Pair]) -> Iterator[Pair]:
            for row, value in pairs:
                if row == TIME_ROW or start_of(row) < low or unpack(row, at)[0] > high:
                    continue
                key = row[width:]
                if (lo is None or key >= lo) and (hi is None or key <= hi):
                    yield row, value

        walk = seen.scan()
        return RowScan(shown(iter(walk)), walk.check_open, seen.close, notices_close=True)


class ExpiryProgress:
    """How far an owner's store has come: a `pending.Pending` part, in step with its writes.

    `now_ms` None: the row of stream time has not been read since the last rollback. `from_row`:
    the first row that may have expired and not been deleted.
    """

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self.from_row = START.pack(0)

    def mark(self) -> tuple[int | None, bytes]:
        """Return what `go_back` takes."""
        return self.now_ms, self.from_row

    def go_back(self, mark: tuple[int | None, bytes]) -> None:
        """Undo what came since the mark."""
        self.now_ms, self.from_row = mark

    def forget_marks(self) -> None:
        """Do nothing: marks take no memory here."""

    def commit(self) -> None:
        """Do nothing: what is pending stays as it is."""

    def rollback(self) -> None:
        """Read the rows again when they are needed."""
        self.now_ms, self.from_row = None, START.pack(0)


class OwnerInWindows(TransactionalBase):
    """The owner's part of a store of windows, in which pending writes are visible at once."""

    def __init__(
        self,
        store: TransactionalKeyValueStore[bytes, bytes],
        spec: InWindowsSpec,
        stage: Callable[[Entries], None],
        low_ms: Callable[[int], int],
    ) -> None:
        """`stage` writes rows with those that follow from them.

        `low_ms` returns the least time of rows that have not expired at a stream time.
        """
        TransactionalBase.__init__(
            self,
            store.staged,
            store.table.commit,
            isolation_level=store.level_of(None),
            owned_by_task=store.owned_by_task,
        )
        self.table: StagedTable = store.table
        self.spec = spec
        self._stage = stage
        self._low_of = low_ms
        self._expiry = ExpiryProgress()
        self._puts = 0
        self._limit_ms: int | None = None
        if spec.writable:
            store.staged.keep_in_step(self._expiry)

    def _live_rows(
        self,
        isolation_level: IsolationLevel | str | None,
        position_bound: PositionBound | None,
    ) -> list[SourceRows]:
        source = LiveSource(self.staged, self.level_of(isolation_level), position_bound)
        return [live_rows(source, self.staged)]

    def hold_time(self, limit_ms: int | None) -> None:
        """Judge rows as if stream time were no later than that; None: by the latest row."""
        self._limit_ms = limit_ms

    def _check_writable(self) -> None:
        if not self.spec.writable:
            raise Misuse(
                f"store {self.name!r} is written by the aggregate that it belongs to: give the "
                "processor a store of its own, persistent_window_store() or "
                "persistent_session_store()"
            )

    def _put(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Stage rows, but for those that have already expired, which are counted as late."""
        self.staged.check_open()
        expiry, low_of, limit = self._expiry, self._low_of, self._limit_ms
        now = before = self._observed()
        low, late = low_of(now), 0
        writes: Entries = {}
        for row, value in rows:
            self._puts += 1
            time = start_of(row)
            if time > now:
                reached = time if limit is None else min(time, limit)
                if reached > now:
                    now, low = reached, low_of(reached)
            elif time < low:
                late += 1
                continue
            writes[row] = value
        if late:
            self.table.count_late(late)
        if now > before:
            self.table.put(TIME_ROW, START.pack(now))
            expiry.now_ms = now
        if writes:
            self._stage(writes)
        if self._puts >= _SWEPT_AFTER:
            self._delete_expired(low, max(_SWEPT_AT_ONCE, 2 * self._puts))
            self._puts = 0

    def _observed(self) -> int:
        if self._expiry.now_ms is None:
            stored = self.table.get(TIME_ROW)
            self._expiry.now_ms = -1 if stored is None else start_of(stored)
        return self._expiry.now_ms

    def _delete_expired(self, low_ms: int, limit: int) -> None:
        """Delete up to `limit` rows that have expired, the oldest first."""
        end = packed(low_ms)
        if end <= self._expiry.from_row:
            return
        gone: Entries = {}
        with self.table.scan(self._expiry.from_row, end) as rows:
            for row, _ in rows:
                if len(gone) == limit:
                    end = row
                    break
                if row != TIME_ROW and start_of(row) < low_ms:
                    gone[row] = None
        if gone:
            self._stage(gone)
        self._expiry.from_row = end


def checked_ms(store: str, time: Time) -> int:
    """Return the time of a window in ms; Misuse if no window can have it."""
    time_ms: object = to_ms(time)
    if not isinstance(time_ms, int) or not 0 <= time_ms <= TIME_MAX:
        raise Misuse(
            f"store {store!r}: a window cannot start or end at {time_ms!r}: times are whole "
            "milliseconds since 1970, and not negative, or aware datetimes"
        )
    return time_ms


def packed(time_ms: int) -> bytes:
    """Return how rows of that time begin, or of the nearest time that a window can have."""
    return START.pack(min(max(time_ms, 0), TIME_MAX))


def _interval(from_time: Time | None, to_time: Time | None) -> tuple[int, int | None]:
    first = 0 if from_time is None else max(0, to_ms(from_time))
    return first, None if to_time is None else to_ms(to_time)
