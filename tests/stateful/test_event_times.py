"""Random pipelines below repartitions: event time is the same whatever the partitions (E4d).

A program runs over one partition, and over four and seven. The records of each input partition are
in order, or out of order by less than the grace. The last results, the late records and the windows
that are open at the end must be the same. With one partition these are what Kafka Streams gives.

STATESTORE_TIMES_SEED=77 pytest tests/stateful/test_event_times.py     one of them
STATESTORE_TIMES=2000 pytest tests/stateful/test_event_times.py       so many others
"""

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import statestore as ss
from statestore import serdes
from statestore.model.records import Record
from statestore.testing.driver import TopologyTestDriver
from tests.tiers import commit_seed

SEED = os.environ.get("STATESTORE_TIMES_SEED")
COUNT = int(os.environ.get("STATESTORE_TIMES", "0"))
SEEDS = random.sample(range(10**9), COUNT) if COUNT else range(32)
# One of so many is in the first tier: which, the commit decides.
EVERY = 4
START_MS = 1_600_000_000_000
KINDS = ("tumbling", "hopping", "sliding", "sessions", "suppressed", "joined", "outer", "history")


@dataclass(frozen=True)
class Program:
    """What a pipeline does below its repartitions; spans are in ms."""

    kind: str
    final: bool
    size_ms: int
    grace_ms: int
    repartitions: int
    batch: int


class Fact(NamedTuple):
    """A record of the input, in a run, with its place among partitions of any number."""

    side: str
    place: int
    key: str
    value: int
    time_ms: int


class Found(NamedTuple):
    """What must not depend on partitions."""

    results: dict[Any, Any]
    late: int
    held: int


def program_of(chance: random.Random) -> Program:
    kind = chance.choice(KINDS)
    return Program(
        kind,
        final=chance.random() < 0.6,
        size_ms=chance.choice([10, 60, 300]) * 1000,
        grace_ms=chance.choice([0, 0, 0, 20_000]),
        repartitions=chance.choice([1, 2, 2]),
        batch=chance.choice([1, 7, 1000]),
    )


def runs_of(chance: random.Random, program: Program) -> list[list[Fact]]:
    """Records of one to three runs; a later run has later records."""
    now_ms, runs = START_MS, []
    taken: set[int] = set()
    for _ in range(chance.choice([1, 2, 3])):
        facts = []
        for number in range(chance.choice([30, 60])):
            now_ms += chance.choice([0, 1, 500, 1000, 1000, 5000, chance.randrange(120_000)])
            early_ms = chance.randrange(program.grace_ms) if program.grace_ms else 0
            side = "right" if chance.random() < 0.4 else "left"
            key = chance.choice("abcdefgh")
            time_ms = now_ms - early_ms
            while time_ms in taken:  # Which of two is the later one would depend on partitions.
                time_ms = now_ms = now_ms + 1
            taken.add(time_ms)
            facts.append(Fact(side, chance.randrange(84), key, number, time_ms))
        now_ms += 2 * program.grace_ms
        runs.append(facts)
    return runs


def topology(program: Program) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    facts = builder.stream("in")
    sides = facts.split(
        {
            "left": lambda _key, value: value["side"] == "left",
            "right": lambda _key, value: value["side"] == "right",
        },
        name="side",
    )
    left, right = (_placed(sides[side], side, program) for side in ("left", "right"))
    _Makers(program, left, right).made().to("out")
    return builder.build()


def _placed(stream: Any, side: str, program: Program) -> Any:
    """Give a stream of numbers by place a key, behind one repartition or two."""
    for number in range(program.repartitions):
        last = number == program.repartitions - 1
        stream = stream.select_key(
            (lambda _key, value: value["key"]) if last else (lambda _key, value: value["place"])
        ).repartition(f"{side}-{number}")
    return stream.map_values(lambda value: value["n"])


