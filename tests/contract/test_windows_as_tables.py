"""What is made of windowed tables: by update and at their close; their nulls, keys and grace."""

import random
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.kafka.partitioner import murmur2_partition
from statestore.model.records import Record
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.ktables import KTable
from statestore.topology.graph import Topology

EMITS = ["on_update", "on_window_close"]
KEPT = ss.TumblingWindows(10, grace=5, retention=10_000)
SEED = 7


def texts() -> StreamsBuilder:
    return StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)


def counted(b: StreamsBuilder, emit: str, store: str = "counts") -> KTable[Any, Any]:
    return b.stream("in").group_by_key().windowed_by(KEPT, emit=emit).count(store)


def many() -> list[Record[Any, Any]]:
    chance = random.Random(SEED)
    keys = [chance.choice("abcdefgh") for _ in range(150)]
    rows = [Record(key, i, i + chance.randrange(5)) for i, key in enumerate(keys)]
    return [*rows, Record("end", 0, 9_000)]


def counts_of(rows: list[Record[Any, Any]], *, closed: bool) -> dict[Any, int]:
    """By window; none is late, as records are displaced by less than the grace."""
    counts: dict[Any, int] = {}
    for key, _, time, *_ in rows:
        start = time // 10 * 10
        if not (closed and start + 10 > 9_000 - 5):
            window = ss.Windowed(key, start, start + 10)
            counts[window] = counts.get(window, 0) + 1
    return counts


def even(_key: Any, value: int) -> bool:
    return value % 2 == 0


def folded(driver: TopologyTestDriver) -> dict[Any, Any]:
    rows = {record.key: record.value for record in driver.read("out")}
    return {key: value for key, value in rows.items() if value is not None}


@pytest.mark.parametrize("emit", EMITS)
@pytest.mark.parametrize("lot", [1, 40])
@pytest.mark.parametrize("kept", [None, "kept"], ids=["computed", "kept"])
@pytest.mark.parametrize("operator", ["filter", "map_values", "join", "left_join", "nested"])
def test_a_windowed_table_has_all_operators_of_a_table(
    operator: str, emit: str, lot: int, kept: str | None
) -> None:
    b = texts()
    table = counted(b, emit)
    match operator:
        case "filter":
            made = table.filter(even, kept)
        case "map_values":
            made = table.map_values(lambda n: n * 10, kept)
        case "join":
            made = table.join(table.filter(even), lambda a, b: [a, b], kept)
        case "left_join":
            made = table.left_join(table.filter(even), lambda a, b: [a, b], kept)
        case _:
            made = table.map_values(lambda n: n + 1).filter(even).map_values(str, kept)
    made.to_stream().to("out")
    rows = many()
    wanted: dict[Any, Any] = {}
    for window, n in counts_of(rows, closed=emit == "on_window_close").items():
        found = {
            "filter": n if n % 2 == 0 else None,
            "map_values": n * 10,
            "join": [n, n] if n % 2 == 0 else None,
            "left_join": [n, n if n % 2 == 0 else None],
            "nested": str(n + 1) if n % 2 else None,
        }[operator]
        if found is not None:
            wanted[window] = found
    with TopologyTestDriver(b.build()) as driver:
        for start in range(0, len(rows), lot):
            driver.pipe_all("in", rows[start : start + lot])
        assert folded(driver) == wanted


# More grace, and restarts.


@pytest.mark.parametrize("between", [[], ["on_update"]], ids=["closing", "updating in between"])
def test_a_window_that_had_its_last_result_has_no_other_after_more_grace_and_restarts(
    between: list[str],
) -> None:
    def graced(grace_ms: int, emit: str = "on_window_close") -> Topology:
        b = texts()
        windows = ss.TumblingWindows(10, grace=grace_ms, retention=10_000)
        counts = b.stream("in").group_by_key().windowed_by(windows, emit=emit).count("counts")
        counts.to_stream().to("out")
        return b.build()

    keys = [f"k{i}" for i in range(50)]
    with TopologyTestDriver(graced(0)) as driver:
        driver.pipe_all("in", [Record(key, 0, 1) for key in keys] + [Record("end", 0, 20)])
        assert folded(driver) == {ss.Windowed(key, 0, 10): 1 for key in keys}
        for emit in between:
            driver._topology = graced(1000, emit)
            driver.crash()
            driver.pipe("in", "x", 0, 21)
            driver.read("out")
        driver._topology = graced(1000)
        for time in (25, 26, 27):
            driver.crash()
            driver.pipe("in", "other", 0, time)
            driver.pipe_all("in", [Record(key, 0, 2) for key in keys])
        driver.crash()
        driver.pipe("in", "end", 0, 9_000)
        assert not [r for r in driver.read("out") if r.key.start_ms == 0]


