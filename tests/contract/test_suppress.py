"""Suppressed updates: bounds, counts, crashes, another deployment, and what is refused.

Shows I37.
"""

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import BufferFull, InvalidTopology, Misuse
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.graph import Topology
from tests.contract.task_rig import TaskRig, rows_of
from tests.tiers import first_of
from tests.unit.poison_rig import GUARANTEES

FINAL = ss.Suppressed.until_window_closes()
Row = tuple[Any, Any, int]


def held_table(suppressed: ss.Suppressed) -> Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    table = b.table("in", materialized=ss.Materialized("rows", caching=False))
    table.suppress(suppressed, name="held").to_stream().to("out")
    return b.build()


def final_counts(windows: Any, suppressed: ss.Suppressed = FINAL) -> Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    counts = b.stream("in").group_by_key().windowed_by(windows).count("counts")
    counts.suppress(suppressed, name="held").to_stream().to("out")
    return b.build()


def deploy(driver: TopologyTestDriver, topology: Topology) -> None:
    driver._topology = topology
    driver.crash()


def rows_in(driver: TopologyTestDriver, letter: bytes) -> list[bytes]:
    """The rows of the buffer that begin so: what waits, or the index."""
    task = next(iter(driver._tasks.values()))
    rows = task._stores.opened["held-store"].table().scan()
    return [row for row, _ in rows if row.startswith(letter)]


def came_out(driver: TopologyTestDriver) -> list[Row]:
    return [(record.key, record.value, record.timestamp_ms) for record in driver.read("out")]


# What is refused.


def test_bounds_and_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(Misuse, match="limit is -1, but it must be 0 or more"):
        ss.Suppressed.until_time_limit(-1)
    with pytest.raises(Misuse, match="max_records is 0, but it must be at least 1"):
        ss.Suppressed.until_window_closes(max_records=0)
    for wrong in ("1", 2.5, True):
        with pytest.raises(Misuse, match=r"max_records is .*at least 1, and an int"):
            ss.Suppressed.until_time_limit(10, max_records=wrong)  # type: ignore[arg-type]  # ditto
    with pytest.raises(Misuse, match="max_bytes is 0, but it must be at least 1"):
        ss.Suppressed.until_time_limit(1, max_bytes=0)
    with pytest.raises(Misuse, match="pass max_records, max_bytes or both"):
        ss.Suppressed.until_time_limit(1, shut_down_when_full=True)
    assert ss.Suppressed.until_time_limit(timedelta(seconds=2)).limit_ms == 2000


def test_only_tables_in_open_windows_wait_until_these_close() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    plain = b.stream("in").group_by_key().count("plain")
    closing = (
        b.stream("in").group_by_key().windowed_by(ss.TumblingWindows(1), emit="on_window_close")
    )
    for table in (plain, closing.count("closing"), plain.filter(lambda _k, _v: True)):
        with pytest.raises(InvalidTopology, match="has no windows that are open"):
            table.suppress(FINAL)
    windows = b.stream("in").group_by_key().windowed_by(ss.TumblingWindows(1)).count("open")
    once = windows.suppress(FINAL)
    with pytest.raises(InvalidTopology, match="has no windows that are open"):
        once.suppress(FINAL)
    with pytest.raises(Misuse, match=r"suppress needs Suppressed.until_window_closes\(\)"):
        windows.suppress(10)  # type: ignore[arg-type]


def test_names_are_those_of_kafka_streams() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    table = b.table("in", materialized="rows")
    table.suppress(ss.Suppressed.until_time_limit(1)).suppress(
        ss.Suppressed.until_time_limit(2), name="held"
    ).to_stream().to("out")
    made = b.build()
    stores = [name for name in made.stores if name != "rows"]
    assert stores == ["KTABLE-SUPPRESS-STATE-STORE-0000000003", "held-store"]
    assert [node.name for node in made.nodes if "SUPPRESS" in node.name or node.name == "held"] == [
        "KTABLE-SUPPRESS-0000000002",
        "held",
    ]


def test_what_decides_about_the_buffer_is_in_the_fingerprint() -> None:
    made = [
        ss.Suppressed.until_time_limit(1),
        ss.Suppressed.until_time_limit(2),
        ss.Suppressed.until_time_limit(2, max_records=3),
        ss.Suppressed.until_time_limit(2, max_bytes=3),
        ss.Suppressed.until_time_limit(2, max_bytes=3, shut_down_when_full=True),
    ]
    assert len({held_table(one).fingerprint() for one in made}) == len(made)


