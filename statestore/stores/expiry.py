"""Key-value stores whose rows expire a while after their last put, by event time.

The times of rows lie beside the offsets (stores/row_times.py), and so do three kinds of rows more:

    x <time, 8 bytes, key>    nothing        finds the rows that expire next
    n                         8 bytes        the stream time of the last commit
    e                         nothing        every row of the data has a time and a row `x`

Integers are big-endian and signed, in ms. The time of a row is the stream time at its put, so it is
never behind what was there before. A put before the first record, as by a punctuation, has the time
-1, and is repeated once there is a stream time: its row counts as put then. Each row has a row `x`
with that time or an earlier one: a put of a row that has one leaves it, and it is moved when its
time has come. A row is expired as soon as stream time is past its time by the store's `ttl_ms`, and
nobody is shown it from then on. The owner deletes expired rows as it reads and commits, a bounded
number in each commit, and logs the deletes. As long as nothing has expired that is not deleted, its
reads cost one comparison more than those of other stores.

Only the owner's thread uses `ExpiringTable`; `ExpiringRows` is for all others.

Keeps I36.
"""

import struct
from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Final, NamedTuple

from statestore.model.ids import Position, TopicPartition
from statestore.ports import Seeker, Table, Writes
from statestore.stores import offsets as rows
from statestore.stores.pending import MISSING, Entries, slice_of
from statestore.stores.reads import Pair, RowScan, RowSource, SourceMoment, scan_of
from statestore.stores.row_times import RowTimes, rows_at, stored_times
from statestore.stores.staged_table import Changes, StagedTable
from statestore.stores.transaction import StagedEngine

_INDEX: Final = b"x"
_NOW_KEY: Final = b"n"
_WHOLE_KEY: Final = b"e"
_TIME: Final = struct.Struct(">q")
_FIRST: Final = _INDEX + _TIME.pack(0)
_NO_TIME_MS: Final = -1
"""The stream time before the first record."""
_EARLY: Final = _INDEX + _TIME.pack(_NO_TIME_MS)
"""How the rows `x` begin of what was put then; they sort behind all others."""
_SWEPT_AT_ONCE: Final = 1000
_INDEXED_AT_ONCE: Final = 10_000
_LOOKS_MAX: Final = 1_000_000


def forget_times(staged: StagedEngine) -> None:
    """Note that a store is opened without expiry: the times of its rows will be out of date."""
    if staged.table(rows.TABLE).get(_WHOLE_KEY) is not None:
        staged.keep(rows.TABLE, {_WHOLE_KEY: None})


class _Sweep:
    """What the owner knows of the rows `x`: a `pending.Pending` part.

    `ahead`: those that were read and come next, a heap. All with a time before `read_ms` were read;
    the next ones begin at `from_row`. Nothing expires before `due_ms`. `written`: rows `x` to be
    written or deleted. `taken`: the keys whose row `x` is to be deleted. `begun` and `puts` count
    writes: if they differ, the time of a write or its row is not there yet. `early`: some rows were
    put before there was a stream time; `repeated`: such puts were repeated since the last commit.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = self.committed_ms = now_ms
        self.ahead: list[tuple[int, bytes]] = []
        self.written: list[tuple[bytes, bytes | None]] = []
        self.taken: set[bytes] = set()
        self.swept = self.deleted = self.begun = self.puts = 0
        self.first_put_ms: int | None = None
        self.early = self.early_committed = self.repeated = False
        self.begin_again()

    def begin_again(self) -> None:
        """Read the rows `x` from the first one again."""
        self.ahead.clear()
        self.from_row, self.read_ms, self.due_ms = _FIRST, 0, -1

    def mark(self) -> int:
        """Return how many rows `x` are written."""
        return len(self.written)

    def go_back(self, mark: int) -> None:
        """Undo what was written since; stream time may stay too late, as may `taken`."""
        self.early = self.early or self.repeated
        if len(self.written) > mark or self.repeated:
            del self.written[mark:]
            self.begin_again()

    def forget_marks(self) -> None:
        """Do nothing: marks take no memory here."""

    def commit(self) -> None:
        """Take what is pending as committed."""
        self.committed_ms = self.now_ms
        self.early_committed = self.early
        self._end()

    def rollback(self) -> None:
        """Forget what is pending."""
        self.now_ms = self.committed_ms
        self.early = self.early_committed
        self._end()
        self.begin_again()

    def _end(self) -> None:
        self.written.clear()
        self.taken.clear()
        self.swept = self.deleted = self.begun = self.puts = 0
        self.first_put_ms = None
        self.repeated = False


class PendingRows(NamedTuple):
    """What is pending in a store at one moment, and its owner's stream time; None: not asked."""

    entries: Entries
    times: dict[bytes, int]
    now_ms: int | None


