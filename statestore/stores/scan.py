"""The one iterator of all stores, and the merging of ordered rows."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import gt, itemgetter, lt
from typing import Any, Final, Generic, Self, TypeVar

from statestore.errors import StoreClosed

T = TypeVar("T")
S = TypeVar("S")

Pair = tuple[bytes, bytes]
Slice = list[tuple[bytes, bytes | None]]
_END: Final = (None, None)
_first: Final = itemgetter(0)


class RowScan(Generic[T]):
    """An iterator over rows as they were when it was opened; `with` or close() releases them.

    See `contracts.Scan`. It raises StoreClosed after its own close and after its store's.
    """

    __slots__ = ("_check_store", "_items", "_notices_close", "_open", "_release")

    def __init__(
        self,
        items: Iterator[T],
        check_store: Callable[[], None],
        release: Callable[[], None] | None = None,
        *,
        notices_close: bool = False,
    ) -> None:
        """Take over `items`.

        `check_store` raises StoreClosed once the store is closed. `release` lets go of what the
        items are read from. `notices_close`: after that they raise StoreClosed themselves, at once.
        """
        self._items = items
        self._check_store = check_store
        self._release = release
        self._notices_close = notices_close
        self._open = True

    def __iter__(self) -> Iterator[T]:
        """The items not yet taken.

        Where the items themselves notice a close, a loop runs over them without a call in Python
        for each, which doubles the rate.
        """
        self.check_open()
        return self._items if self._notices_close else self

    def __next__(self) -> T:
        # The check comes first, and every time, because a generator that raised once has ended.
        self.check_open()
        return next(self._items)

    def check_open(self) -> None:
        """Raise StoreClosed after the close of this iterator or of its store."""
        if not self._open:
            raise StoreClosed("this iterator is closed: open a new one")
        self._check_store()

    def through(self, change: Callable[[Iterator[T]], Iterator[S]]) -> "RowScan[S]":
        """The same scan with its items changed; closing either closes both."""
        return RowScan(
            change(self._items), self.check_open, self.close, notices_close=self._notices_close
        )

    def close(self) -> None:
        """Release the rows. Closing twice is harmless."""
        if self._open:
            self._open = False
            if self._release is not None:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def joined(
    scans: Sequence[RowScan[T]], *, key: Callable[[Any], Any] = _first, reverse: bool = False
) -> RowScan[T]:
    """Several ordered scans as one, ordered by `key`, which is the first column by default."""
    if len(scans) == 1:
        return scans[0]

    def check() -> None:
        for scan in scans:
            scan.check_open()

    def release() -> None:
        for scan in scans:
            scan.close()

    merged = heapq.merge(*scans, key=key, reverse=reverse)
    return RowScan(merged, check, release, notices_close=True)


def overlaid(committed: Iterable[Pair], pending: Slice, *, reverse: bool) -> Iterator[Pair]:
    """Both in order. Where both have a key, the pending entry counts; None is a delete."""
    before = gt if reverse else lt
    waiting = iter(pending)
    key, value = next(waiting, _END)
    for pair in committed:
        at = pair[0]
        while key is not None and before(key, at):
            if value is not None:
                yield key, value
            key, value = next(waiting, _END)
        if key != at:
            yield pair
    while key is not None:
        if value is not None:
            yield key, value
        key, value = next(waiting, _END)
