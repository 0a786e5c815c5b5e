"""Joins by a foreign key, beyond their text tables: names, serdes, sizes, poison and topics."""

import json
from itertools import count
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, NotCopartitioned, StateStoreError
from statestore.kafka.partitioner import murmur2_partition
from statestore.model.ids import TopicPartition
from statestore.model.records import Record, Subscription
from statestore.serdes import composed
from statestore.testing import TopologyTestDriver
from statestore.topology.joins.subscriptions import NONE, SOME, digest
from statestore.topology.nodes import TopicName
from tests.unit.poison_rig import POISON, settings


def builder() -> ss.StreamsBuilder[str, Any]:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)


def tables(b: ss.StreamsBuilder[str, Any]) -> tuple[ss.KTable[str, Any], ss.KTable[str, Any]]:
    return b.table("in", materialized="rows"), b.table("right", materialized="others")


def pair(left: Any, right: Any) -> Any:
    return [left, right]


def first(value: Any) -> Any:
    return value[0]


def joined(*, left: bool = False, **options: Any) -> ss.Topology:
    b = builder()
    rows, others = tables(b)
    join = rows.left_join if left else rows.join
    made = join(others, options.pop("function", pair), foreign_key=first, **options)
    made.to_stream().to("out")
    return b.build()


def test_topics_and_stores_have_the_name_of_the_join_or_else_of_its_store() -> None:
    topics = ["-subscription-registration", "-subscription-response"]
    named = joined(name="by-key")
    assert list(named.repartitions) == [f"by-key{topic}" for topic in topics]
    assert set(named.stores) == {"rows", "others", "by-key-subscription-store", "by-key-store"}
    assert not named.unnamed
    by_store = joined(materialized="pairs")
    assert list(by_store.repartitions) == [f"pairs{topic}" for topic in topics]
    assert set(by_store.stores) == {"rows", "others", "pairs-subscription-store", "pairs"}
    assert not by_store.unnamed
    both = joined(name="by-key", materialized="pairs")
    assert set(both.stores) == {"rows", "others", "by-key-subscription-store", "pairs"}
    assert len(joined().unnamed) == 4


def test_two_joins_of_one_name_are_refused() -> None:
    b = builder()
    rows, others = tables(b)
    rows.join(others, pair, "one", foreign_key=first, name="by-key")
    with pytest.raises(InvalidTopology, match="by-key-subscription"):
        rows.join(others, pair, "two", foreign_key=first, name="by-key")


def test_a_foreign_key_of_three_arguments_or_of_a_generator_is_refused() -> None:
    rows, others = tables(builder())
    wrong: Any = lambda key, value, more: key  # noqa: E731  # the mistake
    with pytest.raises(Misuse, match=r"join foreign_key 'j'.* nor 2 with the key"):
        rows.join(others, pair, foreign_key=wrong, name="j")

    def yielding(value: Any) -> Any:
        yield value

    with pytest.raises(Misuse, match="left_join foreign_key"):
        rows.left_join(others, pair, foreign_key=yielding, name="j")
    with pytest.raises(Misuse, match="foreign_key 'j' needs a function of 1"):
        rows.left_join(others, pair, foreign_key="customer", name="j")  # type: ignore[call-overload]


def test_each_side_is_co_partitioned_with_its_own_topic_only() -> None:
    topology = joined(name="j")
    counts = topology.partition_counts({"in": 3, "right": 5, "out": 1})
    assert counts[TopicName("j-subscription-registration", internal=True)] == 5
    assert counts[TopicName("j-subscription-response", internal=True)] == 3
    b = builder()
    rows, others = tables(b)
    more = rows.join(others, pair, foreign_key=first, name="j")
    b.stream("stream").join(more, pair, name="k").to("out")
    with pytest.raises(NotCopartitioned, match="k joins topics"):
        b.build().partition_counts({"in": 3, "right": 5, "stream": 4, "out": 1})


def test_the_key_of_a_subscription_is_placed_by_its_foreign_key() -> None:
    foreign = serdes.windowed(serdes.STRING, 10)
    serde = composed.subscription(foreign, serdes.STRING)
    assert serdes.by_name(serde.name) is serde
    nested = composed.subscription(serdes.STRING, composed.subscription(foreign, serdes.INT64))
    assert serdes.by_name(nested.name) is nested
    one = Subscription(ss.Windowed("é", 20, 30), "k")
    data = serde.serialize(one)
    assert data == b"\0\0\0\x0a" + "é".encode() + (20).to_bytes(8, "big") + b"k"
    assert serde.deserialize(data) == one
    assert composed.placing(serde, [data, None]) == ["é".encode(), None]
    plain = composed.subscription(serdes.STRING, serdes.STRING)
    empty = plain.serialize(Subscription("", ""))
    assert plain.deserialize(empty) == ("", "")
    assert composed.placing(plain, [empty, plain.serialize(Subscription("a", "b"))]) == [
        b"",
        b"a",
    ]
    for torn in (b"", b"\0\0", b"\0\0\0\x05abcd"):
        with pytest.raises(ValueError, match="two keys"):
            plain.deserialize(torn)