# Bounds.


def test_a_bound_in_bytes_counts_keys_values_and_what_went_out_before() -> None:
    # The key, the value, and the value before it: 1 + 5 bytes, then 1 + 5 + 5.
    limit = ss.Suppressed.until_time_limit(10, max_bytes=11)
    with TopologyTestDriver(held_table(limit)) as driver:
        driver.pipe("in", "a", "aaa", 0)
        driver.pipe("in", "b", "b", 1)
        assert came_out(driver) == []
        driver.pipe("in", "b", "bbb", 2)
        assert came_out(driver) == [("a", "aaa", 0)]
        driver.pipe("in", "a", "ccc", 3)
        assert came_out(driver) == [("b", "bbb", 2)]
        driver.pipe("in", "a", "dddd", 4)
        assert came_out(driver) == [("a", "dddd", 4)]


def test_a_strict_buffer_that_is_full_ends_the_run_and_a_larger_one_goes_on() -> None:
    def strict(most: int) -> Topology:
        limit = ss.Suppressed.until_time_limit(100, max_records=most, shut_down_when_full=True)
        return held_table(limit)

    with TopologyTestDriver(strict(2)) as driver:
        driver.pipe_all("in", [("a", 1, 0), ("b", 2, 1), ("a", 3, 2)])
        with pytest.raises(BufferFull, match=r"3 updates with 6 bytes .* max_records=2: raise the"):
            driver.pipe("in", "c", 4, 3)
        deploy(driver, strict(3))
        driver.pipe("in", "a", 5, 102)
        assert came_out(driver) == [("a", 5, 102), ("b", 2, 1)]


def test_final_results_may_have_a_strict_buffer() -> None:
    bounded = ss.Suppressed.until_window_closes(max_records=1)
    with TopologyTestDriver(final_counts(ss.TumblingWindows(10), bounded)) as driver:
        driver.pipe_all("in", [("a", 1, 0), ("a", 1, 5), ("b", 1, 10), ("b", 1, 20)])
        with pytest.raises(BufferFull, match="node held: 2 updates"):
            driver.pipe("in", "a", 1, 21)


# One result for each window.


def test_another_grace_loses_no_final_result_and_gives_none_twice() -> None:
    def graced(grace_ms: int) -> Topology:
        windows = ss.TumblingWindows(10, grace=grace_ms, retention=100)
        return final_counts(windows)

    with TopologyTestDriver(graced(0)) as driver:
        driver.pipe_all("in", [("a", 1, 1), ("a", 1, 12)])
        assert [(key.start_ms, value) for key, value, _ in came_out(driver)] == [(0, 1)]
        deploy(driver, graced(20))
        # The window of 0 has had its result, the one of 10 is open for longer now.
        driver.pipe_all("in", [("a", 1, 2), ("a", 1, 13), ("a", 1, 25)])
        assert came_out(driver) == []
        deploy(driver, graced(5))
        driver.pipe("in", "a", 1, 26)
        assert [(key.start_ms, value) for key, value, _ in came_out(driver)] == [(10, 2)]


@pytest.mark.parametrize(
    "windows",
    [
        ss.TumblingWindows(10, grace=5),
        ss.HoppingWindows(10, 3, grace=5, retention=100),
        ss.SessionWindows(6, grace=5),
    ],
    ids=["tumbling", "hopping", "sessions"],
)
@pytest.mark.parametrize("seed", range(8))
def test_final_results_are_those_of_windows_that_tell_on_close(windows: Any, seed: int) -> None:
    rng = random.Random(seed)
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    grouped = b.stream("in").group_by_key()
    closing = grouped.windowed_by(windows, emit="on_window_close").count("closing")
    closing.to_stream().to("closed")
    counts = grouped.windowed_by(windows).count("counts")
    counts.suppress(FINAL, name="held").to_stream().to("out")
    now = 0
    with TopologyTestDriver(b.build()) as driver:
        for _ in range(30):
            lot = []
            for _ in range(rng.randint(1, 9)):
                now += rng.choice([0, 1, 1, 2, 9])
                lot.append((rng.choice(["a", "b", "", None]), 1, max(now - rng.randint(0, 12), 0)))
            driver.pipe_all("in", lot)
            if rng.random() < 0.2:
                driver.crash()
            wanted = sorted((r.key, r.value, r.timestamp_ms) for r in driver.read("closed"))
            made = came_out(driver)
            assert sorted(made) == wanted, f"seed {seed}"
            assert len({key for key, _, _ in made}) == len(made)


