"""Small random pipelines as data: their steps, tables and keys, the user's functions, the input."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from statestore import serdes
from statestore.model.records import Serde, Windowed
from tests.stateful.naive_tables import Fact

FILE = "file"
SIZE = 10
"""Of the windows in keys, and of those that make tables."""
GAP = 8
"""Of sessions."""
GRACE = 5
RETENTION = 60
NEAR = {2: (8, 8, 0), 3: (15, 0, 5), 4: (-3, 20, 2)}
"""Of joins of streams, by number: how much earlier and later matches are, and the grace."""
SOON = {2: 3, 3: 12, 4: -2}
"""Of timers, by number: how long after a record they are due."""
KEYED = 4
"""The number of steps whose functions take the key, too."""
YEAR_2099 = 4_070_908_800_000
Outcome = tuple[Any, ...]
"""Key, value and time of what came out."""


class TableStep(NamedTuple):
    """What makes a table of a table; `kept` in a store of its own. Joins are with `right`.

    `suppress` is never kept so: it has a buffer.
    """

    name: str
    number: int
    kept: bool


class Made(NamedTuple):
    """A table: how it is made of a stream, and what is made of it."""

    kind: str
    number: int
    steps: tuple[TableStep, ...] = ()


class Step(NamedTuple):
    """A step of a stream; `table`: of the name `table`, what it becomes in between."""

    name: str
    number: int
    table: Made | None = None


class Program(NamedTuple):
    """`in` goes through the steps to `out`, along with the table made of `right`.

    `windowed`: the keys that meet are keys in windows. `values`: of which kind they are.
    """

    values: str
    windowed: bool
    right: Made
    steps: tuple[Step, ...]

    def named(self, value: Any, number: int) -> Any:
        """What select_key makes of a value."""
        if value is None:
            return None
        start = weight(value) % 3 * SIZE
        return key_of(f"k{weight(value) % number}", start, windowed=self.windowed)


@dataclass(frozen=True)
class Functions:
    """The user's functions, over values of one kind."""

    serde: Serde[Any]
    fit: Callable[[Any], Any]

    def fitted(self, value: Any) -> Any:
        """What aggregates give, under the serde that all the rest has."""
        return None if value is None else self.fit(value)

    def somewhere(self, value: Any, number: int) -> str | None:
        """The key of a global table that a value asks for."""
        return f"k{weight(value) % number}" if weight(value) % 5 else None

    def plus(self, value: Any, number: int) -> Any:
        if value is None:
            return None
        if isinstance(value, int | float):
            return self.fit(value + number)
        if isinstance(value, list):
            return [*value, number]
        return value + (str(number) if isinstance(value, str) else bytes([number]))

    def mapped(self, key: Any, value: Any, number: int) -> Any:
        """What map_values makes of a value."""
        return self.plus(value, weight(key) if number == KEYED else number)

    def joiner(self, number: int, *, in_place: bool = False) -> Callable[[Any, Any, Any], Any]:
        """The function of a key and what met under it."""
        both = self.both_in_place if in_place else self.both

        def join(key: Any, left: Any, right: Any) -> Any:
            return both(self.plus(left, weight(key)) if number == KEYED else left, right)

        return join

    def both(self, left: Any, right: Any) -> Any:
        return self.fit([left, right])

    def both_in_place(self, left: Any, right: Any) -> Any:
        """Of a stream's joiner, which may change the row it is given."""
        if isinstance(right, list):
            right.append(left)
        if isinstance(right, dict):
            # The last name in order, as serdes sort them.
            right["with"] = left
        return self.both(left, right)

    def heavier(self, old: Any, new: Any) -> Any:
        return max(old, new, key=lambda value: (weight(value), repr(value)))

    def total(self, value: Any, old: Any, number: int) -> Any:
        """Of an aggregate: None where the sum, by accident, is a multiple of `number`."""
        made = weight(old) + weight(value) if old is not None else weight(value)
        return self.fit(made) if made % number else None

    def less(self, value: Any, old: Any, number: int) -> Any:
        """What is left of a total without a value: None as for `total`."""
        made = abs(weight(old) - weight(value))
        return self.fit(made) if made % number else None

    def sum(self, one: Any, other: Any) -> Any:
        """Of the aggregates of two sessions."""
        return self.fit(weight(one) + weight(other))

    def passes(self, value: Any, number: int) -> bool:
        return value is not None and weight(value) % number != 0


