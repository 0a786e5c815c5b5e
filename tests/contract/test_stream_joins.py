"""Joins of streams beyond their tables: what is refused, kept, given up, swept, read, passed over.

Shows I35.
"""

import random
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, NotCopartitioned, SerdeMismatch
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import KeyAtTime, Record
from statestore.operations.audits.both_sides import placing_keys
from statestore.operations.deployed import describe_deployment
from statestore.serdes import composed
from statestore.spark.datasource import TransactionalStore
from statestore.stores.specs import KeyValueSpec
from statestore.testing import TopologyTestDriver
from statestore.topology.joins import stream_joins
from tests.contract.task_rig import TaskRig
from tests.contract.test_stores_at_rest import Shop
from tests.stateful.random_programs import STREAM_JOIN_STEPS
from tests.stateful.test_random_topologies import by_the_naive, run_of
from tests.tiers import first_of
from tests.unit.poison_rig import POISON, dropped, settings

NEAR = ss.JoinWindows(10, 5)
THIS, OTHER, SHARED = (f"pairs-{side}-join-store" for side in ("this", "other", "shared"))
Join = Callable[..., ss.KStream[Any, Any]]


def text(left: Any, right: Any) -> str:
    if POISON in (left, right):
        raise ValueError(POISON)
    return f"{left}+{right}"


def pairs(kind: str = "outer_join", windows: ss.JoinWindows = NEAR) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    left, right = b.stream("in"), b.stream("right")
    left.group_by_key().count("counts")
    joined = getattr(left, kind)(right, text, within=windows, name="pairs")
    joined.map_values(str.upper, name="above").to("out")
    return b.build()


# What is refused.


def test_windows_end_after_they_begin_and_have_no_negative_grace() -> None:
    assert ss.JoinWindows(timedelta(seconds=1)) == ss.JoinWindows(1000, 1000, grace=0)
    assert ss.JoinWindows(-5, 5).kept_ms == 5
    for after, grace in ((-11, 0), (0, -1)):
        with pytest.raises(Misuse, match="must not be negative"):
            ss.JoinWindows(10, after, grace=grace)


