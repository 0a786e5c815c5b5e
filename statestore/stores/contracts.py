"""The public protocols: what a store promises to its users (KIP-892).

A store class of the user's own implements `StateStore` and comes to a stream task through a
`specs.StoreSupplier` (docs/adr/0006). The task layer needs nothing beyond these names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, overload

from statestore.model.ids import Position, PositionBound, TaskId, TopicPartition
from statestore.model.modes import IsolationLevel, Time
from statestore.model.records import K, PutResult, V, V_co, VersionedRecord, Windowed


class Scan(Iterator[V_co], Protocol[V_co]):
    """An iterator over a snapshot. Close it, or use it in a `with` statement.

    It raises StoreClosed after the store has been closed.
    """

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class StateStore(Protocol):
    """A writable store with one writer, its stream task.

    `commit` makes pending writes committed.
    """

    @property
    def name(self) -> str:
        """The store's name, by which relocation and every command find it."""

    def persistent(self) -> bool:
        """Tell whether committed writes outlive the process."""

    def is_open(self) -> bool:
        """Tell whether the store can be used: it is open, and `close` was not called."""

    def close(self) -> None:
        """Roll back what is pending, flush and release.

        Closing twice is harmless (SEMANTICS S8).
        """

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | None] | None = None,
        *,
        position: Position | None = None,
    ) -> None:
        """Commit the pending writes, the offsets and the position in one atomic batch (S3).

        `offsets` are those of the changelog, each the NEXT one to read; None clears the offset of
        that partition.
        """

    def rollback(self) -> None:
        """Drop the pending writes and nothing else."""

    def transaction(self) -> AbstractContextManager[None]:
        """Open a savepoint, merged at normal exit, undone on an exception; not a commit (S8)."""

    def committed_offset(self, tp: TopicPartition) -> int | None:
        """Return the changelog offset last committed; None if there is none, or in memory."""

    def durable_offset(self, tp: TopicPartition) -> int | None:
        """Return a lower bound of what `committed_offset` would be after a crash now."""

    def position(self) -> Position:
        """Return the last processed offsets of the input, with what is pending (S14)."""

    def metrics(self) -> dict[str, float]:
        """Return figures by Kafka Streams' names, counted per commit or batch (S11)."""

    def approximate_num_uncommitted_bytes(self) -> int:
        """Return the size of pending keys and values, with a fixed cost for each (S6)."""

    def approximate_num_uncommitted_entries(self) -> int:
        """Return the number of keys with pending writes."""

    def manages_offsets(self) -> bool:
        """Tell whether changelog offsets are in the store; else they are in `.checkpoint` (S5)."""

    def flush(self) -> None:
        """Do nothing but warn that this is deprecated: the store flushes by itself (S7)."""


@dataclass(frozen=True)
class StoreContext:
    """What a stream task gives to a store of the user's own class when it opens it.

    `directory` exists and belongs to the store alone. `log(key, value)` sends a change (None: a
    delete) to `changelog` with the next commit, the last change of each key; a rollback forgets it.
    """

    task_id: TaskId
    directory: Path
    changelog: TopicPartition
    log: Callable[[bytes, bytes | None], None]