def later(time_ms: int, number: int) -> int:
    """The time of a record anew: some move back, and some ahead."""
    return max(0, time_ms + (time_ms % 3 - 1) * number)


def weight(value: Any) -> int:
    return abs(value) if isinstance(value, int) else len(repr(value))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else repr(value).encode()


FUNCTIONS = {
    "any": Functions(serdes.MSGPACK, lambda value: value),
    "texts": Functions(serdes.STRING, str),
    "bytes": Functions(serdes.BYTES, _bytes),
    "json": Functions(serdes.JSON, lambda value: value),
}
NUMBERS: list[Any] = list(range(10))
VALUES: dict[str, list[Any]] = {
    "any": NUMBERS
    + NUMBERS
    + [-1, 2**53, float("inf"), float("-inf"), 0.0, "", b"", "é", False, *3 * [[], [1, 2], [3]]],
    "texts": ["", "", "0", "inf", "None", "é", "12345"],
    "bytes": [b"", b"", b"0", bytes(8), b"\xff"],
    # What JSON does not give back as it was: infinities become null.
    "json": [*NUMBERS, -1, float("inf"), float("-inf"), float("nan"), 1.5, "", "é", True, [], [1]],
}
JOINS = {"join", "left_join", "grace_join", "grace_left_join"}
STREAM_JOINS = {"stream_join", "stream_left_join", "stream_outer_join"}
"""With the stream of `right`; `self_join` and `self_outer_join` are with the stream itself."""
_SELF_JOINS = {"self_join", "self_outer_join"}
FOREIGN_JOINS = {"foreign_join", "foreign_left_join"}
"""Of the stream's table with that of `right`, by a key that its values hold."""
LOOKUP_JOINS = {"lookup_join", "lookup_left_join"}
"""With the rows of a file."""
_NEED_KEYS = {
    "count",
    "reduce",
    "windows",
    "closed_windows",
    "regroup",
    "table",
    *JOINS,
    *STREAM_JOINS,
    *_SELF_JOINS,
    *FOREIGN_JOINS,
    "cogroup",
}
_CHANGE_KEYS = {"select_key", "windows", "closed_windows", "remind"}


def in_windows(made: Made) -> bool:
    """Whether it is an aggregate by key and window."""
    return made.kind in BY_WINDOW


def in_sessions(made: Made) -> bool:
    """Whether it is an aggregate by key and session."""
    return made.kind in BY_SESSION


