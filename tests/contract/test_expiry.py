"""Key-value stores with a time to live (S17, I36): reads, expiry, crashes, readers, other TTLs."""

import random
import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.model.ids import TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Record
from statestore.operations.deployed import describe_deployment
from statestore.spark.datasource import TransactionalStore
from statestore.stores import expiry, offsets, row_times
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from tests.contract.task_rig import TaskRig
from tests.contract.test_stores_at_rest import Shop
from tests.tiers import first_of

TTL = 100
IN = TopicPartition("in", 0)
TYPED: dict[str, Any] = {"key_serde": serdes.STRING, "value_serde": serdes.JSON}
SPEC = ss.persistent_key_value_store("recent", ttl=TTL, **TYPED)
Do = Callable[[Any, Record[str, Any]], None]


def topology(do: Do, spec: Any = SPEC, *, name: str = "doing") -> ss.Topology:
    class Doing:
        def __init__(self, context: Any) -> None:
            self._store = context.store(spec)

        def process(self, record: Record[str, Any]) -> None:
            do(self._store, record)

    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    b.stream("in").process(Doing, spec, name=name)
    return b.build()


def put(store: Any, record: Record[str, Any]) -> None:
    if record.key != "tick":
        store.put(record.key, record.value)


def opened(driver: TopologyTestDriver) -> Any:
    return next(iter(driver._tasks.values()))._stores.opened["recent"]


def rows_of(driver: TopologyTestDriver) -> list[bytes]:
    """The keys there are on disk, shown or not."""
    return [key for key, _ in opened(driver)._staged.table("data").scan()]


def indexed(driver: TopologyTestDriver) -> int:
    meta = opened(driver)._staged.table(offsets.TABLE)
    return sum(1 for row, _ in meta.scan() if row.startswith(b"x"))


def folded(driver: TopologyTestDriver) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for row in driver._broker.records("topology-test-recent-changelog"):
        assert row.key is not None
        if row.value is None:
            found.pop(row.key, None)
        else:
            found[row.key] = row.value
    return found


# Specs.


def test_a_time_to_live_is_a_span_and_positive() -> None:
    spec = ss.in_memory_key_value_store("s", ttl=timedelta(hours=1))
    assert (spec.ttl_ms, spec.persistent) == (3_600_000, False)
    assert ss.persistent_key_value_store("s").ttl_ms is None
    wrong: Any
    for wrong in (0, -1, timedelta(microseconds=1)):
        with pytest.raises(Misuse, match="1 or more"):
            ss.persistent_key_value_store("s", ttl=wrong)
    for wrong in ("5m", 1.5):
        with pytest.raises(Misuse, match="no span of time"):
            ss.persistent_key_value_store("s", ttl=wrong)


def test_stores_that_nobody_expires_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="stream time of a task"):
        ss.open_store(SPEC, tmp_path)
    with pytest.raises(Misuse, match="do not expire"):
        ss.Materialized(SPEC)


def test_a_time_to_live_is_part_of_the_topology() -> None:
    other = ss.persistent_key_value_store("recent", ttl=TTL + 1, **TYPED)
    none = ss.persistent_key_value_store("recent", **TYPED)
    prints = {topology(put, spec).fingerprint() for spec in (SPEC, other, none)}
    assert len(prints) == 3


# What is read.


def test_a_row_is_shown_until_stream_time_is_past_its_last_put_by_its_time_to_live() -> None:
    with TopologyTestDriver(topology(put)) as driver:
        store = driver.store(SPEC)
        driver.pipe("in", "a", 1, 1000)
        driver.pipe("in", "b", 2, 1050)
        driver.pipe("in", "tick", 0, 1099)
        assert list(store.all()) == [("a", 1), ("b", 2)]
        driver.pipe("in", "tick", 0, 1100)
        assert list(store.all()) == [("b", 2)]
        assert (store.get("a"), store.get_many(["a", "b"]), "a" in store) == (
            None,
            [None, 2],
            False,
        )
        driver.pipe("in", "b", 3, 1149)
        driver.pipe("in", "tick", 0, 1200)
        assert list(store.range("a", "c")) == [("b", 3)]
        driver.pipe("in", "tick", 0, 10_000)
        assert list(store.all(reverse=True)) == []
        assert folded(driver) == {}
        assert (rows_of(driver), indexed(driver)) == ([], 0)


def test_a_late_record_puts_at_stream_time_and_not_at_its_own() -> None:
    with TopologyTestDriver(topology(put)) as driver:
        driver.pipe_all("in", [("tick", 0, 1000), ("a", 1, 10)])
        assert driver.store(SPEC).get("a") == 1
        assert driver._broker.records("topology-test-recent-changelog")[0].timestamp_ms == 1000
        driver.pipe("in", "tick", 0, 1099)
        assert driver.store(SPEC).get("a") == 1
        driver.pipe("in", "tick", 0, 1100)
        assert driver.store(SPEC).get("a") is None


