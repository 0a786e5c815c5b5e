"""`statestore stores get --as-of` and `history` on folders at rest, as a user calls them."""

import json

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import StoreClosed
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.texts import time_text
from tests.contract.test_stores_at_rest import Passing, Shop

RATES = ss.persistent_versioned_key_value_store(
    "rates", 1000, 100, key_serde=serdes.STRING, value_serde=serdes.FLOAT64
)
PLAIN = ss.persistent_key_value_store("plain", key_serde=serdes.STRING)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    layout = StateLayout(tmp_path_factory.mktemp("state"), "shop")
    for partition, key in enumerate(("EUR", "USD")):
        folder = layout.task_dir(TaskId(0, partition)) / "rocksdb"
        with ss.open_store(RATES, folder) as store:
            store.put_all([(key, 1.5, 100), (key, 2.5, 300), (key, None, 500), (key, 4.5, 700)])
            store.put_all([("GBP", 9.0, 10), ("GBP", 8.0, 20), (key, 4.75, 1100)][: 2 + partition])
            store.commit({TopicPartition("shop-rates-changelog", partition): 7})
        with ss.open_store(PLAIN, folder) as plain:
            plain.commit()
    builder = ss.StreamsBuilder()
    builder.stream("in").process(lambda _: Passing(), RATES, PLAIN, name="all")
    layout.topology_file.write_text(json.dumps(builder.build().deployed()))
    return Shop(layout)


def test_get_finds_the_latest_version_or_the_one_valid_at_a_time(shop: Shop) -> None:
    assert shop.said("stores", "get", "rates", "EUR") == [["4.5"]]
    assert shop.said("stores", "get", "rates", "EUR", "--as-of", "299") == [["1.5"]]
    assert shop.said("stores", "get", "rates", "EUR", "--as-of", "1970-01-01T00:00:00.3Z") == [
        ["2.5"]
    ]
    assert shop.json("stores", "get", "rates", "USD", "--as-of", "350") == [
        {"stream_task": "0_1", "key": "USD", "value": 2.5, "timestamp_ms": 300, "valid_to_ms": 500}
    ]


@pytest.mark.parametrize("as_of", ["99", "500", "699"])
def test_get_exits_with_1_where_nothing_was_valid(shop: Shop, as_of: str) -> None:
    called = shop.call("stores", "get", "rates", "EUR", "--as-of", as_of)
    assert (called.code, called.err) == (1, "store 'rates' has no key EUR\n")


def test_history_lists_versions_latest_first_with_their_validity(shop: Shop) -> None:
    assert shop.said("stores", "history", "rates", "EUR") == [
        ["0_0", "EUR", "4.5", time_text(700), ""],
        ["0_0", "EUR", "2.5", time_text(300), time_text(500)],
        ["0_0", "EUR", "1.5", time_text(100), time_text(300)],
    ]
    found = shop.json("stores", "history", "rates", "EUR", "--from", "300", "--to", "699")
    assert [row["timestamp_ms"] for row in found] == [300]
    oldest_first = shop.json("stores", "history", "rates", "EUR", "--ascending")
    assert [row["timestamp_ms"] for row in oldest_first] == [100, 300, 700]
    assert shop.said("stores", "history", "rates", "absent") == []


def test_history_of_a_range_of_keys_lists_each_keys_versions_by_key(shop: Shop) -> None:
    found = shop.json("stores", "history", "rates", "EUR", "GBP", "--from", "300", "--to", "699")
    assert [(row["stream_task"], row["key"], row["timestamp_ms"]) for row in found] == [
        ("0_0", "EUR", 300),
        ("0_0", "GBP", 20),
        ("0_1", "GBP", 20),
    ]
    every = shop.json("stores", "history", "rates", "--ascending", "--partition", "1")
    assert [row["key"] for row in every] == ["GBP", "USD", "USD", "USD", "USD"]
    assert [row["value"] for row in every][1:] == [1.5, 2.5, 4.5, 4.75]
    assert shop.json("stores", "history", "rates", "--prefix", "U", "--to", "99") == []
    assert "not both" in shop.refused("stores", "history", "rates", "EUR", "--prefix", "U")


