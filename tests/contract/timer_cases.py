"""Timers of single keys, as text tables; see operator_tables. The clock is stream time."""

from typing import Any

import statestore as ss
from statestore import serdes
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
SPAN_MS = 10


class Ends:
    """Forwards how many records of a key came, once none has come for a while."""

    def __init__(
        self, context: ss.ProcessorContext[Any, Any], counts: str, ends: "ss.TimerSpec[str]"
    ) -> None:
        self._context = context
        self._counts, self._ends = context.store(counts), context.timers(ends)

    def process(self, record: "ss.Record[str, Any]") -> None:
        self._counts.put(record.key, self._counts.get(record.key, 0) + 1)
        self._ends.schedule(record.key, record.timestamp_ms + SPAN_MS)

    def on_timer(self, timer: "ss.Timer[str]") -> None:
        count = self._counts.delete(timer.key)
        self._context.forward(ss.Record(timer.key, count, timer.time_ms))


@case("""
    | in       | out      |
    | a 1 0    |          |
    | b 1 5    |          |
    | a 1 8    |          |
    | c 1 16   | b 1 15   |
    | a 1 18   |          |
    | c 1 28   | c 1 26   |
    | d 1 29   | a 3 28   |
    | a 1 3    | a 1 13   |
""")
def timers(of: Case) -> None:
    of.out(_ends(of, of.stream()))


@case("""
    | in       | out      |
    | a 1 0    |          |
    | z 0 10   |          |
    | z 0 11   | a 1 10   |
    | a 1 12   |          |
    | z 0 30   | a 2 22   |
""")
def timers_counted(of: Case) -> None:
    """Records that do not reach the processor move stream time, too."""
    ended = _ends(of, of.stream().filter(lambda _key, value: value > 0))
    of.out(ended.group_by_key(name=of.of("by-key")).count(of.kept()).to_stream())


@case("""
    | in       | out      |
    | a 1 0    |          |
    | z 1 15   |          |
    | z 1 21   | a 1 20   |
    | y 1 60   | z 1 41   |
    | y 1 71   |          |
    | x 1 99   | y 1 80 ; y 1 91 |
""")
def timers_of_two_processors(of: Case) -> None:
    """What a timer forwards sets another one, which may be due before the same record."""
    of.out(_ends(of, _ends(of, of.stream(), "first"), "second"))


class Commanded:
    """Sets the timer [name, span], takes back the timer [name]; one named `stop` takes back `x`."""

    def __init__(self, context: ss.ProcessorContext[Any, Any], timers: "ss.TimerSpec[str]") -> None:
        self._context = context
        self._timers = context.timers(timers)

    def process(self, record: "ss.Record[str, list[Any]]") -> None:
        match record.value:
            case [name, span]:
                self._timers.schedule(record.key, record.timestamp_ms + span, name=name)
            case [name]:
                self._timers.cancel(record.key, name=name)

    def on_timer(self, timer: "ss.Timer[str]") -> None:
        self._context.forward(ss.Record(timer.key, timer.name, timer.time_ms))
        if timer.name == "stop":
            self._timers.cancel(timer.key, name="x")


@case("""
    | in             | out         |
    | a ["x",10] 0   |             |
    | a ["y",5] 0    |             |
    | b ["x",10] 0   |             |
    | a ["y"] 3      |             |
    | b ["x",20] 4   |             |
    | c [] 11        | a x 10      |
    | c [] 24        |             |
    | c [] 25        | b x 24      |
    | c ["z",-5] 25  | c z 20      |
    | c ["same",0] 25 |            |
    | d [] 26        | c same 25   |
    | e ["x",10] 30  |             |
    | e ["z",10] 30  |             |
    | e ["stop",10] 30 |           |
    | d [] 41        | e stop 40 ; e z 40 |
""")
def timers_by_name(of: Case) -> None:
    timers = ss.timer_store(of.of("timers"), key_serde=serdes.STRING)
    of.out(of.stream().process(lambda context: Commanded(context, timers), timers))


class Again:
    """Counts down the value of a record, again and again after a while."""

    def __init__(
        self, context: ss.ProcessorContext[Any, Any], left: str, timers: "ss.TimerSpec[str]"
    ) -> None:
        self._context = context
        self._left, self._timers = context.store(left), context.timers(timers)

    def process(self, record: "ss.Record[str, int]") -> None:
        self._go_on(record.key, record.value, record.timestamp_ms)

    def on_timer(self, timer: "ss.Timer[str]") -> None:
        left = self._left.delete(timer.key)
        assert left is not None
        self._context.forward(ss.Record(timer.key, left, timer.time_ms))
        self._go_on(timer.key, left - 1, timer.time_ms)

    def _go_on(self, key: str, left: int, time_ms: int) -> None:
        if left:
            self._left.put(key, left)
            self._timers.schedule(key, time_ms + SPAN_MS)


@case("""
    | in       | out                |
    | a 3 0    |                    |
    | b 1 5    |                    |
    | c 0 35   | a 3 10 ; b 1 15 ; a 2 20 ; a 1 30 |
    | a 2 40   |                    |
    | b 1 50   |                    |
    | c 0 51   | a 2 50             |
    | c 0 90   | a 1 60 ; b 1 60    |
""")
def timers_that_go_on(of: Case) -> None:
    left = _numbers(of.of("left"))
    timers = ss.timer_store(of.of("timers"), key_serde=serdes.STRING)
    stream = of.stream().process(lambda context: Again(context, left.name, timers), left, timers)
    of.out(stream)


def _ends(of: Case, stream: "ss.KStream[str, Any]", name: str = "") -> "ss.KStream[str, int]":
    counts = _numbers(of.of(f"{name}counts"))
    ends = ss.timer_store(of.of(f"{name}ends"), key_serde=serdes.STRING)
    return stream.process(lambda context: Ends(context, counts.name, ends), counts, ends)


def _numbers(name: str) -> "ss.KeyValueSpec[str, int]":
    return ss.persistent_key_value_store(name, key_serde=serdes.STRING, value_serde=serdes.INT64)
