"""A window store as its application committed it, over all partitions (`open_snapshot`)."""

import heapq
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, Self

from statestore.model.modes import Time
from statestore.model.records import K, V, Windowed
from statestore.operations.snapshot_store import HeldFiles, SnapshotKeyValueStore
from statestore.ports import Engine
from statestore.stores.specs import WindowSpec
from statestore.stores.windows import StillRows, WindowReader, WindowScan


class SnapshotWindowStore(Generic[K, V]):
    """See `contracts.WindowStore` for the promises; `with`, or close() it.

    A window that has expired by its own partition's stream time does not show.
    """

    def __init__(
        self,
        spec: WindowSpec[K, V],
        files: Sequence[HeldFiles],
        open_files: Callable[[Path], Engine],
    ) -> None:
        """Takes over the files: they are released here, also if some cannot be opened."""
        self.name = spec.name
        self._parts: list[WindowReader[K, V]] = []
        with ExitStack() as closing:
            for one in files:
                closing.callback(one.release)
            for one in files:
                rows = SnapshotKeyValueStore(spec.rows, [one], open_files)
                closing.callback(rows.close)
                self._parts.append(WindowReader(StillRows(rows, rows.close), spec))
            self._closing = closing.pop_all()

    def get(self, key: K, start: Time) -> V | None:
        """The value of the key in the window that starts then, in whichever partition it is."""
        found = (part.get(key, start) for part in self._parts)
        return next((value for value in found if value is not None), None)

    def fetch(
        self, key: K, *, from_time: Time | None = None, to_time: Time | None = None
    ) -> WindowScan[K, V]:
        """The key's windows that start between both times, both included, by start."""
        scans = [part.fetch(key, from_time=from_time, to_time=to_time) for part in self._parts]
        return _merged(scans)

    def all(self) -> WindowScan[K, V]:
        """Every window of every key, by start."""
        return _merged([part.all() for part in self._parts])

    def observed_stream_time(self) -> int | None:
        """The largest timestamp counted in any partition, ms; None before the first."""
        times = [part.observed_stream_time() for part in self._parts]
        return max((time for time in times if time is not None), default=None)

    def is_open(self) -> bool:
        return all(part.is_open() for part in self._parts)

    def close(self) -> None:
        """Release the files. Closing twice is harmless."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _merged(scans: Sequence[WindowScan[K, V]]) -> WindowScan[K, V]:
    def release() -> None:
        for scan in scans:
            scan.close()

    return WindowScan(heapq.merge(*scans, key=_start), release)


def _start(pair: tuple[Windowed[Any], Any]) -> int:
    return pair[0].start_ms