def test_what_is_older_than_the_history_is_not_shown(shop: Shop) -> None:
    found = shop.json("stores", "history", "rates", "USD")
    assert [row["value"] for row in found] == [4.75, 4.5, 2.5, 1.5]
    assert shop.call("stores", "get", "rates", "USD", "--as-of", "99").code == 1


def test_a_store_without_history_is_refused(shop: Shop) -> None:
    assert "'plain' is a keyvalue store" in shop.refused("stores", "history", "plain", "k")
    assert "'plain' is a keyvalue store" in shop.refused(
        "stores", "get", "plain", "k", "--as-of", "1"
    )
    assert "'plain' is a keyvalue store" in shop.refused("stores", "range", "plain", "--as-of", "1")
    assert "swap them" in shop.refused(
        "stores", "history", "rates", "EUR", "--from", "2", "--to", "1"
    )
    assert "pass ISO-8601" in shop.refused("stores", "get", "rates", "EUR", "--as-of", "yesterday")


def test_offsets_are_shown_too(shop: Shop) -> None:
    found = shop.json("offsets", "rates")
    assert [(row["stream_task"], row["offset_next"]) for row in found] == [("0_0", 7), ("0_1", 7)]


def test_looking_changes_no_file_of_the_database(shop: Shop) -> None:
    folder = shop.layout.store_dir(TaskId(0, 0), "rates")
    before = {path.name for path in folder.iterdir() if path.suffix == ".sst"}
    shop.said("stores", "history", "rates", "EUR")
    assert {path.name for path in folder.iterdir() if path.suffix == ".sst"} == before


def test_range_lists_the_latest_version_of_each_key_or_that_of_a_time(shop: Shop) -> None:
    assert shop.said("stores", "range", "rates") == [
        ["0_0", "EUR", "4.5", time_text(700), ""],
        ["0_0", "GBP", "8.0", time_text(20), ""],
        ["0_1", "GBP", "8.0", time_text(20), ""],
        ["0_1", "USD", "4.75", time_text(1100), ""],
    ]
    as_of = shop.said("stores", "range", "rates", "EUR", "EUR", "--as-of", "350")
    assert as_of == [["0_0", "EUR", "2.5", time_text(300), time_text(500)]]
    assert shop.said("stores", "range", "rates", "--as-of", "600", "--prefix", "U") == []
    backwards = shop.json("stores", "range", "rates", "--reverse", "--partition", "1")
    assert [row["key"] for row in backwards] == ["USD", "GBP"]


def test_count_counts_keys_that_have_a_value(shop: Shop) -> None:
    assert shop.said("stores", "count", "rates") == [["4"]]


def test_a_snapshot_reads_versions_over_all_partitions(shop: Shop) -> None:
    with ss.open_snapshot(shop.layout.state_dir, "shop", "rates") as rates:
        assert rates.get("EUR") == (4.5, 700, None)
        assert rates.get("USD", as_of=299) == (1.5, 100, 300)
        assert rates.get("EUR", as_of=500) is None
        assert [one.value for one in rates.history("USD")] == [4.75, 4.5, 2.5, 1.5]
        oldest_first = rates.history("USD", from_time=300, to_time=700, descending=False)
        assert [one.timestamp_ms for one in oldest_first] == [300, 700]
        with rates.range_as_of("EUR", "USD", 350) as rows:
            assert [(key, one.value) for key, one in rows] == [
                ("EUR", 2.5),
                ("GBP", 8.0),
                ("GBP", 8.0),
                ("USD", 2.5),
            ]
        with rates.range_history("GBP", None, 300, 400) as versions:
            assert [(key, one.value) for key, one in versions] == [
                ("GBP", 8.0),
                ("GBP", 8.0),
                ("USD", 2.5),
            ]
        assert rates.observed_stream_time() == 1100
        waiting = rates.range_as_of(None, None, 350)
    with pytest.raises(StoreClosed):
        next(waiting)
    with ss.open_snapshot(shop.layout.state_dir, "shop", "rates", partition=1) as rates:
        assert rates.get("EUR") is None
    assert list(shop.layout.state_dir.rglob("snapshots/*")) == []


def test_a_question_from_before_history_is_answered_with_none_and_a_warning(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    with ss.open_snapshot(shop.layout.state_dir, "shop", "rates") as rates:
        assert rates.get("USD", as_of=99) is None
    assert "its history begins at 100" in caplog.text