class ExpiringTable(StagedTable):
    """The rows of a store that expire, as their owner sees them."""

    def __init__(self, staged: StagedEngine, name: str, times: RowTimes, ttl_ms: int) -> None:
        super().__init__(staged, name, times)
        self.ttl_ms: Final = ttl_ms
        self._stamps = times
        self._meta = staged.table(rows.TABLE)
        self._sweep = _Sweep(_read_now(self._meta.get(_NOW_KEY)))
        self._marked = self._meta.get(_WHOLE_KEY) is not None
        self._whole = self._marked or staged.empty()
        self._sweep.early = self._sweep.early_committed = bool(self._early_keys())
        staged.keep_in_step(self._sweep)

    # Reads.

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return the value, looking at pending writes first, or `default`."""
        sweep, now_ms = self._sweep, self._clock.now_ms
        if now_ms is None or now_ms < sweep.now_ms:
            now_ms = sweep.now_ms
        if now_ms >= sweep.due_ms and self._hides() and self._expired([key])[0]:
            return default
        return StagedTable.get(self, key, default)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key, in order."""
        if not self._hides():
            return super().get_many(keys)
        found, expired = super().get_many(keys), self._expired(keys)
        return [None if gone else value for value, gone in zip(found, expired, strict=True)]

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> RowScan[Pair]:
        """Return the pairs with lo <= key <= hi in byte order, with pending writes, as of now."""
        hides = self._hides()
        found = super().scan(lo, hi, reverse=reverse)
        if not hides:
            return found
        gone_ms = self._sweep.now_ms - self.ttl_ms

        def shown(pairs: Iterator[Pair]) -> Iterator[Pair]:
            while chunk := list(islice(pairs, _SWEPT_AT_ONCE)):
                times = self._stamps.of([key for key, _ in chunk])
                for pair, time in zip(chunk, times, strict=True):
                    if time is None or time > gone_ms:
                        yield pair

        return found.through(shown)

    # Writes.

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage one write; None deletes."""
        self._staged.check_open()
        sweep, now_ms = self._sweep, self._clock.now_ms
        sweep.begun += 1
        self._overlay.put(key, value)
        if now_ms is None or now_ms < sweep.now_ms:
            now_ms = sweep.now_ms
        sweep.now_ms = now_ms
        ahead_ms = self._clock.ahead_ms
        if ahead_ms is not None and ahead_ms > now_ms:
            now_ms = ahead_ms
        if sweep.first_put_ms is None:
            sweep.first_put_ms = now_ms
            sweep.early = sweep.early or now_ms == _NO_TIME_MS
        self._stamps.note_one(key, now_ms)
        sweep.puts += 1

    def put_all(self, writes: Writes, times: list[int] | None = None) -> None:
        """Stage many writes, all with stream time."""
        assert times is None, "rows that expire have stream time"
        self._staged.check_open()
        self._sweep.begun += len(writes)
        self._overlay.put_all(writes)
        self._note(writes)

    def put_anew(self, writes: Writes) -> None:
        """Stage other bytes of rows that are there; they expire when they would have expired."""
        self._index_all()
        keys = list(writes)
        stamped = zip(keys, self._stamps.of(keys), strict=True)
        times = {key: time for key, time in stamped if time is not None}
        self._staged.check_open()
        self._sweep.begun += len(writes)
        self._overlay.put_all(writes)
        self._stamps.note(times, list(times.values()))
        self._sweep.puts += len(times)
        unknown = [key for key in keys if key not in times]
        if unknown:  # There is no stream time yet.
            self._note(unknown)

    # The transaction.

    def changes(self, otherwise_ms: int) -> Changes:
        """Return what the next commit logs, with deletes of what has expired.

        `otherwise_ms`: stream time.
        """
        if otherwise_ms:  # 0 also stands for none.
            self._sweep.now_ms = max(self._sweep.now_ms, otherwise_ms)
        self._hides()
        return super().changes(otherwise_ms)

    def commit(
        self, offsets: Mapping[TopicPartition, int | None], position: Position | None = None
    ) -> None:
        """Commit what is pending, with stream time."""
        self._index_all()
        sweep = self._sweep
        beside = self._stamps.rows(self._entries) | dict(sweep.written)
        puts = [key for key, value in self._entries.items() if value is not None]
        known = self._stamps.committed(puts)
        for key, old, time in zip(puts, known, self._stamps.of(puts), strict=True):
            if old is None or key in sweep.taken:
                beside[_indexed(key, sweep.now_ms if time is None else time)] = b""
        self._staged.commit(offsets, position, more={rows.TABLE: beside | self._own_rows()})

    def restore(
        self,
        keys: list[bytes],
        values: list[bytes | None],
        times: list[int],
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Write changelog records past the pending writes, with the offsets they reach (E8)."""
        times = [max(time, _NO_TIME_MS) for time in times]
        writes = dict(zip(keys, values, strict=True))
        stamps = dict(zip(keys, times, strict=True))
        beside = self._stamps.restored(writes, stamps)
        beside |= {_indexed(key, stamps[key]): b"" for key in keys if writes[key] is not None}
        sweep = self._sweep
        sweep.early = sweep.early_committed = sweep.early or _NO_TIME_MS in times
        # How late it is, `reached` says: rows may be ahead of stream time (SEMANTICS E4d).
        self._staged.restore(self._name, writes, offsets, beside | self._own_rows())
        sweep.begin_again()

    def reached(self, stream_time_ms: int) -> None:
        """Take in the stream time of the last commit, before anything is processed."""
        sweep = self._sweep
        if stream_time_ms > sweep.now_ms:
            sweep.now_ms = sweep.committed_ms = stream_time_ms
            self._staged.keep(rows.TABLE, self._own_rows())

    def pending(self) -> PendingRows:
        """Return a copy of what is pending, for a reader on another thread that holds the turn."""
        sweep = self._sweep
        # The owner writes a row and then its time, and does not wait for readers. An owner that was
        # interrupted between the two never ends this; its rollback waits for the turn.
        for _ in range(_LOOKS_MAX):
            finished = sweep.puts
            if sweep.begun == finished:
                found = self._copied()
                if sweep.begun == finished:
                    return found
        return self._copied()

    def _copied(self) -> PendingRows:
        now_ms = self._sweep.now_ms
        if self._clock.now_ms is not None:
            now_ms = max(now_ms, self._clock.now_ms)
        return PendingRows(self._entries.copy(), self._stamps.pending(), now_ms)

    # How it is done.

    def _note(self, keys: Collection[bytes]) -> None:
        now_ms, sweep, ahead_ms = self._now(), self._sweep, self._clock.ahead_ms
        if ahead_ms is not None and ahead_ms > now_ms:
            now_ms = ahead_ms
        if sweep.first_put_ms is None:
            sweep.first_put_ms = now_ms
            sweep.early = sweep.early or now_ms == _NO_TIME_MS
        self._stamps.note(keys, [now_ms] * len(keys))
        sweep.puts += len(keys)

    def _now(self) -> int:
        """Return stream time, which never goes back."""
        now_ms, sweep = self._clock.now_ms, self._sweep
        if now_ms is not None and now_ms > sweep.now_ms:
            sweep.now_ms = now_ms
        return sweep.now_ms

    def _hides(self) -> bool:
        """Delete what has expired, within bounds; tell whether some of it may be left."""
        now_ms, sweep = self._now(), self._sweep
        if now_ms < sweep.due_ms or now_ms == _NO_TIME_MS:
            return False
        self._index_all()
        if sweep.early:
            self._repeat_early(now_ms)
        gone_ms = now_ms - self.ttl_ms
        left = _SWEPT_AT_ONCE + 2 * (sweep.puts - sweep.deleted) - sweep.swept
        next_ms = self._next_ms(now_ms)
        while next_ms <= gone_ms and left > 0:
            taken: list[tuple[int, bytes]] = []
            known_ms = min(gone_ms, sweep.read_ms)
            while sweep.ahead and sweep.ahead[0][0] <= known_ms and len(taken) < left:
                taken.append(heappop(sweep.ahead))
            if not taken:
                break  # What comes next is pending, or as of now.
            self._take(taken, gone_ms)
            left -= len(taken)
            sweep.swept += len(taken)
            next_ms = self._next_ms(now_ms)
        sweep.due_ms = next_ms + self.ttl_ms
        return now_ms >= sweep.due_ms

    def _next_ms(self, now_ms: int) -> int:
        """Return the least time that a row may have, having read rows `x` up to it."""
        sweep = self._sweep
        while not sweep.ahead or sweep.ahead[0][0] > sweep.read_ms:
            if not self._read_ahead(now_ms):
                return sweep.read_ms
        return sweep.ahead[0][0]

    def _expired(self, keys: list[bytes]) -> list[bool]:
        gone_ms = self._sweep.now_ms - self.ttl_ms
        entries = self._entries
        times = self._stamps.of(keys)
        return [
            entries.get(key, MISSING) is None or (time is not None and time <= gone_ms)
            for key, time in zip(keys, times, strict=True)
        ]

    def _take(self, taken: list[tuple[int, bytes]], gone_ms: int) -> None:
        """Delete the rows that have expired; the others get a row `x` of their present time."""
        sweep, entries = self._sweep, self._entries
        gone: Entries = {}
        times = self._stamps.of([key for _, key in taken])
        for (indexed_ms, key), time in zip(taken, times, strict=True):
            sweep.written.append((_indexed(key, indexed_ms), None))
            if time is None or entries.get(key, MISSING) is None:
                sweep.taken.add(key)
            elif time > gone_ms:
                sweep.written.append((_indexed(key, time), b""))
                heappush(sweep.ahead, (time, key))
            else:
                sweep.taken.add(key)
                gone[key] = None
        if gone:
            sweep.begun += len(gone)
            self._overlay.put_all(gone)
            self._stamps.note(gone, [sweep.now_ms] * len(gone))
            sweep.puts += len(gone)
            sweep.deleted += len(gone)

    def _read_ahead(self, now_ms: int) -> bool:
        """Read more rows `x`; tell whether that was possible.

        Nothing is read as of now or of a pending put: rows with that time may yet be added.
        """
        sweep = self._sweep
        end_ms = now_ms if sweep.first_put_ms is None else min(now_ms, sweep.first_put_ms)
        if end_ms <= sweep.read_ms:
            return False
        end = _INDEX + _TIME.pack(end_ms)
        cursor = self._meta.scan(sweep.from_row, end)
        try:
            found = [row for row, _ in islice(cursor, _SWEPT_AT_ONCE) if row < end]
        except Exception as error:
            raise self._staged.failure(error) from error
        finally:
            cursor.close()
        sweep.ahead += [(_TIME.unpack_from(row, 1)[0], row[1 + _TIME.size :]) for row in found]
        heapify(sweep.ahead)
        if len(found) < _SWEPT_AT_ONCE:
            sweep.from_row, sweep.read_ms = end, end_ms
        else:
            sweep.from_row, sweep.read_ms = found[-1] + b"\0", _TIME.unpack_from(found[-1], 1)[0]
        return True

    def _index_all(self) -> None:
        """Give every row the present time, if rows were written while none expired."""
        now_ms = self._now()
        if self._whole or now_ms <= 0:
            return
        cursor = self._table.scan()
        try:
            while found := [key for key, _ in islice(cursor, _INDEXED_AT_ONCE)]:
                made: Entries = {_indexed(key, now_ms): b"" for key in found}
                made |= rows_at(found, now_ms)
                self._staged.keep(rows.TABLE, made)
        finally:
            cursor.close()
        self._staged.keep(rows.TABLE, {_WHOLE_KEY: b""})
        self._whole = self._marked = True
        self._sweep.begin_again()

    def _repeat_early(self, now_ms: int) -> None:
        """Put again, with stream time, what was put before there was one."""
        sweep = self._sweep
        keys = self._early_keys()
        sweep.written += [(_EARLY + key, None) for key in keys]
        sweep.taken.update(keys)
        keys += self._entries
        early = [
            key
            for key, time in zip(keys, self._stamps.of(keys), strict=True)
            if time == _NO_TIME_MS
        ]
        writes = dict(zip(early, StagedTable.get_many(self, early), strict=True))
        sweep.begun += len(writes)
        self._overlay.put_all(writes)
        sweep.first_put_ms = now_ms
        self._note(writes)
        sweep.early, sweep.repeated = False, True

    def _early_keys(self) -> list[bytes]:
        """Return the keys of rows that were committed before there was a stream time."""
        cursor = self._meta.scan(_EARLY)
        try:
            rows_there = takewhile(lambda row: row.startswith(_EARLY), (row for row, _ in cursor))
            return [row[len(_EARLY) :] for row in rows_there]
        finally:
            cursor.close()

    def _own_rows(self) -> Entries:
        """Return the rows of the store as a whole for a write of its rows."""
        made: Entries = {_NOW_KEY: _TIME.pack(self._sweep.now_ms)}
        if self._whole and not self._marked:
            made[_WHOLE_KEY] = b""
            self._marked = True
        return made


