"""How the rows of a store are read in bytes: one protocol, `Rows`, for every reader.

A reader runs over the Rows of one partition or of several. They are the owner's, with what is
pending (`staged_table.StagedTable`), those that another thread sees beside the owner
(`LiveSource`), or those of files that nobody writes: a store at rest, a snapshot, an export
(`file_source.FileSource`). Every answer is of one moment (I26). A range of rows is returned
as a `RowScan`, the one iterator of all stores.
"""

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import repeat
from operator import gt, itemgetter, lt
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from statestore.errors import NotUpToBound, StoreClosed
from statestore.model.ids import Position, PositionBound
from statestore.model.modes import IsolationLevel
from statestore.ports import Cursor, Seeker, Table
from statestore.stores.pending import MISSING, Entries, Missing, slice_of
from statestore.stores.transaction import StagedEngine

R = TypeVar("R", bound="Answering")
T = TypeVar("T")
S = TypeVar("S")

Pair = tuple[bytes, bytes]
Slice = list[tuple[bytes, bytes | None]]
_END: Final = (None, None)
_first: Final = itemgetter(0)


class RowScan(Generic[T]):
    """An iterator over rows as they were when it was opened; `with` or close() releases them.

    See `contracts.Scan`. It raises StoreClosed after its own close and after its store's.
    """

    __slots__ = ("_check_store", "_items", "_notices_close", "_open", "_release")

    def __init__(
        self,
        items: Iterator[T],
        check_store: Callable[[], None],
        release: Callable[[], None] | None = None,
        *,
        notices_close: bool = False,
    ) -> None:
        """Take over `items`.

        `check_store` raises StoreClosed once the store is closed. `release` lets go of what the
        items are read from. `notices_close`: after that they raise StoreClosed themselves, at once.
        """
        self._items = items
        self._check_store = check_store
        self._release = release
        self._notices_close = notices_close
        self._open = True

    def __iter__(self) -> Iterator[T]:
        """Return the remaining items.

        If the items notice a close themselves, a loop runs over them without a call in Python for
        each item, which doubles the rate.
        """
        self.check_open()
        return self._items if self._notices_close else self

    def __next__(self) -> T:
        # The check comes first, and every time, because a generator that raised once has ended.
        self.check_open()
        return next(self._items)

    def check_open(self) -> None:
        """Raise StoreClosed after the close of this iterator or of its store."""
        if not self._open:
            raise StoreClosed("this iterator is closed: open a new one")
        self._check_store()

    def through(self, change: Callable[[Iterator[T]], Iterator[S]]) -> "RowScan[S]":
        """Return the same scan with its items changed; closing either closes both."""
        return RowScan(
            change(self._items), self.check_open, self.close, notices_close=self._notices_close
        )

    def close(self) -> None:
        """Release the rows. Closing twice is harmless."""
        if self._open:
            self._open = False
            if self._release is not None:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def joined(
    scans: Sequence[RowScan[T]], *, key: Callable[[Any], Any] = _first, reverse: bool = False
) -> RowScan[T]:
    """Merge ordered scans into one, ordered by `key`, by default the first column."""
    if len(scans) == 1:
        return scans[0]

    def check() -> None:
        for scan in scans:
            scan.check_open()

    def release() -> None:
        for scan in scans:
            scan.close()

    merged = heapq.merge(*scans, key=key, reverse=reverse)
    return RowScan(merged, check, release, notices_close=True)


def overlaid(committed: Iterable[Pair], pending: Slice, *, reverse: bool) -> Iterator[Pair]:
    """Merge both in order. If both have a key, the pending entry counts; None is a delete."""
    before = gt if reverse else lt
    waiting = iter(pending)
    key, value = next(waiting, _END)
    for pair in committed:
        at = pair[0]
        while key is not None and before(key, at):
            if value is not None:
                yield key, value
            key, value = next(waiting, _END)
        if key != at:
            yield pair
    while key is not None:
        if value is not None:
            yield key, value
        key, value = next(waiting, _END)


class Answering(Protocol):
    """What every reader asks of the rows of one partition of a store."""

    def is_open(self) -> bool: ...
    def check_open(self) -> None:
        """Raise StoreClosed after the store's close."""


class Moment(Protocol):
    """The rows at one moment, for several questions; `with` or close() releases it."""

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """Return one value per key, in order."""

    def scan(self) -> RowScan[Pair]:
        """Return the rows that the moment was opened for, in order; they can be read once."""

    def close(self) -> None: ...


