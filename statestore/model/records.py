"""Records, and the serdes between their values and bytes. All are immutable.

What exists once per record is a NamedTuple, so a plain tuple matches it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
Header = tuple[str, bytes | None]


class Record(NamedTuple, Generic[K, V]):
    """One record as a processor sees it; topic, partition and offset are the input's, if any."""

    key: K
    value: V
    timestamp_ms: int
    headers: tuple[Header, ...] = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    def replace(self, **fields: Any) -> "Record[Any, Any]":
        """The same record with some fields changed."""
        return self._replace(**fields)


class VersionedRecord(NamedTuple, Generic[V]):
    """A version: from `timestamp_ms` to `valid_to_ms`, exclusive; None: still valid (KIP-889)."""

    value: V
    timestamp_ms: int
    valid_to_ms: int | None


class PutResult(NamedTuple):
    """What a versioned put did: `accepted` False means older than the history retention."""

    accepted: bool
    latest: bool
    valid_to_ms: int | None


class Windowed(NamedTuple, Generic[K]):
    """A key in one window: `start_ms` inclusive, `end_ms` exclusive."""

    key: K
    start_ms: int
    end_ms: int


WINDOW_BYTES = 8


"""How many bytes of a key in a window are the window, the last ones; the others place it."""


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A named pair of functions between values and bytes; `ordered`: bytes sort as the values do.

    None never reaches either function. The name is stored with the deployed topology, so that
    tools can decode a store without the pipeline.
    """

    name: str
    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]
    ordered: bool = False

    def __repr__(self) -> str:
        return f"Serde({self.name})"


def _same(data: bytes) -> bytes:
    return data


def _bytes(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("want bytes")
    return value


BYTES: Serde[bytes] = Serde("BYTES", _bytes, _same, ordered=True)
"""Bytes as they are; columns know it by identity, as a user's own may have that name too."""
