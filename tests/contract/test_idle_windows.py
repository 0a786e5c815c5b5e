"""Windows that close because no input comes: once, for good, and only where that was asked for."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.graph import Topology
from tests.unit.poison_rig import settings

IDLE_MS = 1000
SHAPES: dict[str, Any] = {
    "tumbling": ss.TumblingWindows(10, grace=5, retention=1000),
    "hopping": ss.HoppingWindows(10, 5, grace=5, retention=1000),
    "sessions": ss.SessionWindows(10, grace=5, retention=1000),
}
WAYS = ("on close", "suppressed", "cogrouped")


def counting(windows: Any, way: str, idle: Any = IDLE_MS) -> Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    grouped = b.stream("in").group_by_key()
    if way == "cogrouped":
        streams = grouped.cogroup(lambda _key, _value, total: total + 1)
        closing = streams.windowed_by(windows, emit="on_window_close", close_idle=idle)
        merger = [lambda _key, a, b: a + b] if isinstance(windows, ss.SessionWindows) else []
        counts = closing.aggregate(int, *merger, "counts")
    elif way == "on close":
        closing = grouped.windowed_by(windows, emit="on_window_close", close_idle=idle)
        counts = closing.count("counts")
    else:
        until = ss.Suppressed.until_window_closes(close_idle=idle)
        counts = grouped.windowed_by(windows).count("counts").suppress(until, name="held")
    counts.to_stream().map_values(refuse_thirteen).to("out")
    return b.build()


def refuse_thirteen(count: int) -> int:
    if count == 13:
        raise ValueError("thirteen")
    return count


@pytest.fixture(params=[(shape, way) for shape in SHAPES for way in WAYS], ids="-".join)
def driver(request: pytest.FixtureRequest) -> Iterator[TopologyTestDriver]:
    shape, way = request.param
    with TopologyTestDriver(counting(SHAPES[shape], way)) as made:
        yield made


def pipe(driver: TopologyTestDriver, *times: int) -> None:
    driver.pipe_all("in", [("a", 1, time) for time in times])


def idle(driver: TopologyTestDriver, ms: int = 2 * IDLE_MS) -> None:
    for _ in range(0, ms, 100):
        driver.advance_wall_clock(100)


def came_out(driver: TopologyTestDriver) -> list[tuple[int, int]]:
    return [(record.key.start_ms, record.value) for record in driver.read("out")]


def test_idle_windows_have_their_one_result_and_take_no_more_records(
    driver: TopologyTestDriver,
) -> None:
    pipe(driver, 1, 3, 8)
    idle(driver)
    first = came_out(driver)
    assert first
    assert {count for _, count in first} <= {1, 3}
    idle(driver)
    driver.crash()
    idle(driver)
    assert came_out(driver) == []
    pipe(driver, 4)
    idle(driver)
    assert came_out(driver) == [], "what comes for a closed window is late"
    pipe(driver, 101, 200)
    assert {start for start, _ in came_out(driver)} <= {95, 100, 101}
    idle(driver)
    assert {start for start, _ in came_out(driver)} <= {195, 200}


def test_windows_stay_open_while_input_comes(driver: TopologyTestDriver) -> None:
    for time in range(1, 9):
        pipe(driver, time)
        idle(driver, IDLE_MS // 2)
    assert came_out(driver) == []
    idle(driver, IDLE_MS - 100)
    assert {count for _, count in came_out(driver)} in ({8}, {8, 4})


def test_time_counts_from_the_opening_of_the_task(driver: TopologyTestDriver) -> None:
    pipe(driver, 1)
    idle(driver, IDLE_MS // 2)
    driver.crash()
    idle(driver, IDLE_MS - 100)
    assert came_out(driver) == []
    idle(driver, IDLE_MS)
    assert 1 in {count for _, count in came_out(driver)}


def test_a_store_without_records_has_nothing_to_close(driver: TopologyTestDriver) -> None:
    idle(driver)
    assert came_out(driver) == []
    assert all(not task.report.commits for task in driver._tasks.values())


def test_nothing_is_committed_where_nothing_closes(driver: TopologyTestDriver) -> None:
    pipe(driver, 1)
    idle(driver)
    driver.commit()
    (task,) = driver._tasks.values()
    before = task.report.commits
    idle(driver, 10 * IDLE_MS)
    assert task.report.commits == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_that_fails_is_judged_by_itself(shape: str, way: str) -> None:
    topology = counting(SHAPES[shape], way)
    with TopologyTestDriver(topology, settings("continue")) as driver:
        driver.pipe_all("in", [(key, 1, 7) for key in ["a"] * 13 + ["b"] * 2])
        idle(driver, 5 * IDLE_MS)
        found = [(record.key.key, record.value) for record in driver.read("out")]
        assert set(found) == {("b", 2)}
        assert len(found) == (2 if shape == "hopping" else 1)


@pytest.mark.parametrize("way", WAYS)
def test_windows_of_another_key_that_end_later_close_with_it(way: str) -> None:
    with TopologyTestDriver(counting(SHAPES["tumbling"], way)) as driver:
        driver.pipe_all("in", [("a", 1, 1), ("b", 1, 12), ("c", 1, 13)])
        idle(driver)
        made = [(record.key.key, record.key.start_ms) for record in driver.read("out")]
        assert made == [("a", 0), ("b", 10), ("c", 10)]


def test_where_nobody_asked_windows_stay_open() -> None:
    for way in WAYS:
        with TopologyTestDriver(counting(SHAPES["tumbling"], way, None)) as driver:
            pipe(driver, 1)
            idle(driver, 100 * IDLE_MS)
            assert came_out(driver) == []


def test_what_cannot_be_is_refused_and_what_can_is_in_the_fingerprint() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    grouped = b.stream("in").group_by_key()
    with pytest.raises(Misuse, match=r"pass emit=EmitStrategy.ON_WINDOW_CLOSE, or close_idle"):
        grouped.windowed_by(SHAPES["tumbling"], close_idle=1)
    for wrong in (0, -1):
        with pytest.raises(Misuse, match=f"close_idle is {wrong}, but it must be at least 1"):
            grouped.windowed_by(SHAPES["sessions"], emit="on_window_close", close_idle=wrong)
        with pytest.raises(Misuse, match=f"close_idle is {wrong}, but it must be at least 1"):
            ss.Suppressed.until_window_closes(close_idle=wrong)
    for shape in SHAPES.values():
        for way in WAYS:
            made = [counting(shape, way, span) for span in (None, 1, timedelta(seconds=1))]
            assert len({one.fingerprint() for one in made}) == 3