class Rows(Answering, Protocol):
    """The rows of a store that keeps them in one table."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """Return one value per key, in order, all of one moment."""

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> RowScan[Pair]:
        """Return the pairs with lo <= key <= hi in byte order, as of now; None is unbounded."""

    def moment(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> Moment:
        """Return the rows as they are now; those from `lo` to `hi` can be scanned."""

    def approximate_count(self) -> int:
        """Return about how many rows there are."""


class ReadCounts(Protocol):
    """Where reads are counted."""

    gets: int
    ranges: int


class Guard(Protocol):
    """Tells whether a store is open, and translates its engine's errors."""

    def check_open(self) -> None:
        """Raise StoreClosed after the close."""

    def failure(self, error: Exception, /) -> Exception:
        """Return what to raise for an engine's error; other errors are returned unchanged."""


class RowSource(Guard, Protocol):
    """A store of one stream task, read by others than its owner."""

    @property
    def name(self) -> str: ...
    @property
    def turn(self) -> AbstractContextManager[Any]:
        """Held while several snapshots are opened that must be of one moment."""

    @property
    def counts(self) -> ReadCounts: ...
    @property
    def bounded(self) -> bool:
        """Whether what is pending may be read only while it goes far enough.

        Then `turn` checks that, and nothing is read without it: the owner may go back meanwhile.
        """

    def table(self, name: str, /) -> Table: ...
    def is_open(self) -> bool: ...
    def check_ready(self) -> None:
        """Raise StoreClosed, or what else forbids a new question, such as NotUpToBound."""


class LiveSource:
    """An open store, read beside its owner from any thread, at one isolation level."""

    def __init__(
        self,
        staged: StagedEngine,
        isolation_level: IsolationLevel,
        position_bound: PositionBound | None = None,
    ) -> None:
        """`position_bound`: how far the store must have come to answer."""
        self.name = staged.name
        self.uncommitted = isolation_level is IsolationLevel.READ_UNCOMMITTED
        self.bounded = False
        self.turn: AbstractContextManager[Any] = staged.turn
        self.counts = staged.metrics
        self.table = staged.table
        self.is_open = staged.is_open
        self.check_open = staged.check_open
        self.failure = staged.failure
        self.check_ready: Callable[[], None] = staged.check_open
        if position_bound is not None:
            self.check_ready = partial(self._check_bound, staged, position_bound.position)
            if self.uncommitted:
                self.bounded, self.turn = True, _BoundTurn(staged.turn, self.check_ready)

    def _check_bound(self, staged: StagedEngine, wanted: Position) -> None:
        """Raise StoreClosed, or NotUpToBound while the store is behind the bound."""
        staged.check_open()
        if not staged.processed(wanted, pending=self.uncommitted):
            position = staged.position(pending=self.uncommitted)
            raise NotUpToBound(
                f"store {self.name!r} has processed {position.as_dict()}, asked for "
                f"{wanted.as_dict()}: try again later"
            )


class _BoundTurn:
    """The turn of a store, given only while the store is up to a bound."""

    def __init__(self, turn: threading.Lock, check: Callable[[], None]) -> None:
        self._turn = turn
        self._check = check

    def __enter__(self) -> None:
        self._turn.acquire()
        try:
            self._check()
        except BaseException:
            self._turn.release()
            raise

    def __exit__(self, *_exc: object) -> None:
        self._turn.release()