class _Makers:
    """The operator of a program over two streams."""

    def __init__(self, program: Program, left: Any, right: Any) -> None:
        self._program = program
        self._left = left
        self._right = right

    def made(self) -> Any:
        make: Callable[[], Any] = getattr(self, f"_{self._program.kind}")
        return make()

    def _counted(self, windows: Any) -> Any:
        emit = "on_window_close" if self._program.final else "on_update"
        both = self._left.merge(self._right).group_by_key()
        return both.windowed_by(windows, emit=emit).count("counts")

    def _tumbling(self) -> Any:
        one = self._program
        return self._counted(ss.TumblingWindows(one.size_ms, grace=one.grace_ms)).to_stream()

    def _hopping(self) -> Any:
        one = self._program
        windows = ss.HoppingWindows(one.size_ms, one.size_ms // 5, grace=one.grace_ms)
        return self._counted(windows).to_stream()

    def _sliding(self) -> Any:
        one = self._program
        return self._counted(ss.SlidingWindows(one.size_ms, grace=one.grace_ms)).to_stream()

    def _sessions(self) -> Any:
        one = self._program
        return self._counted(ss.SessionWindows(one.size_ms, grace=one.grace_ms)).to_stream()

    def _suppressed(self) -> Any:
        one = self._program
        both = self._left.merge(self._right).group_by_key()
        table = both.windowed_by(ss.TumblingWindows(one.size_ms, grace=one.grace_ms)).count("c")
        return table.suppress(ss.Suppressed.until_window_closes(), name="final").to_stream()

    def _joined(self) -> Any:
        one = self._program
        within = ss.JoinWindows(one.size_ms, one.size_ms, grace=one.grace_ms)
        return self._left.join(self._right, lambda a, b: [a, b], within, name="join")

    def _outer(self) -> Any:
        one = self._program
        within = ss.JoinWindows(one.size_ms, one.size_ms, grace=one.grace_ms)
        return self._left.outer_join(self._right, lambda a, b: [a, b], within, name="join")

    def _history(self) -> Any:
        one = self._program
        table = self._right.to_table(
            ss.Materialized("versions", history_retention=one.size_ms + one.grace_ms)
        )
        return self._left.left_join(
            table, lambda a, b: [a, b], grace=one.size_ms + one.grace_ms, name="join"
        )


def found(program: Program, runs: list[list[Fact]], partitions: int, crash: int) -> Found:
    """What comes out; the tasks die before run number `crash`."""
    settings = {"statestore.batch.max.records": program.batch}
    results: dict[Any, Any] = {}
    with TopologyTestDriver(topology(program), settings, partitions=partitions) as driver:
        for number, facts in enumerate(runs):
            if number == crash:
                driver.crash()
            driver.pipe_all("in", [given(fact, partitions) for fact in facts])
            for record in driver.read("out"):
                take(program, results, record)
        standings = [task.standing() for task in driver._tasks.values()]
    late = sum(
        count for one in standings for cause, count in one.left_out.items() if "late" in cause
    )
    return Found(results, late, sum(one.held_records for one in standings))


def given(fact: Fact, partitions: int) -> Record[str, Any]:
    value = {"side": fact.side, "key": fact.key, "place": str(fact.place), "n": fact.value}
    return Record(str(fact.value), value, fact.time_ms, partition=fact.place % partitions)


def take(program: Program, results: dict[Any, Any], record: Record[Any, Any]) -> None:
    """Keep the last result of a window, and every result of a join."""
    if program.kind in ("joined", "outer", "history"):
        at = record.key, record.timestamp_ms, str(record.value)
        results[at] = results.get(at, 0) + 1
    elif record.value is None:
        results.pop(record.key, None)
    else:
        results[record.key] = record.value, record.timestamp_ms


def programs() -> list[Any]:
    if SEED:
        return [int(SEED)]
    marked: list[Any] = [pytest.param(seed, marks=pytest.mark.thorough) for seed in SEEDS]
    marked[commit_seed() % EVERY :: EVERY] = SEEDS[commit_seed() % EVERY :: EVERY]
    return marked


@pytest.mark.parametrize("seed", programs())
def test_time_does_not_depend_on_partitions(seed: int) -> None:
    chance = random.Random(seed)
    program = program_of(chance)
    runs = runs_of(chance, program)
    crash = chance.randrange(4)
    wanted = found(program, runs, 1, crash)
    partitions = chance.choice([4, 7])
    told = f"STATESTORE_TIMES_SEED={seed}: {program}, {partitions} partitions"
    assert found(program, runs, partitions, crash) == wanted, told
    assert not wanted.late, told


NOW_MS = 1_760_000_000_000


class Retiming:
    """Gives records the time that they tell, and hands on only some of them."""

    def __init__(self, context: ss.ProcessorContext[str, Any]) -> None:
        self._context = context

    def process(self, record: Record[str, Any]) -> None:
        if record.value["n"] % 2:
            self._context.forward(record.replace(timestamp_ms=record.value["at"]))


def retimed_minutes(how: str) -> ss.Topology:
    """Records per key and minute of the time that they tell, set above a repartition."""
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    facts = builder.stream("in")
    if how == "set_timestamp":
        facts = facts.set_timestamp(lambda record: int(record.value["at"]))
    else:
        facts = facts.process(Retiming)
    keyed = facts.group_by(lambda _key, value: value["key"], name="by-key")
    minutes = keyed.windowed_by(ss.TumblingWindows(60_000), emit="on_window_close")
    minutes.count("minutes").to_stream().to("out")
    return builder.build()


@pytest.mark.parametrize("how", ["set_timestamp", "processor"])
@pytest.mark.parametrize("crash", [0, 1], ids=["", "crash"])
def test_times_that_functions_set_above_a_repartition_are_in_order_below(
    how: str, crash: int
) -> None:
    """All was written within seconds, and tells of hours in order."""

    def told(partitions: int) -> dict[Any, Any]:
        settings = {"statestore.batch.max.records": 20}
        found: dict[Any, Any] = {}
        with TopologyTestDriver(retimed_minutes(how), settings, partitions=partitions) as driver:
            for run in range(2):
                numbers = range(400 * run, 400 * run + 400)
                driver.pipe_all("in", [retimed(n, partitions) for n in numbers])
                rows = {row.key: row.value for row in driver.read("out")}
                assert not rows.keys() & found.keys()
                found |= rows
                if crash:
                    driver.crash()
            standings = [task.standing() for task in driver._tasks.values()]
        assert not any(one.left_out for one in standings)
        return found

    assert told(4) == told(1)


def retimed(n: int, partitions: int) -> Record[str, Any]:
    value = {"key": "abc"[n % 3], "n": n, "at": START_MS + 7_000 * n}
    return Record(str(n), value, NOW_MS + n // 100, partition=n // 5 % partitions)


@pytest.mark.parametrize("emit", ["on_window_close", "on_update", "left_join"])
def test_windows_below_a_processor_close_after_a_crash_without_another_record(emit: str) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    facts = builder.stream("in").select_key(lambda _key, value: value["key"])
    passed_on = facts.repartition("by-key").process_values(PassingOn)
    if emit == "left_join":
        within = ss.JoinWindows(1000, 1000, grace=0)
        nothing = passed_on.filter(lambda _key, _value: False)
        passed_on.left_join(nothing, lambda a, _b: a["n"], within, name="alone").to("out")
    else:
        minutes = passed_on.group_by_key().windowed_by(ss.TumblingWindows(60_000), emit=emit)
        minutes.count("minutes").to_stream().to("out")
    rows = [
        Record("", {"key": "abc"[n % 3], "n": n}, START_MS + 1000 * n, partition=n % 4)
        for n in range(300)
        if n % 4 != 3 or n < 50  # One upstream task holds the others back.
    ]
    found = []
    for crash in (False, True):
        with TopologyTestDriver(builder.build(), partitions=4) as driver:
            for row in rows:
                value = json.dumps(row.value).encode()
                driver._produce("in", Record(b"", value, row.timestamp_ms, partition=row.partition))
            driver._step_all()
            if crash:
                driver.crash()
            driver._drain()
            held = sum(task.standing().held_records for task in driver._tasks.values())
            found.append(({(at.key, at.value) for at in driver.read("out")}, held))
    assert found[1] == found[0]


@pytest.mark.parametrize("partitions", [1, 4, 7])
def test_an_input_that_nobody_marks_is_not_late_beside_one_that_is(partitions: int) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    moved = builder.stream("in").select_key(lambda _key, value: value["key"])
    here = moved.repartition(
        "by-key", partitioner=lambda _topic, key, _value, count: int(key) % count
    )
    both = builder.stream("right").merge(here).group_by_key()
    minutes = both.windowed_by(ss.TumblingWindows(10_000), emit="on_window_close").count("minutes")
    minutes.to_stream().to("out")
    with TopologyTestDriver(builder.build(), partitions=partitions) as driver:
        for topic in ("in", "right"):
            for n in range(400):
                # The other partitions of the repartition topic end early, with marks that are late.
                key = str(n % 5) if topic == "right" or n < 50 else "1"
                place = int(key) if topic == "right" else n
                value = json.dumps({"key": key}).encode()
                at = START_MS + 1000 * n + (7 if topic == "right" else 0)
                record = Record(
                    json.dumps(key)[1:-1].encode(), value, at, partition=place % partitions
                )
                driver._produce(topic, record)
        driver._drain()
        assert not any(task.standing().left_out for task in driver._tasks.values())
        total = sum(row.value for row in driver.read("out"))
    assert total >= 2 * 380


class PassingOn:
    """Hands on what comes."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def process(self, record: Record[str, Any]) -> None:
        self._context.forward(record)