def test_rows_expire_within_one_commit_too() -> None:
    seen: list[Any] = []

    def do(store: Any, record: Record[str, Any]) -> None:
        seen.append((record.timestamp_ms, store.get("a"), [key for key, _ in store.all()]))
        put(store, record)

    with TopologyTestDriver(topology(do)) as driver:
        driver.pipe_all("in", [("a", 1, 1), ("tick", 0, 100), ("tick", 0, 101), ("a", 2, 150)])
        driver.pipe_all("in", [("tick", 0, 249), ("tick", 0, 250)])
    assert seen == [
        (1, None, []),
        (100, 1, ["a"]),
        (101, None, []),
        (150, None, []),
        (249, 2, ["a"]),
        (250, None, []),
    ]


def test_put_if_absent_and_delete_take_an_expired_row_for_none() -> None:
    told: list[Any] = []

    def do(store: Any, record: Record[str, Any]) -> None:
        told.append(store.put_if_absent(record.key, record.value))
        if record.value == "gone":
            told.append(store.delete(record.key))

    with TopologyTestDriver(topology(do)) as driver:
        driver.pipe_all("in", [("a", 1, 1), ("a", 2, 50), ("a", 3, 101), ("a", 4, 200)])
        driver.pipe_all("in", [("a", "gone", 300), ("a", 5, 301)])
        assert list(driver.store(SPEC).all()) == [("a", 5)]
    assert told == [None, 1, None, 3, None, "gone", None]


def test_many_rows_that_expire_at_once_are_hidden_and_deleted_over_several_commits() -> None:
    with TopologyTestDriver(topology(put)) as driver:
        driver.pipe_all("in", [(f"k{n}", n, 1000 + n % 7) for n in range(9000)])
        driver.pipe("in", "new", 1, 5000)
        assert 7000 < len(rows_of(driver)) < 9000
        assert list(driver.store(SPEC).all()) == [("new", 1)]
        assert driver.store(SPEC).get("k8999") is None
        committed = driver.store(SPEC).reader("read_committed")
        assert list(committed.all()) == [("new", 1)]
        assert committed.get_many(["k8999", "new"]) == [None, 1]
        for _ in range(9):
            driver.pipe("in", "tick", 0, 5000)
        assert rows_of(driver) == [b"new"] == list(folded(driver))
        assert indexed(driver) == 1


def test_a_key_put_again_and_again_has_one_row_that_finds_it() -> None:
    with TopologyTestDriver(topology(put)) as driver:
        for n in range(500):
            driver.pipe("in", "hot", n, 1000 + n * 3)
        assert driver.store(SPEC).get("hot") == 499
        assert indexed(driver) <= 2


def test_readers_see_what_was_committed_and_readers_of_pending_writes_the_owners_time() -> None:
    views: list[Any] = []

    def do(store: Any, record: Record[str, Any]) -> None:
        put(store, record)
        for level in ("read_committed", "read_uncommitted"):
            reader = store.reader(level)
            views.append((list(reader.all()), reader.get("a"), reader.get_many(["a"])))

    with TopologyTestDriver(topology(do)) as driver:
        driver.pipe("in", "a", 1, 1000)
        driver.pipe("in", "tick", 0, 1100)
        reader = driver.store(SPEC).reader()
        assert (list(reader.all()), reader.get("a")) == ([], None)
    nothing: Any = ([], None, [None])
    one: Any = ([("a", 1)], 1, [1])
    assert views == [nothing, one, one, nothing]


def test_a_savepoint_undone_brings_back_what_was_deleted_in_it() -> None:
    def do(store: Any, record: Record[str, Any]) -> None:
        class Undone(Exception):
            pass

        try:
            with store.transaction():
                assert store.get("a") is None or record.timestamp_ms < 1100
                store.put("a", "undone")
                raise Undone
        except Undone:
            pass
        put(store, record)

    with TopologyTestDriver(topology(do)) as driver:
        driver.pipe("in", "a", 1, 1000)
        driver.pipe_all("in", [("b", 1, 1100), ("tick", 0, 1101)])
        assert list(driver.store(SPEC).all()) == [("b", 1)]
        driver.pipe("in", "tick", 0, 1300)
        assert (rows_of(driver), indexed(driver), folded(driver)) == ([], 0, {})


