"""Window and session stores that processors write: their reads, expiry, restarts and readers."""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import (
    CommitInsideProcessor,
    Misuse,
    SerdeMismatch,
    StoreClosed,
    TopologyMismatch,
    UncommittedWrites,
)
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Record, Windowed
from statestore.model.texts import time_text
from statestore.operations.deployed import describe_deployment
from statestore.operations.relocation.relocation_plan import Disk, placement, plan_relocation
from statestore.reading.views import StoreView
from statestore.stores.in_windows import TIME_ROW, UNLOGGED
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from tests.contract.test_stores_at_rest import Shop
from tests.contract.windows_text import shown

SIZE, KEPT = 10, 50
TYPED: dict[str, Any] = {"key_serde": serdes.STRING, "value_serde": serdes.JSON}
WINDOWS = ss.persistent_window_store("w", SIZE, KEPT, **TYPED)
SESSIONS = ss.persistent_session_store("s", KEPT, **TYPED)
IN_MEMORY = (
    ss.in_memory_window_store("w", SIZE, KEPT, **TYPED),
    ss.in_memory_session_store("s", KEPT, **TYPED),
)

WORDS = ("", "a", "ab", "a\0", "b", "é" * 9)


@pytest.fixture(params=["persistent", "in memory"])
def windows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    spec = WINDOWS if request.param == "persistent" else IN_MEMORY[0]
    store = ss.open_store(spec, tmp_path, settings={"statestore.wal": False})
    yield store
    store.close()


@pytest.fixture(params=["persistent", "in memory"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    spec = SESSIONS if request.param == "persistent" else IN_MEMORY[1]
    store = ss.open_store(spec, tmp_path, settings={"statestore.wal": False})
    yield store
    store.close()


# Specs.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ss.persistent_window_store("w", 0, 10), "size must be positive"),
        (lambda: ss.in_memory_window_store("w", 10, 9), "retention of at least 10"),
        (lambda: ss.persistent_session_store("s", -1), "retention -1 ms is negative"),
        (lambda: ss.in_memory_session_store("a/b", 1), "a/b"),
    ],
)
def test_specs_that_cannot_be_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        make()


def test_spans_may_be_timedeltas_and_serdes_are_bytes_unless_told() -> None:
    spec = ss.persistent_window_store("w", timedelta(seconds=1), timedelta(minutes=1))
    assert (spec.size_ms, spec.retention_ms, spec.inner) == (1000, 60_000, serdes.BYTES)
    assert ss.in_memory_session_store("s", timedelta(seconds=1)).retention_ms == 1000


# Window stores.


def test_windows_start_at_any_time_and_are_read_by_start(windows: Any) -> None:
    windows.put("a", 1, 3)
    windows.put("a", 2, 4)
    windows.put("ab", 3, 4)
    windows.put("a", 4, 17)
    assert (windows.get("a", 3), windows.get("a", 5), windows.get("ab", 4)) == (1, None, 3)
    assert shown(windows.fetch("a")) == ["a@3-13=1", "a@4-14=2", "a@17-27=4"]
    assert shown(windows.fetch("a", from_time=4, to_time=17)) == ["a@4-14=2", "a@17-27=4"]
    assert shown(windows.fetch("a", to_time=16, reverse=True)) == ["a@4-14=2", "a@3-13=1"]
    assert shown(windows.fetch("a", from_time=18)) == []
    assert shown(windows.fetch("a", to_time=-1)) == []
    assert shown(windows.range("a", "ab", from_time=4)) == ["a@4-14=2", "ab@4-14=3", "a@17-27=4"]
    assert shown(windows.range(lo="b")) == []
    assert shown(windows.all()) == ["a@3-13=1", "a@4-14=2", "ab@4-14=3", "a@17-27=4"]
    assert shown(windows.all(reverse=True)) == list(reversed(shown(windows.all())))
    assert windows.observed_stream_time() == 17


def test_a_window_put_again_has_the_new_value_and_none_deletes_it(windows: Any) -> None:
    windows.put("a", 1, 3)
    windows.commit()
    windows.put("a", 2, 3)
    assert shown(windows.fetch("a")) == ["a@3-13=2"]
    windows.put("a", None, 3)
    windows.put("a", None, 4)
    assert (windows.get("a", 3), shown(windows.fetch("a")), shown(windows.all())) == (None, [], [])
    windows.commit()
    assert shown(windows.fetch("a")) == []


