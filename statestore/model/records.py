"""Records, and the serdes that convert their keys and values to bytes; all are immutable.

Types with one instance per record are NamedTuples, so that they equal plain tuples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
K2 = TypeVar("K2")
V2 = TypeVar("V2")
Header = tuple[str, bytes | None]


class Record(NamedTuple, Generic[K_co, V_co]):
    """A record as a processor sees it.

    Topic, partition and offset are those of the input record, or None if there is none.
    """

    key: K_co
    value: V_co
    timestamp_ms: int
    headers: tuple[Header, ...] = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    @overload
    def replace(
        self, *, timestamp_ms: int = ..., headers: tuple[Header, ...] = ...
    ) -> "Record[K_co, V_co]": ...
    @overload
    def replace(
        self, *, key: K2, timestamp_ms: int = ..., headers: tuple[Header, ...] = ...
    ) -> "Record[K2, V_co]": ...
    @overload
    def replace(
        self, *, value: V2, timestamp_ms: int = ..., headers: tuple[Header, ...] = ...
    ) -> "Record[K_co, V2]": ...
    @overload
    def replace(
        self, *, key: K2, value: V2, timestamp_ms: int = ..., headers: tuple[Header, ...] = ...
    ) -> "Record[K2, V2]": ...
    def replace(self, **fields: Any) -> "Record[Any, Any]":
        """Return a copy of this record with some fields changed."""
        return self._replace(**fields)


class VersionedRecord(NamedTuple, Generic[V_co]):
    """A version of a value that is valid from `timestamp_ms` until before `valid_to_ms` (KIP-889).

    `valid_to_ms` is None if the version is still valid.
    """

    value: V_co
    timestamp_ms: int
    valid_to_ms: int | None


class PutResult(NamedTuple):
    """The result of a versioned put.

    `accepted` is False if the record was older than the history retention allows. `latest` tells
    whether the put became the latest version; if not, `valid_to_ms` is where its validity ends.
    """

    accepted: bool
    latest: bool
    valid_to_ms: int | None


class Windowed(NamedTuple, Generic[K_co]):
    """A key in one window, from `start_ms` (inclusive) to `end_ms` (exclusive).

    Of a session, as in Kafka Streams, the end is inclusive: `start_ms` and `end_ms` are the times
    of its first and its last record.
    """

    key: K_co
    start_ms: int
    end_ms: int


class KeyAtTime(NamedTuple, Generic[K_co]):
    """The key of a record that a join of streams keeps.

    `time_ms` is the record's time. `number` distinguishes the records of one join and rises in the
    order in which they came.
    """

    key: K_co
    time_ms: int
    number: int


AT_TIME_BYTES = 16
"""The length of time and number in a serialized KeyAtTime: its last bytes."""

WINDOW_BYTES = 8
SESSION_BYTES = 16
"""The length of a window, and of a session, in a serialized key: its last bytes.

The partitioner hashes only the bytes before them.
"""


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A named pair of functions that convert values to bytes and back.

    `ordered` tells whether the bytes sort in the order of the values. None is never passed to
    either function. The name is stored with the deployed topology, so that tools can decode a
    store without the pipeline.
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
"""The serde that leaves bytes as they are.

Columns recognize it by identity, because a user's serde may have the same name.
"""
