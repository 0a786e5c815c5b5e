"""The iterators of versioned stores; `with` or close() releases what they hold."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from statestore.errors import StoreClosed
from statestore.model.records import K, VersionedRecord
from statestore.stores.staged_table import TableScan
from statestore.stores.version_reads import VersionReads
from statestore.stores.version_search import each_valid_at
from statestore.stores.version_views import HistorySnapshot

T = TypeVar("T")


class Checked(Protocol):
    """A store, or what is under it."""

    def check_open(self) -> None:
        """StoreClosed after close."""


class VersionScan(Generic[T]):
    """An iterator over versions as they were when it was opened; StoreClosed after the store's."""

    def __init__(self, store: Checked, versions: Iterable[T]) -> None:
        self._store = store
        self._versions: Iterator[T] | None = iter(versions)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._versions is None:
            raise StoreClosed("this iterator is closed: open a new one")
        self._store.check_open()
        return next(self._versions)

    def close(self) -> None:
        """Forget the rest. Closing twice is harmless."""
        self._versions = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class AsOfScan(Generic[K]):
    """An iterator of (key, version valid at a time) over a snapshot, in key order."""

    def __init__(
        self,
        latest: TableScan,
        history: HistorySnapshot,
        time: int,
        bound: int,
        interval_ms: int,
        reads: VersionReads[K, Any],
    ) -> None:
        self._latest = latest
        self._history = history
        self._rows = self._found(time, bound, interval_ms, reads)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[K, VersionedRecord[Any]]:
        self._latest.check_open()
        return next(self._rows)

    def close(self) -> None:
        """Release the snapshot. Closing twice is harmless."""
        self._latest.close()
        self._history.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _found(
        self, time: int, bound: int, interval_ms: int, reads: VersionReads[K, Any]
    ) -> Iterator[tuple[K, VersionedRecord[Any]]]:
        seek = self._history.seek_many
        for key, one in each_valid_at(
            self._latest, time, bound=bound, interval_ms=interval_ms, seek=seek
        ):
            record = None if one is None else reads.record(*one)
            if record is not None:
                yield reads.codec.read_key(key), record
            elif one is None:
                reads.gone.tell(time, bound)
