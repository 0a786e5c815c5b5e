"""The times of rows: what aggregates and joins of tables are stamped with, and changelogs carry.

Shows I30.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.engines.memory import MemoryEngine
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.ports import Writes
from statestore.stores.row_times import RowTimes
from statestore.testing import TopologyTestDriver
from tests.contract.task_rig import TaskRig

Rows = list[tuple[Any, Any, int]]
Grouped = Callable[..., ss.KTable[Any, Any]]


def builder() -> ss.StreamsBuilder:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)


def rows(driver: TopologyTestDriver, topic: str) -> Rows:
    return [(r.key, r.value, r.timestamp_ms) for r in driver.read(topic)]


def total(_key: str, value: int, old: int) -> int | None:
    return None if value == 0 else old + value


def test_rows_that_follow_from_others_have_no_times_and_lose_those_of_older_versions() -> None:
    meta = MemoryEngine(["offsets"]).table("offsets")
    times = RowTimes(meta, kept=True, untimed_from=b"\x80")
    times.note([b"window"], [7])
    writes: Writes = {b"window": b"1", b"\xffwindow": b"", b"\xffold": None}
    made = times.rows(writes)
    assert {row for row in made if row != b"m"} == {b"twindow", b"t\xffold"}
    assert made[b"t\xffold"] is None


AGGREGATES: dict[str, Grouped] = {
    "count": lambda grouped, kept: grouped.count(kept),
    "reduce": lambda grouped, kept: grouped.reduce(lambda old, new: old + new, kept),
    "aggregate": lambda grouped, kept: grouped.aggregate(int, total, kept),
}


def aggregate_of(name: str, *, caching: bool, windowed: bool = False) -> ss.Topology:
    b = builder()
    grouped: Any = b.stream("in").group_by_key()
    if windowed:
        grouped = grouped.windowed_by(ss.TumblingWindows(1000, grace=5000))
    table = AGGREGATES[name](grouped, ss.Materialized("kept", caching=caching))
    table.to_stream().to("out")
    return b.build()


@pytest.mark.parametrize("caching", [False, True])
def test_a_row_that_ended_before_the_commit_begins_with_a_time_of_its_own(
    tmp_path: Path, caching: bool
) -> None:
    rig = TaskRig(aggregate_of("aggregate", caching=caching), tmp_path)
    task = rig.start()
    for key, value, time in (("k", 1, 100), ("k", 0, 100), ("other", 1, 70), ("k", 1, 50)):
        record: Record[bytes | None, bytes | None] = Record(key.encode(), b"%d" % value, time)
        rig.broker.produce(TopicPartition("in", 0), record)
        assert task.step(0)
    rig.end()
    told = rig.broker.records("out")
    assert [(r.key, r.value, r.timestamp_ms) for r in told] == [
        (b"k", b"1", 100),
        (b"k", None, 100),
        (b"other", b"1", 70),
        (b"k", b"1", 50),
    ]


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("name", AGGREGATES)
def test_an_aggregate_has_the_latest_time_of_all_its_records(
    name: str, caching: bool, windowed: bool
) -> None:
    topology = aggregate_of(name, caching=caching, windowed=windowed)
    with TopologyTestDriver(topology) as driver:
        for time in (100, 50, 60):
            driver.pipe_all("in", [(f"k{i}", 1, time) for i in range(300)])
            driver.crash()
        assert {time for _, _, time in rows(driver, "out")} == {100}
        driver.pipe("in", "k7", 1, 101)
        assert [time for _, _, time in rows(driver, "out")] == [101]


class Naive:
    """An aggregate's values and times, one record at a time."""

    def __init__(self, step: Callable[[str, int, int | None], int | None]) -> None:
        self._step = step
        self._rows: dict[str, tuple[int, int]] = {}

    def run(self, key: str, value: int, time: int) -> tuple[str, int | None, int]:
        old = self._rows.pop(key, None)
        stamp = time if old is None else max(time, old[1])
        new = self._step(key, value, None if old is None else old[0])
        if new is not None:
            self._rows[key] = (new, stamp)
        return key, new, stamp


