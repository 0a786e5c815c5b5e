"""The times of what a processor writes, by whichever door it is called (S17, I36).

Rows of a store with a time to live are there for that long from stream time at their put. A plain
row has in the changelog the time of the record, the timer or the punctuation that wrote it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.testing.driver import TopologyTestDriver

TTL = 100
STREAM, WALL = ss.PunctuationType.STREAM_TIME, ss.PunctuationType.WALL_CLOCK_TIME
TYPED: dict[str, Any] = {"key_serde": serdes.STRING, "value_serde": serdes.JSON}
BRIEF = ss.persistent_key_value_store("brief", ttl=TTL, **TYPED)
PLAIN = ss.persistent_key_value_store("plain", **TYPED)
TIMERS = ss.timer_store("timers", key_serde=serdes.STRING)
RATES = "rates"
Stream = ss.KStream[Any, Any]


class Writes:
    """Writes what it is called with into both stores, unless it is a `tick`."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.brief, self.plain = context.store(BRIEF), context.store(PLAIN)

    def write(self, key: str, value: Any) -> None:
        if key != "tick":
            self.brief.put(key, value)
            self.plain.put(key, value)


class OnRecords(Writes):
    def process(self, record: ss.Record[Any, Any]) -> None:
        self.write(record.key, record.value)
        self.context.forward(record)

    def process_batch(self, records: Sequence[ss.Record[Any, Any]]) -> None:
        for record in records:
            self.process(record)


class OnTimers(Writes):
    """Sets a timer for the time of the record, which fires when stream time has passed it."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.timers = context.timers(TIMERS)

    def process(self, record: ss.Record[Any, Any]) -> None:
        if record.key != "tick":
            kind = WALL if record.value == "wall" else STREAM
            self.timers.schedule(record.key, 0 if kind is WALL else record.timestamp_ms, kind=kind)

    def on_timer(self, timer: ss.Timer[str]) -> None:
        self.write(timer.key, 1)


class OnPunctuations(Writes):
    """Writes with the first firing after a record came whose key is not a `tick`."""

    kind = STREAM

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.keys: list[str] = []
        context.schedule(1, self.kind, self.fire)

    def fire(self, _now_ms: int) -> None:
        while self.keys:
            self.write(self.keys.pop(), 1)

    def process(self, record: ss.Record[Any, Any]) -> None:
        if record.key != "tick":
            self.keys.append(record.key)

    def process_batch(self, records: Sequence[ss.Record[Any, Any]]) -> None:
        for record in records:
            self.process(record)


class OnWallClock(OnPunctuations):
    kind = WALL


class Passing:
    def __init__(self, context: Any) -> None:
        self.context = context

    def process(self, record: ss.Record[Any, Any]) -> None:
        self.context.forward(record)

    def process_batch(self, records: Sequence[ss.Record[Any, Any]]) -> None:
        for record in records:
            self.context.forward(record)


STORES = (BRIEF, PLAIN)
Door = Callable[[ss.StreamsBuilder, Stream], object]


def _below_a_held_join(b: ss.StreamsBuilder, stream: Stream) -> object:
    rates = b.table(RATES, materialized=ss.Materialized("held", history_retention=1000))
    joined = stream.left_join(rates, lambda left, _right: left, grace=1)
    return joined.process_values(OnRecords, *STORES)


def _beside_a_global_table(b: ss.StreamsBuilder, stream: Stream) -> object:
    known = b.global_table(RATES, materialized="known")
    joined = stream.left_join(known, lambda left, _right: left, key=lambda key, _value: key)
    return joined.process_values(OnRecords, *STORES, "known")


DOORS: dict[str, Door] = {
    "process": lambda _b, s: s.process(OnRecords, *STORES),
    "process_values": lambda _b, s: s.process_values(OnRecords, *STORES),
    "process_batch": lambda _b, s: s.process_batch(OnRecords, *STORES),
    "timer": lambda _b, s: s.process(OnTimers, *STORES, TIMERS),
    "timer by the wall clock": lambda _b, s: s.map_values(lambda _: "wall").process(
        OnTimers, *STORES, TIMERS
    ),
    "punctuation": lambda _b, s: s.process(OnPunctuations, *STORES),
    "punctuation of process_values": lambda _b, s: s.process_values(OnPunctuations, *STORES),
    "punctuation of process_batch": lambda _b, s: s.process_batch(OnPunctuations, *STORES),
    "wall clock": lambda _b, s: s.process(OnWallClock, *STORES),
    "wall clock of process_values": lambda _b, s: s.process_values(OnWallClock, *STORES),
    "wall clock of process_batch": lambda _b, s: s.process_batch(OnWallClock, *STORES),
    "below map_values": lambda _b, s: s.map_values(str).process_values(OnRecords, *STORES),
    "below flat_map": lambda _b, s: s.flat_map(lambda k, v: [(k, v), (k, v)]).process_values(
        OnRecords, *STORES
    ),
    "below process": lambda _b, s: s.process(Passing).process_values(OnRecords, *STORES),
    "below process_values": lambda _b, s: s.process_values(Passing).process_values(
        OnRecords, *STORES
    ),
    "below process_batch": lambda _b, s: s.process_batch(Passing).process_values(
        OnRecords, *STORES
    ),
    "below a repartition": lambda _b, s: s.repartition("again").process_values(OnRecords, *STORES),
    "below a join that waits": _below_a_held_join,
    "below a global table": _beside_a_global_table,
}


def topology(door: Door) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    door(b, b.stream("in"))
    return b.build()


def logged(driver: TopologyTestDriver, store: str) -> list[tuple[Any, int]]:
    records = driver._broker.records(f"topology-test-{store}-changelog")
    return [(row.key, row.timestamp_ms) for row in records if row.value is not None]


def shown(driver: TopologyTestDriver) -> set[str]:
    return {key for key, _ in driver.store(BRIEF).all()}


@pytest.mark.parametrize("door", DOORS)
def test_a_row_is_there_until_its_time_to_live_has_passed_by_whichever_door_it_came(
    door: str,
) -> None:
    with TopologyTestDriver(topology(DOORS[door])) as driver:
        driver.pipe("in", "tick", 0, 900)
        driver.pipe("in", "a", 1, 1000)
        driver.advance_wall_clock(1)
        driver.pipe("in", "tick", 0, 1002)
        put_ms = logged(driver, "brief")[-1][1]
        assert put_ms in (1000, 1002), "stream time when the door was passed"
        driver.pipe("in", "tick", 0, put_ms + TTL - 1)
        assert shown(driver) == {"a"}
        driver.crash()
        assert shown(driver) == {"a"}
        driver.pipe("in", "tick", 0, put_ms + TTL)
        driver.pipe("in", "tick", 0, put_ms + TTL + 2)
        assert shown(driver) == set()


@pytest.mark.parametrize("door", DOORS)
def test_what_a_late_record_writes_lives_as_long_whichever_door_it_came(door: str) -> None:
    with TopologyTestDriver(topology(DOORS[door])) as driver:
        driver.pipe_all("in", [("tick", 0, 1000), ("late", 1, 10)])
        driver.advance_wall_clock(1)
        driver.pipe("in", "tick", 0, 1002)
        put_ms = logged(driver, "brief")[-1][1]
        assert put_ms in (1000, 1002)
        driver.pipe("in", "tick", 0, put_ms + TTL - 1)
        assert shown(driver) == {"late"}
        driver.pipe("in", "tick", 0, put_ms + TTL)
        driver.pipe("in", "tick", 0, put_ms + TTL + 2)
        assert shown(driver) == set()


@pytest.mark.parametrize("door", ["process", "process_values", "timer", "below process_values"])
def test_a_plain_row_is_logged_with_the_time_of_what_wrote_it(door: str) -> None:
    with TopologyTestDriver(topology(DOORS[door])) as driver:
        driver.pipe_all("in", [("a", 1, 1000), ("b", 2, 1500), ("late", 3, 10), ("tick", 0, 1501)])
        assert sorted(logged(driver, "plain")) == [(b"a", 1000), (b"b", 1500), (b"late", 10)]


class Early(Writes):
    """Writes when it is made, or once by the wall clock as its task opens."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.schedule(1, WALL, lambda _now_ms: self.early("clock"))
        self.early("made")

    def early(self, key: str) -> None:
        if self.context.stream_time is None:
            self.brief.put_if_absent(key, 1)

    def process(self, record: ss.Record[Any, Any]) -> None:
        if record.key == "undone":
            with suppress(ZeroDivisionError), self.brief.transaction():
                assert self.brief.get("made") == 1
                raise ZeroDivisionError
        self.write(record.key, record.value)


