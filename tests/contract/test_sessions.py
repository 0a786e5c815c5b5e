"""Session stores: what is read, what expires, what is late, what a restart and a reader see."""

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.kafka.partitioner import murmur2_partition
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Record, Windowed
from statestore.model.texts import time_text
from statestore.operations.deployed import describe_deployment
from statestore.serdes import composed
from statestore.stores.in_windows import START, TIME_ROW
from statestore.stores.kinds.registry import kind_named
from statestore.stores.sessions import LIST, SPAN, TransactionalSessionStore, row_of, spans_of
from statestore.stores.specs import SessionSpec, WindowSpec
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.graph import Topology
from tests.contract.test_stores_at_rest import Shop
from tests.contract.windows_text import pipe, shown

KEPT = ss.SessionWindows(10, grace=5, retention=50)


def counting(
    windows: Any = KEPT, *, store: Any = "counts", emit: str = "on_update", persistent: bool = True
) -> Topology:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    if not persistent:
        store = ss.Materialized(ss.in_memory_key_value_store(store, key_serde=serdes.STRING))
    counts = b.stream("in").group_by_key().windowed_by(windows, emit=emit).count(store)
    counts.to_stream().to("out")
    return b.build()


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(counting()) as made:
        yield made


def rows(driver: TopologyTestDriver) -> dict[bytes, bytes]:
    """Every row there is, expired or not."""
    task = next(iter(driver._tasks.values()))
    return dict(task._stores.opened["counts"].table().scan())


def check_lists(found: dict[bytes, bytes]) -> None:
    """Each key's list has exactly its sessions, in order."""
    wanted: dict[bytes, list[bytes]] = {}
    for row in sorted(found):
        if row != TIME_ROW and not row.startswith(LIST):
            wanted.setdefault(row[16:], []).append(row[:16])
    lists = {row[1:]: spans_of(data) for row, data in found.items() if row.startswith(LIST)}
    assert lists == wanted


# Values.