# Null values.


@pytest.mark.parametrize("lot", [1, 2, 100])
def test_null_values_count_in_windows_and_reach_their_functions_and_no_others(lot: int) -> None:
    """As in Kafka Streams: its windowed aggregates drop null keys only, the others both."""
    b = texts()
    grouped = b.stream("in").group_by_key()
    windowed = grouped.windowed_by(KEPT)

    def listed(_key: str, value: Any, old: list[Any]) -> list[Any]:
        return [*old, value]

    def joined(old: Any, new: Any) -> Any:
        return f"{old}{new}"

    for where, name in ((grouped, "plain"), (windowed, "windowed")):
        where.count(f"{name}-count")
        where.aggregate(list, listed, f"{name}-list")
        where.reduce(joined, f"{name}-reduced")
    rows = [Record("a", v, 1) for v in (None, "x", None, "y")] + [Record(None, "z", 1)]
    with TopologyTestDriver(b.build()) as driver:
        for start in range(0, len(rows), lot):
            driver.pipe_all("in", rows[start : start + lot])

        def shown(name: str) -> Any:
            store = driver.store(name)
            return store.get("a") if name.startswith("plain") else store.get("a", 0)

        kinds = ("count", "list", "reduced")
        assert [shown(f"plain-{kind}") for kind in kinds] == [2, ["x", "y"], "xy"]
        windows = [shown(f"windowed-{kind}") for kind in kinds]
        assert windows == [4, [None, "x", None, "y"], "xNoney"]
        # A null key in each of six, and two null values in each of the three without windows.
        dropped = sum(task.report.dropped_records for task in driver._tasks.values())
        assert dropped == 6 + 2 * 3


# Partitions.


def windows_joined() -> Topology:
    """A windowed count goes out, comes back as a table, and meets the count's own updates."""
    b = texts()
    counted(b, "on_update").to_stream().to("out")
    serde = serdes.windowed(serdes.STRING, 10)
    back = b.table("back", key_serde=serde, value_serde=serdes.INT64)
    other = b.stream("more").group_by_key().windowed_by(KEPT).count("more-counts")
    other.join(back, lambda a, b: [a, b]).to_stream().to("joined")
    return b.build()


@pytest.mark.parametrize("through", ["to", "repartition"])
def test_all_windows_of_a_key_lie_in_the_partition_of_the_key(through: str) -> None:
    b = texts()
    stream = counted(b, "on_update").to_stream()
    (stream.repartition("apart") if through == "repartition" else stream).to("out")
    topic = "out" if through == "to" else "topology-test-apart-repartition"
    with TopologyTestDriver(b.build(), partitions=4) as driver:
        for record in many():
            at = murmur2_partition(record.key.encode(), 4)
            driver.pipe("in", record.key, 0, record.timestamp_ms, at)
        # Time marks lie in every partition, and have no value.
        rows = [row for row in driver._broker.records(topic) if row.value is not None]
        assert len(rows) > 100
        for record in rows:
            assert record.partition == murmur2_partition((record.key or b"")[:-8], 4)


def test_a_windowed_topic_joins_windows_of_the_same_keys() -> None:
    with TopologyTestDriver(windows_joined(), partitions=4) as driver:
        keys = [f"k{i}" for i in range(40)]
        homes = {key: murmur2_partition(key.encode(), 4) for key in keys}
        for key in keys:
            driver.pipe("in", key, 0, 1, homes[key])
        serde = serdes.windowed(serdes.STRING, 10)
        for record in driver._broker.records("out"):
            window = serde.deserialize(record.key or b"")
            driver.pipe("back", window, 1, 2, record.partition or 0)
        for key in keys:
            driver.pipe("more", key, 0, 3, homes[key])
        assert len(driver.read("joined")) == len(keys)