def hop_of(made: Made) -> int:
    """How far apart its windows start: side by side, overlapping in pairs, or unevenly."""
    return {3: SIZE // 2, 4: 4}.get(made.number, SIZE)


def in_time(step: TableStep) -> bool:
    """Whether a step that is kept keeps its history."""
    return step.kept and step.number == 2


def few_of(made: Made) -> tuple[int, int]:
    """Of how many records its windows are, and how many records apart: all in turn, or fewer."""
    return {3: (3, 1), 4: (4, 3)}.get(made.number, (2, 2))


def has_history(made: Made) -> bool:
    """Whether a stream joins the version as of its own time."""
    history = made.kind in HISTORIES
    for step in made.steps:
        history = in_time(step) or (history and not step.kept and step.name != "suppress")
    return history


def tolerance_of(right: Made, number: int) -> int | None:
    """How long before a record's time the version that it joins may have begun."""
    return {3: 0, 4: 8}.get(number) if has_history(right) else None


class Held(NamedTuple):
    """How updates are suppressed: until windows close, or by time and number of those that wait.

    `most` None: as many as come.
    """

    final: bool
    limit: int
    most: int | None


def looks_up(program: Program) -> bool:
    """Whether it reads a file."""
    return any(step.name in LOOKUP_JOINS for step in program.steps)


def held_by(made: Made, number: int) -> Held:
    """How the updates of such a table are suppressed."""
    if number == 2 and made.kind.endswith("sessions") and "closed" not in made.kind:
        return Held(True, GAP + GRACE + 1, None)
    if number == 2 and made.kind.endswith("windows"):
        return Held(True, SIZE + GRACE, None)
    return Held(False, {2: 0, 3: 2 * SIZE, 4: SIZE}[number], 2 if number == 3 else None)


def races(program: Program) -> bool:
    """Whether only what there is in the end is certain."""
    return bool(program.steps) and program.steps[-1].name in FOREIGN_JOINS


def meet(program: Program, made: Made) -> bool:
    """Whether the keys of such a table, made on the way, are those of `right`."""
    return not in_sessions(made) and (program.windowed or not in_windows(made))


def segments(program: Program) -> list[int]:
    """Per step, through how many topics a record comes before it: each segment has its clock."""
    found, rekeyed, segment = [], False, 0
    for step in program.steps:
        windows = step.table is not None and in_windows(step.table)
        through = rekeyed and step.name in _NEED_KEYS
        if through or step.name == "join_own_count" or (windows and program.windowed):
            segment, rekeyed = segment + 1, False
        found.append(segment)
        # The groups of a table lie behind a topic of their own.
        segment += step.name == "regroup"
        sessions = step.table is not None and in_sessions(step.table)
        rekeyed |= step.name in _CHANGE_KEYS or sessions or (windows and not program.windowed)
    return found


def meeting_right(program: Program) -> set[int]:
    """The segments in which something is joined with `right`."""
    return {
        segment
        for step, segment in zip(program.steps, segments(program), strict=True)
        if step.name in {*JOINS, *STREAM_JOINS, "cogroup"}
        or (
            step.table is not None
            and meet(program, step.table)
            and any("join" in made.name for made in step.table.steps)
        )
    }


def in_order(program: Program) -> Program:
    """As little as possible of a program in which a task reads what it wrote meanwhile.

    There, what a record meets depends on the task's haste, with Kafka Streams too. So nothing
    comes of updates of `right`, nor of time, before the last segment that joins something with it.
    """
    meeting = meeting_right(program)
    if len(meeting) < 2:
        return program
    steps = []
    for step, segment in zip(program.steps, segments(program), strict=True):
        name, made = step.name.removeprefix("grace_"), step.table
        if segment < max(meeting) and name in STREAM_JOINS:
            name = "self_join"
        if segment < max(meeting) and name == "cogroup":
            name = "reduce"
        if name == "remind":
            name = "map_values"
        if made is not None and segment < max(meeting):
            kept = tuple(one for one in made.steps if "join" not in one.name)
            made = made._replace(steps=kept)
        steps.append(step._replace(name=name, table=made))
    return program._replace(steps=tuple(steps))


def key_of(name: str | None, start: int, *, windowed: bool) -> Any:
    """The key that meets others, of a name; `start`: of its window, where it has one."""
    if name is None or not windowed:
        return name
    return Windowed(name, start, start + SIZE)


def name_of(key: Any) -> str | None:
    name: str | None = key.key if isinstance(key, Windowed) else key
    return name


def renamed(key: Any, start: int | str) -> Any:
    """A key that tells a window of `key` from others."""
    if isinstance(key, Windowed):
        return key._replace(key=f"{key.key}@{start}")
    return f"{key}@{start}"


def named_apart(window: "Windowed[Any]") -> Any:
    """The key of a window or of a session, renamed so that it tells others apart."""
    name = window.start_ms
    # An end of its own tells that it is a session.
    apart = name if window.end_ms == name + SIZE else f"{name}-{window.end_ms}"
    return renamed(window.key, apart)


def latest(made: Iterable[Outcome]) -> dict[Any, Outcome]:
    """What is there of each key in the end."""
    rows = {row[0]: row for row in made}
    return {key: row for key, row in sorted(rows.items(), key=repr) if row[1] is not None}


def in_the_end(program: Program, made: Iterable[Outcome]) -> Any:
    """What is certain of all that came out: all, or where rows race what is there in the end.

    A left join that found nothing has its record's time or that of a delete, whichever came last.
    """
    if not races(program):
        return list(made)
    rows = latest(made)
    if program.steps[-1].name == "foreign_left_join":
        return {key: row[:2] for key, row in rows.items()}
    return rows


# At random.

HISTORIES = ["history", "count history", "aggregate history"]
BY_COUNT = ["reduce closed-few", "aggregate few"]
BY_KEY = ["plain", "count", "reduce", "aggregate", *HISTORIES, *BY_COUNT]
BY_WINDOW = [
    f"{fold} {emit}" for emit in ("windows", "closed") for fold in ("count", "reduce", "aggregate")
]
BY_SESSION = ["count sessions", "aggregate sessions", "reduce closed-sessions"]
STREAM_JOIN_STEPS = [*2 * sorted(STREAM_JOINS), *sorted(_SELF_JOINS)]
STREAM_STEPS = [
    "filter",
    "map_values",
    "select_key",
    "flat_map_values",
    "branch_and_merge",
    "merge_with_itself",
    *2 * ["regroup"],
    "process_values",
    *3 * ["remind"],
    *2 * ["cogroup"],
    "global_join",
    "global_left_join",
    *sorted(LOOKUP_JOINS),
    "count",
    "reduce",
    "join_own_count",
    "windows",
    "closed_windows",
    *5 * ["join", "left_join"],
    *STREAM_JOIN_STEPS,
    *6 * ["table"],
    "join",
    "table",
    "by_records",
]
AGES = [-1, 0, 1_700_000_000_000, YEAR_2099]
"""Where times begin: with no time, in 1970, today, and far ahead."""


def program_of(chance: random.Random, *, values: str = "", windowed: bool | None = None) -> Program:
    """Any program, or one with values and keys of this kind."""
    kind = values or chance.choice(["any", "any", "texts", "bytes"])
    of_windows = chance.random() < 0.4 if windowed is None else windowed
    rights = BY_WINDOW if of_windows else [*BY_KEY, *HISTORIES]
    right = Made(chance.choice(rights), chance.randint(2, 4), _table_steps(chance, "fm", 2))
    steps: list[Step] = []
    for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4])):
        name = chance.choice(STREAM_STEPS)
        if name in JOINS and has_history(right) and chance.random() < 0.5:
            name = f"grace_{name}"
        if name in STREAM_JOIN_STEPS:
            # Records multiply; and keys in windows never meet those of `right`.
            if any(step.name in STREAM_JOIN_STEPS for step in steps):
                name = "map_values"
            elif of_windows and name in STREAM_JOINS:
                name = "self_join"
        # Keys in windows never meet those of `right`.
        if name == "cogroup" and of_windows:
            name = "reduce"
        number = chance.randint(2, 4)
        made = None
        if name == "table":
            most_often = BY_WINDOW if of_windows else BY_KEY
            of = chance.choice([*BY_KEY, *BY_WINDOW, *BY_SESSION, *most_often])
            made = Made(of, number, _table_steps(chance, "fmjlo", 5))
        steps.append(Step(name, number, made))
    # Only in the end, because what comes in between depends on how rows race.
    if not of_windows and chance.random() < 0.15:
        steps.append(Step(chance.choice(sorted(FOREIGN_JOINS)), chance.randint(2, 4)))
    return in_order(Program(kind, of_windows, right, tuple(steps)))