STEPS: dict[str, Callable[[str, int, int | None], int | None]] = {
    "count": lambda _key, _value, old: (old or 0) + 1,
    "reduce": lambda _key, value, old: value if old is None else old + value,
    "aggregate": lambda key, value, old: total(key, value, old or 0),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("name", AGGREGATES)
def test_in_batches_of_any_size_and_after_crashes_times_are_those_of_one_by_one(
    name: str, caching: bool, seed: int
) -> None:
    chance = random.Random(f"{seed} {name}")
    naive = Naive(STEPS[name])
    now = 0
    with TopologyTestDriver(aggregate_of(name, caching=caching)) as driver:
        for _ in range(25):
            batch = []
            for _ in range(chance.randint(1, 90)):
                now += chance.choice([0, 1, 40])
                late = chance.choice([0, 0, 500])
                batch.append((f"k{chance.randrange(40)}", chance.randrange(3), now - late + 1000))
            wanted = [naive.run(*row) for row in batch]
            driver.pipe_all("in", batch)
            if caching:
                wanted = list({row[0]: row for row in wanted}.values())
                assert sorted(rows(driver, "out")) == sorted(wanted), f"seed {seed}"
            else:
                assert rows(driver, "out") == wanted, f"seed {seed}"
            if chance.random() < 0.3:
                driver.crash()


def test_an_aggregate_that_was_deleted_begins_with_the_time_of_its_next_record() -> None:
    with TopologyTestDriver(aggregate_of("aggregate", caching=False)) as driver:
        driver.pipe_all("in", [("a", 1, 900), ("a", 0, 100), ("a", 2, 200)])
        assert rows(driver, "out") == [("a", 1, 900), ("a", None, 900), ("a", 2, 200)]
        driver.pipe_all("in", [("a", 0, 10)])
        driver.crash()
        driver.pipe_all("in", [("a", 5, 20)])
        assert rows(driver, "out") == [("a", None, 200), ("a", 5, 20)]


def test_the_table_of_an_aggregates_updates_has_its_last_value_as_the_latest() -> None:
    b = builder()
    counts = b.stream("in").group_by_key().count(ss.Materialized("counts", caching=False))
    history = ss.Materialized("history", history_retention=10_000)
    counts.to_stream().to_table(history, name="again").to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        for time in (100, 50, 60):
            driver.pipe_all("in", [(f"k{i}", 1, time) for i in range(300)])
        latest = {driver.store("history").get(f"k{i}").value for i in range(300)}
        assert latest == {3}


# Tables joined.


def joined(kind: str) -> ss.Topology:
    b = builder()
    left = b.table("left", materialized="left")
    right = b.table("right", materialized="right")
    if kind == "counted":
        left = b.stream("left-counted").group_by_key().count("counted")
    if kind == "with history":
        left = b.table("left-2", materialized=ss.Materialized("l2", history_retention=9999))
    if kind in ("kept", "views"):
        kept = "kept-view" if kind == "kept" else None
        left = left.filter(lambda _k, v: v < 90).map_values(lambda v: [v], kept)
    if kind == "joined":
        third = b.table("third", materialized="third")
        left = left.left_join(third, lambda x, y: [x, y])
    left.left_join(right, lambda x, y: [x, y], name="met").to_stream().to("out")
    left.join(right, lambda x, y: [x, y], name="both").to_stream().to("out-inner")
    return b.build()


@pytest.mark.parametrize("kind", ["plain", "kept", "views"])
def test_a_join_of_tables_has_the_time_of_the_later_row(kind: str) -> None:
    with TopologyTestDriver(joined(kind)) as driver:
        driver.pipe_all("left", [(f"k{i}", i % 80, 100) for i in range(300)])
        assert {time for _, _, time in rows(driver, "out")} == {100}
        driver.crash()
        driver.pipe_all("right", [(f"k{i}", i, 50) for i in range(300)])
        assert {time for _, _, time in rows(driver, "out")} == {100}
        driver.pipe_all("left", [(f"k{i}", i % 80, 20) for i in range(300)])
        assert {time for _, _, time in rows(driver, "out")} == {50}
        driver.crash()
        driver.pipe_all("right", [(f"k{i}", None, 10) for i in range(300)])
        assert {time for _, _, time in rows(driver, "out")} == {20}
        assert [t for _, _, t in rows(driver, "out-inner")] == [100] * 300 + [50] * 300 + [20] * 300


def test_a_row_that_a_view_does_not_show_gives_a_join_no_time() -> None:
    b = builder()
    left = b.table("left", materialized="left")
    hidden = b.table("right", materialized="right").filter(lambda _k, v: v > 5)
    left.left_join(hidden, lambda x, y: [x, y]).to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("right", "a", 1, 500)
        driver.pipe("right", "b", 9, 500)
        driver.pipe_all("left", [("a", 1, 100), ("b", 1, 100)])
        assert rows(driver, "out") == [("a", [1, None], 100), ("b", [1, 9], 500)]


def test_a_join_with_a_table_with_history_or_of_a_join_knows_the_latest_time_of_all() -> None:
    with TopologyTestDriver(joined("with history")) as driver:
        driver.pipe("left-2", "a", 1, 800)
        driver.pipe("right", "a", 2, 300)
        assert rows(driver, "out") == [("a", [1, None], 800), ("a", [1, 2], 800)]
    with TopologyTestDriver(joined("joined")) as driver:
        driver.pipe("left", "a", 1, 100)
        driver.pipe("third", "a", 2, 900)
        driver.pipe("right", "a", 3, 50)
        assert rows(driver, "out")[-1] == ("a", [[1, 2], 3], 900)
        driver.pipe("third", "a", None, 20)
        driver.pipe("right", "a", 4, 60)
        assert rows(driver, "out")[-1] == ("a", [[1, None], 4], 100)


# What changelogs carry.


def logged(driver: TopologyTestDriver, store: str) -> dict[Any, int]:
    return {r.key: r.timestamp_ms for r in driver.read(f"topology-test-{store}-changelog")}


def test_changelogs_of_tables_have_the_times_of_the_records() -> None:
    b = builder()
    b.table("in", materialized="plain").filter(lambda _k, v: v > 5, "kept")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("in", [(f"k{i}", i, 1000 - i) for i in range(300)])
        assert logged(driver, "plain") == {f"k{i}": 1000 - i for i in range(300)}
        assert logged(driver, "kept") == {f"k{i}": 1000 - i for i in range(6, 300)}
        driver.pipe_all("in", [("k7", None, 30), ("k8", 0, 40), ("late", 9, 0), ("k9", 9, 1)])
        assert logged(driver, "plain") == {"k7": 30, "k8": 40, "late": 1, "k9": 1}
        assert logged(driver, "kept") == {"k7": 30, "k8": 40, "late": 1, "k9": 1}


class Writing:
    """Writes each record, and what its punctuation was told, to a store."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._store = context.store("latest")
        context.schedule(1000, ss.PunctuationType.STREAM_TIME, self._tick, at=1000)

    def process(self, record: ss.Record[str, int | None]) -> None:
        if record.value is None:
            self._store.delete(record.key)
        elif record.value % 2:
            self._store.put(record.key, record.value)
        else:
            with self._store.transaction():
                self._store.put_all([(record.key, record.value)])

    def process_batch(self, records: Sequence[ss.Record[str, int | None]]) -> None:
        for record in records:
            self.process(record)

    def _tick(self, time_ms: int) -> None:
        self._store.put("tick", time_ms)


@pytest.mark.parametrize("per_record", [True, False])
def test_changelogs_of_processors_stores_have_the_time_of_the_record_at_hand(
    per_record: bool,
) -> None:
    b = builder()
    spec = ss.persistent_key_value_store("latest", key_serde=serdes.STRING, value_serde=serdes.JSON)
    stream = b.stream("in")
    stream.process(Writing, spec) if per_record else stream.process_batch(Writing, spec)
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("in", [(f"k{i}", i, 400 - i) for i in range(300)])
        # Of a batch it is not known which record made what: its latest. The first came alone.
        wanted = {f"k{i}": 400 - i if per_record else 400 - min(i, 1) for i in range(300)}
        assert logged(driver, "latest") == wanted
        driver.pipe_all("in", [("k1", None, 350)])
        driver.pipe_all("in", [("k2", 2, 2500)])
        assert logged(driver, "latest") == {"k1": 350, "k2": 2500, "tick": 2500}
