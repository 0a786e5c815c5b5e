"""How the rows of a store are read in bytes: one protocol, `Rows`, for every reader.

A reader runs over the Rows of one partition or of several. They are the owner's, with what is
pending (`staged_table.StagedTable`), those that another thread sees beside the owner
(`LiveSource`), or those of files that nobody writes: a store at rest, a snapshot, an export
(`operations.readers.FileSource`). Every answer is of one moment (I26).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import repeat
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from statestore.errors import NotUpToBound, StoreClosed
from statestore.model.ids import Position, PositionBound
from statestore.model.modes import IsolationLevel
from statestore.ports import Cursor, Seeker, Table
from statestore.stores.pending import MISSING, Entries, Missing, slice_of
from statestore.stores.scan import Pair, RowScan, Slice, overlaid
from statestore.stores.transaction import StagedEngine

R = TypeVar("R", bound="Answering")


class Answering(Protocol):
    """The rows of one partition of a store, as far as every reader asks them."""

    def is_open(self) -> bool: ...
    def check_open(self) -> None:
        """Raise StoreClosed after the store's close."""


class Moment(Protocol):
    """The rows at one moment, for several questions; `with` or close() releases it."""

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """One value per key, in order."""

    def scan(self) -> RowScan[Pair]:
        """The rows that the moment was opened for, in order. They can be walked over once."""

    def close(self) -> None: ...


class Rows(Answering, Protocol):
    """The rows of a store that keeps them in one table."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """One value per key, in order, all of one moment."""

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> RowScan[Pair]:
        """Pairs with lo <= key <= hi in byte order, as they are now. None is unbounded."""

    def moment(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> Moment:
        """The rows as they are now. Those from `lo` to `hi` can be walked over."""

    def approximate_count(self) -> int:
        """About how many rows there are."""


class ReadCounts(Protocol):
    """Where reads are counted."""

    gets: int
    ranges: int


class Guard(Protocol):
    """What knows whether a store is open, and its engine's errors."""

    def check_open(self) -> None:
        """Raise StoreClosed after the close."""

    def failure(self, error: Exception, /) -> Exception:
        """What to raise for an engine's error. Other errors come back as they are."""


class RowSource(Guard, Protocol):
    """A store of one stream task that is read by anybody but its owner."""

    @property
    def name(self) -> str: ...
    @property
    def turn(self) -> AbstractContextManager[Any]:
        """Held while several snapshots are opened that must be of one moment."""

    @property
    def counts(self) -> ReadCounts: ...
    def table(self, name: str, /) -> Table: ...
    def is_open(self) -> bool: ...
    def check_ready(self) -> None:
        """Raise also what else forbids a new question, such as NotUpToBound."""


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
        self.turn = staged.turn
        self.counts = staged.metrics
        self.table = staged.table
        self.is_open = staged.is_open
        self.check_open = staged.check_open
        self.failure = staged.failure
        self.check_ready: Callable[[], None] = staged.check_open
        if position_bound is not None:
            self.check_ready = partial(self._check_bound, staged, position_bound.position)

    def _check_bound(self, staged: StagedEngine, wanted: Position) -> None:
        """Raise StoreClosed, or NotUpToBound while the store is behind the bound."""
        staged.check_open()
        if not staged.processed(wanted, pending=self.uncommitted):
            position = staged.position(pending=self.uncommitted)
            raise NotUpToBound(
                f"store {self.name!r} has processed {position.as_dict()}, asked for "
                f"{wanted.as_dict()}: try again later"
            )


class SourceRows:
    """The Rows of one table of a source, with pending ones over the committed ones if given."""

    def __init__(self, source: RowSource, table: str, pending: Entries | None = None) -> None:
        """`pending`: the owner's own dict, for a reader that sees uncommitted writes."""
        self._source = source
        self._counts = source.counts
        self._table = source.table(table)
        self._get = self._table.get
        self._check_ready = source.check_ready
        self._pending = pending
        self.is_open = source.is_open
        self.check_open = source.check_open

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
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
        """One value per key, in order, all of one moment."""
        self._source.check_ready()
        self._counts.gets += len(keys)
        try:
            # What is no longer pending when this looks has been committed before it reads.
            if not self._pending:
                return self._table.get_many_at_once(keys)
            with self._source.turn:
                # One call in C, so that the owner puts nothing meanwhile.
                found = list(map(self._pending.get, keys, repeat(MISSING)))
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
        """Pairs with lo <= key <= hi in byte order, as they are now."""
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
        """The rows as they are now. Those from `lo` to `hi` can be walked over."""
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
        """About how many committed rows there are."""
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
        """One value per key, in order."""
        found = list(map(self._pending.get, keys, repeat(MISSING)))
        try:
            return _filled(found, keys, self._seeker)
        except Exception as error:
            raise self._source.failure(error) from error

    def scan(self) -> RowScan[Pair]:
        """The rows that the moment was opened for."""
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
    """What readers of all kinds share: the partitions they run over, and their close."""

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
        """Let go of what the reader holds. Closing twice is harmless."""
        self._open = False
        if self._release is not None:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, *_exc: object) -> None:
        self.close()

    def _opened(self) -> Sequence[R]:
        """The rows of each partition; StoreClosed after the reader's close."""
        if not self._open:
            raise self._closed()
        return self._parts

    def _closed(self) -> StoreClosed:
        return StoreClosed(f"this reader of {self.name!r} is closed: ask for a new one")

    def _check_parts(self) -> None:
        for part in self._parts:
            part.check_open()


def scan_of(guard: Guard, cursor: Cursor, pending: Slice, *, reverse: bool) -> RowScan[Pair]:
    """The rows of a cursor with pending ones over them; it takes over the cursor."""
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
    """What was found pending; where that is MISSING, the committed value."""
    asked = [key for key, value in zip(keys, found, strict=True) if value is MISSING]
    committed = iter(seeker.get_many(asked) if asked else ())
    return [next(committed) if isinstance(value, Missing) else value for value in found]