def _table_steps(chance: random.Random, letters: str, most: int) -> tuple[TableStep, ...]:
    names = {
        "f": "filter",
        "m": "map_values",
        "j": "join",
        "l": "left_join",
        "o": "outer_join",
    }
    return tuple(
        TableStep(names[letter], chance.randint(2, 4), chance.random() < 0.4)
        for letter in chance.sample(letters, min(chance.choice([0, 1, most, most]), len(letters)))
    )


def suppressing(chance: random.Random, program: Program) -> Program:
    """The program with updates of some of its tables suppressed."""

    def held(made: Made, share: float) -> Made:
        if chance.random() >= share:
            return made
        place, step = chance.randint(0, len(made.steps)), chance.randint(2, 4)
        added = TableStep("suppress", step, kept=False)
        return made._replace(steps=(*made.steps[:place], added, *made.steps[place:]))

    steps = tuple(
        step if step.table is None else step._replace(table=held(step.table, 0.4))
        for step in program.steps
    )
    needs_history = any(step.name.startswith("grace_") for step in steps)
    right = program.right if needs_history else held(program.right, 0.1)
    return program._replace(right=right, steps=steps)


def without_suppress(program: Program) -> Program:
    """The program with all updates told at once."""

    def told(made: Made) -> Made:
        return made._replace(steps=tuple(step for step in made.steps if step.name != "suppress"))

    return _with_tables(program, told)


