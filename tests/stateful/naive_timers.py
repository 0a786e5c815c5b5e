"""The naive interpreter's timers: a dict of the times at which keys are told again."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.stateful.naive_tables import Fact, Key
from tests.stateful.random_programs import SIZE


class Due(NamedTuple):
    """A timer: `order` is the key in bytes."""

    time: int
    order: bytes
    name: str


class Reminders:
    """Tells the last value of a key again `soon_ms` after it came, and once more later."""

    def __init__(
        self, soon_ms: int, plus: Callable[[Any, int], Any], order: Callable[[Key], bytes]
    ) -> None:
        self._soon_ms, self._plus, self._order = soon_ms, plus, order
        self._times: dict[tuple[bytes, str], int] = {}
        self._lasts: dict[bytes, tuple[Key, Any]] = {}

    def take(self, fact: Fact) -> None:
        if fact.key is None:
            return
        order = self._order(fact.key)
        if fact.value is None:
            self._times.pop((order, "soon"), None)
            return
        self._lasts[order] = fact.key, fact.value
        self._times[order, "soon"] = fact.time + self._soon_ms

    def first(self, before: int) -> Due | None:
        """The timer that comes next, if it is due before that time."""
        due = [Due(time, *which) for which, time in self._times.items() if time < before]
        return min(due, default=None)

    def fire(self, due: Due) -> Fact:
        """What is told by a timer, which is gone then."""
        del self._times[due.order, due.name]
        if due.name == "soon":
            self._times[due.order, "again"] = due.time + SIZE
        key, value = self._lasts[due.order]
        return Fact(key, self._plus(value, len(due.name)), due.time)
