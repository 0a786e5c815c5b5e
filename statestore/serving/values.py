"""What is asked of the reading service, and what it answers; rows are in bytes."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from statestore.model.served import Freshness
from statestore.stores.reads import Entry


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


class RowsFound(NamedTuple):
    """Rows, what the times of a row are called, and where the rows come from."""

    rows: list[Entry | None]
    span_names: tuple[str, ...]
    freshness: list[Freshness]
    next_token: str | None = None


class RowStream(NamedTuple):
    """All rows of a range, of one moment; close it."""

    rows: Iterator[Entry]
    span_names: tuple[str, ...]
    freshness: list[Freshness]
    close: Callable[[], None]
