"""Sliding windows beside the definition of KIP-450, over random records of any order."""

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.graph import Topology
from statestore.topology.windows import sliding
from tests.unit.poison_rig import dropped

Record = tuple[str, Any, int]
KEYS = ["a", "a", "", "ab"]
WIDE = 10**6
"""A grace within which nothing is late."""


def topology(
    windows: ss.SlidingWindows,
    fold: str = "aggregate",
    *,
    emit: str = "on_update",
    caching: bool = False,
    **idle: Any,
) -> Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    grouped = b.stream("in").group_by_key().windowed_by(windows, emit=emit, **idle)
    kept: Any = ss.Materialized("kept", caching=caching)
    if fold == "count":
        table: ss.KTable[Any, Any] = grouped.count(kept)
    elif fold == "reduce":
        table = grouped.reduce(lambda old, new: None if new == 7 else 10 * old + new, kept)
    else:
        table = grouped.aggregate(list, added, kept)
    table.to_stream().to("out")
    return b.build()


def added(key: str, value: int, seen: list[Any]) -> list[Any]:
    seen.append([key, value])
    return seen


def lots_of(rng: random.Random, late: int) -> Iterator[list[Record]]:
    now = rng.choice([0, 100])
    for _ in range(rng.randint(1, 12)):
        lot = []
        for _ in range(rng.choice([1, 3, 9])):
            now += rng.choice([0, 1, 1, 2, 5, 30])
            time = max(now - rng.randint(0, late), 0)
            lot.append((rng.choice(KEYS), rng.randint(0, 9), time))
        yield lot


def by_definition(records: list[Record], difference: int) -> dict[tuple[str, int], Any]:
    """For each record the window that ends with it and, unless it is empty, the one after it.

    Each with all records that lie in it, in the order in which they came.
    """
    found: dict[tuple[str, int], Any] = {}
    for key, _, time in records:
        for start in (max(time - difference, 0), time + 1):
            inside = [
                [k, v] for k, v, t in records if k == key and start <= t <= start + difference
            ]
            if inside:
                found[key, start] = inside
    return found


def rows(driver: TopologyTestDriver) -> dict[tuple[str, int], Any]:
    with driver.store("kept").all() as pairs:
        return {(window.key, window.start_ms): value for window, value in pairs}


def told(driver: TopologyTestDriver) -> list[Any]:
    return [(r.key.key, r.key.start_ms, r.value, r.timestamp_ms) for r in driver.read("out")]


def latest(updates: list[Any]) -> dict[tuple[str, int], Any]:
    last = {(key, start): value for key, start, value, _ in updates}
    return {window: value for window, value in last.items() if value is not None}


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_windows_are_those_of_the_definition_in_any_order(seed: int, caching: bool) -> None:
    rng = random.Random(seed)
    difference = rng.choice([0, 1, 5, 10, 40])
    windows = ss.SlidingWindows(difference, grace=WIDE)
    records: list[Record] = []
    updates: list[Any] = []
    with TopologyTestDriver(topology(windows, caching=caching)) as driver:
        for lot in lots_of(rng, rng.choice([0, 8, 100])):
            driver.pipe_all("in", lot)
            records += lot
            updates += told(driver)
            if rng.random() < 0.2:
                driver.crash()
            wanted = by_definition(records, difference)
            assert rows(driver) == wanted, f"seed {seed}"
            assert latest(updates) == wanted, f"seed {seed}"
        for key, start, value, time in updates:
            inside = [t for k, _, t in records if k == key and start <= t <= start + difference]
            assert start <= time <= max(inside), f"seed {seed}: {value}"


