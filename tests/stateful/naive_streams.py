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


class Naive:
    """The pipeline, alive."""

    def __init__(self, program: list[Step]) -> None:
        self._right: dict[str, Any] = {}
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
        update = fact._replace(old=self._right.get(fact.key))
        _set(self._right, fact.key, fact.value)
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

    def count(self, _number: int, _place: int) -> Stage:
        counts: dict[str, int] = {}

        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None and fact.value is not None:
                counts[fact.key] = counts.get(fact.key, 0) + 1
                yield Fact(fact.key, counts[fact.key], fact.time)

        return stage

    def reduce(self, _number: int, _place: int) -> Stage:
        best: dict[str, int] = {}

        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None and fact.value is not None:
                best[fact.key] = max(best.get(fact.key, fact.value), fact.value)
                yield Fact(fact.key, best[fact.key], fact.time)

        return stage

    def aggregate(self, number: int, _place: int) -> Stage:
        sums: dict[str, int] = {}

        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None and fact.value is not None:
                total = sums.get(fact.key, 0) + fact.value
                _set(sums, fact.key, total if total % number else None)
                yield Fact(fact.key, sums.get(fact.key), fact.time)

        return stage

    def table_views(self, number: int, _place: int) -> Stage:
        rows: dict[str, Any] = {}

        def shown(value: Any) -> Any:
            return None if value is None or value % number == 0 else value + 1

        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None:
                old, new = shown(rows.get(fact.key)), shown(fact.value)
                _set(rows, fact.key, fact.value)
                if old is not None or new is not None:
                    yield Fact(fact.key, new, fact.time)

        return stage

    def join(self, _number: int, _place: int) -> Stage:
        def stage(fact: Fact) -> Iterator[Fact]:
            row = None if fact.key is None else self._right.get(fact.key)
            if fact.value is not None and row is not None:
                yield Fact(fact.key, fact.value + row, fact.time)

        return stage

    def left_join(self, _number: int, _place: int) -> Stage:
        def stage(fact: Fact) -> Iterator[Fact]:
            row = None if fact.key is None else self._right.get(fact.key)
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
        rows: dict[str, Any] = {}

        def on_left(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None:
                _set(rows, fact.key, fact.value)
                other = self._right.get(fact.key)
                if other is not None:
                    yield Fact(fact.key, _plus(fact.value, other), fact.time)

        def on_right(fact: Fact) -> Iterator[Fact]:
            mine = rows.get(fact.key or "")
            if mine is not None:
                yield Fact(fact.key, _plus(fact.value, mine), fact.time)

        self._on_right.append((place, on_right))
        return on_left

    def table_left_join(self, _number: int, place: int) -> Stage:
        rows: dict[str, Any] = {}

        def on_left(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None:
                old = rows.get(fact.key)
                _set(rows, fact.key, fact.value)
                other = self._right.get(fact.key)
                if (fact.value, old, other) != (None, None, None):
                    yield Fact(fact.key, _plus(fact.value, other or 0), fact.time)

        def on_right(fact: Fact) -> Iterator[Fact]:
            mine = rows.get(fact.key or "")
            if mine is not None:
                yield Fact(fact.key, mine + (fact.value or 0), fact.time)

        self._on_right.append((place, on_right))
        return on_left

    def windows(self, number: int, _place: int) -> Stage:
        counts: dict[tuple[int, str], int] = {}
        now = -1

        def stage(fact: Fact) -> Iterator[Fact]:
            nonlocal now
            if fact.key is None:
                return
            now = max(now, fact.time)
            start = fact.time // number * number
            if start + number > now - GRACE:
                counts[(start, fact.key)] = counts.get((start, fact.key), 0) + 1
                yield Fact(f"{fact.key}@{start}", counts[(start, fact.key)], fact.time)

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


def _set(rows: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


def _plus(value: Any, number: int) -> Any:
    return None if value is None else value + number


def _named(value: Any, number: int) -> str | None:
    return None if value is None else f"k{value % number}"