def test_windows_expire_by_the_latest_start_as_in_kafka_streams(windows: Any) -> None:
    windows.put("a", 1, 0)
    windows.put("a", 2, 1)
    windows.put("b", 3, KEPT)
    assert shown(windows.all()) == ["a@1-11=2", f"b@{KEPT}-{KEPT + SIZE}=3"]
    assert (windows.get("a", 0), shown(windows.fetch("a"))) == (None, ["a@1-11=2"])
    windows.put("c", 4, 0)
    assert windows.metrics()["late-record-drop-total"] == 1
    windows.put("c", 5, 1)
    assert shown(windows.fetch("c")) == ["c@1-11=5"]


def test_times_may_be_datetimes_and_others_than_windows_have_are_refused(windows: Any) -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    windows.put("a", 1, moment)
    assert windows.get("a", moment) == 1
    wrong: Any
    for wrong in (-1, 1 << 63):
        assert windows.get("a", wrong) is None
    for wrong in (-1, 1 << 63, 1.5, "5", None):
        with pytest.raises(Misuse, match="cannot start or end"):
            windows.put("a", 1, wrong)
    with pytest.raises(Misuse, match="the key is None"):
        windows.put(None, 1, moment)


def test_a_batch_that_does_not_fit_stages_nothing(windows: Any) -> None:
    with pytest.raises(SerdeMismatch, match="value_serde"):
        windows.put_all([("a", 1, 3), ("a", object(), 4)])
    assert shown(windows.all()) == []
    assert windows.observed_stream_time() is None


def test_a_rollback_and_a_savepoint_undone_take_stream_time_and_expiry_back(windows: Any) -> None:
    windows.put("a", 1, 0)
    windows.commit()
    windows.put_all([("b", n, 1000 + n) for n in range(2000)])
    assert shown(windows.fetch("a")) == []
    windows.rollback()
    assert shown(windows.all()) == ["a@0-10=1"]
    assert windows.observed_stream_time() == 0

    def undone() -> None:
        with windows.transaction():
            windows.put_all([("b", n, 1000 + n) for n in range(2000)])
            raise RuntimeError("undone")

    with pytest.raises(RuntimeError, match="undone"):
        undone()
    windows.put("a", 2, 1)
    assert shown(windows.fetch("a")) == ["a@0-10=1", "a@1-11=2"]


def test_uncommitted_windows_are_refused_at_the_end_of_a_with(tmp_path: Path) -> None:
    with pytest.raises(UncommittedWrites), ss.open_store(WINDOWS, tmp_path) as store:
        store.put("a", 1, 3)
    with ss.open_store(WINDOWS, tmp_path) as store:
        assert shown(store.all()) == []
    with pytest.raises(StoreClosed):
        store.put("a", 1, 3)


def test_readers_see_committed_windows_and_uncommitted_ones_if_asked(windows: Any) -> None:
    windows.put("a", 1, 3)
    committed, dirty = windows.reader("read_committed"), windows.reader("read_uncommitted")
    assert (shown(committed.all()), shown(dirty.fetch("a"))) == ([], ["a@3-13=1"])
    windows.commit()
    assert committed.get("a", 3) == 1
    assert shown(committed.fetch("a", reverse=True)) == ["a@3-13=1"]


def test_windows_survive_a_restart_with_their_stream_time(tmp_path: Path) -> None:
    changelog = TopicPartition("c", 0)
    with ss.open_store(WINDOWS, tmp_path) as store:
        store.put_all([("a", n, n * 7) for n in range(20)])
        store.commit({changelog: 21})
        kept = shown(store.fetch("a"))
    with ss.open_store(WINDOWS, tmp_path) as store:
        assert store.committed_offset(changelog) == 21
        assert shown(store.fetch("a")) == kept == shown(store.all())
        store.put("a", 1, 83)
        assert store.metrics()["late-record-drop-total"] == 1


def test_a_key_with_very_many_windows_is_read_whole(windows: Any) -> None:
    spec = ss.in_memory_window_store("many", 1, 10**9, **TYPED)
    with ss.open_store(spec) as store:
        store.put_all([("a", n, n) for n in range(10_002)] + [("b", 0, 5)])
        with store.fetch("a") as pairs:
            assert [value for _, value in pairs] == list(range(10_002))
        with store.fetch("a", from_time=1, reverse=True) as pairs:
            assert [value for _, value in pairs] == list(range(10_001, 0, -1))
        store.commit()