EARLY = topology(lambda _b, s: s.process(Early, *STORES))


@pytest.mark.parametrize("crashes", [0, 2])
@pytest.mark.parametrize("first", ["tick", "undone", "made"])
def test_what_is_put_before_the_first_record_lives_from_that_record_on(
    first: str, crashes: int
) -> None:
    with TopologyTestDriver(EARLY) as driver:
        driver.advance_wall_clock(5)
        driver.commit()
        for _ in range(crashes):
            driver.crash()
        assert shown(driver) == {"made", "clock"}
        assert dict(driver.store(BRIEF).reader("read_committed").all()).keys() == {"made", "clock"}
        driver.pipe("in", first, 1, 5000)
        assert shown(driver) - {"undone"} == {"made", "clock"}
        assert (b"clock", 5000) in logged(driver, "brief")
        driver.pipe("in", "tick", 0, 5099)
        assert shown(driver) - {"undone"} == {"made", "clock"}
        driver.crash()
        driver.pipe("in", "tick", 0, 5100)
        assert shown(driver) == set()
        driver.pipe("in", "tick", 0, 5101)
        opened = next(iter(driver._tasks.values()))._stores.opened["brief"]
        meta = opened._staged.table("offsets")  # type: ignore[attr-defined]  # built in
        assert [row for row, _ in meta.scan() if row.startswith(b"x")] == []


def test_what_is_put_in_the_transaction_of_the_first_record_lives_from_it_on() -> None:
    with TopologyTestDriver(EARLY) as driver:
        driver.pipe_all("in", [("tick", 0, 5000), ("tick", 0, 5050)])
        assert shown(driver) == {"made"}
        driver.pipe("in", "tick", 0, 5099)
        assert shown(driver) == {"made"}
        driver.pipe("in", "tick", 0, 5150)
        assert shown(driver) == set()
