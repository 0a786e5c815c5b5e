"""Versions of stores at rest: the one valid at a time, and a key's history."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from statestore.errors import TaskCorrupted
from statestore.model.ids import TaskId
from statestore.operations.at_rest import StoresAtRest
from statestore.ports import Engine
from statestore.stores import offsets
from statestore.stores import versioned_layout as layout
from statestore.stores.version_search import (
    Pair,
    Span,
    Valid,
    View,
    each_valid_at,
    overlapping,
    valid_at,
)


class VersionRow(NamedTuple):
    """One version, in bytes."""

    task: TaskId
    key: bytes
    value: bytes
    timestamp_ms: int
    valid_to_ms: int | None


class VersionsAtRest:
    """The versions in one store of an application; opens nothing until asked."""

    def __init__(self, at_rest: StoresAtRest, store: str, partition: int | None = None) -> None:
        """UnknownStore, or Misuse if it is no versioned store."""
        self._at_rest = at_rest
        self._store = store
        self._tasks = at_rest.find(store, partition, kind=layout.KIND)

    def get(self, key: bytes, as_of_ms: int | None = None) -> VersionRow | None:
        """The latest version of a key, or the one valid at a time, in whichever partition it is."""
        time = layout.TIME_MAX if as_of_ms is None else as_of_ms
        for task in self._tasks:
            with self._view(task) as view:
                found = valid_at(view, [key], [time])[0]
                if found is not None and not layout.is_tombstone(found.row):
                    return _row(task, key, found)
        return None

    def history(
        self, key: bytes, from_ms: int | None = None, to_ms: int | None = None
    ) -> list[VersionRow]:
        """The versions valid at some time from `from_ms` to `to_ms`, latest first."""
        first = layout.TIME_MIN if from_ms is None else from_ms
        span = Span(first, layout.TIME_MAX if to_ms is None else to_ms)
        rows = []
        for task in self._tasks:
            with self._view(task) as view:
                latest = view.get_many([key])[0]
                if latest is not None:
                    rows += [_row(task, key, one) for one in overlapping(view, key, latest, span)]
        return rows

    def range(
        self,
        lo: bytes | None = None,
        hi: bytes | None = None,
        *,
        as_of_ms: int | None = None,
        reverse: bool = False,
    ) -> Generator[VersionRow, None, None]:
        """Per key with lo <= key <= hi the latest version, or the one valid at a time.

        Partition by partition, in key order within each.
        """
        time = layout.TIME_MAX if as_of_ms is None else as_of_ms
        for task in self._tasks:
            with self._at_rest.opened(task, self._store, kind=layout.KIND) as engine:
                view = view_of(engine, f"store {self._store!r} of task {task}")
                for key, found in each_valid_at(
                    engine.table(layout.LATEST).scan(lo, hi, reverse=reverse),
                    time,
                    bound=view.bound,
                    interval_ms=view.interval_ms,
                    seek=view.seek,
                ):
                    if found is not None and not layout.is_tombstone(found.row):
                        yield _row(task, key, found)

    def counts(self) -> dict[TaskId, int]:
        """Exactly how many keys of each stream task have a value now: every one is read."""
        counted = dict.fromkeys(self._tasks, 0)
        for row in self.range():
            counted[row.task] += 1
        return counted

    @contextmanager
    def _view(self, task: TaskId) -> Iterator[View]:
        with self._at_rest.opened(task, self._store, kind=layout.KIND) as engine:
            yield view_of(engine, f"store {self._store!r} of task {task}")


def stream_time_of(engine: Engine) -> int | None:
    """The stream time of a versioned store; None before the first put."""
    clock = engine.table(layout.HISTORY).get(layout.CLOCK_KEY)
    return None if clock is None else layout.read_clock(clock)[0]


def view_of(engine: Engine, where: str) -> View:
    """The committed rows of a versioned store; TaskCorrupted if it is not a whole one."""
    latest, history = engine.table(layout.LATEST), engine.table(layout.HISTORY)
    known = offsets.check_format(engine.table(offsets.TABLE), layout.KIND, where)
    if known is None or known.segment_interval_ms is None:
        raise TaskCorrupted(f"{where}: no segment interval: not a whole store")
    clock = history.get(layout.CLOCK_KEY)
    bound = layout.NEVER if clock is None else layout.read_clock(clock)[1]

    def scan_back(lo: bytes, hi: bytes) -> Iterator[Pair]:
        cursor = history.scan(lo, hi, reverse=True)
        yield from cursor
        cursor.close()

    return View(bound, known.segment_interval_ms, latest.get_many, history.seek_many, scan_back)


def _row(task: TaskId, key: bytes, one: Valid) -> VersionRow:
    begins, value = layout.read_version(one.row)
    assert value is not None, "tombstones are left out"
    return VersionRow(task, key, value, begins, one.valid_to)
