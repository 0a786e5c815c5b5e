"""Windows of stores at rest: that of a key and time, and all of them."""

from collections.abc import Generator
from typing import NamedTuple

from statestore.errors import Misuse
from statestore.model.ids import TaskId
from statestore.operations.at_rest import StoresAtRest, windows_kept_ms
from statestore.stores import keyvalue, serdes
from statestore.stores.specs import WindowSpec
from statestore.stores.windows import START, TIME_ROW, expired_ms, start_of


class WindowRow(NamedTuple):
    """One window of one key, in bytes."""

    task: TaskId
    key: bytes
    value: bytes
    start_ms: int
    end_ms: int


class WindowsAtRest:
    """The windows in one store of an application; opens nothing until asked.

    Windows that have expired do not show, where the deployed topology tells how long they are kept.
    """

    def __init__(self, at_rest: StoresAtRest, store: str, partition: int | None = None) -> None:
        """UnknownStore, or Misuse if it is no window store or nothing says how long its are."""
        self._at_rest = at_rest
        self._store = store
        self._tasks = at_rest.find(store, partition, kind=WindowSpec.kind)
        known = at_rest.deployed.stores.get(store)
        windows = None if known is None else serdes.of_windowed(known.key_serde)
        if known is None or windows is None:
            raise Misuse(
                f"store {store!r} is not in the topology deployed last, so nothing says how long "
                "its windows are"
            )
        self._size_ms = windows[0]
        self._kept_ms = windows_kept_ms(known)

    def get(self, key: bytes, time_ms: int) -> WindowRow | None:
        """What a key has in the window a time lies in, in whichever partition it is."""
        start = time_ms - time_ms % self._size_ms
        rows = self._rows(START.pack(start) + key, START.pack(start) + key, reverse=False)
        return next(iter(rows), None)

    def range(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> Generator[WindowRow, None, None]:
        """The windows of keys with lo <= key <= hi: partition by partition, by start, then key."""
        for row in self._rows(None, None, reverse=reverse):
            if (lo is None or row.key >= lo) and (hi is None or row.key <= hi):
                yield row

    def counts(self) -> dict[TaskId, int]:
        """Exactly how many windows of keys each stream task has: every one is read."""
        counted = dict.fromkeys(self._tasks, 0)
        for row in self.range():
            counted[row.task] += 1
        return counted

    def _rows(
        self, lo: bytes | None, hi: bytes | None, *, reverse: bool
    ) -> Generator[WindowRow, None, None]:
        for task in self._tasks:
            with self._at_rest.opened(task, self._store, kind=WindowSpec.kind) as engine:
                table = engine.table(keyvalue.TABLE)
                gone_ms = expired_ms(table.get(TIME_ROW), self._kept_ms)
                for row, value in table.scan(lo, hi, reverse=reverse):
                    if row != TIME_ROW and start_of(row) > gone_ms:
                        start = start_of(row)
                        yield WindowRow(
                            task, row[START.size :], value, start, start + self._size_ms
                        )
