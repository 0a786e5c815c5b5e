"""Columns of a batch that are made when somebody asks for them, which is rarely."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from statestore.model.picks import Pick
from statestore.model.records import T


class LazyColumn(Sequence[T]):
    """One field of a client's records, read out when asked for: what nobody asks for is free."""

    __slots__ = ("_all", "_read", "_rows")

    def __init__(self, rows: "list[Any]", read: "Callable[[Any], T]") -> None:
        self._rows = rows
        self._read = read
        self._all: list[T] | None = None

    def all(self) -> list[T]:
        """The field of every record, read once."""
        if self._all is None:
            self._all = list(map(self._read, self._rows))
        return self._all

    def picked(self, pick: Pick) -> "LazyColumn[T]":
        """The rows that `pick` takes."""
        return LazyColumn(pick.rows(self._rows), self._read)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return LazyColumn(self._rows[index], self._read)
        return self._read(self._rows[index]) if self._all is None else self._all[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self._rows)


class PickedOffsets(Sequence[int]):
    """Some of the offsets of a batch: only a record that fails or is dropped asks for its own."""

    __slots__ = ("known", "origin", "pick")

    def __init__(self, offsets: Sequence[int], pick: Pick) -> None:
        self.origin = offsets
        self.pick = pick
        self.known: list[int] | None = None

    def all(self) -> list[int]:
        """The offsets, picked once."""
        if self.known is None:
            # Without recursion: a batch may have passed many filters.
            above = [self]
            offsets = self.origin
            while isinstance(offsets, PickedOffsets) and offsets.known is None:
                above.append(offsets)
                offsets = offsets.origin
            rows = offsets.known if isinstance(offsets, PickedOffsets) else offsets
            for one in reversed(above):
                rows = one.known = one.pick.rows(rows)
        assert self.known is not None
        return self.known

    def __getitem__(self, index: Any) -> Any:
        return self.all()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())
