"""The rows in files that nobody writes: a snapshot, an export, a version of a global table."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from statestore.errors import StoreClosed
from statestore.ports import Cursor, Engine, Table
from statestore.stores.keyvalue import TABLE
from statestore.stores.transaction import named_failure


@dataclass
class _Uncounted:
    """Reads of files are in no store's metrics."""

    gets: int = 0
    ranges: int = 0


class RowSpan(NamedTuple):
    """Rows of the table `data` behind `after` and up to `last`, inclusive; None: an open end.

    Rows of a store without windows are its keys. Those of a store with windows begin with times.
    """

    after: bytes | None = None
    last: bytes | None = None


class FileSource:
    """The `reads.RowSource` of the files of one store, or of a span of its rows."""

    def __init__(
        self, name: str, engine: Engine, renew: Callable[[], None], span: RowSpan | None = None
    ) -> None:
        """Take over the engine. `renew` keeps the lease of the files up.

        `span`: the rows that scans walk through. Rows that are asked for by their key are found
        wherever they are, as are the rows that tell the stream time.
        """
        self.name = name
        self.counts = _Uncounted()
        self.bounded = False
        self.table: Callable[[str], Table] = engine.table
        if span is not None:
            self.table = partial(_spanned, engine, span)
        self._engine = engine
        self._renew = renew
        self._open = True

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """Return a context that waits for nothing, as nobody writes."""
        return nullcontext()

    def is_open(self) -> bool:
        return self._open

    def check_open(self) -> None:
        """Raise StoreClosed after the close. While it is open, keep the lease of the files up."""
        if not self._open:
            raise StoreClosed(f"the reader of {self.name!r} is closed: open a new one")
        self._renew()

    check_ready = check_open

    def failure(self, error: Exception) -> Exception:
        """Return an engine's error as one of ours that names the store."""
        if not self._open:
            return StoreClosed(f"the reader of {self.name!r} is closed: open a new one")
        return named_failure(error, self._engine, self.name)

    def close(self) -> None:
        """Close the files. Closing twice is harmless."""
        self._open = False
        self._engine.close()


def _spanned(engine: Engine, span: RowSpan, name: str) -> Table:
    table = engine.table(name)
    return _SpannedTable(table, span) if name == TABLE else table


class _SpannedTable:
    """A Table of which scans have the rows of a span alone."""

    def __init__(self, table: Table, span: RowSpan) -> None:
        self._table = table
        self._span = span
        self.get = table.get
        self.get_many = table.get_many
        self.get_many_at_once = table.get_many_at_once
        self.get_many_to_write = table.get_many_to_write
        self.seeker = table.seeker
        self.seek_many = table.seek_many
        self.scan_many = table.scan_many
        self.approximate_count = table.approximate_count

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> Cursor:
        """Iterate over the pairs of the span with lo <= key <= hi."""
        after, last = self._span
        if after is not None:
            following = after + b"\0"  # nothing sorts between these two
            lo = following if lo is None else max(lo, following)
        if last is not None:
            hi = last if hi is None else min(hi, last)
        return self._table.scan(lo, hi, reverse=reverse)
