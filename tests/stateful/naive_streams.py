"""A naive interpreter of small pipelines: one record at a time, dicts for stores, no operators.

A program is a list of steps (name, number); `run` gives what comes out of each record. Written from
Kafka Streams' documentation, not from the code it judges.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Step = tuple[str, int]


class Fact(NamedTuple):
    """A record: `time` in ms; of a table's update, `old` is the value replaced."""

    key: str | None
    value: Any
    time: int
    old: Any = None


Stage = Callable[[Fact], Iterator[Fact]]
GRACE = 5


class Row(NamedTuple):
    """What a table has of a key: a value, and the latest time of what it was made of."""

    value: Any
    time: int


class Naive:
    """The pipeline, alive."""

    def __init__(self, program: list[Step]) -> None:
        self._right: dict[str, Row] = {}
        self._on_right: list[tuple[int, Stage]] = []
        self._stages: list[Stage] = []
        for place, (name, number) in enumerate(program):
            self._stages.append(getattr(self, name)(number, place))

    def run(self, topic: str, fact: Fact) -> list[Fact]:
        """What one record brings out."""
        if topic == "in":
            return self._from(0, fact)
        if fact.key is None:
            return []
        old = self._right.get(fact.key)
        update = fact._replace(old=None if old is None else old.value)
        _set(self._right, fact)
        return [
            out
            for place, stage in self._on_right
            for made in stage(update)
            for out in self._from(place + 1, made)
        ]

    def _from(self, place: int, fact: Fact) -> list[Fact]:
        facts = [fact]
        for stage in self._stages[place:]:
            facts = [made for one in facts for made in stage(one)]
        return facts

    # Without state.

    def filter(self, number: int, _place: int) -> Stage:
        return lambda f: iter([f] if f.value is not None and f.value % number else [])

    def map_values(self, number: int, _place: int) -> Stage:
        return lambda f: iter([Fact(f.key, _plus(f.value, number), f.time)])

    def select_key(self, number: int, _place: int) -> Stage:
        return lambda f: iter([Fact(_named(f.value, number), f.value, f.time)])

    def flat_map_values(self, number: int, _place: int) -> Stage:
        return lambda f: (Fact(f.key, _plus(f.value, n), f.time) for n in range(number))

    def branch_and_merge(self, number: int, _place: int) -> Stage:
        def stage(fact: Fact) -> Iterator[Fact]:
            taken = fact.value is not None and fact.value % number == 0
            yield fact._replace(value=_plus(fact.value, 100)) if taken else fact

        return stage

    def merge_with_itself(self, number: int, _place: int) -> Stage:
        return lambda f: iter([f._replace(value=_plus(f.value, number)), f])

    # With stores.

    def _folded(self, fold: Callable[[Any, Any], Any]) -> Stage:
        """An aggregate is stamped with the latest of its records, as long as it is there."""
        rows: dict[str, Row] = {}

        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None and fact.value is not None:
                old = rows.get(fact.key)
                time = fact.time if old is None else max(fact.time, old.time)
                made = fold(None if old is None else old.value, fact.value)
                _set(rows, Fact(fact.key, made, time))
                yield Fact(fact.key, made, time)

        return stage

    def count(self, _number: int, _place: int) -> Stage:
        return self._folded(lambda old, _value: (old or 0) + 1)

    def reduce(self, _number: int, _place: int) -> Stage:
        return self._folded(lambda old, value: value if old is None else max(old, value))

    def aggregate(self, number: int, _place: int) -> Stage:
        def fold(old: Any, value: Any) -> Any:
            total = (old or 0) + value
            return total if total % number else None

        return self._folded(fold)

    def table_views(self, number: int, _place: int) -> Stage:
        rows: dict[str, Row] = {}

        def shown(value: Any) -> Any:
            return None if value is None or value % number == 0 else value + 1

        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None:
                old, new = shown(_value(rows, fact.key)), shown(fact.value)
                _set(rows, fact)
                if old is not None or new is not None:
                    yield Fact(fact.key, new, fact.time)

        return stage

    def join(self, _number: int, _place: int) -> Stage:
        def stage(fact: Fact) -> Iterator[Fact]:
            row = _value(self._right, fact.key)
            if fact.value is not None and row is not None:
                yield Fact(fact.key, fact.value + row, fact.time)

        return stage

    def left_join(self, _number: int, _place: int) -> Stage:
        def stage(fact: Fact) -> Iterator[Fact]:
            row = _value(self._right, fact.key)
            if fact.value is not None:
                yield Fact(fact.key, fact.value + (row or 0), fact.time)

        return stage

    def join_own_count(self, _number: int, _place: int) -> Stage:
        counts: dict[str, int] = {}

        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None and fact.value is not None:
                counts[fact.key] = counts.get(fact.key, 0) + 1
                yield Fact(fact.key, fact.value + counts[fact.key], fact.time)

        return stage

    def table_join(self, _number: int, place: int) -> Stage:
        rows: dict[str, Row] = {}

        def on_left(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None:
                _set(rows, fact)
                other = self._right.get(fact.key)
                if other is not None:
                    yield Fact(fact.key, _plus(fact.value, other.value), max(fact.time, other.time))

        def on_right(fact: Fact) -> Iterator[Fact]:
            mine = rows.get(fact.key or "")
            if mine is not None:
                yield Fact(fact.key, _plus(fact.value, mine.value), max(fact.time, mine.time))

        self._on_right.append((place, on_right))
        return on_left

    def table_left_join(self, _number: int, place: int) -> Stage:
        rows: dict[str, Row] = {}

        def on_left(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None:
                old = rows.get(fact.key)
                _set(rows, fact)
                other = self._right.get(fact.key)
                if (fact.value, old, other) != (None, None, None):
                    value, time = (0, fact.time) if other is None else other
                    yield Fact(fact.key, _plus(fact.value, value), max(fact.time, time))

        def on_right(fact: Fact) -> Iterator[Fact]:
            mine = rows.get(fact.key or "")
            if mine is not None:
                made = mine.value + (fact.value or 0)
                yield Fact(fact.key, made, max(fact.time, mine.time))

        self._on_right.append((place, on_right))
        return on_left

    def windows(self, number: int, _place: int) -> Stage:
        counts: dict[tuple[int, str], Row] = {}
        now = -1

        def stage(fact: Fact) -> Iterator[Fact]:
            nonlocal now
            if fact.key is None:
                return
            now = max(now, fact.time)
            start = fact.time // number * number
            if start + number > now - GRACE:
                old = counts.get((start, fact.key), Row(0, fact.time))
                made = Row(old.value + 1, max(old.time, fact.time))
                counts[(start, fact.key)] = made
                yield Fact(f"{fact.key}@{start}", made.value, made.time)

        return stage

    def closed_windows(self, number: int, place: int) -> Stage:
        counted = self.windows(number, place)
        open_windows: dict[tuple[int, str], int] = {}
        now = -1

        def stage(fact: Fact) -> Iterator[Fact]:
            nonlocal now
            if fact.key is None:
                return
            now = max(now, fact.time)
            for made in counted(fact):
                open_windows[(fact.time // number * number, fact.key)] = made.value
            for start, key in sorted(w for w in open_windows if w[0] + number <= now - GRACE):
                value = open_windows.pop((start, key))
                yield Fact(f"{key}@{start}", value, start + number - 1)

        return stage


def _set(rows: dict[str, Row], fact: Fact) -> None:
    assert fact.key is not None
    if fact.value is None:
        rows.pop(fact.key, None)
    else:
        rows[fact.key] = Row(fact.value, fact.time)


def _value(rows: dict[str, Row], key: str | None) -> Any:
    row = rows.get(key or "")
    return None if row is None else row.value


def _plus(value: Any, number: int) -> Any:
    return None if value is None else value + number


def _named(value: Any, number: int) -> str | None:
    return None if value is None else f"k{value % number}"