def test_a_foreign_key_that_does_not_fit_the_other_table_is_told_with_the_way_out() -> None:
    with (
        TopologyTestDriver(joined(name="j")) as driver,
        pytest.raises(StateStoreError) as caught,
    ):
        driver.pipe("in", "a", [5], 0)
    for said in ("j-subscription-registration", "the key is int", "STRING", "foreign_key"):
        assert said in str(caught.value)


def test_rows_whose_foreign_key_or_join_fails_are_passed_over() -> None:
    def refusing(left: Any, right: Any) -> Any:
        if POISON in (left[1], right):
            raise ValueError(POISON)
        return [left[1], right]

    topology = joined(name="j", function=refusing)
    with TopologyTestDriver(topology, settings("dead_letter")) as driver:
        driver.pipe("right", "x", 1, 0)
        driver.pipe_all(
            "in", [("a", ["x", 1], 1), ("b", [], 2), ("c", ["x", POISON], 3), ("d", ["x", 4], 4)]
        )
        driver.pipe("right", "x", 2, 5)
        told = {r.key: r.value for r in driver.read("out")}
        assert told == {"a": [1, 2], "d": [4, 2]}
        # b in the left table's topic; c in the responses, once for each right row.
        assert len(driver.read("dead")) == 3
        assert [key for key, _ in driver.store("rows").all()] == ["a", "c", "d"]


def test_a_right_row_of_very_many_left_ones_and_very_many_right_rows_are_answered() -> None:
    with TopologyTestDriver(joined(name="j")) as driver:
        many = [(f"k{i}", ["x" if i < 12_000 else f"y{i}", i], i) for i in range(13_500)]
        driver.pipe_all("in", many)
        assert driver.read("out") == []
        driver.pipe_all("right", [("x", 1, 0), *((f"y{i}", 1, i) for i in range(12_000, 13_500))])
        assert {(r.key, r.timestamp_ms) for r in driver.read("out")} == {
            (key, time) for key, _, time in many
        }
        driver.pipe("right", "x", None, 20_000)
        gone = driver.read("out")
        assert len(gone) == 12_000
        assert {r.value for r in gone} == {None}
        assert len(list(driver.store("j-subscription-store").all())) == 13_500


def test_functions_may_change_what_they_are_given() -> None:
    def greedy(row: Any) -> Any:
        return row.pop(0)

    def changing(row: Any, right: Any) -> Any:
        right.append(len(right))
        row.append(right)
        return row

    b = builder()
    rows, others = tables(b)
    rows.left_join(others, changing, foreign_key=greedy, name="j").to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("right", "x", [], 0)
        driver.pipe_all("in", [("a", ["x", 1], 1), ("b", ["x", 2], 2), ("a", ["x", 3], 3)])
        assert {r.key: r.value for r in driver.read("out")} == {
            "a": ["x", 3, [0]],
            "b": ["x", 2, [0]],
        }
        driver.pipe("right", "x", [7], 4)
        assert {r.key: r.value for r in driver.read("out")} == {
            "a": ["x", 3, [7, 1]],
            "b": ["x", 2, [7, 1]],
        }
        assert dict(driver.store("rows").all()) == {"a": ["x", 3], "b": ["x", 2]}


def test_values_in_other_bytes_than_their_serde_writes_are_joined() -> None:
    with TopologyTestDriver(joined(name="j", left=True)) as driver:
        driver.pipe_bytes("right", b"x", b' {"b": 1,  "a": 2 } ', 0)
        driver.pipe_bytes("in", b"k", b' [ "x" ] ', 1)
        assert [(r.key, r.value) for r in driver.read("out")] == [("k", [["x"], {"b": 1, "a": 2}])]
        # JSON's null is not a row, whatever its bytes.
        driver.pipe_bytes("in", b"k", b"null", 2)
        assert [(r.key, r.value) for r in driver.read("out")] == [("k", None)]
        driver.pipe_bytes("right", b"x", b"null", 3)
        driver.pipe_bytes("in", b"k", b'["x"]', 4)
        assert [(r.key, r.value) for r in driver.read("out")] == [("k", [["x"], None])]