class ExpiringRows:
    """The `reads.Rows` of a store whose rows expire, for others than its owner.

    What has expired at the stream time of the last commit is not shown, or at the owner's stream
    time where pending writes are.
    """

    def __init__(
        self, source: RowSource, table: str, ttl_ms: int, owner: ExpiringTable | None = None
    ) -> None:
        """`owner`: show what is pending there."""
        self._source = source
        self._table = source.table(table)
        self._meta: Table = source.table(rows.TABLE)
        self._ttl_ms = ttl_ms
        self._owner = owner
        self.is_open = source.is_open
        self.check_open = source.check_open

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self.get_many([key])[0]

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key, in order, all of one moment."""
        self._source.counts.gets += len(keys)
        moment = self.moment(b"", b"")
        try:
            return moment.get_many(keys)
        finally:
            moment.close()

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> RowScan[Pair]:
        """Return the pairs with lo <= key <= hi in byte order, as they are now."""
        self._source.counts.ranges += 1
        moment = self.moment(lo, hi, reverse=reverse)
        found = moment.scan()
        return RowScan(iter(found), found.check_open, moment.close, notices_close=True)

    def moment(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> "ExpiringMoment":
        """Return the rows as they are now; those from `lo` to `hi` can be scanned."""
        source, owner = self._source, self._owner
        source.check_ready()
        try:
            with source.turn:
                pending = PendingRows({}, {}, None) if owner is None else owner.pending()
                seeker = self._table.seeker()
                stamps = self._meta.seeker()
                cursor = self._table.scan(lo, hi, reverse=reverse)
        except Exception as error:
            raise source.failure(error) from error
        entries, times, now_ms = pending
        if now_ms is None:
            now_ms = _read_now(stamps.get_many([_NOW_KEY])[0])
        waiting = slice_of(entries, lo, hi, reverse=reverse) if entries else []
        shown = scan_of(source, cursor, waiting, reverse=reverse)
        inner = SourceMoment(source, seeker, entries, shown)
        return ExpiringMoment(inner, stamps, times, now_ms - self._ttl_ms)

    def approximate_count(self) -> int:
        """Return about how many committed rows there are, with those that have expired."""
        self._source.check_ready()
        return self._table.approximate_count()


class ExpiringMoment:
    """The Moment of such rows."""

    def __init__(
        self, inner: SourceMoment, stamps: Seeker, pending: dict[bytes, int], gone_ms: int
    ) -> None:
        """`pending`: times of pending rows. What has a time up to `gone_ms` is not shown."""
        self._inner = inner
        self._stamps = stamps
        self._pending = pending
        self._gone_ms = gone_ms

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key, in order."""
        found = self._inner.get_many(keys)
        shown = zip(found, self._show(keys), strict=True)
        return [value if show else None for value, show in shown]

    def scan(self) -> RowScan[Pair]:
        """Return the rows that the moment was opened for."""
        return self._inner.scan().through(self._shown)

    def close(self) -> None:
        """Release the snapshots. Closing twice is harmless."""
        self._inner.close()
        self._stamps.close()

    def _shown(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        while chunk := list(islice(pairs, _SWEPT_AT_ONCE)):
            for pair, show in zip(chunk, self._show([key for key, _ in chunk]), strict=True):
                if show:
                    yield pair

    def _show(self, keys: list[bytes]) -> list[bool]:
        stored = stored_times(self._stamps.get_many, keys)
        times = [self._pending.get(key, time) for key, time in zip(keys, stored, strict=True)]
        return [time is None or time > self._gone_ms for time in times]


def _indexed(key: bytes, time_ms: int) -> bytes:
    return _INDEX + _TIME.pack(time_ms) + key


def _read_now(data: bytes | None) -> int:
    now_ms: int = _NO_TIME_MS if data is None else _TIME.unpack(data)[0]
    return now_ms