@pytest.mark.parametrize("fold", ["count", "reduce", "aggregate"])
@pytest.mark.parametrize("seed", range(15))
def test_late_records_and_deletes_do_the_same_in_any_batches(seed: int, fold: str) -> None:
    rng = random.Random(seed)
    windows = ss.SlidingWindows(rng.choice([3, 10]), grace=rng.choice([0, 5, 20]))
    lots = list(lots_of(rng, 30))
    outcomes = []
    for parts in (lots, [[record] for lot in lots for record in lot]):
        with TopologyTestDriver(topology(windows, fold)) as driver:
            for part in parts:
                driver.pipe_all("in", part)
            outcomes.append((told(driver), dropped(driver)))
    assert outcomes[0] == outcomes[1], f"seed {seed}"


@pytest.mark.parametrize("emit", ["on_update", "on_window_close"])
@pytest.mark.parametrize("seed", range(60))
def test_counts_of_many_records_at_once_are_those_of_one_after_another(
    seed: int, emit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    windows = ss.SlidingWindows(rng.choice([0, 1, 3, 10]), grace=rng.choice([0, 5, 20, WIDE]))
    made = topology(windows, "count", emit=emit, caching=True)
    keys = [*KEYS, *map(str, range(rng.choice([0, 3, 30])))]
    late, now = rng.choice([0, 0, 3, 30]), rng.choice([0, 100, 1 << 40])
    lots: list[list[Any]] = []
    for _ in range(8):
        lot: list[Any] = []
        for _ in range(rng.choice([1, 5, 60])):
            now += rng.choice([0, 1, 1, 2, 5, 30])
            record = (rng.choice(keys), rng.randint(0, 9), max(now - rng.randint(0, late), 0))
            lot.append(rng.choice([record] * 30 + [(None, *record[1:]), (record[0], None, now)]))
        now += rng.choice([0, 0, 15])
        lots.append(lot)
    outcomes = []
    for least in (1, 1_000_000):
        monkeypatch.setattr(sliding, "_AT_ONCE_MIN", least)
        with TopologyTestDriver(made) as driver:
            updates = []
            for number, lot in enumerate(lots):
                driver.pipe_all("in", lot)
                updates.append(told(driver))
                if (seed + number) % 5 == 0:
                    driver.crash()
            (task,) = driver._tasks.values()
            table = task._stores.opened["kept"].table()
            kept = list(table.scan())
            times = table.times_of([row for row, _ in kept])
            outcomes.append((updates, dropped(driver), kept, times))
    assert outcomes[0] == outcomes[1], f"seed {seed}"


def test_keys_and_times_that_fit_into_no_number_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sliding, "_AT_ONCE_MIN", 1)
    far = (1 << 61) - 15  # So that each eighth key would have the same numbers.
    made = topology(ss.SlidingWindows(10, grace=far), "count", caching=True)
    with TopologyTestDriver(made) as driver:
        times = [10, 13, 15, far, far + 3]
        driver.pipe_all("in", [(str(n), 1, time) for time in times for n in range(40)])
        starts = {0: 1, 3: 2, 5: 3, 11: 2, 14: 1, far - 10: 1, far - 7: 2, far + 1: 1}
        wanted = {(str(n), start): count for n in range(40) for start, count in starts.items()}
        assert latest(told(driver)) == wanted


@pytest.mark.parametrize("seed", range(15))
def test_each_window_has_one_result_on_close_and_through_suppress(seed: int) -> None:
    rng = random.Random(seed)
    windows = ss.SlidingWindows(rng.choice([3, 10]), grace=rng.choice([0, 5, 20]))
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    grouped = b.stream("in").group_by_key()
    closing = grouped.windowed_by(windows, emit="on_window_close").count("closing")
    closing.to_stream().to("closed")
    counts = grouped.windowed_by(windows).count("counts")
    counts.suppress(ss.Suppressed.until_window_closes(), name="held").to_stream().to("out")
    results: list[Any] = []
    with TopologyTestDriver(b.build()) as driver:
        for lot in lots_of(rng, 20):
            driver.pipe_all("in", lot)
            if rng.random() < 0.2:
                driver.crash()
            made = [(key, start, value) for key, start, value, _ in told(driver)]
            wanted = [(r.key.key, r.key.start_ms, r.value) for r in driver.read("closed")]
            assert sorted(made) == sorted(wanted), f"seed {seed}"
            results += made
    assert len({(key, start) for key, start, _ in results}) == len(results)


