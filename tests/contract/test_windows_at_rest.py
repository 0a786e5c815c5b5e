"""Window stores looked into from outside: `statestore stores …`, `offsets`, `ss.open_snapshot`."""

import json
from pathlib import Path

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, StoreClosed
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Windowed
from statestore.model.texts import time_text
from statestore.operations.deployed import describe_deployment
from statestore.stores.in_windows import START, TIME_ROW
from statestore.stores.specs import WindowSpec
from statestore.stores.windows import indexed
from tests.contract.test_stores_at_rest import Shop

WINDOWS = ss.TumblingWindows(10, grace=5, retention=30)
ROWS = (
    [("a", 0, 1), ("a", 10, 2), ("b", 10, 3), ("b", 20, 4)],  # stream time 29: 0 is still kept
    [("c", 10, 5), ("c", 40, 6)],  # stream time 45: 10 has expired, and not gone yet
)
TIMES = (29, 45)


TimeWindows = ss.TumblingWindows | ss.HoppingWindows | ss.SlidingWindows


def pipeline(windows: TimeWindows = WINDOWS) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    builder.stream("in").group_by_key().windowed_by(windows).count("counts")
    return builder.build()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return shop_in(tmp_path_factory.mktemp("state"))


def shop_in(state_dir: Path, windows: TimeWindows = WINDOWS) -> Shop:
    layout = StateLayout(state_dir, "shop")
    spec = pipeline(windows).stores["counts"]
    assert isinstance(spec, WindowSpec)
    for partition, rows in enumerate(ROWS):
        folder = layout.task_dir(TaskId(0, partition)) / "rocksdb"
        with ss.open_store(spec.rows, folder) as store:
            for key, start, count in rows:
                row = {START.pack(start) + key.encode(): serdes.INT64.serialize(count)}
                for at, value in (row | indexed(row) if spec.any_start else row).items():
                    store.put(at, value)
            store.put(TIME_ROW, START.pack(TIMES[partition]))
            store.commit({TopicPartition("shop-counts-changelog", partition): 7})
    said = describe_deployment(pipeline(windows), ProcessingGuarantee.EXACTLY_ONCE)
    layout.topology_file.write_bytes(msgspec.json.encode(said))
    return Shop(layout)


def test_range_lists_windows_by_start_without_stream_time_and_expired_ones(shop: Shop) -> None:
    assert shop.said("stores", "range", "counts") == [
        ["0_0", "a", "1", time_text(0), time_text(10)],
        ["0_0", "a", "2", time_text(10), time_text(20)],
        ["0_0", "b", "3", time_text(10), time_text(20)],
        ["0_0", "b", "4", time_text(20), time_text(30)],
        ["0_1", "c", "6", time_text(40), time_text(50)],
    ]
    assert shop.json("stores", "range", "counts", "b", "c", "--partition", "0", "--limit", "1") == [
        {"stream_task": "0_0", "key": "b", "value": 3, "start_ms": 10, "end_ms": 20}
    ]
    assert shop.said("stores", "range", "counts", "--prefix", "b", "--reverse")[0][2] == "4"


def test_count_counts_windows_of_keys(shop: Shop) -> None:
    assert shop.json("stores", "count", "counts") == [
        {"store": "counts", "count": 5, "stream_tasks": {"0_0": 4, "0_1": 1}}
    ]


def test_get_finds_the_window_a_time_lies_in(shop: Shop) -> None:
    assert shop.said("stores", "get", "counts", "b", "--as-of", "19") == [["3"]]
    assert shop.call("stores", "get", "counts", "c", "--as-of", "19").code == 1
    assert "pass --as-of" in shop.refused("stores", "get", "counts", "b")
    assert "no history" in shop.refused("stores", "range", "counts", "--as-of", "1")
    assert "is a window store" in shop.refused("stores", "history", "counts", "b")


def test_get_finds_the_last_hopping_window_a_time_lies_in(tmp_path: Path) -> None:
    shop = shop_in(tmp_path, ss.HoppingWindows(20, 10, retention=30))
    assert shop.said("stores", "get", "counts", "a", "--as-of", "19") == [["2"]]
    assert shop.said("stores", "get", "counts", "b", "--as-of", "39") == [["4"]]
    expected = [(Windowed("a", 0, 20), 1), (Windowed("a", 10, 30), 2)]
    with ss.open_snapshot(shop.layout.state_dir, "shop", "counts") as counts:
        assert list(counts.fetch("a")) == expected
    spec = ss.window_store("counts", 20, 30, key_serde=serdes.STRING, value_serde=serdes.INT64)
    with ss.open_snapshot(shop.layout.state_dir, "shop", spec) as same:
        assert list(same.fetch("a")) == expected


def test_the_end_of_a_sliding_window_belongs_to_it(tmp_path: Path) -> None:
    shop = shop_in(tmp_path, ss.SlidingWindows(10, grace=9))
    assert shop.said("stores", "get", "counts", "a", "--as-of", "20") == [["2"]]
    assert shop.said("stores", "get", "counts", "b", "--as-of", "30") == [["4"]]
    assert shop.call("stores", "get", "counts", "b", "--as-of", "31").code == 1


def test_offsets_tell_where_a_window_store_stands(shop: Shop) -> None:
    assert [row[4] for row in shop.said("offsets", "counts")] == ["7", "7"]
    assert len(shop.said("offsets")) == 2


def test_a_snapshot_reads_windows_over_all_partitions(shop: Shop) -> None:
    with ss.open_snapshot(shop.layout.state_dir, "shop", "counts") as counts:
        assert counts.get("b", 20) == 4
        assert counts.get("c", 10) is None
        assert list(counts.fetch("a")) == [(Windowed("a", 0, 10), 1), (Windowed("a", 10, 20), 2)]
        assert [count for _, count in counts.fetch("b", from_time=15)] == [4]
        with counts.all() as windows:
            shown = [(window.key, window.start_ms, count) for window, count in windows]
        assert shown == [("a", 0, 1), ("a", 10, 2), ("b", 10, 3), ("b", 20, 4), ("c", 40, 6)]
        assert counts.observed_stream_time() == 45
    with pytest.raises(StoreClosed):
        counts.get("b", 20)
    assert list(shop.layout.state_dir.rglob("snapshots/*")) == []


def test_where_the_retention_was_not_recorded_all_windows_show(tmp_path: Path) -> None:
    shop = shop_in(tmp_path)
    shop.layout.topology_file.write_text(json.dumps(pipeline().deployed()))
    assert shop.said("stores", "count", "counts") == [["6"]]


def test_a_window_store_is_not_taken_for_a_plain_one(tmp_path: Path) -> None:
    shop = shop_in(tmp_path)
    shop.layout.topology_file.unlink()
    with pytest.raises(Misuse, match="window"):
        ss.open_snapshot(tmp_path, "shop", "counts")
    assert "--raw" in shop.refused("stores", "range", "counts")
