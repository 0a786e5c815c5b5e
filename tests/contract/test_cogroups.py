"""Cogroups, beyond their text tables: names, serdes, partitions, stores and refusals."""

from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, NotCopartitioned, SerdeMismatch
from statestore.testing import TopologyTestDriver


def builder() -> ss.StreamsBuilder[str, Any]:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)


def add(_key: Any, value: Any, total: Any) -> Any:
    return total + value


def rekeyed(b: ss.StreamsBuilder[str, Any], topic: str, **options: Any) -> Any:
    return b.stream(topic).group_by(lambda _key, value: str(value), **options)


def test_streams_without_names_go_through_topics_named_after_the_store_and_their_places() -> None:
    b = builder()
    both = rekeyed(b, "a").cogroup(add).cogroup(rekeyed(b, "b"), add)
    both.cogroup(rekeyed(b, "c", name="by-c"), add).aggregate(int, "sums")
    topology = b.build()
    assert list(topology.repartitions) == ["sums", "sums-2", "by-c"]
    assert not topology.unnamed
    b = builder()
    rekeyed(b, "a").cogroup(add).cogroup(rekeyed(b, "b"), add).aggregate(int)
    assert len(b.build().unnamed) == 3


def test_all_inputs_have_as_many_partitions_and_repartition_topics_get_them() -> None:
    b = builder()
    both = b.stream("a").group_by_key().cogroup(add).cogroup(rekeyed(b, "b"), add)
    both.aggregate(int, "sums")
    counts = b.build().partition_counts({"a": 3, "b": 5})
    assert {name.name: count for name, count in counts.items()} == {"a": 3, "b": 5, "sums-2": 3}
    b = builder()
    b.stream("a").group_by_key().cogroup(add).cogroup(b.stream("b").group_by_key(), add).aggregate(
        int, "sums"
    )
    with pytest.raises(NotCopartitioned):
        b.build().partition_counts({"a": 3, "b": 5})


def test_keys_of_two_serdes_are_refused() -> None:
    b = builder()
    other = b.stream("b", key_serde=serdes.INT64).group_by_key()
    both: Any = b.stream("a").group_by_key().cogroup(add)
    with pytest.raises(SerdeMismatch, match="STRING and INT64"):
        both.cogroup(other, add).aggregate(int, "sums")


def test_what_is_no_grouped_stream_is_refused_with_the_way_out() -> None:
    b = builder()
    both: Any = b.stream("a").group_by_key().cogroup(add)
    with pytest.raises(Misuse, match="not a KStream: call group_by_key"):
        both.cogroup(b.stream("b"), add)
    windows = b.stream("b").group_by_key().windowed_by(ss.TumblingWindows(10))
    with pytest.raises(Misuse, match="windowed_by\\(\\) last"):
        both.cogroup(windows, add)
    with pytest.raises(InvalidTopology, match="another builder"):
        both.cogroup(builder().stream("b").group_by_key(), add)
    with pytest.raises(Misuse, match="cannot take 3 arguments"):
        both.cogroup(b.stream("b").group_by_key(), lambda value, total: total + value)
    with pytest.raises(AttributeError, match="aggregate"):
        both.to_stream()


def test_two_cogroups_in_one_store_are_refused() -> None:
    b = builder()
    both = b.stream("a").group_by_key().cogroup(add)
    both.aggregate(int, "sums")
    with pytest.raises(InvalidTopology, match="'sums'"):
        both.aggregate(int, "sums")


def test_the_last_update_of_a_batch_tells_all_streams_and_old_values_follow() -> None:
    b = builder()
    left, right = b.stream("a").group_by_key(), b.stream("b").group_by_key()
    sums = left.cogroup(add).cogroup(right, lambda _k, v, total: total * v).aggregate(int, "sums")
    sums.filter(lambda _key, total: total > 4).to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("a", [("k", 1, 0), ("k", 2, 1)])
        driver.pipe_all("b", [("k", 3, 2), ("k", 1, 3)])
        driver.pipe("b", "k", 0, 4)
        assert [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")] == [
            ("k", 9, 3),
            ("k", None, 4),
        ]
        assert dict(driver.store("sums").all()) == {"k": 0}
        driver.crash()
        driver.pipe("a", "k", 7, 5)
        assert [r.value for r in driver.read("out")] == [7]
