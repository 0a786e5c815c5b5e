"""Window stores: what is read, what expires, what is late, what a restart and a reader see."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, StoreClosed
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.stores.in_windows import TIME_ROW
from statestore.stores.specs import WindowRows
from statestore.stores.windows import TransactionalWindowStore, keys_of, row_of
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.graph import Topology
from tests.contract.windows_text import pipe, shown

KEPT = ss.TumblingWindows(10, grace=5, retention=50)


def counting(
    windows: Any = KEPT, *, store: Any = "counts", emit: str = "on_update", value_serde: Any = None
) -> Topology:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    counts = b.stream("in").group_by_key().windowed_by(windows, emit=emit).count(store)
    counts.to_stream().to("out")
    return b.build()


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(counting()) as made:
        yield made


def rows(driver: TopologyTestDriver) -> list[bytes]:
    """Every row there is, expired or not."""
    task = next(iter(driver._tasks.values()))
    return [row for row, _ in task._stores.opened["counts"].table().scan()]


# Values.


@pytest.mark.parametrize(
    ("size", "told", "message"),
    [
        (0, {}, "must be positive"),
        (-1, {}, "must be positive"),
        (10, {"grace": -1}, "not be negative"),
        (10, {"grace": 5, "retention": 14}, "at least 15"),
    ],
    ids=["no size", "a negative size", "a negative grace", "too short a retention"],
)
def test_windows_that_cannot_be_are_refused(size: int, told: dict[str, int], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        ss.TumblingWindows(size, **told)


@pytest.mark.parametrize(
    ("size", "advance", "told", "message"),
    [
        (0, 1, {}, "must be positive"),
        (10, 0, {}, "between 1 and 10 ms apart"),
        (10, -5, {}, "between 1 and 10 ms apart"),
        (10, 11, {}, "records between two windows would count in none"),
        (10, 5, {"grace": -1}, "not be negative"),
        (10, 5, {"grace": 5, "retention": 14}, "at least 15"),
    ],
)
def test_hopping_windows_that_cannot_be_are_refused(
    size: int, advance: int, told: dict[str, int], message: str
) -> None:
    with pytest.raises(Misuse, match=message):
        ss.HoppingWindows(size, advance, **told)


def test_windows_take_spans_and_are_kept_for_size_and_grace_unless_told() -> None:
    windows = ss.TumblingWindows(timedelta(minutes=1), grace=timedelta(seconds=5))
    assert (windows.size_ms, windows.grace_ms, windows.retention_ms) == (60_000, 5000, 65_000)


@given(st.text(), st.integers(0, 2**40))
def test_a_key_in_a_window_is_the_keys_bytes_and_the_start_in_eight(key: str, number: int) -> None:
    serde = serdes.windowed(serdes.STRING, 10)
    window = ss.Windowed(key, number * 10, number * 10 + 10)
    data = serde.serialize(window)
    assert data == key.encode() + (number * 10).to_bytes(8, "big")
    assert serde.deserialize(data) == window
    assert keys_of([row_of(data)]) == [data]
    assert serdes.by_name(serde.name) is serde


def test_the_row_of_stream_time_is_no_windows_and_stays_as_it_is_in_the_changelog() -> None:
    assert [row_of(TIME_ROW)] == [TIME_ROW] == keys_of([TIME_ROW])
    with pytest.raises(ValueError, match="8 bytes"):
        serdes.windowed(serdes.STRING, 10).deserialize(TIME_ROW)


def test_a_count_in_windows_of_other_values_and_two_shapes_of_one_store_are_refused() -> None:
    with pytest.raises(InvalidTopology, match=r"count\(\) gives INT64"):
        counting(store=ss.Materialized("counts", value_serde=serdes.STRING))
    b = StreamsBuilder()
    grouped = b.stream("in").group_by_key()
    grouped.count("c")
    with pytest.raises(InvalidTopology, match="two different stores are named 'c'"):
        grouped.windowed_by(KEPT).count("c")


def test_windows_that_differ_are_another_topology() -> None:
    ten = ss.TumblingWindows(10)
    prints = [
        counting(ten).fingerprint(),
        counting(ten, emit="on_window_close").fingerprint(),
        *(
            counting(windows).fingerprint()
            for windows in (
                ss.TumblingWindows(20),
                ss.TumblingWindows(10, grace=1, retention=20),
                ss.TumblingWindows(10, retention=20),
            )
        ),
    ]
    assert len(set(prints)) == len(prints)
    assert prints[0] == counting(ten).fingerprint()
    deployed = counting().deployed()["stores"]["counts"]
    assert (deployed["kind"], deployed["key_serde"]) == ("window", "WINDOWED(10,STRING)")


# Reads.


def test_windows_are_read_by_key_and_start_by_key_and_time_and_all(
    driver: TopologyTestDriver,
) -> None:
    pipe(driver, "a1 b2 a11 a12 b25")
    store = driver.store("counts")
    assert isinstance(store, TransactionalWindowStore)
    assert [store.get("a", start) for start in (0, 10, 20)] == [1, 2, None]
    assert store.get("a", datetime.fromtimestamp(0.01, UTC)) == 2
    assert shown(store.fetch("a")) == ["a@0-10=1", "a@10-20=2"]
    assert shown(store.fetch("a", from_time=1)) == ["a@10-20=2"]
    assert shown(store.fetch("a", from_time=0, to_time=9)) == ["a@0-10=1"]
    assert shown(store.fetch("nobody")) == []
    assert shown(store.all()) == ["a@0-10=1", "b@0-10=1", "a@10-20=2", "b@20-30=1"]
    assert store.observed_stream_time() == 25


def test_hopping_windows_are_read_by_key_and_start_and_expire_one_after_another() -> None:
    hops = ss.HoppingWindows(10, 4, retention=30)
    with TopologyTestDriver(counting(hops)) as driver:
        pipe(driver, "a9 b9 a11")
        store = driver.store("counts")  # No window starts before the epoch.
        assert [store.get("a", start) for start in (0, 4, 8, 10, 12)] == [1, 2, 2, None, None]
        assert shown(store.fetch("a")) == ["a@0-10=1", "a@4-14=2", "a@8-18=2"]
        assert shown(store.fetch("a", from_time=1, to_time=7)) == ["a@4-14=2"]
        assert [store.find("a", time)[1:] for time in (9, 11)] == [(2, 8, 18), (2, 8, 18)]
        assert [store.find("a", time) for time in (18, 100)] == [None, None]
        assert store.find("b", 0) == ("b", 1, 0, 10)
        pipe(driver, "c34")
        assert shown(store.fetch("a")) == ["a@8-18=2"]
        pipe(driver, "c38")
        assert [row[8:] for row in rows(driver) if row != TIME_ROW] == [b"c"] * 3


def test_a_record_is_late_for_each_window_it_misses_and_dropped_if_it_counts_in_none() -> None:
    hops = ss.HoppingWindows(10, 4)
    with TopologyTestDriver(counting(hops)) as driver:
        pipe(driver, "a15 a9 a2 a8")
        (task,) = driver._tasks.values()
        # Of 9: 0-10 and 4-14. Of 2: 0-10, which is all. Of 8: 0-10 and 4-14.
        assert driver.store("counts").metrics()["late-record-drop-total"] == 5
        assert task.report.dropped_records == 1
        driver.pipe("in", "a", 0, -1)
        assert driver.store("counts").metrics()["late-record-drop-total"] == 6
        assert task.report.dropped_records == 2


def test_a_batch_in_many_windows_is_the_same_as_its_records_one_by_one() -> None:
    """More keys in windows than are taken at once."""
    hops = ss.HoppingWindows(5000, 1, grace=100)
    records = [Record("ab"[i % 2], 0, i * 97 % 1000) for i in range(90)]
    with TopologyTestDriver(counting(hops)) as at_once, TopologyTestDriver(counting(hops)) as alone:
        at_once.pipe_all("in", records)
        for record in records:
            alone.pipe_all("in", [record])
        assert shown(at_once.store("counts").all()) == shown(alone.store("counts").all())


def test_keys_that_begin_alike_keep_their_windows_apart() -> None:
    with TopologyTestDriver(counting()) as driver:
        for key in ("key", "key2", "key\x00\x00\x00\x00\x00\x00\x00\x0a", ""):
            driver.pipe("in", key, 0, 1)
        store = driver.store("counts")
        assert [len(shown(store.fetch(key))) for key in ("key", "key2", "")] == [1, 1, 1]
        assert len(shown(store.all())) == 4


def test_a_store_without_records_has_no_time_and_no_windows(driver: TopologyTestDriver) -> None:
    store = driver.store("counts")
    assert (store.observed_stream_time(), store.get("a", 0)) == (None, None)
    assert shown(store.all()) == shown(store.fetch("a")) == []


def test_a_scan_ends_with_its_close(driver: TopologyTestDriver) -> None:
    pipe(driver, "a1 b2")
    scan = driver.store("counts").all()
    next(scan)
    scan.close()
    with pytest.raises(StoreClosed):
        next(scan)


def test_readers_see_what_their_level_allows() -> None:
    seen: list[tuple[int | None, int | None]] = []

    class Look:
        def __init__(self, context: "ss.ProcessorContext") -> None:
            store = context.store("counts")
            self._committed = store.reader("READ_COMMITTED")
            self._uncommitted = store.reader("READ_UNCOMMITTED")

        def process(self, record: "ss.Record[Any, Any]") -> None:
            key = record.key
            seen.append((self._committed.get(key.key, 0), self._uncommitted.get(key.key, 0)))

    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    counts = b.stream("in").group_by_key().windowed_by(KEPT).count("counts")
    counts.to_stream().process(Look, "counts")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "a", 0, 1)
        driver.pipe("in", "a", 0, 2)
    assert seen == [(None, 1), (1, 2)]


def test_a_sink_has_the_key_and_the_start_in_eight_bytes(driver: TopologyTestDriver) -> None:
    pipe(driver, "a11")
    raw = driver._broker.records("out")[0]
    assert (raw.key, raw.value) == (b"a" + (10).to_bytes(8, "big"), (1).to_bytes(8, "big"))
    assert driver.read("out")[0].key == ss.Windowed("a", 10, 20)


# Time.


def test_late_records_are_dropped_counted_and_logged_once(
    driver: TopologyTestDriver, caplog: pytest.LogCaptureFixture
) -> None:
    pipe(driver, "a1 a14 a2 a15 a3 a4")
    pipe(driver, "a5")
    assert driver.store("counts").get("a", 0) == 2
    assert driver.store("counts").metrics()["late-record-drop-total"] == 3
    assert len([line for line in caplog.messages if "dropped 2 records of" in line]) == 1


def test_stream_time_survives_a_crash_so_what_was_late_stays_late(
    driver: TopologyTestDriver,
) -> None:
    pipe(driver, "a1 b40")
    driver.crash()
    pipe(driver, "a2")
    assert driver.store("counts").get("a", 0) == 1
    assert driver.store("counts").observed_stream_time() == 40


def test_windows_expire_whole_by_logged_tombstones(driver: TopologyTestDriver) -> None:
    pipe(driver, "a1 b2 a15 a49")
    assert shown(driver.store("counts").all())[:2] == ["a@0-10=1", "b@0-10=1"]
    pipe(driver, "a50")
    assert shown(driver.store("counts").all()) == ["a@10-20=1", "a@40-50=1", "a@50-60=1"]
    assert driver.store("counts").get("a", 0) is None
    changelog = driver._broker.records("topology-test-counts-changelog")
    gone = [record.key or b"" for record in changelog if record.value is None]
    assert sorted(gone) == [b"a" + bytes(8), b"b" + bytes(8)]
    driver.crash()
    assert shown(driver.store("counts").all()) == ["a@10-20=1", "a@40-50=1", "a@50-60=1"]


def test_many_expired_windows_go_a_share_with_each_batch_and_are_not_shown_meanwhile() -> None:
    with TopologyTestDriver(counting()) as driver:
        driver.pipe_all("in", [Record(f"k{n}", 0, 1) for n in range(2500)])
        pipe(driver, "a60")
        assert shown(driver.store("counts").all()) == ["a@60-70=1"]
        left = [len(rows(driver))]
        for _ in range(2):
            pipe(driver, "a60")
            left.append(len(rows(driver)))
        assert left == [2502 - 1002, 2502 - 2004, 2]


def test_on_window_close_each_window_is_emitted_once_also_after_a_crash() -> None:
    with TopologyTestDriver(counting(emit="on_window_close")) as driver:
        pipe(driver, "a1 b2 a14")
        assert driver.read("out") == []
        driver.crash()
        pipe(driver, "a15")
        driver.crash()
        pipe(driver, "a16 a24")
        closed = [(record.key, record.value, record.timestamp_ms) for record in driver.read("out")]
        assert closed == [(("a", 0, 10), 1, 1), (("b", 0, 10), 1, 2)]


def test_another_grace_loses_no_last_result_and_gives_none_twice() -> None:
    def graced(grace_ms: int) -> Topology:
        windows = ss.TumblingWindows(10, grace=grace_ms, retention=100)
        return counting(windows, emit="on_window_close")

    def deployed_again(driver: TopologyTestDriver, grace_ms: int) -> list[tuple[object, int]]:
        driver._topology = graced(grace_ms)
        driver.crash()
        pipe(driver, "a21 a9 a12")
        return [(record.key.start_ms, record.value) for record in driver.read("out")]

    with TopologyTestDriver(graced(15)) as driver:
        pipe(driver, "a1 a11 a21")
        assert driver.read("out") == []
        # 0-10 and 10-20 are closed by now, and what is late for them too.
        assert deployed_again(driver, 0) == [(0, 1), (10, 1)]
        assert deployed_again(driver, 30) == []
        pipe(driver, "a60")
        assert [(r.key.start_ms, r.value) for r in driver.read("out")] == [(20, 3)]


def test_a_batch_that_fails_takes_its_stream_time_with_it() -> None:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    windowed = b.stream("in").group_by_key().windowed_by(KEPT)
    windowed.aggregate(int, lambda _key, value, total: total + value, "sums")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "a", 1, 1)
        with pytest.raises(ss.errors.RecordFailed):
            driver.pipe("in", "a", "no number", 1000)
        committed = driver.store("sums").reader("READ_COMMITTED")
        assert (committed.observed_stream_time(), committed.get("a", 0)) == (1, 1)


def test_records_before_the_epoch_are_dropped() -> None:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    stream = b.stream("in", timestamp_extractor=lambda record: int(record.value))
    stream.group_by_key().windowed_by(KEPT).count("counts")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "a", -3, 1)
        driver.pipe("in", "a", 3, 1)
        assert shown(driver.store("counts").all()) == ["a@0-10=1"]


def test_a_store_in_memory_may_have_windows() -> None:
    store = ss.Materialized(ss.in_memory_key_value_store("counts", key_serde=serdes.STRING))
    with TopologyTestDriver(counting(store=store)) as driver:
        pipe(driver, "a1")
        driver.crash()
        pipe(driver, "a2")
        assert shown(driver.store("counts").all()) == ["a@0-10=2"]
        assert not driver.store("counts").persistent()


# Against an oracle.

RECORDS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 200)), max_size=30)


@given(st.lists(RECORDS, max_size=4), st.sampled_from(["on_update", "on_window_close"]))
def test_any_records_in_any_batches_count_as_one_by_one(batches: Any, emit: str) -> None:
    counts: dict[tuple[str, int], int] = {}
    closed: dict[tuple[str, int], int] = {}
    now = -1
    with TopologyTestDriver(counting(emit=emit)) as driver:
        for batch in batches:
            driver.pipe_all("in", [Record(key, 0, time) for key, time in batch])
            for key, time in batch:
                now = max(now, time)
                start = time // 10 * 10
                if start + 10 > now - 5:
                    counts[(key, start)] = counts.get((key, start), 0) + 1
            closed |= {w: n for w, n in counts.items() if w[1] + 10 <= now - 5}
        live = {w: n for w, n in counts.items() if w[1] > now - 50}
        with driver.store("counts").all() as scan:
            assert {(w.key, w.start_ms): n for w, n in scan} == live
        out = {(r.key.key, r.key.start_ms): r.value for r in driver.read("out")}
        assert out == (closed if emit == "on_window_close" else counts)
        tp = TopicPartition("topology-test-counts-changelog", 0)
        assert tp in driver.store("counts").staged.committed_offsets() or not counts


def test_a_plain_stores_folder_is_not_opened_as_windows_nor_the_reverse(tmp_path: Path) -> None:
    plain: ss.KeyValueSpec[bytes, bytes] = ss.persistent_key_value_store("a")
    rows = WindowRows("b", serdes.BYTES, serdes.BYTES)
    for spec in (plain, rows):
        ss.open_store(spec, tmp_path).close()
    with pytest.raises(Misuse, match="holds a keyvalue store, not a window one"):
        ss.open_store(WindowRows("a", serdes.BYTES, serdes.BYTES), tmp_path)
    with pytest.raises(Misuse, match="holds a window store, not a keyvalue one"):
        ss.open_store(ss.persistent_key_value_store("b"), tmp_path)


def test_the_changelog_of_a_window_store_reads_as_windows(driver: TopologyTestDriver) -> None:
    pipe(driver, "a1 a2 b12")
    topic = f"{driver._settings.application_id}-counts-changelog"
    logged = {record.key: record.value for record in driver.read(topic)}
    assert logged == {ss.Windowed("a", 0, 10): 2, ss.Windowed("b", 10, 20): 1}