def test_windows_may_be_so_long_that_their_ends_still_have_8_bytes() -> None:
    most = 2**62
    for windows in ((most, 0, 0), (0, most - 1, 1), (-most, most, 0), (most // 2, most // 2, 0)):
        before, after, grace = windows
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
        within = ss.JoinWindows(before, after, grace=grace)
        both = b.stream("left").outer_join(b.stream("right"), lambda *_: "both", within, name="j")
        both.to("out")
        with TopologyTestDriver(b.build()) as driver:
            for time_ms in (0, most, 2**63 - 1, 5):
                driver.pipe("left", "k", "l", time_ms)
                driver.pipe("right", "k", "r", time_ms)
            assert driver.read("out")
        with pytest.raises(Misuse, match=f"but at most {most} ms"):
            ss.JoinWindows(before, after, grace=grace + 1)


def test_two_streams_need_windows_and_a_table_takes_none() -> None:
    b = ss.StreamsBuilder()
    stream: Any = b.stream("in")
    table: Any = b.table("table", materialized="t")
    for join in (stream.join, stream.left_join):
        with pytest.raises(Misuse, match=r"pass ss\.JoinWindows.*or make a table by to_table\(\)"):
            join(stream, text)
        with pytest.raises(Misuse, match="no other grace"):
            join(stream, text, NEAR, grace=5)
        with pytest.raises(Misuse, match="no windows"):
            join(table, text, NEAR)
    with pytest.raises(Misuse, match="no windows"):
        stream.outer_join(table, text, NEAR)
    with pytest.raises(Misuse, match="outer_join needs a KTable, not a KStream"):
        table.outer_join(stream, text)
    with pytest.raises(Misuse, match=r"join 'it': .* cannot take 2 arguments"):
        stream.join(stream, str.upper, NEAR, name="it")


def test_only_keys_that_meet_in_one_partition_are_joined() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING)
    numbers: Any = b.stream("numbers", key_serde=serdes.INT64)
    with pytest.raises(SerdeMismatch, match=r"join it: .* STRING, .* INT64"):
        b.stream("in").join(numbers, text, NEAR, name="it")
    with pytest.raises(InvalidTopology, match="another builder"):
        b.stream("in").join(ss.StreamsBuilder(key_serde=serdes.STRING).stream("x"), text, NEAR)
    with pytest.raises(NotCopartitioned, match="in: 2, right: 3"):
        pairs().partition_counts({"in": 2, "right": 3})
    b = ss.StreamsBuilder(key_serde=serdes.STRING)
    rekeyed: Any = b.stream("in").select_key(lambda _key, _value: 1)
    rekeyed.join(b.stream("numbers", key_serde=serdes.INT64), text, NEAR, name="it")
    topology = b.build()
    assert list(topology.repartitions) == ["it-left"]
    counts = topology.partition_counts({"in": 2, "numbers": 3})
    assert {str(topic.name): n for topic, n in counts.items()}["it-left"] == 3


def test_the_stores_of_joins_are_named_as_in_kafka_streams_and_belong_to_the_fingerprint() -> None:
    b = ss.StreamsBuilder()
    b.stream("in").outer_join(b.stream("right"), text, NEAR)
    topology = b.build()
    assert sorted(topology.stores) == [
        "KSTREAM-OUTEROTHER-0000000005-store",
        "KSTREAM-OUTERSHARED-0000000004-store",
        "KSTREAM-OUTERTHIS-0000000004-store",
    ]
    assert len(topology.unnamed) == 3
    prints = {
        pairs(windows=ss.JoinWindows(*near, grace=grace)).fingerprint()
        for near in ((10, 5), (10, 6), (9, 5))
        for grace in (0, 1)
    }
    assert len(prints) == 6


# What is kept.


def test_expired_records_are_swept_round_and_round_also_by_short_lives() -> None:
    with TopologyTestDriver(pairs("left_join")) as driver:
        for start in range(0, 12_000, 100):
            topic = "right" if start % 400 == 0 else "in"
            rows = [Record(f"k{i % 50}", "v", i) for i in range(start, start + 100)]
            driver.pipe_all(topic, rows)
            if start % 300 == 0:
                driver.crash()
        kept = [key for store in (THIS, OTHER) for key, _ in driver.store(store).all()]
        assert min(key.time_ms for key in kept) > 9000
        assert len(kept) < 4000
    with TopologyTestDriver(pairs("left_join")) as driver:
        # Nobody comes on the left any more.
        driver.pipe_all("in", [Record(f"k{i}", "v", i) for i in range(500)])
        driver.pipe_all("right", [Record("r", "v", 1000 + i) for i in range(500)])
        assert list(driver.store(THIS).all()) == []


@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_a_change_of_kind_keeps_what_there_is(kind: str) -> None:
    assert sorted(pairs(kind).stores) == sorted([THIS, OTHER, SHARED, "counts"])


def test_very_many_that_wait_are_given_up_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_joins, "_GIVEN_UP_AT_ONCE", 2)
    tried = 0
    for seed in range(80):
        run = run_of(seed)
        if any(step.name in STREAM_JOIN_STEPS for step in run[0].steps):
            tried += 1
            found, wanted = by_the_naive(run)
            assert repr(found) == repr(wanted), f"seed {seed}"
    assert tried > 10


