"""Random programs as a user would write them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import statestore as ss
from statestore import serdes
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.ktables import KTable
from statestore.topology.dsl.streams import KStream
from statestore.topology.graph import Topology
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
    looks_up,
    meet,
    name_of,
    named_apart,
    tolerance_of,
)

KEYS_IN_WINDOWS = serdes.windowed(serdes.STRING, SIZE)


def topology(program: Program, folder: Path, *, caching: bool = False) -> Topology:
    """One program, alone."""
    return topology_of({"": program}, folder, caching=caching)


def topology_of(
    programs: Mapping[str, Program], folder: Path, *, caching: bool = False
) -> Topology:
    """Programs with keys and values of one kind as one, each under a prefix of its own.

    The files that they look things up in lie in `folder`.

    `caching`: aggregates tell the last update of each key in a batch only.
    """
    first = next(iter(programs.values()))
    builder = StreamsBuilder(key_serde=keys_of(first), value_serde=FUNCTIONS[first.values].serde)
    for prefix, program in programs.items():
        Writing(builder, program, prefix, folder, caching=caching).write()
    return builder.build()


def write_file(folder: Path, prefix: str, rows: Mapping[str, Any]) -> None:
    """Let a program look up these rows from now on."""
    lines = b"".join(serdes.JSON.serialize(row) + b"\n" for row in rows.values())
    _file(folder, prefix).write_bytes(lines)


def _file(folder: Path, prefix: str) -> Path:
    return folder / f"{prefix}{FILE}.jsonl"


def keys_of(program: Program) -> ss.Serde[Any]:
    """The serde of keys that meet."""
    return KEYS_IN_WINDOWS if program.windowed else serdes.STRING


class Writing:
    """One program on its way into a builder; its names begin with `prefix`."""

    def __init__(
        self,
        builder: StreamsBuilder,
        program: Program,
        prefix: str,
        folder: Path,
        *,
        caching: bool,
    ) -> None:
        self._builder, self._program, self._prefix = builder, program, prefix
        self._folder = folder
        self._caching = caching
        self._functions: Functions = FUNCTIONS[program.values]
        self._keys = keys_of(program)

    def write(self) -> None:
        self._right = self._stepped(
            self._right_table(), self._program.right, f"{self._prefix}right"
        )
        everywhere = f"{self._prefix}everywhere"
        self._everywhere = self._builder.global_table(
            everywhere, key_serde=serdes.STRING, materialized=everywhere
        )
        if looks_up(self._program):
            write_file(self._folder, self._prefix, {})
            self._file = self._builder.lookup(
                str(_file(self._folder, self._prefix)), key="code", store=f"{self._prefix}{FILE}"
            )
        stream = self._stream("in", self._keys)
        for place, step in enumerate(self._program.steps):
            name = f"{self._prefix}s{place}"
            write: Callable[..., KStream[Any, Any]] = getattr(self, step.name)
            stream = write(stream, step.table or step.number, name)
        stream.to(f"{self._prefix}out", key_serde=self._keys, value_serde=self._functions.serde)

    # Streams.

    def filter(self, stream: KStream[Any, Any], number: int, _name: str) -> KStream[Any, Any]:
        return stream.filter(lambda _key, value: self._functions.passes(value, number))

    def map_values(self, stream: KStream[Any, Any], number: int, _name: str) -> KStream[Any, Any]:
        return stream.map_values(self._mapping(number))

    def select_key(self, stream: KStream[Any, Any], number: int, _name: str) -> KStream[Any, Any]:
        return stream.select_key(lambda _key, value: self._program.named(value, number))

    def flat_map_values(
        self, stream: KStream[Any, Any], number: int, _name: str
    ) -> KStream[Any, Any]:
        functions = self._functions
        if number == KEYED:
            return stream.flat_map_values(
                lambda key, value: [functions.mapped(key, value, KEYED)] * number
            )
        return stream.flat_map_values(
            lambda value: [functions.plus(value, n) for n in range(number)]
        )

    def process_values(
        self, stream: KStream[Any, Any], _number: int, name: str
    ) -> KStream[Any, Any]:
        turns = ss.persistent_key_value_store(
            f"{name}-turns", key_serde=serdes.STRING, value_serde=serdes.INT64
        )
        return stream.process_values(
            lambda context: Turns(context, turns, self._functions), turns, name=name
        )

    def by_records(self, stream: KStream[Any, Any], number: int, _name: str) -> KStream[Any, Any]:
        kept = stream.filter_records(lambda record: record.timestamp_ms % 5 != number)
        named = kept.set_headers(lambda record: [*record.headers, ("more", None)])
        return named.set_timestamp(lambda record: later(record.timestamp_ms, number))

    def remind(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        lasts = ss.persistent_key_value_store(
            f"{name}-lasts", key_serde=self._keys, value_serde=self._functions.serde
        )
        timers = ss.timer_store(f"{name}-timers", key_serde=self._keys)
        return stream.process(
            lambda context: Reminders(context, lasts, timers, self._functions, SOON[number]),
            lasts,
            timers,
            name=name,
        )

    def branch_and_merge(
        self, stream: KStream[Any, Any], number: int, _name: str
    ) -> KStream[Any, Any]:
        some, rest = stream.branch(lambda _key, value: self._functions.passes(value, number))
        return some.map_values(lambda value: self._functions.plus(value, 100)).merge(rest)

    def merge_with_itself(
        self, stream: KStream[Any, Any], number: int, _name: str
    ) -> KStream[Any, Any]:
        return stream.map_values(lambda value: self._functions.plus(value, number)).merge(stream)

    def count(self, stream: KStream[Any, Any], _number: int, name: str) -> KStream[Any, Any]:
        return self.table(stream, Made("count", 0), name)

    def reduce(self, stream: KStream[Any, Any], _number: int, name: str) -> KStream[Any, Any]:
        return self.table(stream, Made("reduce", 0), name)

    def windows(self, stream: KStream[Any, Any], _number: int, name: str) -> KStream[Any, Any]:
        return self._of_windows(self._table_of(stream, Made("count windows", 0), name))

    def closed_windows(
        self, stream: KStream[Any, Any], _number: int, name: str
    ) -> KStream[Any, Any]:
        return self._of_windows(self._table_of(stream, Made("count closed", 0), name))

    def table(self, stream: KStream[Any, Any], made: Made, name: str) -> KStream[Any, Any]:
        of_names = in_windows(made) and self._program.windowed
        if of_names:
            names = stream.select_key(lambda key, _value: name_of(key))
            stream = names.repartition(f"{name}-names", key_serde=serdes.STRING)
        table = self._stepped(self._table_of(stream, made, name), made, name)
        if in_sessions(made) or (in_windows(made) and not of_names):
            return self._of_windows(table)
        return table.to_stream().map_values(self._functions.fitted)

    def _near(self, number: int) -> dict[str, Any]:
        tolerance = tolerance_of(self._program.right, number)
        return {} if tolerance is None else {"tolerance": tolerance}

    def join(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        return stream.join(
            self._right, self._joiner(number, in_place=True), **self._near(number), name=name
        )

    def left_join(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        return stream.left_join(
            self._right, self._joiner(number, in_place=True), **self._near(number), name=name
        )

    def global_join(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        return self._found_in(self._everywhere, stream.join, number, name)

    def global_left_join(
        self, stream: KStream[Any, Any], number: int, name: str
    ) -> KStream[Any, Any]:
        return self._found_in(self._everywhere, stream.left_join, number, name)

    def lookup_join(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        return self._found_in(self._file, stream.join, number, name)

    def lookup_left_join(
        self, stream: KStream[Any, Any], number: int, name: str
    ) -> KStream[Any, Any]:
        return self._found_in(self._file, stream.left_join, number, name)

    def _found_in(
        self,
        table: ss.GlobalKTable[Any, Any],
        join: Callable[..., KStream[Any, Any]],
        number: int,
        name: str,
    ) -> KStream[Any, Any]:
        functions = self._functions
        return join(
            table,
            functions.both_in_place,
            key=lambda _key, value: functions.somewhere(value, number),
            name=name,
        )

    def grace_join(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        near = {"grace": GRACE * number, **self._near(number)}
        return stream.join(self._right, self._joiner(number, in_place=True), **near, name=name)

    def grace_left_join(
        self, stream: KStream[Any, Any], number: int, name: str
    ) -> KStream[Any, Any]:
        near = {"grace": GRACE * number, **self._near(number)}
        return stream.left_join(self._right, self._joiner(number, in_place=True), **near, name=name)

    def regroup(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        functions, program = self._functions, self._program
        groups = stream.to_table(self._kept_in(f"{name}-rows"), name=f"{name}-table").group_by(
            lambda _key, value: (program.named(value, number), value),
            key_serde=self._keys,
            name=f"{name}-by",
        )
        table = groups.aggregate(
            lambda: functions.fit(0),
            lambda _key, value, old: functions.total(value, old, number),
            lambda _key, value, old: functions.less(value, old, number),
            self._kept_in(name),
        )
        return table.to_stream()

    def cogroup(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        functions = self._functions
        right = self._stream("right", serdes.STRING).group_by_key()
        both = (
            stream.group_by_key(name=f"{name}-by")
            .cogroup(lambda _key, value, old: functions.total(value, old, number))
            .cogroup(right, lambda _key, value, old: functions.total(value, old, number + 1))
        )
        return both.aggregate(lambda: functions.fit(0), self._kept_in(name)).to_stream()

    def foreign_join(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        return self._by_foreign_key("join", stream, number, name)

    def foreign_left_join(
        self, stream: KStream[Any, Any], number: int, name: str
    ) -> KStream[Any, Any]:
        return self._by_foreign_key("left_join", stream, number, name)

    def _by_foreign_key(
        self, kind: str, stream: KStream[Any, Any], number: int, name: str
    ) -> KStream[Any, Any]:
        program = self._program
        table = stream.to_table(self._kept_in(f"{name}-rows"), name=f"{name}-table")
        joined: KTable[Any, Any] = getattr(table, kind)(
            self._right,
            self._functions.both,
            foreign_key=lambda value: program.named(value, number),
            name=name,
        )
        return joined.to_stream()

    def stream_join(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        return stream.join(*self._met(number), name=name)

    def stream_left_join(
        self, stream: KStream[Any, Any], number: int, name: str
    ) -> KStream[Any, Any]:
        return stream.left_join(*self._met(number), name=name)

    def stream_outer_join(
        self, stream: KStream[Any, Any], number: int, name: str
    ) -> KStream[Any, Any]:
        return stream.outer_join(*self._met(number), name=name)

    def self_join(self, stream: KStream[Any, Any], number: int, name: str) -> KStream[Any, Any]:
        return stream.join(stream, *self._met(number)[1:], name=name)

    def self_outer_join(
        self, stream: KStream[Any, Any], number: int, name: str
    ) -> KStream[Any, Any]:
        return stream.outer_join(stream, *self._met(number)[1:], name=name)

    def _met(self, number: int) -> tuple[KStream[Any, Any], Callable[..., Any], ss.JoinWindows]:
        """The other stream, the joiner, and the windows."""
        before, after, grace = NEAR[number]
        windows = ss.JoinWindows(before, after, grace=grace)
        return self._stream("right", serdes.STRING), self._joiner(number, in_place=True), windows

    def join_own_count(
        self, stream: KStream[Any, Any], _number: int, name: str
    ) -> KStream[Any, Any]:
        alone = stream.repartition(f"{name}-again")
        counts = alone.group_by_key().count(self._kept_in(name))
        return alone.join(counts, self._functions.both)

    def _of_windows(self, table: KTable[Any, Any]) -> KStream[Any, Any]:
        updates = table.to_stream().map_values(self._functions.fitted)
        return updates.select_key(lambda window, _value: named_apart(window))

    # Tables.

    def _right_table(self) -> KTable[Any, Any]:
        name, made = f"{self._prefix}right", self._program.right
        if made.kind == "plain":
            return self._builder.table(
                name, key_serde=serdes.STRING, materialized=self._kept_in(name)
            )
        return self._table_of(self._stream("right", serdes.STRING), made, name)

    def _table_of(self, stream: KStream[Any, Any], made: Made, name: str) -> KTable[Any, Any]:
        fold, _, emit = made.kind.partition(" ")
        if fold == "plain":
            return stream.to_table(self._kept_in(name), name=f"{name}-by")
        if fold == "history":
            history = ss.Materialized(name, history_retention=RETENTION)
            return stream.to_table(history, name=f"{name}-by")
        by_key = stream.group_by_key(name=f"{name}-by")
        kept = self._kept_in(name)
        if emit == "history":
            kept, emit = ss.Materialized(name, history_retention=RETENTION), ""
        when = "on_window_close" if emit.startswith("closed") else "on_update"
        if in_sessions(made):
            sessions = by_key.windowed_by(ss.SessionWindows(GAP, grace=GRACE), emit=when)
            return self._of_sessions(sessions, fold, made.number, name)
        grouped: (
            ss.KGroupedStream[Any, Any]
            | ss.TimeWindowedKStream[Any, Any]
            | ss.CountWindowedKStream[Any, Any]
        ) = by_key
        if emit.endswith("few"):
            size, advance = few_of(made)
            grouped = by_key.windowed_by(ss.CountWindows.of(size).advance_by(advance), emit=when)
        elif emit:
            grouped = by_key.windowed_by(_windows_of(made), emit=when)
        if fold == "count":
            return grouped.count(kept)
        functions, number = self._functions, made.number
        if fold == "reduce":
            return grouped.reduce(functions.heavier, kept)
        return grouped.aggregate(
            lambda: functions.fit(0),
            lambda _key, value, old: functions.total(value, old, number),
            kept,
        )

    def _of_sessions(
        self, sessions: ss.SessionWindowedKStream[Any, Any], fold: str, number: int, name: str
    ) -> KTable[Any, Any]:
        functions = self._functions
        if fold == "count":
            return sessions.count(self._kept_in(name))
        if fold == "reduce":
            return sessions.reduce(functions.heavier, self._kept_in(name))
        return sessions.aggregate(
            lambda: functions.fit(0),
            lambda _key, value, old: functions.total(value, old, number),
            lambda _key, one, other: functions.sum(one, other),
            self._kept_in(name),
        )

    def _stepped(self, table: KTable[Any, Any], made: Made, name: str) -> KTable[Any, Any]:
        for place, (step, number, kept) in enumerate(made.steps):
            store = self._kept_in(f"{name}-{place}-kept") if kept else None
            if in_time(made.steps[place]):
                store = ss.Materialized(f"{name}-{place}-kept", history_retention=RETENTION)
            named = f"{name}-{place}"
            if step == "filter":
                table = table.filter(self._filtering(number), store, name=named)
            elif step == "map_values":
                table = table.map_values(self._mapping(number), store, name=named)
            elif step == "suppress":
                table = table.suppress(_suppressed(made, number), name=named)
            elif meet(self._program, made):
                table = getattr(table, step)(self._right, self._joiner(number), store, name=named)
        return table

    def _filtering(self, number: int) -> Callable[[Any, Any], bool]:
        return lambda _key, value: self._functions.passes(value, number)

    def _mapping(self, number: int) -> Callable[..., Any]:
        functions = self._functions
        if number == KEYED:
            return lambda key, value: functions.mapped(key, value, number)
        return lambda value: functions.plus(value, number)

    def _joiner(self, number: int, *, in_place: bool = False) -> Callable[..., Any]:
        join = self._functions.joiner(number, in_place=in_place)
        return join if number == KEYED else lambda left, right: join(None, left, right)

    def _stream(self, topic: str, key_serde: ss.Serde[Any]) -> KStream[Any, Any]:
        return self._builder.stream(f"{self._prefix}{topic}", key_serde=key_serde)

    def _kept_in(self, store: str) -> ss.Materialized:
        return ss.Materialized(store, caching=self._caching)


class Turns:
    """Adds to each value which one of its key it is."""

    def __init__(
        self,
        context: ss.ProcessorContext,
        turns: ss.KeyValueSpec[str, int],
        functions: Functions,
    ) -> None:
        self._forward, self._turns = context.forward, context.store(turns)
        self._functions = functions

    def process(self, record: ss.Record[Any, Any]) -> None:
        turn = 0
        if record.key is not None:
            # The keys may be those that meet, in windows, or others.
            key = repr(record.key)
            turn = self._turns.get(key, 0) + 1
            self._turns.put(key, turn)
        value = self._functions.plus(record.value, turn % 10)
        self._forward(record.replace(value=value))


class Reminders:
    """Tells the last value of a key again, a while after it came, and once more later."""

    def __init__(
        self,
        context: ss.ProcessorContext,
        lasts: ss.KeyValueSpec[Any, Any],
        timers: ss.TimerSpec[Any],
        functions: Functions,
        soon_ms: int,
    ) -> None:
        self._forward, self._lasts = context.forward, context.store(lasts)
        self._timers = context.timers(timers)
        self._functions, self._soon_ms = functions, soon_ms

    def process(self, record: ss.Record[Any, Any]) -> None:
        self._forward(record)
        if record.key is None:
            return
        if record.value is None:
            self._timers.cancel(record.key, name="soon")
            return
        self._lasts.put(record.key, record.value)
        self._timers.schedule(record.key, record.timestamp_ms + self._soon_ms, name="soon")

    def on_timer(self, timer: ss.Timer[Any]) -> None:
        value = self._functions.plus(self._lasts.get(timer.key), len(timer.name))
        self._forward(ss.Record(timer.key, value, timer.time_ms))
        if timer.name == "soon":
            self._timers.schedule(timer.key, timer.time_ms + SIZE, name="again")


def _windows_of(made: Made) -> ss.TumblingWindows | ss.HoppingWindows:
    hop = hop_of(made)
    if hop == SIZE:
        return ss.TumblingWindows(SIZE, grace=GRACE)
    return ss.HoppingWindows(SIZE, hop, grace=GRACE)


def _suppressed(made: Made, number: int) -> ss.Suppressed:
    held = held_by(made, number)
    if held.final:
        return ss.Suppressed.until_window_closes()
    return ss.Suppressed.until_time_limit(held.limit, max_records=held.most)