def test_the_windows_of_kip_450() -> None:
    """Records at 10, 15 and 25 with a difference of 10."""
    windows = ss.SlidingWindows(10, grace=30)
    with TopologyTestDriver(topology(windows, "count")) as driver:
        driver.pipe_all("in", [("a", 1, 10), ("a", 1, 15), ("a", 1, 25)])
        assert told(driver) == [
            ("a", 0, 1, 10),
            ("a", 11, 1, 15),
            ("a", 5, 2, 15),
            ("a", 16, 1, 25),
            ("a", 15, 2, 25),
        ]


def test_records_before_the_first_difference_share_the_window_from_0() -> None:
    with TopologyTestDriver(topology(ss.SlidingWindows(10, grace=20), "reduce")) as driver:
        driver.pipe_all("in", [("a", 1, 3), ("a", 2, 5), ("a", 3, 4)])
        assert told(driver) == [
            ("a", 0, 1, 3),
            ("a", 4, 2, 5),
            ("a", 0, 12, 5),
            ("a", 4, 23, 5),
            ("a", 5, 2, 5),
            ("a", 0, 123, 5),
        ]


def test_closed_windows_leave_store_index_and_changelog() -> None:
    windows = ss.SlidingWindows(10, grace=5)
    with TopologyTestDriver(topology(windows, "count")) as driver:
        driver.pipe_all("in", [("a", 1, time) for time in range(0, 100, 3)])
        driver.pipe_all("in", [("b", 1, 1000), ("b", 1, 2000)])
        assert set(rows(driver)) == {("b", 1990)}
        (task,) = driver._tasks.values()
        table = task._stores.opened["kept"].table()
        (finding,) = (row for row, _ in table.scan() if row.startswith(b"\xff"))
        (window,) = (row for row, _ in table.scan() if row[:1] < b"t")
        table.commit({})
        assert table.times is not None
        assert table.times.committed([window, finding]) == [2000, None]
        driver.crash()
        driver.pipe("in", "b", 1, 2005)
        assert set(rows(driver)) == {("b", 1990), ("b", 1995), ("b", 2001)}


def test_what_is_null_or_too_late_is_dropped() -> None:
    windows = ss.SlidingWindows(10, grace=5)
    with TopologyTestDriver(topology(windows, "count")) as driver:
        driver.pipe_all("in", [("a", 1, 100), (None, 1, 500), ("a", None, 500), ("a", 1, 84)])
        assert dropped(driver) == 3
        driver.pipe("in", "a", 1, 85)
        assert dropped(driver) == 3


def test_idle_sliding_windows_close_where_asked_for() -> None:
    windows = ss.SlidingWindows(10)
    made = topology(windows, "count", emit="on_window_close", close_idle=1000)
    with TopologyTestDriver(made) as driver:
        driver.pipe_all("in", [("a", 1, 20), ("a", 1, 25)])
        for _ in range(30):
            driver.advance_wall_clock(100)
        assert told(driver) == [("a", 10, 1, 20), ("a", 15, 2, 25), ("a", 21, 1, 25)]


def test_what_cannot_be_is_refused_and_differences_are_other_topologies() -> None:
    for wrong in ((-1, 0), (1, -1)):
        with pytest.raises(Misuse, match="neither may be negative"):
            ss.SlidingWindows(wrong[0], grace=wrong[1])
    assert ss.SlidingWindows(timedelta(seconds=1)).difference_ms == 1000
    shapes = [ss.SlidingWindows(5), ss.SlidingWindows(6), ss.SlidingWindows(6, grace=1)]
    made = [topology(windows).fingerprint() for windows in shapes]
    made.append(topology(shapes[0], emit="on_window_close").fingerprint())
    assert len(set(made)) == 4
