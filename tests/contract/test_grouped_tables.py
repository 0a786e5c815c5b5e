"""Tables in groups, beyond their text tables: names, serdes, batches, and what fails."""

from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, RecordFailed, StateStoreError
from statestore.model.records import Record
from statestore.testing import TopologyTestDriver
from statestore.topology.aggregates.tables import RowChange, changes


def builder() -> ss.StreamsBuilder[str, Any]:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)


def by_value(b: ss.StreamsBuilder[str, Any], **options: Any) -> ss.KGroupedTable[Any, Any]:
    return b.table("in", materialized="rows").group_by(lambda k, v: (str(v), k), **options)


def test_a_named_grouping_has_one_topic_and_others_one_for_each_store() -> None:
    b = builder()
    named = by_value(b, name="by-value")
    named.count("counts")
    named.reduce(lambda a, _b: a, lambda a, _b: a, "first")
    assert list(b.build().repartitions) == ["by-value"]
    b = builder()
    unnamed = by_value(b)
    unnamed.count("counts")
    unnamed.reduce(lambda a, _b: a, lambda a, _b: a, "first")
    assert list(b.build().repartitions) == ["counts", "first"]
    b = builder()
    by_value(b).count()
    topology = b.build()
    assert len(topology.unnamed) == 2
    (store,) = set(topology.stores) - {"rows"}
    assert store.startswith("KTABLE-AGGREGATE-STATE-STORE-")
    with pytest.raises(InvalidTopology, match="named 'rows'"):
        by_value(builder()).count("rows")


def test_one_batch_tells_the_last_of_each_group_with_the_value_before() -> None:
    b = builder()
    counts = by_value(b, name="by").count("counts")
    counts.filter(lambda _key, n: n > 1).to_stream().to("out", value_serde=serdes.INT64)
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("in", [Record(key, 7, time) for time, key in enumerate("abc")])
        assert [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")] == [("7", 3, 2)]
        driver.pipe_all("in", [Record("a", 8, 3), Record("b", 8, 4)])
        # The old value says that there was a row to delete.
        told = [(r.key, r.value) for r in driver.read("out")]
        assert sorted(told, key=repr) == [("7", None), ("8", 2)]
        assert dict(driver.store("counts").all()) == {"7": 1, "8": 2}


def test_functions_may_change_the_aggregate_they_are_given() -> None:
    b = builder()

    def add(_key: str, value: str, members: list[str]) -> list[str]:
        members.append(value)
        return members

    def take(_key: str, value: str, members: list[str]) -> list[str]:
        members.remove(value)
        return members

    kept = ss.Materialized("members", caching=False)
    members = by_value(b, name="by").aggregate(list, add, take, kept)
    members.to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("in", [Record("a", 1, 0), Record("b", 1, 1), Record("a", 2, 2)])
        told = [(r.key, r.value) for r in driver.read("out")]
        assert told == [("1", ["a"]), ("1", ["a", "b"]), ("1", ["b"]), ("2", ["a"])]


def test_a_grouping_that_gives_no_pair_or_what_does_not_fit_says_so() -> None:
    b = builder()
    wrong: Any = lambda key, _value: key  # noqa: E731  # the mistake
    b.table("in", materialized="rows").group_by(wrong, name="by").count("counts")
    with (
        TopologyTestDriver(b.build()) as driver,
        pytest.raises(RecordFailed, match="KTABLE-SELECT"),
    ):
        driver.pipe("in", "abc", 1, 0)
    b = builder()
    by_value(b, name="by", value_serde=serdes.INT64).count("counts")
    with TopologyTestDriver(b.build()) as driver, pytest.raises(StateStoreError) as caught:
        driver.pipe("in", "a", 1, 0)
    for said in (
        "KTABLE-SELECT",
        "the value is str",
        "its serde is INT64",
        "value_serde=… to group_by",
    ):
        assert said in str(caught.value), caught.value


def test_a_change_is_a_pair_of_bytes_under_the_serde_of_values() -> None:
    serde = changes(serdes.STRING)
    assert serde is changes(serdes.STRING)
    for change in (RowChange(None, ""), RowChange("a", None), RowChange("", "b")):
        assert serde.deserialize(serde.serialize(change)) == change
    assert serde.serialize(RowChange(None, "b")) == b"\x92\xc0\xc4\x01b"
