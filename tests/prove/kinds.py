"""One small pipeline for each kind of operator, and what must come out of it.

All read the numbers 0, 1, 2 … of `in`: number n has the key k<n mod 6>, lies in partition n mod 2
and is n ms younger than the first. So the output is known record by record, by plain code that
shares nothing with the library. A pipeline is named by its function, and PREFIX says which topics.
"""

import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import statestore as ss
from statestore import serdes
from statestore.errors import StoreClosed

PREFIX = "PROVE_TOPICS"
READS = "PROVE_READS"
KEEPS = "PROVE_KEEPS"
START_MS = 1_700_000_000_000
KEYS, PARTITIONS = 6, 2
WINDOW_MS, GAP_MS, NEAR_MS, LATER_MS, OTHERS = 100, 40, 12, 8, 7
BURSTS_MS, BURST_MS = 300, 60
ACCOUNTS = tuple(f"a{number}" for number in range(9))
EACH = 1000
_TURNS = ss.persistent_key_value_store("turns", key_serde=serdes.STRING, value_serde=serdes.INT64)
_BOOKS = ss.persistent_key_value_store("books", key_serde=serdes.STRING, value_serde=serdes.JSON)
_ALARMS = ss.timer_store("alarms", key_serde=serdes.STRING)
_PAUSE = threading.Event()
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


class Tellers:
    """Moves money between accounts; a balance has the number of the transfer that made it.

    With READS, a thread asks for all balances at once as long as the store is open, and writes each
    answer that is new into a file of that folder.
    """

    def __init__(self, context: ss.ProcessorContext[str, Any]) -> None:
        self._context = context
        self._books = context.store(_BOOKS)
        if folder := os.environ.get(READS):
            reader = self._books.reader()
            path = Path(folder) / f"{context.task_id.partition}-{os.getpid()}-{id(self)}.jsonl"
            threading.Thread(target=_ask, args=(reader, path), daemon=True).start()

    def process(self, record: ss.Record[str, int]) -> None:
        payer, payee, wanted = transfer(record.value)
        (has, _), (had, _) = (self._books.get(it) or [EACH, None] for it in (payer, payee))
        paid = min(wanted, has)
        self._books.put(payer, [has - paid, record.value])
        self._books.put(payee, [had + paid, record.value])
        told = [record.value, has - paid, had + paid]
        self._context.forward(ss.Record(record.key, told, record.timestamp_ms))


def _ask(reader: Any, path: Path) -> None:
    last = None
    with path.open("w", encoding="utf-8") as file:
        while True:
            try:
                found = reader.get_many(ACCOUNTS)
            except StoreClosed:
                return
            if found != last:
                file.write(json.dumps(dict(zip(ACCOUNTS, found, strict=True))) + "\n")
                file.flush()
                last = found
            _PAUSE.wait(0.001)


def bank() -> ss.Topology:
    b, source, prefix = _opened()
    source.process(Tellers, _BOOKS, name="tellers").to(f"{prefix}-out")
    return b.build()


# What must come out.


def transfer(number: int) -> tuple[str, str, int]:
    """From whom to whom, and how much if there is so much."""
    payer = number * 5 // PARTITIONS % len(ACCOUNTS)
    payee = (payer + 1 + number % (len(ACCOUNTS) - 1)) % len(ACCOUNTS)
    return ACCOUNTS[payer], ACCOUNTS[payee], 1 + number * number % 701


def _transferred(produced: int) -> Iterator[Told]:
    books = [dict.fromkeys(ACCOUNTS, EACH) for _ in range(PARTITIONS)]
    for number in range(produced):
        payer, payee, wanted = transfer(number)
        book = books[number % PARTITIONS]
        paid = min(wanted, book[payer])
        book[payer] -= paid
        book[payee] += paid
        yield key_of(number), [number, book[payer], book[payee]]


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


# Which inputs cause it.

Causes = Callable[[str, Any], Mapping[str, int]]
"""By topic, the number of the input without which a result would not be there yet."""


def _first_after(key: str, at: int) -> int:
    """The first number, from this one on, in the partition of a key."""
    return at + (int(key[1:]) - at) % PARTITIONS


def _by_count(key: str, count: int) -> Mapping[str, int]:
    return {"in": int(key[1:]) + (count - 1) * KEYS}


def _by_end(key: str, window: list[int]) -> Mapping[str, int]:
    return {"in": _first_after(key, window[1])}


def _by_session(_key: str, session: list[Any]) -> Mapping[str, int]:
    """One that is deleted has grown by the next number of its key."""
    return {"in": session[1] + (KEYS if session[2] is None else 0)}


def _by_first(_key: str, told: list[Any]) -> Mapping[str, int]:
    return {"in": told[0]}


@dataclass(frozen=True)
class Kind:
    """What an operator's pipeline must put out, per key in this order if `ordered`.

    `causes`: of each result; None: it depends on the order in which input partitions met.
    `stores`: those whose rows are compared with their changelogs, byte by byte.
    """

    out: Callable[[int], Iterator[Told]]
    causes: Causes | None
    stores: Mapping[str, Form] = field(default_factory=dict)
    ordered: bool = True


KINDS: Mapping[str, Kind] = {
    "stateless": Kind(
        lambda n: ((key, 2 * number) for key, number in _all(n, int) if number % 3),
        lambda _key, value: {"in": value // 2},
    ),
    "aggregate": Kind(lambda n: _counted(n, key_of), _by_count, {"sums": Form.KEYS}),
    # Two input partitions meet in it: no order holds between them, but the counts do.
    "repartition": Kind(
        lambda n: _counted(n, lambda number: f"r{number % 5}"), None, {"rests": Form.KEYS}
    ),
    "versioned": Kind(lambda n: _counted(n, key_of), _by_count),
    "windows": Kind(_closed, _by_end, {"windows": Form.WINDOWS}),
    "suppress": Kind(_closed, _by_end, {"updates": Form.WINDOWS, "final-store": Form.KEYS}),
    "sessions": Kind(_sessions, _by_session, {"sessions": Form.SESSIONS}),
    "join": Kind(
        _met,
        lambda _key, pair: {"in": pair[0], "others": pair[1]},
        {"met-this-join-store": Form.KEYS, "met-other-join-store": Form.KEYS},
        ordered=False,
    ),
    "table": Kind(
        lambda n: _all(n, lambda number: [number, f"user of {key_of(number)}"]), _by_first
    ),
    "processor": Kind(_turns, _by_first, {"turns": Form.KEYS}),
    "timers": Kind(_fired, lambda key, value: {"in": _first_after(key, value + LATER_MS + 1)}),
    "bank": Kind(_transferred, _by_first, {"books": Form.KEYS}),
}