class Checked:
    """Does to a store what records say, and to a dict with times beside it."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[Any, int]] = {}
        self.now = 0
        self.wrong: list[str] = []

    def live(self) -> dict[str, Any]:
        return {key: value for key, (value, at) in self.rows.items() if self.now < at + TTL}

    def do(self, store: Any, record: Record[str, Any]) -> None:
        self.now = max(self.now, record.timestamp_ms)
        verb, value = record.value
        key, live = record.key, self.live()
        found: Any = None
        wanted: Any = None
        match verb:
            case "put":
                store.put(key, value)
                self.rows[key] = value, self.now
            case "delete":
                store.discard(key)
                self.rows.pop(key, None)
            case "range":
                store.delete_range("b", "d")
                self.rows = {k: row for k, row in self.rows.items() if not "b" <= k <= "d"}
            case "get":
                found, wanted = store.get(key), live.get(key)
            case "many":
                found, wanted = store.get_many("abcdefgh"), [live.get(k) for k in "abcdefgh"]
            case "all":
                found, wanted = list(store.all()), sorted(live.items())
        if found != wanted:
            self.wrong.append(f"{record}: {found}, not {wanted}")


@pytest.mark.parametrize("seed", first_of(range(6), 2))
def test_any_writes_at_any_times_read_as_a_dict_with_times_does(seed: int) -> None:
    chance, checked = random.Random(seed), Checked()
    with TopologyTestDriver(topology(checked.do)) as driver:
        time = 1000
        for number in range(250):
            batch = []
            for _ in range(chance.choice((1, 1, 3, 20))):
                time += chance.choice((0, 0, 1, 5, 30, 120))
                verb = chance.choice(("put", "put", "put", "delete", "range", "get", "many", "all"))
                at = max(time - chance.choice((0, 0, 300)), 0)
                batch.append((chance.choice("abcdefgh"), (verb, number), at))
            driver.pipe_all("in", batch)
            if chance.random() < 0.05:
                driver.crash()
            reader = driver.store(SPEC).reader("read_committed")
            assert dict(reader.all()) == checked.live(), f"seed {seed}, batch {number}"
            assert set(folded(driver)) == set(rows_of(driver)), f"seed {seed}, batch {number}"
        assert checked.wrong == [], f"seed {seed}"
        for _ in range(9):
            driver.pipe("in", "tick", ("none", 0), time + TTL)
        assert (rows_of(driver), indexed(driver)) == ([], 0)


@pytest.mark.parametrize("seed", first_of(range(3)))
def test_hiding_does_not_depend_on_how_much_is_deleted_at_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "_SWEPT_AT_ONCE", 1 + seed % 3)
    test_any_writes_at_any_times_read_as_a_dict_with_times_does(100 + seed)


# On disk.


def lives(rig: TaskRig, ttl_ms: int | None, text: str, *, then: str = "end") -> dict[str, Any]:
    """`a1 b12`: a put of key a at 1, of b at 12; `tick`s put nothing. What is shown at the end."""
    rig.topology = topology(put, ss.persistent_key_value_store("recent", ttl=ttl_ms, **TYPED))
    task = rig.start()
    for word in text.split():
        key, time = ("tick", word[4:]) if word.startswith("tick") else (word[0], word[1:])
        rig.broker.produce(IN, Record(key.encode(), serdes.JSON.serialize(word), int(time)))
    task.step(0)
    task.step_commit()
    store: Any = task.store("recent")
    shown = dict(store.reader("read_committed").all())
    assert shown == dict(store.all())
    getattr(rig, then)()
    return shown


@pytest.fixture
def rig(tmp_path: Path) -> TaskRig:
    return TaskRig(topology(put), tmp_path)


@pytest.mark.parametrize("then", ["end", "crash"])
def test_rows_expire_across_clean_ends_and_deaths(rig: TaskRig, then: str) -> None:
    assert set(lives(rig, TTL, "a1000 b1050", then=then)) == {"a", "b"}
    assert set(lives(rig, TTL, "tick1099", then=then)) == {"a", "b"}
    assert set(lives(rig, TTL, "tick1100 c1101", then=then)) == {"b", "c"}
    assert set(lives(rig, TTL, "tick1150", then=then)) == {"c"}
    assert set(rig.changelog("recent")) == {b"c"}


def test_a_lost_store_has_the_same_times_again_from_its_changelog(rig: TaskRig) -> None:
    lives(rig, TTL, "a1000 b1050 a1060 c900")
    shutil.rmtree(rig.store_dir("recent"))
    assert set(lives(rig, TTL, "tick1150")) == {"a", "c"}
    shutil.rmtree(rig.store_dir("recent"))
    assert set(lives(rig, TTL, "tick1160")) == set()
    assert rig.changelog("recent") == {}


def test_another_time_to_live_counts_from_the_same_puts(rig: TaskRig) -> None:
    assert set(lives(rig, TTL, "a1000 b1080 tick1090")) == {"a", "b"}
    assert set(lives(rig, 20, "tick1091")) == {"b"}
    assert set(lives(rig, TTL, "tick1092")) == {"b"}
    assert set(lives(rig, 10 * TTL, "tick2079")) == {"b"}
    assert set(lives(rig, 10 * TTL, "tick2080")) == set()


def test_a_store_that_gets_a_time_to_live_counts_its_rows_from_then_on(rig: TaskRig) -> None:
    lives(rig, None, "a1000 b1050")
    assert set(lives(rig, TTL, "tick5000")) == {"a", "b"}
    assert set(lives(rig, TTL, "b5050 tick5099")) == {"a", "b"}
    assert set(lives(rig, TTL, "tick5100")) == {"b"}


def test_a_time_to_live_that_is_left_out_for_a_while_takes_no_row_before_its_time(
    rig: TaskRig,
) -> None:
    lives(rig, TTL, "a1000 b1050")
    assert set(lives(rig, None, "b3000 tick3001")) == {"a", "b"}
    assert set(lives(rig, TTL, "tick3050")) == {"a", "b"}
    assert set(lives(rig, TTL, "tick3149")) == {"a", "b"}
    assert set(lives(rig, TTL, "tick3150")) == set()


def test_rows_at_rest_are_shown_as_of_the_last_commit(rig: TaskRig) -> None:
    lives(rig, TTL, "a1000 b1050 tick1100")
    said = describe_deployment(rig.topology, ProcessingGuarantee.EXACTLY_ONCE)
    rig.layout.topology_file.write_bytes(msgspec.json.encode(said))
    shop = Shop(rig.layout)
    assert shop.said("stores", "range", "recent") == [["0_0", "b", "b1050"]]
    assert shop.said("stores", "count", "recent") == [["1"]]
    assert shop.call("stores", "get", "recent", "a").code == 1
    with ss.open_snapshot(rig.layout.state_dir, "shop", "recent") as recent:
        assert list(recent.all(reverse=True)) == [("b", "b1050")]
        assert recent.get_many(["a", "b"]) == [None, "b1050"]
    source = TransactionalStore(
        {
            "state_dir": str(rig.layout.state_dir),
            "application_id": "shop",
            "store": "recent",
        }
    )
    reader = source.reader(source.schema())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [row["key"] for batch in batches for row in batch.to_pylist()] == ["b"]


def test_readers_on_other_threads_never_see_two_rows_further_apart_than_the_time_to_live(
    rig: TaskRig,
) -> None:
    def do(store: Any, record: Record[str, Any]) -> None:
        store.put(record.key, record.timestamp_ms)

    rig.topology = topology(do)
    task = rig.start()
    store: Any = task.store("recent")
    ended, wrong, looked = threading.Event(), [], list[int]()
    keys = [f"k{n}" for n in range(300)]

    def look(level: str) -> None:
        reader = store.reader(level)
        while not (ended.is_set() and any(looked)):
            for found in ([at for _, at in reader.all()], reader.get_many(keys)):
                times = [at for at in found if at is not None]
                if times and max(times) - min(times) >= TTL:
                    wrong.append((level, min(times), max(times)))
                looked.append(len(times))

    threads = [
        threading.Thread(target=look, args=(level,))
        for level in ("read_committed", "read_committed", "read_uncommitted")
    ]
    for thread in threads:
        thread.start()
    chance, time = random.Random(7), 1000
    for _ in range(150):
        for _ in range(20):
            time += chance.choice((0, 1, 3, 70))
            rig.broker.produce(IN, Record(chance.choice(keys).encode(), b"1", time))
        task.step(0)
        task.step_commit()
    ended.set()
    for thread in threads:
        thread.join()
    rig.end()
    assert wrong == []


@pytest.mark.parametrize("rows", [0, 25_000])
def test_giving_times_to_rows_that_had_none_may_be_cut_short_and_begins_again(
    rig: TaskRig, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.topology = topology(put, ss.persistent_key_value_store("recent", **TYPED))
    task = rig.start()
    for number in range(rows):
        rig.broker.produce(IN, Record(f"k{number}".encode(), b"1", 1000))
    rig.broker.produce(IN, Record(b"last", b"1", 1000))
    task.step(0)
    task.step_commit()
    rig.end()
    calls = 0
    indexed = row_times.rows_at

    def dies(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return indexed(*given)

    monkeypatch.setattr(expiry, "rows_at", dies)
    if rows:
        with pytest.raises(KeyboardInterrupt):
            lives(rig, TTL, "tick2000")
        rig.crash()
    monkeypatch.setattr(expiry, "rows_at", indexed)
    assert len(lives(rig, TTL, "tick2000")) == rows + 1
    assert len(lives(rig, TTL, "tick2099")) == rows + 1
    assert lives(rig, TTL, "tick2100") == {}
