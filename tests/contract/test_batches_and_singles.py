"""A fold comes to the same in one batch and record by record, whatever its functions do."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.model.records import Record, Serde
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.ktables import KTable
from statestore.topology.dsl.streams import KStream

Rows = list[tuple[Any, Any, int]]


def added_in_place(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    old["n"] += new["n"]
    return old


def appended(_key: Any, value: Any, old: list[Any]) -> list[Any]:
    old.append(value)
    return old


def paired(old: Any, new: Any) -> Any:
    return (old, new)


REDUCERS: dict[str, Callable[[Any, Any], Any]] = {
    "into the old": added_in_place,
    "a tuple": paired,
    "the sum": lambda old, new: old + new if isinstance(old, float) else new,
    "the largest": lambda old, new: new if old is None or new is None else max(old, new, key=str),
}
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "dicts": lambda chance: {"n": chance.randrange(9)},
    "floats": lambda chance: chance.choice([1.5, math.inf, -math.inf, -0.0, 1e308, math.nan]),
    "numbers": lambda chance: chance.choice([0, -1, 2**63, 2**64 - 1, True, 1.0]),
    "texts": lambda chance: chance.choice(["", "a", "é"]),
}
FITTING = {
    ("dicts", "into the old"),
    ("dicts", "a tuple"),
    ("floats", "the sum"),
    ("floats", "a tuple"),
    ("floats", "the largest"),
    ("numbers", "a tuple"),
    ("numbers", "the largest"),
    ("texts", "the largest"),
    ("texts", "a tuple"),
}


def played(
    build: Callable[[KStream[Any, Any]], None], serde: Serde[Any], records: Rows, lot: int
) -> tuple[list[Any], ...]:
    """Stored rows, the last update of each key, and a copy of the input beside."""
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serde)
    stream = b.stream("in")
    build(stream)
    stream.map_values(lambda value: value).to("copies")
    with TopologyTestDriver(b.build()) as driver:
        rows = [Record(*row) for row in records]
        for start in range(0, len(rows), lot):
            driver.pipe_all("in", rows[start : start + lot])
        stored = [repr(row) for row in driver.store("s").all()]
        last = {r.key: repr(r.value) for r in driver.read("out")}
        copies = [(r.key, repr(r.value)) for r in driver.read("copies")]
    return stored, sorted(last.items()), copies


@pytest.mark.parametrize("serde", [serdes.JSON, serdes.MSGPACK], ids=["JSON", "MSGPACK"])
@pytest.mark.parametrize(("values", "reducer"), sorted(FITTING))
@pytest.mark.parametrize("caching", [True, False])
def test_a_reduction_does_not_depend_on_batches(
    values: str, reducer: str, serde: Serde[Any], *, caching: bool
) -> None:
    seed = 11
    chance = random.Random(seed)
    rows = [(chance.choice("abc"), VALUES[values](chance), i) for i in range(60)]

    def build(stream: KStream[Any, Any]) -> None:
        kept = ss.Materialized("s", caching=caching)
        stream.group_by_key().reduce(REDUCERS[reducer], kept).to_stream().to("out")

    alone = played(build, serde, rows, 1)
    for lot in (2, 7, 60):
        assert played(build, serde, rows, lot) == alone, f"seed {seed}, batches of {lot}"


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("caching", [True, False])
def test_counts_of_many_keys_do_not_depend_on_batches(*, caching: bool, in_order: bool) -> None:
    seed = 23
    chance = random.Random(seed)
    times = [chance.randrange(1000) for _ in range(300)]
    if in_order:
        times.sort()
    keys = [f"{chance.randrange(40):x}" for _ in times]
    rows = [(key, "v", time) for key, time in zip(keys, times, strict=True)]

    def build(stream: KStream[Any, Any]) -> None:
        kept = ss.Materialized("s", caching=caching)
        stream.group_by_key().count(kept).to_stream().to("out")

    alone = played(build, serdes.STRING, rows, 1)
    assert alone[0] == sorted(repr((key, keys.count(key))) for key in set(keys))
    for lot in (7, 300):
        assert played(build, serdes.STRING, rows, lot) == alone, f"seed {seed}, batches of {lot}"


@pytest.mark.parametrize(
    "windows",
    [
        None,
        ss.TumblingWindows(100, grace=150),
        ss.HoppingWindows(100, 30, grace=150),
        ss.SessionWindows(20, grace=150),
    ],
    ids=["by key", "tumbling", "hopping", "sessions"],
)
def test_each_update_of_a_count_is_told_with_what_its_own_record_has(windows: Any) -> None:
    """Some records have no key, and some are late for some windows or for all."""
    seed = 31
    chance = random.Random(seed)
    records = [
        Record(chance.choice(["a", "b", "ab", "", None]), "v", 3 * i - chance.randrange(400))
        for i in range(200, 400)
    ]
    records = [record.replace(headers=(("n", b"%d" % i),)) for i, record in enumerate(records)]
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    grouped: Any = b.stream("in").group_by_key()
    if windows is not None:
        grouped = grouped.windowed_by(windows)
    grouped.count(ss.Materialized("s", caching=False)).to_stream().to("out")

    def told(lot: int) -> tuple[list[Any], object]:
        with TopologyTestDriver(b.build()) as driver:
            for start in range(0, len(records), lot):
                driver.pipe_all("in", records[start : start + lot])
            found = [(r.key, r.value, r.timestamp_ms, tuple(r.headers)) for r in driver.read("out")]
            (task,) = driver._tasks.values()
            return found, task.report.dropped_records

    alone = told(1)
    assert len(alone[0]) > 100
    assert alone[1]
    for lot in (7, 200):
        found, dropped = told(lot)
        assert sorted(map(repr, found)) == sorted(map(repr, alone[0])), f"seed {seed}, {lot}"
        assert dropped == alone[1], f"seed {seed}, batches of {lot}"


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("lot", [1, 3, 50])
def test_a_new_count_replaces_nothing(*, caching: bool, lot: int) -> None:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    counts: Any = b.stream("in").group_by_key().count(ss.Materialized("s", caching=caching))
    anew = counts.group_by(lambda key, count: (key[:1], count), value_serde=serdes.INT64)
    anew.count(ss.Materialized("keys")).to_stream().to("out")
    keys = [f"{'xy'[i % 2]}{i % 7}" for i in range(50)]
    with TopologyTestDriver(b.build()) as driver:
        for start in range(0, 50, lot):
            driver.pipe_all("in", [Record(key, "v", 1) for key in keys[start : start + lot]])
        found = dict(driver.store("keys").all())
        assert found == {"x": 7, "y": 7}


def test_a_reducer_may_change_its_first_argument() -> None:
    def build(stream: KStream[Any, Any]) -> None:
        stream.group_by_key().reduce(added_in_place, "s").to_stream().to("out")

    rows = [("a", {"n": 1}, i) for i in range(3)]
    stored, _, copies = played(build, serdes.JSON, rows, 3)
    assert stored == ["('a', {'n': 3})"]
    assert copies == [("a", "{'n': 1}")] * 3


@pytest.mark.parametrize("windowed", [False, True], ids=["by key", "in windows"])
def test_an_aggregator_may_change_its_aggregate(*, windowed: bool) -> None:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    grouped: Any = b.stream("in").group_by_key()
    if windowed:
        grouped = grouped.windowed_by(ss.TumblingWindows(1000))
    kept = ss.Materialized("s", caching=False)
    grouped.aggregate(list, appended, kept).to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("in", [Record("a", i, i) for i in range(4)])
        assert [r.value for r in driver.read("out")] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


# Joiners that change the row they are given.


def added_to_the_right(left: Any, right: dict[str, Any] | None) -> dict[str, Any]:
    assert right is not None
    right["seen"] += 1
    return {"left": left, **right}


def added_to_the_left(left: dict[str, Any], right: Any) -> dict[str, Any]:
    return added_to_the_right(right, left)


def _stream_with_table(b: StreamsBuilder, table: KTable[Any, Any]) -> KStream[Any, Any]:
    return b.stream("in").join(table, added_to_the_right)


def _stream_with_view(b: StreamsBuilder, table: KTable[Any, Any]) -> KStream[Any, Any]:
    return b.stream("in").left_join(table.filter(lambda _k, v: v), added_to_the_right)


def _of_a_left_table(b: StreamsBuilder, table: KTable[Any, Any]) -> KStream[Any, Any]:
    return b.table("in").join(table, added_to_the_right).to_stream()


def _of_a_right_table(b: StreamsBuilder, table: KTable[Any, Any]) -> KStream[Any, Any]:
    return table.join(b.table("in"), added_to_the_left).to_stream()


def _with_what_they_replace(b: StreamsBuilder, table: KTable[Any, Any]) -> KStream[Any, Any]:
    joined = b.table("in").join(table, added_to_the_right)
    return joined.filter(lambda _key, value: bool(value["seen"] == 1)).to_stream()


@pytest.mark.parametrize("lot", [1, 3, 50])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(
    "join",
    [
        _stream_with_table,
        _stream_with_view,
        _of_a_left_table,
        _of_a_right_table,
        _with_what_they_replace,
    ],
)
def test_a_joiner_may_change_the_row_it_is_given(
    join: Callable[[StreamsBuilder, KTable[Any, Any]], KStream[Any, Any]],
    lot: int,
    *,
    caching: bool,
) -> None:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    join(b, b.table("rows", materialized=ss.Materialized("rows", caching=caching))).to("out")
    keys = [f"k{i % 7}" for i in range(50)]
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("rows", [(key, {"seen": 0}, 1) for key in sorted(set(keys))])
        for start in range(0, len(keys), lot):
            rows = [(key, start, 2) for key in keys[start : start + lot]]
            driver.pipe_all("in", rows)
        assert [(r.key, r.value["seen"]) for r in driver.read("out")] == [(key, 1) for key in keys]
        assert driver.store("rows").get("k1") == {"seen": 0}


def test_rows_of_single_precision_are_rounded_with_each_record_of_a_batch() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.FLOAT64)
    kept = ss.Materialized("kept", value_serde=serdes.FLOAT32)
    grouped = builder.stream("in").group_by_key()
    grouped.aggregate(float, lambda _key, value, total: total + value, kept)
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe_all("in", [("together", 0.1, 0)] * 100)
        for _ in range(100):
            driver.pipe("in", "alone", 0.1, 0)
        store = driver.store("kept")
        assert store.get("together") == store.get("alone")
