"""What comes out must not depend on where a batch ends: stream time, and joins with grace.

Shows I24.
"""

import random
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pytest

import statestore as ss
from statestore import serdes
from statestore.testing import TopologyTestDriver
from tests.tiers import first_of

Made = list[tuple[Any, Any, int]]


class Arrival(NamedTuple):
    """A record of one of two topics; `value` None: a delete."""

    topic: str
    key: str
    value: str | None
    time: int


def in_batches(
    arrivals: list[Arrival], chance: random.Random | None
) -> Iterator[tuple[str, list[tuple[str, str | None, int]]]]:
    """As they came, one by one without `chance`, else what is of one topic in random batches."""
    for topic, run in groupby(arrivals, key=itemgetter(0)):
        rows = [row[1:] for row in run]
        while rows:
            count = 1 if chance is None else chance.randint(1, len(rows))
            yield topic, rows[:count]
            rows = rows[count:]


def outcome(topology: ss.Topology, arrivals: list[Arrival], chance: random.Random | None) -> Made:
    with TopologyTestDriver(topology) as driver:
        for topic, rows in in_batches(arrivals, chance):
            driver.pipe_all(topic, rows)
            if chance is not None and chance.random() < 0.1:
                driver.crash()
        return [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")]


# The stream time a processor is told.


class Telling:
    """Forwards each record with the stream time it was given."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context = context

    def process(self, record: ss.Record[Any, Any]) -> None:
        told = f"{record.value} at {self._context.stream_time}"
        self._context.forward(record.replace(key="told", value=told, timestamp_ms=7))


def every(store: str) -> ss.Materialized:
    return ss.Materialized(store, caching=False)


def windowed(stream: ss.KStream[Any, Any]) -> ss.KStream[Any, Any]:
    windows = ss.TumblingWindows(10, grace=15)
    return stream.group_by_key().windowed_by(windows, emit="on_window_close").count().to_stream()


BEFORE: dict[str, Callable[[ss.KStream[Any, Any]], ss.KStream[Any, Any]]] = {
    "nothing": lambda s: s,
    "a filter": lambda s: s.filter(lambda _k, v: int(v) % 3 == 0),
    "another processor": lambda s: s.process(Telling),
    "several of one": lambda s: s.flat_map_values(lambda v: [v, v]),
    "an aggregate": lambda s: (
        s.group_by_key().reduce(lambda old, new: f"{len(old)}{new}"[:9], every("kept")).to_stream()
    ),
    "a count": lambda s: s.group_by_key().count(every("kept")).to_stream(),
    "a table's view": lambda s: s.to_table(every("kept")).filter(lambda _k, v: v < "9").to_stream(),
    "closed windows": windowed,
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_processor_is_told_the_stream_time_of_the_record_at_hand_wherever_a_batch_ends(
    name: str,
) -> None:
    def topology() -> ss.Topology:
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
        BEFORE[name](b.stream("in")).process(Telling).to("out", key_serde=serdes.STRING)
        return b.build()

    seed = 5
    chance = random.Random(seed)
    arrivals = [
        Arrival("in", chance.choice("abcde"), f"{i}", 5 * i + chance.randrange(60))
        for i in range(120)
    ]
    alone = outcome(topology(), arrivals, None)
    assert len(alone) > 5
    assert len({value.rpartition(" ")[2] for _, value, _ in alone}) > 3
    for _ in range(3):
        assert outcome(topology(), arrivals, chance) == alone, f"seed {seed}"


# Joins with grace.

RETENTION = 60


def joined(grace_ms: int, *, left: bool, view: bool) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    history = ss.Materialized("rates", history_retention=RETENTION)
    table = b.table("table", materialized=history, name="rates-table")
    if view:
        table = table.filter(lambda _key, value: value != "hidden")
    stream = b.stream("stream", name="orders")
    join = stream.left_join if left else stream.join
    join(table, lambda a, b: f"{a}+{b}", grace=grace_ms, name="priced").to("out")
    return b.build()


class Naive:
    """The join, one record at a time, over all versions there ever were."""

    def __init__(self, grace_ms: int, *, left: bool, view: bool) -> None:
        self.grace_ms, self.left, self.view = grace_ms, left, view
        self.now = self.table_now = -(10**9)
        self.waiting: list[tuple[int, int, Arrival]] = []
        self.versions: dict[str, dict[int, str | None]] = {}
        self.made: Made = []

    def run(self, arrivals: list[Arrival]) -> Made:
        for number, one in enumerate(arrivals):
            if one.topic == "table" or one.value is not None:
                self.now = max(self.now, one.time)
            if one.topic == "stream" and one.value is not None:
                self.waiting.append((one.time, number, one))
            for due in sorted(w for w in self.waiting if w[0] + self.grace_ms <= self.now):
                self.waiting.remove(due)
                self._join(due[2])
            if one.topic == "table":
                self.table_now = max(self.table_now, one.time)
                if one.time >= self.table_now - RETENTION:
                    self.versions.setdefault(one.key, {})[one.time] = one.value
        return self.made

    def _join(self, one: Arrival) -> None:
        known = self.versions.get(one.key, {})
        begun = [time for time in known if time <= one.time]
        row = known[max(begun)] if begun else None
        # What came later than its grace may ask for a time that history has lost.
        if begun and one.time < self.table_now - RETENTION and max(begun) != max(known):
            row = None
        if self.view and row == "hidden":
            row = None
        if row is not None or self.left:
            self.made.append((one.key, f"{one.value}+{row}", one.time))


def arrivals_of(chance: random.Random, late: int, pace: int) -> list[Arrival]:
    """Runs of table updates and stream records, up to `late` ms behind what came before."""
    found, now = [], 0
    for i in range(400):
        now += chance.choice([0, 1, 2, pace])
        topic = "table" if (i // chance.randint(1, 9)) % 2 else "stream"
        value = chance.choice([f"v{i}", f"v{i}", f"v{i}", "hidden", None])
        time = max(now - chance.randrange(late), 0)
        found.append(Arrival(topic, chance.choice("abcdefg"), value, time))
    return [*found, Arrival("stream", "z", "end", now + 10_000)]


@pytest.mark.parametrize("seed", first_of(range(4)))
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("grace_ms", [RETENTION, RETENTION // 3])
def test_a_join_with_grace_gives_the_same_in_batches_of_any_size_and_loses_no_version(
    grace_ms: int, left: bool, view: bool, seed: int
) -> None:
    chance = random.Random(f"{seed} {grace_ms} {left} {view}")
    late, pace = chance.choice([(5, 3), (30, 40), (90, 8), (90, 200)])
    arrivals = arrivals_of(chance, late, pace)
    expected = Naive(grace_ms, left=left, view=view).run(arrivals)
    assert len(expected) > 50
    for how in (None, chance, chance):
        found = outcome(joined(grace_ms, left=left, view=view), arrivals, how)
        assert found == expected, f"seed {seed}, late {late}, pace {pace}"


def test_the_update_that_makes_records_due_takes_no_version_from_them() -> None:
    arrivals = [Arrival("table", f"k{i}", f"r{i}", 10) for i in range(300)]
    arrivals += [Arrival("table", f"k{i}", f"later{i}", 30) for i in range(300)]
    arrivals += [Arrival("stream", f"k{i}", "x", 20) for i in range(300)]
    arrivals += [Arrival("table", "other", "-", 5_000)]
    made = outcome(joined(RETENTION, left=True, view=False), arrivals, random.Random(1))
    assert made == [(f"k{i}", f"x+r{i}", 20) for i in range(300)]


def test_records_come_due_with_updates_that_a_view_does_not_show() -> None:
    arrivals = [
        Arrival("table", "a", "1", 10),
        Arrival("stream", "a", "x", 20),
        Arrival("table", "b", "hidden", 1_000),
    ]
    topology = joined(RETENTION, left=True, view=True)
    assert outcome(topology, arrivals, None) == [("a", "x+1", 20)]
