"""A versioned store as its application committed it, over all partitions (`open_snapshot`)."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Generic

from statestore.model.modes import Time
from statestore.model.records import K, V, VersionedRecord
from statestore.operations.snapshot_store import HeldFiles, SnapshotStore
from statestore.operations.versions_at_rest import stream_time_of, view_of
from statestore.ports import Engine
from statestore.stores.specs import VersionedSpec
from statestore.stores.version_reads import VersionReads
from statestore.stores.version_scans import VersionScan
from statestore.stores.version_search import View, each_valid_at, valid_at
from statestore.stores.versioned_layout import LATEST, TIME_MAX


class SnapshotVersionedStore(SnapshotStore, Generic[K, V]):
    """See `contracts.ReadOnlyVersionedKeyValueStore` for the promises; `with`, or close() it."""

    def __init__(
        self,
        spec: VersionedSpec[K, V],
        files: Sequence[HeldFiles],
        open_files: Callable[[Path], Engine],
    ) -> None:
        """Takes over the files: they are released here, also if some cannot be opened."""
        super().__init__(spec, files, open_files)
        self._reads = VersionReads(spec)
        self._codec = self._reads.codec
        try:
            self._views = [view_of(engine, f"store {spec.name!r}") for engine in self._engines]
        except BaseException:
            self.close()
            raise

    def get(self, key: K, *, as_of: Time | None = None) -> VersionedRecord[V] | None:
        """The latest version, or the one valid at `as_of`; None if absent or deleted."""
        self.check_open()
        data = self._codec.key(key)
        time = TIME_MAX if as_of is None else self._reads.time(as_of)
        for engine, view in self._parts():
            found = self._asked(engine, partial(valid_at, view, [data], [time]))[0]
            record = None if found is None else self._reads.record(*found)
            if record is not None:
                return record
        self._tell_old(time)
        return None

    def history(
        self,
        key: K,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        descending: bool = True,
    ) -> VersionScan[VersionedRecord[V]]:
        """The versions valid at some time from `from_time` to `to_time`, both included."""
        self.check_open()
        span = self._reads.span(from_time, to_time)
        data = self._codec.key(key)
        found: list[VersionedRecord[V]] = []
        for engine, view in self._parts():
            found += self._asked(engine, partial(self._reads.history, view, data, *span))
        return VersionScan(self, found if descending else found[::-1])

    def range_as_of(
        self, lo: K | None, hi: K | None, as_of: Time
    ) -> VersionScan[tuple[K, VersionedRecord[V]]]:
        """Per key from `lo` to `hi`, both included, the version valid at `as_of`, in key order."""
        self.check_open()
        bounds = self._codec.optional_key(lo), self._codec.optional_key(hi)
        time = self._reads.time(as_of)
        self._tell_old(time)
        parts = [self._valid(engine, view, bounds, time) for engine, view in self._parts()]
        read_key = self._codec.read_key
        merged = heapq.merge(*parts, key=itemgetter(0))
        return VersionScan(self, ((read_key(key), record) for key, record in merged))

    def observed_stream_time(self) -> int | None:
        """The largest timestamp put in any partition; None before the first."""
        self.check_open()
        times = [self._asked(engine, partial(stream_time_of, engine)) for engine in self._engines]
        return max((time for time in times if time is not None), default=None)

    def _parts(self) -> Iterator[tuple[Engine, View]]:
        return zip(self._engines, self._views, strict=True)

    def _valid(
        self, engine: Engine, view: View, bounds: tuple[bytes | None, bytes | None], time: int
    ) -> Iterator[tuple[bytes, VersionedRecord[V]]]:
        cursor = engine.table(LATEST).scan(*bounds)
        try:
            for key, one in each_valid_at(
                cursor, time, bound=view.bound, interval_ms=view.interval_ms, seek=view.seek
            ):
                record = None if one is None else self._reads.record(*one)
                if record is not None:
                    yield key, record
        finally:
            cursor.close()

    def _tell_old(self, time: int) -> None:
        bound = max((view.bound for view in self._views), default=time)
        self._reads.gone.tell(time, bound)