class Reads(Protocol):
    """What reads of a store of any kind have beside them; use `with`, or close them."""

    @property
    def name(self) -> str:
        """The store's name."""

    def is_open(self) -> bool:
        """Tell whether it can be used: it is open, and `close` was not called."""

    def close(self) -> None:
        """Release what is read; closing twice is harmless."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class ReadOnlyKeyValueStore(Reads, Protocol, Generic[K, V]):
    """Reads of a key-value store. Ranges include both ends and are ordered by serialized bytes.

    Every answer is of one moment, whatever its size. The same holds for the other kinds of store.
    """

    @overload
    def get(self, key: K, default: None = None) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value of the key, or `default` if there is none."""

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return the value of each key, in their order; None for a key that is absent."""

    def __contains__(self, key: K) -> bool: ...
    def range(
        self, lo: K | None = None, hi: K | None = None, reverse: bool = False
    ) -> Scan[tuple[K, V]]:
        """Return the rows from `lo` to `hi`, both included; None is an open end.

        A range whose end is before its start is empty.
        """

    def prefix_scan(self, prefix: K, reverse: bool = False) -> Scan[tuple[K, V]]:
        """Return the rows whose serialized keys begin with the serialized prefix.

        Misuse if the bytes of the key serde do not sort in the order of the keys.
        """

    def all(self, reverse: bool = False) -> Scan[tuple[K, V]]:
        """Return every row."""

    def approximate_num_entries(self) -> int:
        """Return an estimate of the number of rows, for which RocksDB reads no row."""


class KeyValueStore(StateStore, ReadOnlyKeyValueStore[K, V], Protocol):
    """A writable key-value store. None is a delete; an empty value is a value."""

    def put(self, key: K, value: V | None) -> None:
        """Write the value of the key; None deletes the row. SerdeMismatch if one does not fit."""

    def put_all(self, pairs: Iterable[tuple[K, V | None]]) -> None:
        """Write many rows, as `put` does; if a key occurs twice, the later row counts."""

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Return the value that is there, or write this one and return None."""

    def delete(self, key: K) -> V | None:
        """Delete the row and return the value that was there."""

    def discard(self, key: K) -> None:
        """Delete the row without reading it."""

    def delete_range(self, lo: K | None, hi: K | None) -> None:
        """Delete the rows of `range(lo, hi)`, one by one (S13)."""

    def delete_prefix(self, prefix: K) -> None:
        """Delete the rows of `prefix_scan(prefix)`, one by one."""

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> ReadOnlyKeyValueStore[K, V]:
        """Return a view for other threads, by default of the store's isolation level.

        NotUpToBound while the store is behind `position_bound` (S14).
        """


class ReadOnlyWindowStore(Reads, Protocol, Generic[K, V_co]):
    """Reads of a window store, without expired windows (SEMANTICS T2h)."""

    def get(self, key: K, start: Time) -> V_co | None:
        """Return the value of the key in the window that starts at that time."""

    def fetch(
        self,
        key: K,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        reverse: bool = False,
    ) -> Scan[tuple[Windowed[K], V_co]]:
        """Return the windows of the key that start between both times, inclusive, by start."""

    def range(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        reverse: bool = False,
    ) -> Scan[tuple[Windowed[K], V_co]]:
        """Return the windows of keys from `lo` to `hi` that start between both times, inclusive.

        They come by start, then by the bytes of the key. None is an open end.
        """

    def all(self, reverse: bool = False) -> Scan[tuple[Windowed[K], V_co]]:
        """Return every window of every key, by start."""

    def observed_stream_time(self) -> int | None:
        """Return the largest time counted, in ms; None before the first.

        It is the time of a record where an aggregate writes the store, else the start of a window.
        """


class WindowStore(StateStore, ReadOnlyWindowStore[K, V], Protocol):
    """A writable window store. Windows start at any time, and a key has one value in each.

    A window expires when the latest start that was put is past its own by the retention. What is
    put into an expired window is not taken, and counted as late. Only its aggregate writes the
    store of an aggregate.
    """

    def put(self, key: K, value: V | None, start: Time) -> None:
        """Write the value of the key in the window that starts then; None deletes it."""

    def put_all(self, triples: Iterable[tuple[K, V | None, Time]]) -> None:
        """Write many windows (key, value, start), in this order."""

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> ReadOnlyWindowStore[K, V]:
        """Return a view for other threads, by default of the store's isolation level.

        NotUpToBound while the store is behind `position_bound` (S14).
        """