@pytest.mark.parametrize(
    ("gap", "told", "message"),
    [
        (-1, {}, "neither may be negative"),
        (10, {"grace": -1}, "neither may be negative"),
        (10, {"grace": 5, "retention": 14}, "at least 15"),
    ],
)
def test_sessions_that_cannot_be_are_refused(gap: int, told: dict[str, int], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        ss.SessionWindows(gap, **told)


def test_sessions_take_spans_and_are_kept_for_gap_and_grace_unless_told() -> None:
    windows = ss.SessionWindows(timedelta(minutes=1), grace=timedelta(seconds=5))
    assert (windows.gap_ms, windows.grace_ms, windows.retention_ms) == (60_000, 5000, 65_000)


@given(st.text(), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_key_in_a_session_is_the_keys_bytes_and_end_and_start_in_eight_each(
    key: str, start: int, length: int
) -> None:
    serde = composed.session_windowed(serdes.STRING)
    session = ss.Windowed(key, start, start + length)
    data = serde.serialize(session)
    assert data == key.encode() + (start + length).to_bytes(8, "big") + start.to_bytes(8, "big")
    assert serde.deserialize(data) == session
    assert kind_named("session").logged_keys([row_of(data), LIST + key.encode()]) == [data, None]
    assert serdes.by_name(serde.name) is serde


def test_sessions_that_differ_are_another_topology_and_another_kind_than_windows() -> None:
    prints = [
        counting(windows).fingerprint()
        for windows in (
            ss.SessionWindows(10),
            ss.SessionWindows(11, retention=11),
            ss.SessionWindows(10, grace=1),
            ss.SessionWindows(10, retention=20),
            ss.TumblingWindows(10),
        )
    ]
    assert (
        len({*prints, counting(ss.SessionWindows(10), emit="on_window_close").fingerprint()}) == 6
    )
    deployed = counting().deployed()["stores"]["counts"]
    assert (deployed["kind"], deployed["key_serde"]) == ("session", "SESSION(STRING)")


# Reads.


def test_sessions_are_read_by_key_and_span_by_key_and_time_and_all(
    driver: TopologyTestDriver,
) -> None:
    pipe(driver, "a1 b2 a11 a12 b25 a25")
    store = driver.store("counts")
    assert isinstance(store, TransactionalSessionStore)
    assert [store.get("a", 1, 12), store.get("a", 1, 11), store.get("b", 25, 25)] == [3, None, 1]
    assert shown(store.fetch("a")) == ["a@1-12=3", "a@25-25=1"]
    assert shown(store.fetch("a", from_time=13)) == ["a@25-25=1"]
    assert shown(store.fetch("a", from_time=12, to_time=24)) == ["a@1-12=3"]
    assert shown(store.fetch("nobody")) == []
    assert shown(store.all()) == ["b@2-2=1", "a@1-12=3", "a@25-25=1", "b@25-25=1"]
    assert store.find("a", 7) == ("a", 3, 1, 12)
    assert store.find("a", 20) is None
    assert store.observed_stream_time() == 25
    check_lists(rows(driver))


def test_keys_that_begin_alike_keep_their_sessions_apart() -> None:
    keys = ("key", "key2", "key" + 15 * "\x00" + "\x0a", "", "t", "\x7f")
    with TopologyTestDriver(counting()) as driver:
        for key in keys:
            driver.pipe("in", key, 0, 1)
        store = driver.store("counts")
        assert [shown(store.fetch(key)) for key in keys] == [[f"{key}@1-1=1"] for key in keys]
        assert len(shown(store.all())) == len(keys)
        check_lists(rows(driver))


def test_readers_see_what_their_level_allows() -> None:
    seen: list[tuple[Any, Any]] = []

    class Look:
        def __init__(self, context: "ss.ProcessorContext") -> None:
            store = context.store("counts")
            self._committed = store.reader("READ_COMMITTED")
            self._uncommitted = store.reader("READ_UNCOMMITTED")

        def process(self, record: "ss.Record[Any, Any]") -> None:
            if record.value is not None:
                both = (self._committed, self._uncommitted)
                seen.append(tuple(shown(reader.fetch("a")) for reader in both))  # type: ignore[arg-type]

    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    counts = b.stream("in").group_by_key().windowed_by(KEPT).count("counts")
    counts.to_stream().process(Look, "counts")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "a", 0, 1)
        driver.pipe("in", "a", 0, 2)
    assert seen == [([], ["a@1-1=1"]), (["a@1-1=1"], ["a@1-2=2"])]


def test_sink_and_changelog_have_the_key_the_end_and_the_start(driver: TopologyTestDriver) -> None:
    pipe(driver, "a11")
    pipe(driver, "a15")
    ends = [b"a" + end.to_bytes(8, "big") + (11).to_bytes(8, "big") for end in (11, 15)]
    one, two = (1).to_bytes(8, "big"), (2).to_bytes(8, "big")
    wanted = [(ends[0], one, 11), (ends[0], None, 11), (ends[1], two, 15)]
    told = driver._broker.records("out")
    assert [(row.key, row.value, row.timestamp_ms) for row in told] == wanted
    log = driver._broker.records("topology-test-counts-changelog")
    assert [(row.key, row.value) for row in log if row.key != TIME_ROW] == [
        (key, value) for key, value, _ in wanted
    ]
    assert [record.key for record in driver.read("out")][-1] == ss.Windowed("a", 11, 15)


def test_all_sessions_of_a_key_lie_in_the_partition_of_the_key() -> None:
    with TopologyTestDriver(counting(), partitions=4) as driver:
        for number in range(60):
            key = f"k{number % 20}"
            at = murmur2_partition(key.encode(), 4)
            driver.pipe("in", key, 0, number, at)
        told = driver._broker.records("out")
        assert len(told) >= 60
        for record in told:
            assert record.partition == murmur2_partition((record.key or b"")[:-16], 4)


# Time.


def test_late_records_are_dropped_and_counted_unless_they_reach_an_open_session(
    driver: TopologyTestDriver,
) -> None:
    pipe(driver, "a1 b30 b24 a14 a15 c8 c13")  # Up to 15 is closed, exclusive.
    assert shown(driver.store("counts").all()) == ["a@1-1=1", "a@15-15=1", "b@24-30=2"]
    pipe(driver, "b14 b13")
    assert shown(driver.store("counts").fetch("b")) == ["b@13-30=4"]
    (task,) = driver._tasks.values()
    assert driver.store("counts").metrics()["late-record-drop-total"] == 3
    assert task.report.dropped_records == 3
    driver.pipe("in", "a", 0, -1)
    driver.pipe("in", None, 0, 30)
    assert driver.store("counts").metrics()["late-record-drop-total"] == 4
    assert task.report.dropped_records == 5


def test_a_closed_session_takes_no_more_records_however_long_it_is_kept() -> None:
    """A late record that reaches an open session does not bring a closed one into it."""
    for emit in ("on_update", "on_window_close"):
        with TopologyTestDriver(counting(emit=emit)) as driver:
            pipe(driver, "a5 b22 a20 a14")  # 5 is closed since 21, so 14 reaches 20 only.
            assert shown(driver.store("counts").fetch("a")) == ["a@5-5=1", "a@14-20=2"]


def test_sessions_expire_by_logged_tombstones(driver: TopologyTestDriver) -> None:
    pipe(driver, "a1 b2 a30 a51")
    assert shown(driver.store("counts").all()) == ["a@1-1=1", "b@2-2=1", "a@30-30=1", "a@51-51=1"]
    pipe(driver, "a53")
    assert shown(driver.store("counts").all()) == ["a@30-30=1", "a@51-53=2"]
    assert driver.store("counts").get("a", 1, 1) is None
    changelog = driver._broker.records("topology-test-counts-changelog")
    gone = {record.key for record in changelog if record.value is None}
    assert {b"a" + SPAN.pack(1, 1), b"b" + SPAN.pack(2, 2)} <= gone
    check_lists(rows(driver))
    assert LIST + b"b" not in rows(driver)


def test_many_expired_sessions_go_a_share_with_each_batch_and_are_not_shown_meanwhile() -> None:
    with TopologyTestDriver(counting()) as driver:
        driver.pipe_all("in", [Record(f"k{n}", 0, 1) for n in range(2500)])
        left = []
        for _ in range(3):
            pipe(driver, "a60")
            assert len(shown(driver.store("counts").all())) == 1
            check_lists(rows(driver))
            left.append(len(rows(driver)) // 2)  # Each has its row and its list.
        assert left == [2501 - 1002, 2501 - 2004, 1]


def test_on_window_close_each_session_is_emitted_once_also_after_crashes_and_more_grace() -> None:
    with TopologyTestDriver(counting(emit="on_window_close")) as driver:
        pipe(driver, "a1 b2 a9")
        assert driver.read("out") == []
        driver.crash()
        pipe(driver, "b18")  # Up to 3 is closed, exclusive.
        driver.crash()
        pipe(driver, "b19 b25")
        told = [(record.key, record.value, record.timestamp_ms) for record in driver.read("out")]
        assert told == [(("b", 2, 2), 1, 2), (("a", 1, 9), 2, 9)]
        more = ss.SessionWindows(10, grace=500, retention=600)
        driver._topology = counting(more, emit="on_window_close")
        driver.crash()
        pipe(driver, "a8 b536 c537")
        told = [(record.key, record.value, record.timestamp_ms) for record in driver.read("out")]
        assert told == [(("b", 18, 25), 3, 25)]


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "in memory"])
@pytest.mark.parametrize("emit", ["on_update", "on_window_close"])
def test_batches_and_restarts_change_nothing_and_lists_follow_from_the_changelog(
    emit: str, persistent: bool
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    windows = ss.SessionWindows(20, grace=40, retention=200)
    records = [
        Record(chance.choice("abcdefgh"), 0, 3 * n + chance.randrange(80)) for n in range(600)
    ]
    topology = counting(windows, emit=emit, persistent=persistent)
    with TopologyTestDriver(topology) as alone, TopologyTestDriver(topology) as at_once:
        for record in records:
            alone.pipe_all("in", [record])
        at = 0
        while at < len(records):
            size = chance.choice([1, 5, 100])
            at_once.pipe_all("in", records[at : at + size])
            at += size
            check_lists(rows(at_once))
            if chance.random() < 0.2:
                at_once.crash()
                at_once.pipe_all("in", [])
        for driver in (alone, at_once):
            driver.crash()
            driver.pipe_all("in", [Record("z", 0, records[-1].timestamp_ms)])
            check_lists(rows(driver))
        found = [shown(driver.store("counts").all()) for driver in (alone, at_once)]
        assert found[0] == found[1], f"seed {seed}"
        last = [
            {r.key: r.value for r in driver.read("out") if r.value is not None}
            for driver in (alone, at_once)
        ]
        if emit == "on_window_close":
            assert last[0] == last[1], f"seed {seed}"


def test_the_log_of_a_clone_has_the_sessions_and_no_lists(driver: TopologyTestDriver) -> None:
    pipe(driver, "a1 b2 a30")
    (task,) = driver._tasks.values()
    engine: Any = task._stores.opened["counts"]._staged._engine  # type: ignore[attr-defined]
    found = [
        (key, value)
        for changes in kind_named("session").logged_rows(engine, 7, 9)
        for key, value in zip(changes.keys, changes.values, strict=True)
    ]
    one = (1).to_bytes(8, "big")
    spans = [(b"a", 1), (b"b", 2), (b"a", 30)]
    wanted = [(key + SPAN.pack(time, time), one) for key, time in spans]
    assert [row for row in found if row[0] != TIME_ROW] == wanted


# At rest.


def shop_in(state_dir: Path) -> Shop:
    layout = StateLayout(state_dir, "shop")
    spec = counting().stores["counts"]
    assert isinstance(spec, SessionSpec)
    sessions = ([("a", 1, 12, 3), ("a", 30, 30, 1), ("b", 20, 29, 2)], [("c", 5, 9, 1)])
    for partition, (found, time) in enumerate(zip(sessions, (30, 60), strict=True)):
        with ss.open_store(spec.rows, layout.task_dir(TaskId(0, partition)) / "rocksdb") as store:
            for key, start, end, count in found:
                store.put(SPAN.pack(end, start) + key.encode(), serdes.INT64.serialize(count))
            for key in {key for key, *_ in found}:
                spans = [SPAN.pack(end, start) for k, start, end, _ in found if k == key]
                store.put(LIST + key.encode(), b"".join(spans))
            store.put(TIME_ROW, START.pack(time))
            store.commit({TopicPartition("shop-counts-changelog", partition): 7})
    said = describe_deployment(counting(), ProcessingGuarantee.EXACTLY_ONCE)
    layout.topology_file.write_bytes(msgspec.json.encode(said))
    return Shop(layout)


def test_sessions_at_rest_are_listed_found_and_counted_without_expired_ones(tmp_path: Path) -> None:
    shop = shop_in(tmp_path)
    assert shop.said("stores", "range", "counts") == [
        ["0_0", "a", "3", time_text(1), time_text(12)],
        ["0_0", "b", "2", time_text(20), time_text(29)],
        ["0_0", "a", "1", time_text(30), time_text(30)],
    ]
    assert shop.said("stores", "count", "counts") == [["3"]]
    assert shop.said("stores", "get", "counts", "b", "--as-of", "25") == [["2"]]
    assert shop.call("stores", "get", "counts", "c", "--as-of", "7").code == 1
    assert "pass --as-of" in shop.refused("stores", "get", "counts", "b")
    assert "no history" in shop.refused("stores", "range", "counts", "--as-of", "1")
    with ss.open_snapshot(tmp_path, "shop", "counts") as counts:
        assert list(counts.fetch("a")) == [(Windowed("a", 1, 12), 3), (Windowed("a", 30, 30), 1)]
        assert counts.get("b", 20, 29) == 2
        assert shown(counts.all()) == ["a@1-12=3", "b@20-29=2", "a@30-30=1"]
        assert counts.observed_stream_time() == 60


def test_a_session_store_is_not_taken_for_one_of_windows(tmp_path: Path) -> None:
    sessions, windows = (
        counting().stores["counts"],
        counting(ss.TumblingWindows(10)).stores["counts"],
    )
    assert isinstance(sessions, SessionSpec)
    assert isinstance(windows, WindowSpec)
    ss.open_store(sessions.rows, tmp_path).close()
    with pytest.raises(Misuse, match="session"):
        ss.open_store(windows.rows, tmp_path)
