"""A naive interpreter of small pipelines: one record at a time, dicts for stores, no operators.

`run` gives what comes out of each record of a program. Written from Kafka Streams' documentation,
not from the code it judges; the user's functions are those of the program.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.stateful.built_programs import keys_of
from tests.stateful.naive_suppress import NEVER, Suppressed
from tests.stateful.naive_tables import (
    ByForeignKey,
    Copy,
    CountWindows,
    Fact,
    Folded,
    FoldedHistory,
    Groups,
    History,
    Joined,
    Kept,
    Key,
    Sessions,
    Stage,
    Table,
    Versions,
    View,
    Windows,
)
from tests.stateful.naive_timers import Reminders
from tests.stateful.naive_windows_of_joins import StreamsMet
from tests.stateful.random_programs import (
    FILE,
    FUNCTIONS,
    GAP,
    GRACE,
    KEYED,
    NEAR,
    RETENTION,
    SIZE,
    SOON,
    Functions,
    Made,
    Program,
    few_of,
    held_by,
    hop_of,
    in_sessions,
    in_time,
    in_windows,
    later,
    meet,
    meeting_right,
    name_of,
    named_apart,
    segments,
    tolerance_of,
)

_TAKE_NULL_KEYS = {
    *("left_join", "grace_left_join", "global_left_join", "lookup_left_join"),
    *("stream_left_join", "stream_outer_join", "self_outer_join"),
}
"""Internal topics before these have records without a key."""


class Naive:
    """The pipeline, alive."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._functions: Functions = FUNCTIONS[program.values]
        self._made: list[Fact] = []
        self._segments = segments(program)
        self._clocks: dict[int, int] = {}
        self._reminders: list[tuple[int, Reminders]] = []
        self._right_segment = min(meeting_right(program), default=None)
        self._source = self._table_of(program.right)
        self._right = self._stepped(self._source, program.right)
        self._everywhere: dict[Any, Any] = {}
        self._file: dict[Any, Any] = {}
        self._stages: list[Stage] = []
        self._met_by_right: list[tuple[int, Stage]] = []
        for place, step in enumerate(program.steps):
            if step.table is not None:
                stage = self.table(step.table, place)
            else:
                stage = getattr(self, step.name)(step.number, place)
            self._stages.append(stage)

    def run(self, topic: str, fact: Fact) -> list[Fact]:
        """What one record brings out."""
        self._made = []
        if topic == "everywhere":
            self._everywhere[fact.key] = fact.value
        elif topic == FILE:
            self._file.clear()
            self._file.update(fact.value)
        elif topic == "in":
            self._pass_time(0, fact.time)
            self._push(0, fact)
        else:
            if self._right_segment is not None:
                self._pass_time(self._right_segment, fact.time)
            self._source.take(fact)
            for place, met in self._met_by_right:
                for made in met(fact):
                    self._push(place + 1, made)
        return self._made

    def _push(self, place: int, fact: Fact) -> None:
        if place == len(self._stages):
            self._made.append(fact)
            return
        before = self._segments[place - 1] if place else 0
        if self._segments[place] > before:
            steps = {step.name for step in self._program.steps[place:]}
            if fact.key is None and steps.isdisjoint(_TAKE_NULL_KEYS):
                return  # An internal topic does not get it, so that no time passes behind it.
            self._pass_time(self._segments[place], fact.time)
        for made in self._stages[place](fact):
            self._push(place + 1, made)

    def _pass_time(self, segment: int, time: int) -> None:
        """Timers fire before the record that comes; of those of one time, the first node's do."""
        while timers := [
            (first.time, place, first, reminders)
            for place, reminders in self._reminders
            if self._segments[place] == segment and (first := reminders.first(time)) is not None
        ]:
            _, place, first, reminders = min(timers, key=lambda one: one[:3])
            self._clocks[segment] = max(first.time, self._clocks[segment])
            self._push(place + 1, reminders.fire(first))
        self._clocks[segment] = max(time, self._clocks.get(segment, time))

    # Without state.

    def filter(self, number: int, _place: int) -> Stage:
        return lambda f: iter([f] if self._functions.passes(f.value, number) else [])

    def map_values(self, number: int, _place: int) -> Stage:
        mapped = self._functions.mapped
        return lambda f: iter([f._replace(value=mapped(f.key, f.value, number))])

    def select_key(self, number: int, _place: int) -> Stage:
        program = self._program
        return lambda f: iter([Fact(program.named(f.value, number), f.value, f.time)])

    def flat_map_values(self, number: int, _place: int) -> Stage:
        mapped = self._functions.mapped
        return lambda f: (
            f._replace(value=mapped(f.key, f.value, KEYED if number == KEYED else n))
            for n in range(number)
        )

    def process_values(self, _number: int, _place: int) -> Stage:
        turns: dict[Key, int] = {}

        def stage(fact: Fact) -> Iterator[Fact]:
            turn = 0
            if fact.key is not None:
                turn = turns[fact.key] = turns.get(fact.key, 0) + 1
            yield fact._replace(value=self._functions.plus(fact.value, turn % 10))

        return stage

    def by_records(self, number: int, _place: int) -> Stage:
        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.time % 5 != number:
                yield fact._replace(time=later(fact.time, number))

        return stage

    def remind(self, number: int, place: int) -> Stage:
        reminders = Reminders(SOON[number], self._functions.plus, keys_of(self._program).serialize)
        self._reminders.append((place, reminders))

        def stage(fact: Fact) -> Iterator[Fact]:
            yield fact
            reminders.take(fact)
            now = self._clocks[self._segments[place]]
            while (passed := reminders.first(now)) is not None:
                yield reminders.fire(passed)

        return stage

    def branch_and_merge(self, number: int, _place: int) -> Stage:
        def stage(fact: Fact) -> Iterator[Fact]:
            taken = self._functions.passes(fact.value, number)
            yield fact._replace(value=self._functions.plus(fact.value, 100)) if taken else fact

        return stage

    def merge_with_itself(self, number: int, _place: int) -> Stage:
        return lambda f: iter([f._replace(value=self._functions.plus(f.value, number)), f])

    # With stores.

    def count(self, _number: int, place: int) -> Stage:
        return self.table(Made("count", 0), place)

    def reduce(self, _number: int, place: int) -> Stage:
        return self.table(Made("reduce", 0), place)

    def windows(self, _number: int, place: int) -> Stage:
        return self.table(Made("count windows", 0), place, unwindowed=False)

    def closed_windows(self, _number: int, place: int) -> Stage:
        return self.table(Made("count closed", 0), place, unwindowed=False)

    def table(self, made: Made, place: int, *, unwindowed: bool = True) -> Stage:
        """What the stream becomes, and comes of the table's updates.

        `unwindowed`: where keys are windows already, others are made of the keys in them.
        """
        source = self._table_of(made)
        of_names = unwindowed and in_windows(made) and self._program.windowed

        def on_update(update: Fact) -> None:
            key: Key = update.key
            if in_sessions(made) or (in_windows(made) and not of_names):
                key = named_apart(key)
            self._push(place + 1, Fact(key, self._functions.fitted(update.value), update.time))

        def stage(fact: Fact) -> Iterator[Fact]:
            source.take(fact._replace(key=name_of(fact.key)) if of_names else fact)
            return iter(())

        self._stepped(source, made).tell(on_update)
        return stage

    def join(self, number: int, _place: int) -> Stage:
        return self._joined(number, outer=False)

    def left_join(self, number: int, _place: int) -> Stage:
        return self._joined(number, outer=True)

    def global_join(self, number: int, _place: int) -> Stage:
        return self._found_by(number, self._everywhere.get, outer=False)

    def global_left_join(self, number: int, _place: int) -> Stage:
        return self._found_by(number, self._everywhere.get, outer=True)

    def lookup_join(self, number: int, _place: int) -> Stage:
        return self._found_by(number, self._file.get, outer=False)

    def lookup_left_join(self, number: int, _place: int) -> Stage:
        return self._found_by(number, self._file.get, outer=True)

    def _found_by(self, number: int, look: Callable[[str], Any], *, outer: bool) -> Stage:
        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.value is not None:
                name = self._functions.somewhere(fact.value, number)
                row = None if name is None else copy.deepcopy(look(name))
                if outer or row is not None:
                    left = copy.deepcopy(fact.value)
                    yield Fact(fact.key, self._functions.both_in_place(left, row), fact.time)

        return stage

    def grace_join(self, number: int, place: int) -> Stage:
        return self._joined_late(number, place, outer=False)

    def grace_left_join(self, number: int, place: int) -> Stage:
        return self._joined_late(number, place, outer=True)

    def regroup(self, number: int, place: int) -> Stage:
        rows = Kept()
        functions = self._functions
        groups = Groups(
            lambda value: self._program.named(value, number),
            lambda value, old: functions.total(
                value, functions.fit(0) if old is None else old, number
            ),
            lambda value, old: functions.less(value, old, number),
        )

        def stage(fact: Fact) -> Iterator[Fact]:
            rows.take(fact)
            return iter(())

        rows.tell(groups.take)
        groups.tell(lambda update: self._push(place + 1, update))
        return stage

    def cogroup(self, number: int, place: int) -> Stage:
        table, functions = Kept(), self._functions

        def stage(fact: Fact, number: int = number) -> Iterator[Fact]:
            if fact.key is not None and fact.value is not None:
                old = table.row(fact.key)
                total = functions.fit(0) if old is None else old.value
                made = functions.total(fact.value, total, number)
                time = fact.time if old is None else max(fact.time, old.time)
                table.keep(fact._replace(value=made, time=time))
            return iter(())

        table.tell(lambda update: self._push(place + 1, update))
        self._met_by_right.append((place, lambda fact: stage(fact, number + 1)))
        return stage

    def foreign_join(self, number: int, place: int) -> Stage:
        return self._by_foreign_key(number, place, outer=False)

    def foreign_left_join(self, number: int, place: int) -> Stage:
        return self._by_foreign_key(number, place, outer=True)

    def _by_foreign_key(self, number: int, place: int, *, outer: bool) -> Stage:
        rows, functions = Kept(), self._functions

        def stage(fact: Fact) -> Iterator[Fact]:
            rows.take(fact)
            return iter(())

        joined = ByForeignKey(
            rows,
            self._right,
            lambda value: self._program.named(value, number),
            lambda _key, row, other: functions.both(row, other),
            outer=outer,
        )
        joined.tell(lambda update: self._push(place + 1, update))
        return stage

    def stream_join(self, number: int, place: int) -> Stage:
        return self._meeting(number, place, "")

    def stream_left_join(self, number: int, place: int) -> Stage:
        return self._meeting(number, place, "l")

    def stream_outer_join(self, number: int, place: int) -> Stage:
        return self._meeting(number, place, "lr")

    def self_join(self, number: int, _place: int) -> Stage:
        return self._met_by_itself(number, "")

    def self_outer_join(self, number: int, _place: int) -> Stage:
        return self._met_by_itself(number, "lr")

    def _meeting(self, number: int, place: int, waits: str) -> Stage:
        both = StreamsMet(NEAR[number], waits, self._functions.joiner(number, in_place=True))
        self._met_by_right.append((place, both.right))
        return both.left

    def _met_by_itself(self, number: int, waits: str) -> Stage:
        both = StreamsMet(NEAR[number], waits, self._functions.joiner(number, in_place=True))

        def stage(fact: Fact) -> Iterator[Fact]:
            yield from both.left(fact)
            yield from both.right(fact)

        return stage

    def join_own_count(self, _number: int, _place: int) -> Stage:
        counts: dict[Key, int] = {}

        def stage(fact: Fact) -> Iterator[Fact]:
            if fact.key is not None and fact.value is not None:
                counts[fact.key] = counts.get(fact.key, 0) + 1
                yield fact._replace(value=self._functions.both(fact.value, counts[fact.key]))

        return stage

    def _joined(self, number: int, *, outer: bool) -> Stage:
        join = self._functions.joiner(number, in_place=True)
        tolerance = tolerance_of(self._program.right, number)

        def stage(fact: Fact) -> Iterator[Fact]:
            row = None if fact.key is None else self._right.as_of(fact.key, fact.time, tolerance)
            if fact.value is not None and (outer or row is not None):
                left = copy.deepcopy(fact.value)
                yield Fact(fact.key, join(fact.key, left, row), fact.time)

        return stage

    def _joined_late(self, number: int, place: int, *, outer: bool) -> Stage:
        """Records wait until one that is later by the grace came to the join, from either side."""
        joined = self._joined(number, outer=outer)
        history = self._right.history
        assert history is not None
        waiting: list[tuple[int, int, Fact]] = []
        count, now = 0, NEVER

        def due(time: int) -> Iterator[Fact]:
            nonlocal now
            now = max(now, time)
            for one in sorted(w for w in waiting if w[0] + GRACE * number <= now):
                waiting.remove(one)
                yield from joined(one[2])

        def wake(update: Fact) -> None:
            if update.key is not None:
                for made in due(update.time):
                    self._push(place + 1, made)

        def stage(fact: Fact) -> Iterator[Fact]:
            nonlocal count
            count += 1
            if fact.value is None:
                return iter(())
            waiting.append((fact.time, count, fact))
            return due(fact.time)

        history.wake(wake)
        return stage

    # Tables.

    def _table_of(self, made: Made) -> Kept:
        name, _, emit = made.kind.partition(" ")
        if name == "plain":
            return Kept()
        if name == "history":
            return History(RETENTION)
        fold = self._fold(name, made.number)
        if emit == "history":
            return FoldedHistory(RETENTION, fold)
        if not emit:
            return Folded(fold)
        if in_sessions(made):
            merge = self._merge(name)
            zero = self._functions.fit(0) if name == "aggregate" else None
            return Sessions(GAP, GRACE, fold, merge, zero, final=emit.startswith("closed"))
        if emit.endswith("few"):
            return CountWindows(*few_of(made), fold, final=emit.startswith("closed"))
        return Windows(SIZE, hop_of(made), GRACE, fold, final=emit == "closed")

    def _fold(self, name: str, number: int) -> Callable[[Any, Any], Any]:
        functions = self._functions
        zero = functions.fit(0)
        if name == "count":
            return lambda old, _value: (old or 0) + 1
        if name == "reduce":
            return lambda old, value: value if old is None else functions.heavier(old, value)
        return lambda old, value: functions.total(value, zero if old is None else old, number)

    def _merge(self, name: str) -> Callable[[Any, Any], Any]:
        functions = self._functions
        if name == "count":
            return lambda one, other: (one or 0) + other
        if name == "reduce":
            return lambda one, other: other if one is None else functions.heavier(one, other)
        return functions.sum

    def _stepped(self, table: Table, made: Made) -> Table:
        functions, clocks = self._functions, [table]
        for step in made.steps:
            name, number, kept = step
            if name == "filter":
                table = View(table, self._filtering(number), quiet=True)
            elif name == "map_values":
                table = View(table, self._mapping(number), quiet=False)
            elif name == "suppress":
                held, windowed = held_by(made, number), Windows | Sessions
                timed = [one for one in clocks if isinstance(one, windowed)] if held.final else []
                table = Suppressed(table, held, timed, sessions=in_sessions(made))
            elif meet(self._program, made):
                may_lack = {"join": "", "left_join": "r", "outer_join": "lr"}[name]
                table = Joined(table, self._right, functions.joiner(number), may_lack=may_lack)
                clocks.append(self._source)
            else:
                continue  # Its keys do not meet any, so there is no such step.
            if in_time(step):
                table = Versions(table, RETENTION)
            elif kept and name != "suppress":
                table = Copy(table)
        return table

    def _filtering(self, number: int) -> Callable[[Key, Any], Any]:
        passes = self._functions.passes
        return lambda _key, value: value if passes(value, number) else None

    def _mapping(self, number: int) -> Callable[[Key, Any], Any]:
        return lambda key, value: self._functions.mapped(key, value, number)