class SourceRows:
    """The Rows of one table of a source, with pending rows over the committed rows if given."""

    def __init__(self, source: RowSource, table: str, pending: Entries | None = None) -> None:
        """`pending`: the owner's own dict, for a reader that sees uncommitted writes."""
        self._source = source
        self._counts = source.counts
        self._table = source.table(table)
        self._get = self._table.get
        self._check_ready = source.check_ready
        self._pending = pending
        self._bounded = source.bounded
        self.is_open = source.is_open
        self.check_open = source.check_open

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        if self._bounded:
            return self.get_many([key])[0]
        self._check_ready()
        self._counts.gets += 1
        if self._pending:
            value = self._pending.get(key, MISSING)
            if not isinstance(value, Missing):
                return value
        try:
            return self._get(key)
        except Exception as error:
            raise self._source.failure(error) from error

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key, in order, all of one moment."""
        self._source.check_ready()
        self._counts.gets += len(keys)
        try:
            # A write that is no longer pending here was committed before the read below.
            if not (self._pending or self._bounded):
                return self._table.get_many_at_once(keys)
            with self._source.turn:
                # This is one call in C, so the owner cannot write meanwhile.
                found = list(map((self._pending or {}).get, keys, repeat(MISSING)))
                seeker = self._table.seeker()
            try:
                return _filled(found, keys, seeker)
            finally:
                seeker.close()
        except Exception as error:
            raise self._source.failure(error) from error

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> RowScan[Pair]:
        """Return the pairs with lo <= key <= hi in byte order, as they are now."""
        self._source.check_ready()
        self._counts.ranges += 1
        waiting: Slice = []
        try:
            if self._pending is None:
                cursor = self._table.scan(lo, hi, reverse=reverse)
            else:
                with self._source.turn:
                    pending = self._pending.copy()
                    cursor = self._table.scan(lo, hi, reverse=reverse)
                waiting = slice_of(pending, lo, hi, reverse=reverse)
        except Exception as error:
            raise self._source.failure(error) from error
        return scan_of(self._source, cursor, waiting, reverse=reverse)

    def moment(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> "SourceMoment":
        """Return the rows as they are now; those from `lo` to `hi` can be scanned."""
        source = self._source
        source.check_ready()
        try:
            with source.turn:
                pending = {} if self._pending is None else self._pending.copy()
                seeker = self._table.seeker()
                cursor = self._table.scan(lo, hi, reverse=reverse)
        except Exception as error:
            raise source.failure(error) from error
        waiting = slice_of(pending, lo, hi, reverse=reverse) if pending else []
        return SourceMoment(
            source, seeker, pending, scan_of(source, cursor, waiting, reverse=reverse)
        )

    def approximate_count(self) -> int:
        """Return about how many committed rows there are."""
        self._source.check_ready()
        return self._table.approximate_count()


class SourceMoment:
    """The Moment of a source. It raises StoreClosed after its own close and its store's."""

    def __init__(
        self, source: RowSource, seeker: Seeker, pending: Entries, scan: RowScan[Pair]
    ) -> None:
        self._source = source
        self._seeker = seeker
        self._pending = pending
        self._scan = scan

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key, in order."""
        found = list(map(self._pending.get, keys, repeat(MISSING)))
        try:
            return _filled(found, keys, self._seeker)
        except Exception as error:
            raise self._source.failure(error) from error

    def scan(self) -> RowScan[Pair]:
        """Return the rows that the moment was opened for."""
        return self._scan

    def close(self) -> None:
        """Release the snapshots. Closing twice is harmless."""
        self._scan.close()
        self._seeker.close()


class Entry(NamedTuple):
    """A row of a store of any kind, for tools that show them all.

    `begins_ms` and `ends_ms` are the span of a version or of a window; None: there is none, or the
    version is still valid.
    """

    key: Any
    value: Any
    begins_ms: int | None = None
    ends_ms: int | None = None


class Reader(Generic[R]):
    """What readers of all kinds share: their partitions and their close."""

    def __init__(
        self, name: str, parts: Sequence[R], release: Callable[[], None] | None = None
    ) -> None:
        """`parts`: the rows of each partition. `release` is called at every close."""
        self.name = name
        self._parts = parts
        self._release = release
        self._open = True

    def is_open(self) -> bool:
        return self._open and all(part.is_open() for part in self._parts)

    def close(self) -> None:
        """Release what the reader holds. Closing twice is harmless."""
        self._open = False
        if self._release is not None:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, *_exc: object) -> None:
        self.close()

    def _opened(self) -> Sequence[R]:
        """Return the rows of each partition; StoreClosed after the reader's close."""
        if not self._open:
            raise self._closed()
        return self._parts

    def _closed(self) -> StoreClosed:
        return StoreClosed(f"this reader of {self.name!r} is closed: ask for a new one")

    def _check_parts(self) -> None:
        for part in self._parts:
            part.check_open()


def scan_of(guard: Guard, cursor: Cursor, pending: Slice, *, reverse: bool) -> RowScan[Pair]:
    """Return the rows of a cursor with pending rows over them; the scan takes over the cursor."""
    rows = _visible(guard, cursor, pending, reverse=reverse)
    return RowScan(rows, guard.check_open, cursor.close, notices_close=True)


def _visible(guard: Guard, cursor: Cursor, pending: Slice, *, reverse: bool) -> Iterator[Pair]:
    try:
        yield from overlaid(cursor, pending, reverse=reverse) if pending else cursor
    except Exception as error:
        raise guard.failure(error) from error


def _filled(
    found: list[bytes | Missing | None], keys: list[bytes], seeker: Seeker
) -> list[bytes | None]:
    """Return the pending values, with the committed value where one is MISSING."""
    asked = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
    committed = iter(seeker.get_many(asked) if asked else ())
    return [next(committed) if isinstance(value, Missing) else value for value in found]
