"""What is asked of the reading service, and what it answers; rows are in bytes."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from statestore.errors import Misuse
from statestore.model.served import Freshness
from statestore.stores.codec import after_prefix


class StoreAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one store."""

    store: str
    kind: str
    key_serde: str
    value_serde: str
    partitions: int
    served: bool
    why_not: str | None = None
    inputs: list[str] = []
    retention_ms: int | None = None


class RowInBytes(NamedTuple):
    """A row in bytes; the span is that of a version, a window or a session."""

    key: bytes
    value: bytes
    begins_ms: int | None = None
    ends_ms: int | None = None


class RowsFound(NamedTuple):
    """Rows, what the times of a row are called, and where the rows come from."""

    rows: list[RowInBytes | None]
    span_names: tuple[str, ...]
    freshness: list[Freshness]
    next_token: str | None = None


class RowStream(NamedTuple):
    """All rows of a range, of one moment; close it."""

    rows: Iterator[RowInBytes]
    span_names: tuple[str, ...]
    freshness: list[Freshness]
    close: Callable[[], None]


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Which versions of a key: those valid at some time from `first_ms` to `last_ms`, inclusive."""

    first_ms: int | None = None
    last_ms: int | None = None
    ascending: bool = False


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a store: keys from `lo` to `hi`, inclusive, or with a prefix.

    `times`: all versions of each key then, of a store with history.
    """

    lo: bytes | None = None
    hi: bytes | None = None
    prefix: bytes | None = None
    reverse: bool = False
    as_of_ms: int | None = None
    times: VersionSpan | None = None
    partition: int | None = None

    def bounds(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the lowest key, the highest one, and a key that is not part of it."""
        if self.prefix is None:
            return self.lo, self.hi, None
        if self.lo is not None or self.hi is not None:
            raise Misuse("pass the lowest and the highest key, or prefix, not both")
        beyond = after_prefix(self.prefix)
        return self.prefix, beyond, beyond
