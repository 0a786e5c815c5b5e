"""Which rows of a store somebody asks for; keys and rows are in bytes."""

from collections.abc import Iterator

import msgspec

from statestore.errors import Misuse
from statestore.stores.codec import after_prefix
from statestore.stores.kinds.kind import AnyReader, StoreKind
from statestore.stores.reads import Entry, RowScan


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Which versions of a key: those valid at some time from `first_ms` to `last_ms`, inclusive."""

    first_ms: int | None = None
    last_ms: int | None = None
    ascending: bool = False


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a store: keys from `lo` to `hi`, inclusive, or with a prefix.

    `times`: all versions of each key then, of a store with history. `as_of_ms`: the versions that
    were valid then, or the windows that it lies in.
    """

    lo: bytes | None = None
    hi: bytes | None = None
    prefix: bytes | None = None
    reverse: bool = False
    as_of_ms: int | None = None
    times: VersionSpan | None = None
    partition: int | None = None

    def rows(self, kind: StoreKind, reader: AnyReader) -> RowScan[Entry]:
        """Return the rows that a reader of that kind has, in the order of the store.

        Misuse if keys exclude each other, or for times that the kind does not keep.
        """
        lo, hi, beyond = self._bounds()
        if self.times is None:
            found = reader.entries(lo, hi, as_of_ms=self.as_of_ms, reverse=self.reverse)
        else:
            found = kind.versions(
                reader,
                lo,
                hi,
                from_ms=self.times.first_ms,
                to_ms=self.times.last_ms,
                ascending=self.times.ascending,
                reverse=self.reverse,
            )
        if beyond is None:
            return found

        def below(entries: Iterator[Entry]) -> Iterator[Entry]:
            return (entry for entry in entries if entry.key != beyond)

        return found.through(below)

    def _bounds(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the lowest key, the highest one, and a key that is not part of it."""
        if self.prefix is None:
            return self.lo, self.hi, None
        if self.lo is not None or self.hi is not None:
            raise Misuse("pass the lowest and the highest key, or a prefix, not both")
        beyond = after_prefix(self.prefix)
        return self.prefix, beyond, beyond
