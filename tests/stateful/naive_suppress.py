"""The naive interpreter's suppressed tables: updates in a dict, looked through for what is due."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from statestore.model.records import Windowed
from tests.stateful.naive_tables import Fact, Key, Row, Table
from tests.stateful.random_programs import Held

NEVER = -(2**63)


class _Waiting(NamedTuple):
    place: int
    update: Fact
    """With the value before all that waited as its old one."""


class Suppressed(Table):
    """What waits of a table; the rest of it shows as it was when its updates last went out."""

    def __init__(
        self, parent: Table, held: Held, clocks: Sequence[Table], *, sessions: bool
    ) -> None:
        """`clocks`: the aggregates in windows that tell the time."""
        super().__init__()
        self._parent, self._held, self._sessions = parent, held, sessions
        self._waiting: dict[Key, _Waiting] = {}
        self._now = self._done = NEVER
        parent.tell(self._take)
        for clock in clocks:
            clock.tell(lambda update: self._pass_time(update.time))

    def row(self, key: Key) -> Row | None:
        held = self._waiting.get(key)
        if held is None:
            return self._parent.row(key)
        prior = copy.deepcopy(held.update.old)
        # Nobody knows the time of what was told last.
        return None if prior is None else Row(prior, NEVER)

    def as_of(self, key: Key, _time: int, _tolerance: int | None = None) -> Any:
        row = self.row(key)
        return None if row is None else row.value

    def _take(self, update: Fact) -> None:
        final, _, most = self._held
        place = self._place(update)
        if not (final and place <= self._done):
            before = self._waiting.get(update.key)
            old = update.old if before is None else before.update.old
            kept = copy.deepcopy(update._replace(old=None if final else old))
            self._waiting[update.key] = _Waiting(place if before is None else before.place, kept)
        self._pass_time(update.time)
        for key in self._oldest_first():
            if most is not None and len(self._waiting) > most:
                self._release(key)

    def _pass_time(self, time: int) -> None:
        self._now = max(self._now, time)
        self._done = max(self._done, self._now - self._held[1])
        for key in self._oldest_first():
            if self._waiting[key].place <= self._done:
                self._release(key)

    def _oldest_first(self) -> list[Key]:
        return sorted(self._waiting, key=lambda key: (self._waiting[key].place, self._bytes(key)))

    def _release(self, key: Key) -> None:
        update = self._waiting.pop(key).update
        if update.value is not None or not self._held.final:
            self.updated(update)

    def _place(self, update: Fact) -> int:
        if not self._held.final:
            return update.time
        place: int = update.key.end_ms if self._sessions else update.key.start_ms
        return place

    def _bytes(self, key: Key) -> bytes:
        if not isinstance(key, Windowed):
            return str(key).encode()
        ends = [key.end_ms, key.start_ms] if self._sessions else [key.start_ms]
        inner = _inner_bytes(key.key)
        return inner + b"".join(end.to_bytes(8, "big", signed=True) for end in ends)


def _inner_bytes(key: Key) -> bytes:
    if isinstance(key, Windowed):
        return _inner_bytes(key.key) + key.start_ms.to_bytes(8, "big", signed=True)
    return str(key).encode()
