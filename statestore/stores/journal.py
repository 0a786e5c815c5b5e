"""The versions written since the last commit, in order: what a commit logs (docs/adr/0008).

Appending costs next to nothing; what was written twice is found out when the journal is read.
"""

from typing import Final

ENTRY_COST: Final = 64
"""Bytes charged per entry: three list slots and the time; key and value are those of the rows."""


class Journal:
    """Keys, values and times, kept in step with the pending writes."""

    __slots__ = ("_marks", "deletes", "keys", "times", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.times: list[int] = []
        self.deletes = 0
        self._marks: list[int] = []

    @property
    def size_bytes(self) -> int:
        """What it takes of the memory for pending writes."""
        return ENTRY_COST * len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def put(self, key: bytes, value: bytes | None, time: int) -> None:
        """One version."""
        self.keys.append(key)
        self.values.append(value)
        self.times.append(time)
        if value is None:
            self.deletes += 1

    def put_all(self, keys: list[bytes], values: list[bytes | None], times: list[int]) -> None:
        """Many versions."""
        self.keys += keys
        self.values += values
        self.times += times
        self.deletes += values.count(None)

    def distinct(self) -> list[tuple[int, bytes, bytes | None]]:
        """Time, key and value of each version once, in order of time; the later write counts."""
        places = zip(self.times, self.keys, strict=True)
        made = dict(zip(places, self.values, strict=True))
        return sorted(((*at, value) for at, value in made.items()), key=_time)

    def mark(self) -> None:
        """Open a savepoint."""
        self._marks.append(len(self.keys))

    def merge(self) -> None:
        """Close the last savepoint, keeping its writes."""
        self._marks.pop()

    def undo(self) -> None:
        """Close the last savepoint and forget its writes."""
        self._cut(self._marks.pop())

    def commit(self) -> None:
        """Forget all; savepoints stay open, and go back to here."""
        self._cut(0)
        self._marks = [0 for _ in self._marks]

    rollback = commit

    def _cut(self, length: int) -> None:
        del self.keys[length:], self.values[length:], self.times[length:]
        self.deletes = self.values.count(None)


def _time(version: tuple[int, bytes, bytes | None]) -> int:
    return version[0]