def test_a_session_that_is_merged_away_has_no_result_and_does_not_wait() -> None:
    sessions = ss.SessionWindows(10, grace=100)
    bounded = ss.Suppressed.until_window_closes(max_records=1)
    with TopologyTestDriver(final_counts(sessions, bounded)) as driver:
        for time in (0, 5, 10, 18, 26):
            driver.pipe("in", "a", 1, time)
        driver.pipe_all("in", [("a", 1, 33), ("a", 1, 40), ("a", 1, 30)])
        assert came_out(driver) == []
        assert len(rows_in(driver, b"w")) == 1
        with pytest.raises(BufferFull):
            driver.pipe("in", "b", 1, 41)


def test_very_many_results_at_once_go_out_in_order_and_leave_nothing() -> None:
    with TopologyTestDriver(final_counts(ss.TumblingWindows(10))) as driver:
        count = 25_000
        driver.pipe_all("in", [(f"k{i:05}", 1, i % 7) for i in range(count)])
        assert len(rows_in(driver, b"w")) == count
        driver.pipe_all("in", [("z", 1, 10), ("y", 1, 21)])
        made = came_out(driver)
        assert [key.key for key, _, _ in made] == [*(f"k{i:05}" for i in range(count)), "z"]
        assert len(rows_in(driver, b"w")) == 1
        assert len(rows_in(driver, b"k")) == 1


def test_headers_wait_with_their_record() -> None:
    with TopologyTestDriver(held_table(ss.Suppressed.until_time_limit(5))) as driver:
        driver.pipe_all("in", [Record("a", 1, 0, (("trace", b"1"),)), Record("b", 2, 5)])
        driver.crash()
        driver.pipe_all("in", [Record("c", 3, 10, (("trace", None),)), Record("d", 4, 15)])
        assert [(r.key, r.headers) for r in driver.read("out")] == [
            ("a", (("trace", b"1"),)),
            ("b", ()),
            ("c", (("trace", None),)),
        ]


def test_a_look_up_sees_what_was_last_handed_on() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    table = b.table("in", materialized=ss.Materialized("rows", caching=False))
    held = table.suppress(ss.Suppressed.until_time_limit(10), name="held")
    b.stream("asks").left_join(held, lambda left, right: [left, right]).to("out")
    with TopologyTestDriver(b.build()) as driver:
        seen = []
        for time, value in ((0, 1), (5, 2), (10, 3), (12, 4), (22, None), (23, 6), (32, 7)):
            driver.pipe("in", "a", value, time)
            driver.pipe("asks", "a", time, time)
            seen += [record.value[1] for record in driver.read("out")]
        assert seen == [None, None, 3, 3, None, None, None]


# What waits is counted, and is what its store has.


@pytest.fixture(params=GUARANTEES)
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TaskRig]:
    held = held_table(ss.Suppressed.until_time_limit(20, max_records=6))
    made = TaskRig(held, tmp_path, guarantee=request.param, settings={"commit.interval.ms": 0})
    yield made
    made.end()


@pytest.mark.parametrize("seed", first_of(range(3)))
def test_as_many_are_held_as_wait_and_the_changelog_has_them(rig: TaskRig, seed: int) -> None:
    rng, time_ms, most = random.Random(seed), 100, 0
    rig.start()
    for _ in range(30):
        for _ in range(rng.randrange(12)):
            time_ms += rng.choice([0, 1, 2, 7])
            value = rng.choice([b"1", b"22", None])
            record = Record(
                rng.choice([b"a", b"b", b"c", b"dd"]), value, time_ms - rng.randrange(9)
            )
            rig.broker.produce(TopicPartition("in", 0), record)
        rig.perhaps_begin_anew(rng, 5)
        task = rig.running[0]
        while task.step(0):
            pass
        task.step_commit()
        rows = rows_of(task, "held-store")
        waits = [row for row in rows if row.startswith(b"w")]
        assert task.report.held_records == len(waits), f"seed {seed}"
        assert {row[:1] + row[9:] for row in waits} == {
            b"w" + row[1:] for row in rows if row.startswith(b"k")
        }
        assert rig.changelog("held-store") == rows
        most = max(most, len(waits))
    assert most > 3, "the test shows nothing where nothing waits"