def test_rows_meet_windows_by_a_foreign_key() -> None:
    b = builder()
    counts = b.stream("right").group_by_key().windowed_by(ss.TumblingWindows(10)).count("counts")
    rows = b.table("in", materialized="rows")
    rows.join(
        counts,
        lambda row, count: [row, count],
        foreign_key=lambda key, start: ss.Windowed(key[0], start, start + 10),
        name="j",
    ).to_stream().to("out")
    with TopologyTestDriver(b.build(), partitions=3) as driver:
        for key, start in (("a1", 0), ("a2", 10), ("b1", 0)):
            driver.pipe("in", key, start, 0, partition=murmur2_partition(key.encode(), 3))
        for time in (1, 2, 12):
            driver.pipe("right", "a", 0, time, partition=murmur2_partition(b"a", 3))
        assert sorted((r.key, r.value, r.timestamp_ms) for r in driver.read("out")) == [
            ("a1", [0, 1], 1),
            ("a1", [0, 2], 2),
            ("a2", [10, 1], 12),
        ]


def test_tables_with_history_are_joined_as_of_their_latest_versions() -> None:
    b = builder()
    kept = [ss.Materialized(name, history_retention=100) for name in ("rows", "others")]
    rows, others = b.table("in", materialized=kept[0]), b.table("right", materialized=kept[1])
    rows.join(others, pair, foreign_key=first, name="j").to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "k", ["x"], 10)
        driver.pipe("right", "x", 2, 20)
        assert [(r.value, r.timestamp_ms) for r in driver.read("out")] == [([["x"], 2], 20)]
        driver.pipe("right", "x", 1, 15)
        driver.pipe("in", "k", ["y"], 5)
        assert driver.read("out") == []
        driver.pipe("in", "k", None, 30)
        assert [(r.value, r.timestamp_ms) for r in driver.read("out")] == [(None, 30)]


def test_a_stream_meets_the_result_that_was_there_at_its_own_time() -> None:
    b = builder()
    rows, others = tables(b)
    kept = ss.Materialized("pairs", history_retention=1000)
    pairs = rows.join(others, pair, kept, foreign_key=first)
    b.stream("asked").join(pairs, pair).to("out")
    topology = b.build()
    assert {"pairs", "pairs-store", "pairs-subscription-store"} <= set(topology.stores)
    with TopologyTestDriver(topology) as driver:
        driver.pipe("right", "x", 1, 10)
        driver.pipe("in", "k", ["x"], 20)
        driver.pipe("right", "x", 2, 30)
        driver.pipe("in", "k", None, 40)
        driver.pipe_all("asked", [("k", time, time) for time in (15, 25, 35, 45)])
        assert [r.value for r in driver.read("out")] == [[25, [["x"], 1]], [35, [["x"], 2]]]


def test_answers_of_the_format_before_are_taken_only_for_the_bytes_that_the_row_has() -> None:
    with TopologyTestDriver(joined(name="j", left=True)) as driver:
        driver.pipe("in", "k", ["x"], 1)
        driver.read("out")
        topic = "topology-test-j-subscription-response-repartition"
        mine, other = digest(serdes.JSON.serialize(["x"])), digest(b"other")
        answers = [SOME + mine + b"7", SOME + other + b"8", NONE + other, SOME + other, NONE + mine]
        for time, answer in enumerate(answers, 2):
            driver._broker.produce(TopicPartition(topic, 0), Record(b"k", answer, time))
        driver.pipe("in", "other", [None], 10)
        found = [(r.value, r.timestamp_ms) for r in driver.read("out") if r.key == "k"]
        assert found in ([([["x"], 7], 2), ([["x"], None], 6)], [([["x"], None], 6)])
        driver.pipe("right", "x", 9, 11)
        assert [r.value for r in driver.read("out")] == [[["x"], 9]]


def test_a_row_that_has_other_bytes_each_time_follows_its_right_row() -> None:
    writes = count()
    never = ss.Serde(
        "NEVER_TWICE", lambda value: b" " * next(writes) + json.dumps(value).encode(), json.loads
    )
    b = builder()
    rows = b.table("in", value_serde=never).filter(lambda _key, _row: True)
    rows.join(b.table("right"), pair, foreign_key=first, name="j").to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("in", [("a", ["x", 1], 5), ("b", ["y", 2], 6), ("a", ["x", 3], 2)])
        driver.pipe_all("right", [("x", 1, 1), ("y", 1, 9)])
        assert {r.key: (r.value, r.timestamp_ms) for r in driver.read("out")} == {
            "a": ([["x", 3], 1], 2),
            "b": ([["y", 2], 1], 9),
        }
        driver.pipe("in", "a", ["y", 4], 7)
        driver.read("out")
        driver.pipe("right", "x", 2, 10)
        assert driver.read("out") == []