def test_any_puts_read_as_a_dict_of_windows_does(tmp_path: Path) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        spec = ss.in_memory_window_store("w", SIZE, KEPT, **TYPED)
        with ss.open_store(spec) as store:
            oracle: dict[tuple[str, int], int] = {}
            now = -1
            for number in range(300):
                key, start = chance.choice(WORDS), max(now + chance.randint(-70, 9), 0)
                now = max(now, start)
                value = None if chance.random() < 0.2 else number
                store.put(key, value, start)
                if start > now - KEPT:
                    oracle.pop((key, start), None)
                    if value is not None:
                        oracle[key, start] = value
                oracle = {of: kept for of, kept in oracle.items() if of[1] > now - KEPT}
                if chance.random() < 0.1:
                    store.commit()
                low, high = sorted(chance.choices(range(max(now - 80, 0), now + 9), k=2))
                wanted = sorted((at, value) for (of, at), value in oracle.items() if of == key)
                with store.fetch(key, from_time=low, to_time=high) as found:
                    pairs = [(of.start_ms, value) for of, value in found]
                assert pairs == [p for p in wanted if low <= p[0] <= high], f"seed {seed}"
                ends = sorted(chance.choices([word.encode() for word in WORDS], k=2))
                with store.range(*map(bytes.decode, ends), from_time=low, to_time=high) as found:
                    ranged = [(of.start_ms, of.key.encode(), value) for of, value in found]
                assert ranged == sorted(
                    (at, of.encode(), value)
                    for (of, at), value in oracle.items()
                    if low <= at <= high and ends[0] <= of.encode() <= ends[1]
                ), f"seed {seed}"
            store.commit()


def test_expired_windows_are_deleted_by_and_by(windows: Any) -> None:
    for number in range(5000):
        windows.put(f"k{number % 3}", number, number)
        if number % 100 == 0:
            windows.commit()
    windows.commit()
    left = [row for row, _ in windows.table.scan()]
    assert len([row for row in left if row < UNLOGGED]) < 2 * 500 + KEPT
    assert len([row for row in left if row >= UNLOGGED]) < 2 * 500 + KEPT
    assert len(shown(windows.all())) == KEPT


# Session stores.


def test_sessions_are_found_by_what_they_overlap(sessions: Any) -> None:
    sessions.put(Windowed("a", 1, 5), "one")
    sessions.put(Windowed("a", 10, 20), "two")
    sessions.put(Windowed("b", 4, 12), "three")
    assert sessions.get("a", 10, 20) == "two"
    assert sessions.get("a", 10, 19) is None
    assert shown(sessions.fetch("a")) == ["a@1-5=one", "a@10-20=two"]
    assert shown(sessions.fetch("a", reverse=True)) == ["a@10-20=two", "a@1-5=one"]
    assert shown(sessions.fetch("a", from_time=5, to_time=9)) == ["a@1-5=one"]
    assert shown(sessions.fetch("a", from_time=6, to_time=9)) == []
    assert shown(sessions.range(from_time=6, to_time=9)) == ["b@4-12=three"]
    assert shown(sessions.range("a", "a", to_time=9)) == ["a@1-5=one"]
    assert shown(sessions.all()) == ["a@1-5=one", "b@4-12=three", "a@10-20=two"]
    assert shown(sessions.all(reverse=True)) == list(reversed(shown(sessions.all())))
    assert sessions.observed_stream_time() == 20


def test_a_processor_merges_sessions_by_removing_those_that_it_found(sessions: Any) -> None:
    sessions.put_all([(Windowed("a", 1, 5), 2), (Windowed("a", 9, 9), 1)])
    sessions.commit()
    with sessions.fetch("a", from_time=2, to_time=12) as found:
        merged = list(found)
    for session, _ in merged:
        sessions.remove(session)
    sessions.put(Windowed("a", 1, 9), sum(count for _, count in merged))
    assert shown(sessions.fetch("a")) == shown(sessions.all()) == ["a@1-9=3"]
    sessions.commit()
    sessions.remove(Windowed("a", 1, 9))
    sessions.remove(Windowed("a", 1, 10))
    assert shown(sessions.fetch("a")) == shown(sessions.all()) == []


def test_sessions_expire_by_the_latest_end(sessions: Any) -> None:
    sessions.put(Windowed("a", 0, 9), 1)
    sessions.put(Windowed("a", 1, 10), 2)
    sessions.put(Windowed("b", 55, 10 + KEPT), 3)
    assert shown(sessions.all()) == ["a@1-10=2", "b@55-60=3"]
    assert sessions.get("a", 0, 9) is None
    sessions.put(Windowed("c", 0, 9), 4)
    assert sessions.metrics()["late-record-drop-total"] == 1
    assert shown(sessions.fetch("c")) == []


