"""One small pipeline for each kind of operator, and what must come out of it.

All read the numbers 0, 1, 2 … of `in`: number n has the key k<n mod 6>, lies in partition n mod 2
and is n ms younger than the first. So the output is known record by record, by plain code that
shares nothing with the library. A pipeline is named by its function, and PREFIX says which topics.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import statestore as ss
from statestore import serdes

PREFIX = "PROVE_TOPICS"
START_MS = 1_700_000_000_000
KEYS, PARTITIONS = 6, 2
WINDOW_MS, GAP_MS, NEAR_MS, LATER_MS, OTHERS = 100, 40, 12, 8, 7
BURSTS_MS, BURST_MS = 300, 60
_TURNS = ss.persistent_key_value_store("turns", key_serde=serdes.STRING, value_serde=serdes.INT64)
_ALARMS = ss.timer_store("alarms", key_serde=serdes.STRING)
Told = tuple[str, Any]


def key_of(number: int) -> str:
    return f"k{number % KEYS}"


def _every(store: str, **more: Any) -> ss.Materialized:
    return ss.Materialized(store, caching=False, **more)


def _opened() -> tuple[ss.StreamsBuilder[str, Any], ss.KStream[str, Any], str]:
    prefix = os.environ.get(PREFIX, "prove")
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    return b, b.stream(f"{prefix}-in"), prefix


def stateless() -> ss.Topology:
    b, source, prefix = _opened()
    kept = source.filter(lambda _key, number: number % 3)
    kept.map_values(lambda number: 2 * number).to(f"{prefix}-out")
    return b.build()


def aggregate() -> ss.Topology:
    b, source, prefix = _opened()
    counted = source.group_by_key().aggregate(int, lambda _key, _n, sum_: sum_ + 1, _every("sums"))
    counted.to_stream().to(f"{prefix}-out")
    return b.build()


def repartition() -> ss.Topology:
    b, source, prefix = _opened()
    by_rest = source.group_by(lambda _key, number: f"r{number % 5}", name="by-rest")
    counted = by_rest.aggregate(int, lambda _key, _n, sum_: sum_ + 1, _every("rests"))
    counted.to_stream().to(f"{prefix}-out")
    return b.build()


def versioned() -> ss.Topology:
    b, source, prefix = _opened()
    kept = _every("timed", history_retention=10**9)
    counted = source.group_by_key().aggregate(int, lambda _key, _n, sum_: sum_ + 1, kept)
    counted.to_stream().to(f"{prefix}-out")
    return b.build()


def windows() -> ss.Topology:
    b, source, prefix = _opened()
    windowed = source.group_by_key().windowed_by(
        ss.TumblingWindows(WINDOW_MS), emit=ss.EmitStrategy.ON_WINDOW_CLOSE
    )
    _windows_out(windowed.count("windows"), prefix)
    return b.build()


def suppress() -> ss.Topology:
    b, source, prefix = _opened()
    windowed = source.group_by_key().windowed_by(ss.TumblingWindows(WINDOW_MS))
    final = windowed.count(_every("updates")).suppress(
        ss.Suppressed.until_window_closes(), name="final"
    )
    _windows_out(final, prefix)
    return b.build()


def sessions() -> ss.Topology:
    b, source, prefix = _opened()
    bursts = source.filter(lambda _key, number: number % BURSTS_MS < BURST_MS).group_by_key()
    counted = bursts.windowed_by(ss.SessionWindows(GAP_MS, retention=10**9)).count(
        _every("sessions")
    )
    _windows_out(counted, prefix)
    return b.build()


def _windows_out(table: Any, prefix: str) -> None:
    stream = table.to_stream()
    told = stream.map(
        lambda key, count: (key.key, [key.start_ms - START_MS, key.end_ms - START_MS, count])
    )
    told.to(f"{prefix}-out", key_serde=serdes.STRING, value_serde=serdes.JSON)


def join() -> ss.Topology:
    b, source, prefix = _opened()
    others = b.stream(f"{prefix}-others")
    near = ss.JoinWindows(NEAR_MS)
    met = source.join(others, lambda number, other: [number, other], near, name="met")
    met.to(f"{prefix}-out")
    return b.build()


def table() -> ss.Topology:
    b, source, prefix = _opened()
    users = b.table(f"{prefix}-users", materialized="users", name="users-table")
    known = source.join(users, lambda number, user: [number, user], name="known")
    known.to(f"{prefix}-out")
    return b.build()


class Turns:
    """Numbers the records of each key."""

    def __init__(self, context: ss.ProcessorContext[str, Any]) -> None:
        self._context = context
        self._turns = context.store(_TURNS)

    def process(self, record: ss.Record[str, int]) -> None:
        turn = self._turns.get(record.key, 0) + 1
        self._turns.put(record.key, turn)
        numbered = [record.value, turn]
        self._context.forward(ss.Record(record.key, numbered, record.timestamp_ms))


def processor() -> ss.Topology:
    b, source, prefix = _opened()
    source.process(Turns, _TURNS, name="turns-taken").to(f"{prefix}-out")
    return b.build()


class Alarms:
    """Has a timer for each number, and tells which has fired."""

    def __init__(self, context: ss.ProcessorContext[str, Any]) -> None:
        self._context = context
        self._timers = context.timers(_ALARMS)

    def process(self, record: ss.Record[str, int]) -> None:
        due_ms = record.timestamp_ms + LATER_MS
        self._timers.schedule(record.key, due_ms, name=str(record.value))

    def on_timer(self, timer: ss.Timer[str]) -> None:
        self._context.forward(ss.Record(timer.key, int(timer.name), timer.time_ms))


def timers() -> ss.Topology:
    b, source, prefix = _opened()
    source.process(Alarms, _ALARMS, name="alarms-set").to(f"{prefix}-out")
    return b.build()


# What must come out.


def _all(produced: int, value: Callable[[int], Any]) -> Iterator[Told]:
    return ((key_of(number), value(number)) for number in range(produced))


def _counted(produced: int, key: Callable[[int], str]) -> Iterator[Told]:
    counts: Counter[str] = Counter()
    for number in range(produced):
        counts[key(number)] += 1
        yield key(number), counts[key(number)]


def _last(produced: int, number: int) -> int:
    """The last number in the partition of a number, which is its stream time."""
    return produced - 1 if (produced - 1 - number) % PARTITIONS == 0 else produced - 2


def _closed(produced: int) -> Iterator[Told]:
    windows: dict[tuple[str, int], int] = Counter(
        (key_of(number), number // WINDOW_MS * WINDOW_MS) for number in range(produced)
    )
    for (key, start), count in sorted(windows.items(), key=lambda window: window[0][1]):
        if start + WINDOW_MS <= _last(produced, int(key[1:])):
            yield key, [start, start + WINDOW_MS, count]


def _sessions(produced: int) -> Iterator[Told]:
    """A count, and a delete of what the session was before, as it grows."""
    open_: dict[tuple[str, int], tuple[int, int, int]] = {}
    for number in range(produced):
        if number % BURSTS_MS >= BURST_MS:
            continue
        of = key_of(number), number // BURSTS_MS
        if of in open_:
            start, end, count = open_[of]
            yield of[0], [start, end, None]
        else:
            start, count = number, 0
        open_[of] = start, number, count + 1
        yield of[0], [start, number, count + 1]


def _met(produced: int) -> Iterator[Told]:
    for number in range(produced):
        near = range(max(0, number - NEAR_MS), min(produced, number + NEAR_MS + 1))
        for other in near:
            if other % OTHERS == 0 and (number - other) % KEYS == 0:
                yield key_of(number), [number, other]


def _turns(produced: int) -> Iterator[Told]:
    turns: dict[str, int] = defaultdict(int)
    for number in range(produced):
        turns[key_of(number)] += 1
        yield key_of(number), [number, turns[key_of(number)]]


def _fired(produced: int) -> Iterator[Told]:
    for number in range(produced):
        if number + LATER_MS < _last(produced, number):
            yield key_of(number), number


class Form(Enum):
    """Of which kind a store is; the number says how long the times are that begin its rows."""

    KEYS = 0
    WINDOWS = 8
    SESSIONS = 16


@dataclass(frozen=True)
class Kind:
    """What an operator's pipeline must put out, per key in this order if `ordered`.

    `stores`: those whose rows are compared with their changelogs, byte by byte.
    """

    out: Callable[[int], Iterator[Told]]
    stores: Mapping[str, Form] = field(default_factory=dict)
    ordered: bool = True


KINDS: Mapping[str, Kind] = {
    "stateless": Kind(lambda n: ((key, 2 * number) for key, number in _all(n, int) if number % 3)),
    "aggregate": Kind(lambda n: _counted(n, key_of), {"sums": Form.KEYS}),
    # Two input partitions meet in it: no order holds between them, but the counts do.
    "repartition": Kind(
        lambda n: _counted(n, lambda number: f"r{number % 5}"), {"rests": Form.KEYS}
    ),
    "versioned": Kind(lambda n: _counted(n, key_of)),
    "windows": Kind(_closed, {"windows": Form.WINDOWS}),
    "suppress": Kind(_closed, {"updates": Form.WINDOWS, "final-store": Form.KEYS}),
    "sessions": Kind(_sessions, {"sessions": Form.SESSIONS}),
    "join": Kind(
        _met,
        {"met-this-join-store": Form.KEYS, "met-other-join-store": Form.KEYS},
        ordered=False,
    ),
    "table": Kind(lambda n: _all(n, lambda number: [number, f"user of {key_of(number)}"])),
    "processor": Kind(_turns, {"turns": Form.KEYS}),
    "timers": Kind(_fired),
}