class ReadOnlySessionStore(Reads, Protocol, Generic[K, V_co]):
    """Reads of a session store, without expired sessions.

    A session goes from the time of its first record to that of its last one, inclusive.
    """

    def get(self, key: K, start: Time, end: Time) -> V_co | None:
        """Return the value of the key in the session of exactly this start and end."""

    def fetch(
        self,
        key: K,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        reverse: bool = False,
    ) -> Scan[tuple[Windowed[K], V_co]]:
        """Return the sessions of the key that overlap the closed interval, by their ends.

        It is Kafka Streams' findSessions(key, earliest end, latest start).
        """

    def range(
        self,
        lo: K | None = None,
        hi: K | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        reverse: bool = False,
    ) -> Scan[tuple[Windowed[K], V_co]]:
        """Return the sessions of keys from `lo` to `hi` that overlap the closed interval.

        They come by end, then by start, then by the bytes of the key. None is an open end.
        """

    def all(self, reverse: bool = False) -> Scan[tuple[Windowed[K], V_co]]:
        """Return every session of every key, by their ends."""

    def observed_stream_time(self) -> int | None:
        """Return the largest time counted, in ms; None before the first.

        It is the time of a record where an aggregate writes the store, else the end of a session.
        """


class SessionStore(StateStore, ReadOnlySessionStore[K, V], Protocol):
    """A writable session store. It merges nothing: a processor says what each session is.

    A session expires when the latest end that was put is past its own by more than the retention.
    What is put into an expired session is not taken, and counted as late. Only its aggregate
    writes the store of an aggregate.
    """

    def put(self, session: Windowed[K], value: V | None) -> None:
        """Write the value of a key in a session; None removes the session."""

    def put_all(self, pairs: Iterable[tuple[Windowed[K], V | None]]) -> None:
        """Write many sessions, in this order."""

    def remove(self, session: Windowed[K]) -> None:
        """Remove a session, as those that a new one merges."""

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> ReadOnlySessionStore[K, V]:
        """Return a view for other threads, by default of the store's isolation level.

        NotUpToBound while the store is behind `position_bound` (S14).
        """


class ReadOnlyVersionedKeyValueStore(Reads, Protocol, Generic[K, V_co]):
    """Reads of a versioned store (KIP-889, KIP-960, KIP-968, KIP-969)."""

    def get(self, key: K, *, as_of: Time | None = None) -> VersionedRecord[V_co] | None:
        """Return the latest version, or the one valid at `as_of`; None if absent or deleted.

        It also returns None if history does not reach back that far, and logs a warning.
        """

    def history(
        self,
        key: K,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        descending: bool = True,
    ) -> Scan[VersionedRecord[V_co]]:
        """Return the versions valid at some time between both times, inclusive."""

    def range_as_of(
        self, lo: K | None, hi: K | None, as_of: Time
    ) -> Scan[tuple[K, VersionedRecord[V_co]]]:
        """Return the version valid at `as_of` of each key from `lo` to `hi`, inclusive."""

    def range_history(
        self,
        lo: K | None,
        hi: K | None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        *,
        descending: bool = True,
        reverse: bool = False,
    ) -> Scan[tuple[K, VersionedRecord[V_co]]]:
        """Return the versions of keys from `lo` to `hi` valid at some time between both times.

        All ends are inclusive, and None is an open end. The versions of a key come together,
        `descending` from the latest one, and keys in the order of their bytes.
        """

    def observed_stream_time(self) -> int | None:
        """Return the largest timestamp put, in ms; None before the first."""


class VersionedKeyValueStore(StateStore, ReadOnlyVersionedKeyValueStore[K, V], Protocol):
    """A writable versioned store. A version is valid from its timestamp to that of the next one."""

    def put(self, key: K, value: V | None, timestamp: Time) -> PutResult:
        """Add a version; None is a tombstone.

        A version older than the history is not accepted; it is counted.
        """

    def put_all(self, triples: Iterable[tuple[K, V | None, Time]]) -> None:
        """Add versions (key, value, timestamp), in this order."""

    def delete(self, key: K, timestamp: Time) -> VersionedRecord[V] | None:
        """Return the version valid at `timestamp`, and let there be none from then on."""

    def reader(
        self,
        isolation_level: IsolationLevel | str | None = None,
        position_bound: PositionBound | None = None,
    ) -> ReadOnlyVersionedKeyValueStore[K, V]:
        """Return a view for other threads, by default of the store's isolation level.

        NotUpToBound while the store is behind `position_bound` (S14).
        """