def test_sessions_that_cannot_be_are_refused(sessions: Any) -> None:
    for wrong in (Windowed("a", 5, 4), Windowed("a", -1, 4), Windowed("a", 1, 1 << 63)):
        with pytest.raises(Misuse, match="cannot start"):
            sessions.put(wrong, 1)
        assert sessions.get(*wrong) is None
    for other in ("a", ("a", 1)):
        with pytest.raises(Misuse, match="takes a session"):
            sessions.put(other, 1)
    assert shown(sessions.all()) == []


def test_many_sessions_expire_by_and_by_and_leave_no_list(sessions: Any) -> None:
    for number in range(4000):
        sessions.put(Windowed(f"k{number % 7}", number, number + 1), number)
    sessions.commit()
    left = [row for row, _ in sessions.table.scan()]
    assert len([row for row in left if row < UNLOGGED]) < 2 * 500 + KEPT
    assert len([row for row in left if row >= UNLOGGED]) == 7
    sessions.rollback()
    assert len(shown(sessions.all())) == KEPT + 1


# In processors.


class Deduplicates:
    """Passes the first record of a key within `KEPT` ms, as Kafka Streams' example does."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._seen = context.store(WINDOWS)

    def process(self, record: Record[str, Any]) -> None:
        at = record.timestamp_ms
        with self._seen.fetch(record.key, from_time=at - KEPT, to_time=at + KEPT) as found:
            known = next(iter(found), None)
        self._seen.put(record.key, at, at)
        if known is None:
            self._context.forward(record)


class Bursts:
    """Merges records of a key that are at most 10 ms apart into sessions, with their count."""

    def __init__(self, context: Any) -> None:
        self._sessions = context.store(SESSIONS)

    def process(self, record: Record[str, Any]) -> None:
        at, count, start = record.timestamp_ms, 1, record.timestamp_ms
        end = at
        with self._sessions.fetch(record.key, from_time=at - 10, to_time=at + 10) as near:
            merged = list(near)
        for session, value in merged:
            self._sessions.remove(session)
            count, start = count + value, min(start, session.start_ms)
            end = max(end, session.end_ms)
        self._sessions.put(Windowed(record.key, start, end), count)


def topology(windows: Any = WINDOWS) -> ss.Topology:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    source = b.stream("in")
    source.process(Deduplicates, windows).to("out")
    source.process(Bursts, SESSIONS)
    return b.build()


def test_processors_use_both_and_a_crash_restores_them_from_their_changelogs() -> None:
    with TopologyTestDriver(topology()) as driver:
        driver.pipe_all("in", [("a", 1, 100), ("a", 2, 105), ("b", 3, 105), ("a", 4, 200)])
        assert [r.value for r in driver.read("out")] == [1, 3, 4]
        seen, bursts = shown(driver.store(WINDOWS).all()), shown(driver.store(SESSIONS).all())
        assert seen == ["a@200-210=200"]
        assert bursts == ["a@200-200=1"]
        driver.pipe("in", "b", 5, 201)
        driver.crash()
        assert shown(driver.store(WINDOWS).fetch("b")) == ["b@201-211=201"]
        assert shown(driver.store(SESSIONS).fetch("b")) == ["b@201-201=1"]
        driver.pipe("in", "b", 6, 205)
        assert shown(driver.store(SESSIONS).fetch("b")) == ["b@201-205=2"]
        assert [r.value for r in driver.read("out")] == [5]


def test_the_changelog_has_windows_and_stream_time_and_no_row_that_follows_from_them() -> None:
    with TopologyTestDriver(topology()) as driver:
        driver.pipe_all("in", [("a", 1, 100), ("b", 3, 105)])
        for store in ("w", "s"):
            logged = driver._broker.records(f"topology-test-{store}-changelog")
            keys = [row.key for row in logged]
            assert keys.count(TIME_ROW) == 1
            assert sorted(key[:1] for key in keys if key and key != TIME_ROW) == [b"a", b"b"]


def test_a_processor_must_not_commit_and_reads_the_store_of_an_aggregate_only() -> None:
    wrong: list[Any] = []

    class Tries:
        def __init__(self, context: Any) -> None:
            self._mine, self._counts = context.store("w"), context.store("counts")
            self._sessions = context.store("bursts")

        def process(self, record: Record[str, Any]) -> None:
            for call in (
                self._mine.commit,
                lambda: self._counts.put(record.key, 1, 0),
                lambda: self._sessions.remove(Windowed("a", 0, 0)),
            ):
                try:
                    call()
                except (CommitInsideProcessor, Misuse) as error:
                    wrong.append(type(error))
            with self._counts.fetch(record.key) as found:
                wrong.extend([] for _ in found)

    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    source = b.stream("in")
    grouped = source.group_by_key()
    grouped.windowed_by(ss.TumblingWindows(10)).count("counts")
    grouped.windowed_by(ss.SessionWindows(10)).count("bursts")
    source.process(Tries, WINDOWS, "counts", "bursts")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "a", 1, 100)
    assert wrong == [CommitInsideProcessor, Misuse, Misuse, []]


def test_other_windows_are_another_topology_and_the_deployed_one_reads_them_alike() -> None:
    others = [
        ss.persistent_window_store("w", SIZE, KEPT + 1, **TYPED),
        ss.persistent_window_store("w", SIZE - 1, KEPT, **TYPED),
    ]
    prints = {topology(spec).fingerprint() for spec in [WINDOWS, *others]}
    assert len(prints) == 3
    deployed = describe_deployment(topology(), ProcessingGuarantee.EXACTLY_ONCE)
    windows, sessions = (StoreView.of(deployed, "app", name).spec_with() for name in ("w", "s"))
    assert isinstance(windows, ss.WindowSpec)
    assert isinstance(sessions, ss.SessionSpec)
    assert (windows.any_start, windows.size_ms) == (True, SIZE)
    assert windows.retention_ms == sessions.retention_ms == KEPT


# At rest.


def shop_in(state_dir: Path) -> Shop:
    layout = StateLayout(state_dir, "shop")
    for partition, (key, now) in enumerate((("a", 40), ("b", 1000))):
        folder = layout.task_dir(TaskId(0, partition)) / "rocksdb"
        with ss.open_store(WINDOWS, folder) as windows:
            windows.put_all([(key, "old", 3), (key, "new", now)])
            windows.commit({TopicPartition("shop-w-changelog", partition): 3})
        with ss.open_store(SESSIONS, folder) as sessions:
            sessions.put_all([(Windowed(key, 1, 3), "old"), (Windowed(key, now, now + 5), "new")])
            sessions.commit({TopicPartition("shop-s-changelog", partition): 3})
    said = describe_deployment(topology(), ProcessingGuarantee.EXACTLY_ONCE)
    layout.topology_file.write_bytes(msgspec.json.encode(said))
    return Shop(layout)


def test_both_at_rest_are_listed_found_counted_and_opened_without_what_expired(
    tmp_path: Path,
) -> None:
    shop = shop_in(tmp_path)
    assert shop.said("stores", "range", "w") == [
        ["0_0", "a", "old", time_text(3), time_text(13)],
        ["0_0", "a", "new", time_text(40), time_text(50)],
        ["0_1", "b", "new", time_text(1000), time_text(1010)],
    ]
    assert shop.said("stores", "range", "s", "b") == [
        ["0_1", "b", "new", time_text(1000), time_text(1005)]
    ]
    assert shop.said("stores", "count", "w") == [["3"]]
    assert shop.said("stores", "get", "w", "a", "--as-of", "12") == [["old"]]
    assert shop.call("stores", "get", "w", "a", "--as-of", "13").code == 1
    assert shop.said("stores", "get", "s", "a", "--as-of", "44") == [["new"]]
    with ss.open_snapshot(tmp_path, "shop", "w") as windows:
        assert shown(windows.fetch("a")) == ["a@3-13=old", "a@40-50=new"]
        assert shown(windows.fetch("b", reverse=True)) == ["b@1000-1010=new"]
        assert shown(windows.range(from_time=10, reverse=True)) == [
            "b@1000-1010=new",
            "a@40-50=new",
        ]
    with ss.open_snapshot(tmp_path, "shop", "s") as sessions:
        assert shown(sessions.fetch("a", from_time=4)) == ["a@40-45=new"]


def test_a_store_of_an_aggregate_does_not_become_one_of_a_processor(tmp_path: Path) -> None:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    grouped = b.stream("in").group_by_key()
    grouped.windowed_by(ss.HoppingWindows(SIZE, 1)).reduce(max, "w")
    before = describe_deployment(b.build(), ProcessingGuarantee.EXACTLY_ONCE)
    wanted = placement(topology())
    with pytest.raises(TopologyMismatch, match=r"10 ms every 1 ms.*10 ms from any time"):
        plan_relocation(wanted, Disk(), before, lambda store: f"shop-{store}-changelog")