@pytest.mark.parametrize("seed", first_of(range(4)))
def test_what_comes_out_does_not_depend_on_where_a_batch_ends(seed: int) -> None:
    chance = random.Random(seed)
    lots: list[tuple[str, list[Record[str, str]]]] = []
    now = 30
    for topic in ("in", "right") * 20:
        rows = []
        for _ in range(10):
            now += 1
            time = now - chance.choice([0, 0, 1, 8, 30])
            rows.append(Record(chance.choice("abc"), str(now), time))
        lots.append((topic, rows))

    def out(size: int) -> list[Any]:
        with TopologyTestDriver(pairs(windows=ss.JoinWindows(10, 5, grace=2))) as driver:
            for topic, rows in lots:
                for start in range(0, len(rows), size):
                    driver.pipe_all(topic, rows[start : start + size])
            return [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")]

    alone = out(1)
    assert len(alone) > 300
    assert sum("NONE" in value for _, value, _ in alone) > 30
    assert out(3) == out(10) == alone


# What waits.


def test_records_that_wait_for_a_match_are_counted(tmp_path: Path) -> None:
    rig = TaskRig(pairs(), tmp_path)
    rig.start()

    def held(topic: str, key: str, time: int) -> int:
        row: Record[bytes | None, bytes | None] = Record(key.encode(), b"v", time)
        rig.broker.produce(TopicPartition(topic, 0), row)
        while rig.running[0].step(0):
            pass
        rig.running[0].step_commit()
        return rig.running[0].report.held_records

    assert [held("in", "a", 1), held("in", "b", 2), held("right", "c", 3)] == [1, 2, 3]
    assert held("right", "a", 3) == 2
    rig.crash()
    rig.start()
    assert held("in", "c", 4) == 1
    assert held("in", "d", 50) == 1
    rig.end()


@pytest.mark.parametrize("handler", ["continue", "dead_letter"])
@pytest.mark.parametrize("at_once", [True, False], ids=["one commit", "a commit each"])
def test_a_result_without_a_match_fails_alone(handler: str, *, at_once: bool) -> None:
    poison = {20, 21, 130}
    rows = [Record(f"k{i}", POISON if i in poison else f"v{i}", i) for i in range(250)]
    with TopologyTestDriver(pairs(), settings(handler)) as driver:
        for lot in [rows] if at_once else [[row] for row in rows]:
            driver.pipe_all("in", lot)
        driver.pipe("in", "end", "v", 10_000)
        assert dropped(driver) == len(poison)
        alone = [f"V{i}+NONE" for i in range(250) if i not in poison]
        assert [r.value for r in driver.read("out")] == alone
        assert len(list(driver.store("counts").all())) == 251, "every record is counted"
        dead = driver.read("dead") if handler == "dead_letter" else []
        assert [r.key for r in dead] == [b"k%d" % i for i in sorted(poison) if dead]


def test_a_record_whose_match_fails_is_passed_over_and_what_it_gave_up_is_not() -> None:
    with TopologyTestDriver(pairs(), settings("continue")) as driver:
        driver.pipe_all("in", [Record("a", "1", 0), Record("b", "2", 1)])
        lot = [Record("b", POISON, 6), Record("c", "3", 6), Record("a", "4", 7)]
        driver.pipe_all("right", lot)
        driver.pipe("in", "x", "9", 100)
        values = [r.value for r in driver.read("out")]
        assert values == ["1+NONE", "2+NONE", "NONE+3", "NONE+4"]
        assert dropped(driver) == 1


# Who reads it.


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    layout = StateLayout(tmp_path_factory.mktemp("state"), "shop")
    spec = pairs().stores[THIS]
    assert isinstance(spec, KeyValueSpec)
    with ss.open_store(spec, layout.task_dir(TaskId(0, 0)) / "rocksdb") as store:
        rows = [("a", 10, 0), ("a", 10, 1), ("b", -3, 2)]
        store.put_all([(KeyAtTime(*row), f"v{row[2]}") for row in rows])
        store.commit({TopicPartition(f"shop-{THIS}-changelog", 0): 7})
    said = describe_deployment(pairs(), ProcessingGuarantee.EXACTLY_ONCE)
    layout.topology_file.write_bytes(msgspec.json.encode(said))
    return Shop(layout)


def test_the_command_line_and_snapshots_read_what_a_join_keeps(shop: Shop) -> None:
    assert shop.json("stores", "range", THIS) == [
        {"stream_task": "0_0", "key": ["a", 10, 0], "value": "v0"},
        {"stream_task": "0_0", "key": ["a", 10, 1], "value": "v1"},
        {"stream_task": "0_0", "key": ["b", -3, 2], "value": "v2"},
    ]
    assert shop.said("stores", "get", THIS, '["b",-3,2]') == [["v2"]]
    with ss.open_snapshot(shop.layout.state_dir, "shop", THIS) as kept:
        assert kept.get(ss.KeyAtTime("a", 10, 1)) == "v1"
        low, high = ss.KeyAtTime("a", 0, 0), ss.KeyAtTime("a", 10, 0)
        assert [value for _, value in kept.range(low, high)] == ["v0"]


def test_the_data_source_reads_what_a_join_keeps(shop: Shop) -> None:
    options = {"state_dir": str(shop.layout.state_dir), "application_id": "shop", "store": THIS}
    source = TransactionalStore(options)
    reader = source.reader(source.schema())
    batches: Iterable[Any] = (b for p in reader.partitions() for b in reader.read(p))
    assert [tuple(row.values())[2:] for batch in batches for row in batch.to_pylist()] == [
        ('["a",10,0]', "v0"),
        ('["a",10,1]', "v1"),
        ('["b",-3,2]', "v2"),
    ]


def test_keys_at_times_are_known_by_name_and_placed_by_the_key() -> None:
    serde = composed.key_at_time(serdes.windowed(serdes.STRING, 10))
    assert serdes.by_name(serde.name) is serde
    at = KeyAtTime(ss.Windowed("a", 0, 10), -1, 2**40)
    data = serde.serialize(at)
    assert serde.deserialize(data) == at
    plain = composed.key_at_time(serdes.STRING)
    row = plain.serialize(KeyAtTime("a", 1, 2))
    assert composed.placing(plain, [row, None]) == [b"a", None]
    assert placing_keys([row, None], "keyvalue", plain.name) == [b"a"]
    with pytest.raises(ValueError, match="16 bytes"):
        plain.deserialize(b"short")