def certain_in_batches(program: Program) -> Program:
    """The program without outer joins that show, as in Kafka Streams, where batches ended.

    A filter tells nothing of a row that came and went within one, so an outer join behind it does
    not look at the other side. And an inner join with the table that an outer join met before
    keeps its last result when that table loses the row, for both sides lack it at once.
    """

    def certain(made: Made) -> Made:
        names = [step.name for step in made.steps]
        steps = (
            step
            for i, step in enumerate(made.steps)
            if step.name != "outer_join" or not ("filter" in names[:i] or "join" in names[i:])
        )
        return made._replace(steps=tuple(steps))

    return _with_tables(program, certain)


def _with_tables(program: Program, changed: Callable[[Made], Made]) -> Program:
    steps = tuple(
        step if step.table is None else step._replace(table=changed(step.table))
        for step in program.steps
    )
    return program._replace(right=changed(program.right), steps=steps)


class Lot(NamedTuple):
    """Records of one topic that come at once; `crash`: all processes die before.

    The topic `FILE` is not a topic: the value of its only record is all that the file has from then
    on, by name.
    """

    topic: str
    facts: tuple[Fact, ...]
    crash: bool


def lots_of(chance: random.Random, program: Program, begin: int | None = None) -> tuple[Lot, ...]:
    """Input of a program, at times around `begin`, or of any age."""
    now = chance.choice(AGES) if begin is None else begin
    jumps = begin is None and chance.random() < 0.2
    late, pace, most = (
        chance.choice([0, 8, 30]),
        chance.choice([1, 5, 40]),
        chance.choice([1, 9]),
    )
    lots = [_everywhere(chance, program, now)]
    for i in range(chance.randint(2, 12)):
        if looks_up(program) and (i == 0 or chance.random() < 0.2):
            lots.append(_file(chance))
        topic = chance.choice(["in", "in", "right", "right" if i < 2 else "in"])
        facts = []
        for _ in range(chance.randint(1, most)):
            now = chance.choice(AGES) if jumps and chance.random() < 0.1 else now
            now += chance.randint(0, pace)
            time = max(now - chance.randint(0, late), -1)  # no broker has any below
            name = chance.choice([None, "", "", *4 * ["k0"], *4 * ["k1"], "k2"])
            start = max(now - chance.randint(0, SIZE), 0) // SIZE * SIZE
            key = key_of(name, start, windowed=program.windowed and topic == "in")
            value = chance.choice([None, *6 * [chance.choice(VALUES[program.values])]])
            facts.append(Fact(key, value, time))
        lots.append(Lot(topic, tuple(facts), chance.random() < 0.15))
    return tuple(lots)


def _everywhere(chance: random.Random, program: Program, now: int) -> Lot:
    """The rows of the global table, which a run has before any other record."""
    facts = [
        Fact(name, chance.choice([None, *2 * VALUES[program.values]]), max(now, 0))
        for name in [None, "k0", "k1", "k0", "k2"]
    ]
    return Lot("everywhere", tuple(facts), crash=False)


def _file(chance: random.Random) -> Lot:
    names = chance.sample(["k0", "k1", "k2"], chance.choice([0, 1, 2, 2, 3]))
    rows = {name: {"code": name, "rate": chance.randint(0, 9)} for name in names}
    return Lot(FILE, (Fact(None, rows, 0),), crash=False)


# Smaller ones.

Run = tuple[Program, tuple[Lot, ...]]


def smaller(run: Run) -> Iterator[Run]:
    """The run without one of its things, for each."""
    program, lots = run
    for i in range(len(lots)):
        yield program, lots[:i] + lots[i + 1 :]
    for i, lot in enumerate(lots):
        for n in range(len(lot.facts) if len(lot.facts) > 1 else 0):
            less = lot._replace(facts=lot.facts[:n] + lot.facts[n + 1 :])
            yield program, (*lots[:i], less, *lots[i + 1 :])
        if lot.crash:
            yield program, (*lots[:i], lot._replace(crash=False), *lots[i + 1 :])
    for i, step in enumerate(program.steps):
        rest = program.steps[:i], program.steps[i + 1 :]
        yield program._replace(steps=rest[0] + rest[1]), lots
        if step.table is not None:
            for made in _fewer(step.table):
                yield program._replace(steps=(*rest[0], step._replace(table=made), *rest[1])), lots
    for made in _fewer(program.right):
        yield program._replace(right=made), lots


def _fewer(made: Made) -> Iterator[Made]:
    for i in range(len(made.steps)):
        yield made._replace(steps=made.steps[:i] + made.steps[i + 1 :])
