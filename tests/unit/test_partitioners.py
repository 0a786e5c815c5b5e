"""partitioner=: a function that places each record of a sink or of a repartition topic."""

from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, NotCopartitioned, RecordFailed
from statestore.kafka.partitioner import murmur2_partition
from statestore.testing.driver import TopologyTestDriver

PARTITIONS = 3
SETTINGS = {"ensure.explicit.internal.resource.naming": False}


def made(partitioner: Any, **settings: object) -> TopologyTestDriver:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder.stream("in").to("out", partitioner=partitioner, name="sink")
    return TopologyTestDriver(builder.build(), SETTINGS | settings, partitions=PARTITIONS)


def placed(driver: TopologyTestDriver, topic: str = "out") -> dict[Any, int | None]:
    return {record.value: record.partition for record in driver.read(topic)}


def test_a_record_goes_where_the_partitioner_says_or_else_where_its_key_does() -> None:
    seen = []

    def choose(topic: str, key: str, value: int, partitions: int) -> int | None:
        seen.append((topic, key, value, partitions))
        return None if value > 5 else value % partitions

    with made(choose) as driver:
        driver.pipe_all("in", [ss.Record("k", value, 0) for value in range(8)])
        home = murmur2_partition(b"k", PARTITIONS)
        assert placed(driver) == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2, 6: home, 7: home}
    assert seen == [("out", "k", value, PARTITIONS) for value in range(8)]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (3, "ValueError: the partitioner returned 3, and topic out has the partitions 0 to 2"),
        (-1, "ValueError: the partitioner returned -1, and topic out has the partitions 0 to 2"),
        ("0", "TypeError: the partitioner returned '0', which is str: return the number"),
        (True, "TypeError: the partitioner returned True, which is bool: return the number"),
        (1.0, "TypeError: the partitioner returned 1.0, which is float: return the number"),
    ],
)
def test_what_is_no_partition_is_refused_naming_node_and_record(returned: Any, told: str) -> None:
    def choose(_topic: str, _key: str, value: int, _partitions: int) -> Any:
        return returned if value == 2 else 0

    with made(choose) as driver:
        with pytest.raises(RecordFailed) as refused:
            driver.pipe_all("in", [ss.Record("k", value, 0) for value in range(4)])
        assert "node sink, in-0 offset 2: " in str(refused.value)
        assert told in str(refused.value)


@pytest.mark.parametrize("handler", ["continue", "dead_letter"])
def test_only_the_records_without_a_partition_are_skipped(handler: str) -> None:
    def choose(_topic: str, _key: str, value: int, partitions: int) -> int:
        if value == 1:
            raise LookupError("no such region")
        return partitions if value == 3 else 0

    settings: dict[str, object] = {"production.exception.handler": handler}
    if handler == "dead_letter":
        settings["errors.dead.letter.queue.topic.name"] = "dead"
    with made(choose, **settings) as driver:
        driver.pipe_all("in", [ss.Record("k", value, 0) for value in range(5)])
        assert placed(driver) == {0: 0, 2: 0, 4: 0}
        if handler == "dead_letter":
            kinds = [
                dict(record.headers)["__streams.errors.exception"] for record in driver.read("dead")
            ]
            assert [(kind or b"").rpartition(b".")[2] for kind in kinds] == [
                b"LookupError",
                b"ValueError",
            ]


def test_each_topic_of_a_function_has_its_own_name_and_partitions() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    seen = set()

    def choose(topic: str, _key: str, _value: int, _partitions: int) -> int:
        seen.add(topic)
        return 2

    builder.stream("in").to(
        lambda record: f"to-{record.value % 2}", topics=["to-0", "to-1"], partitioner=choose
    )
    with TopologyTestDriver(builder.build(), SETTINGS, partitions=PARTITIONS) as driver:
        driver.pipe_all("in", [ss.Record("k", value, 0) for value in range(2)])
        assert placed(driver, "to-0") | placed(driver, "to-1") == {0: 2, 1: 2}
    assert seen == {"to-0", "to-1"}


def test_keys_in_windows_that_it_leaves_go_where_their_keys_do() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    counts = builder.stream("in").group_by_key().windowed_by(ss.TumblingWindows(10)).count("n")
    counts.to_stream().to(
        "out",
        value_serde=serdes.INT64,
        partitioner=lambda _t, window, _n, _p: 1 if window.start_ms else None,
    )
    with TopologyTestDriver(builder.build(), SETTINGS, partitions=PARTITIONS) as driver:
        home = murmur2_partition(b"k", PARTITIONS)
        driver.pipe("in", "k", "x", 5, partition=home)
        driver.pipe("in", "k", "y", 15, partition=home)
        found = {record.key.start_ms: record.partition for record in driver.read("out")}
        assert found == {0: home, 10: 1}


def test_a_partitioner_of_another_number_of_arguments_is_refused() -> None:
    stream = ss.StreamsBuilder().stream("in")
    wrong: Any = lambda key, value: 0  # noqa: E731  # the point of the test
    with pytest.raises(Misuse, match=r"^the partitioner of to 'sink': .* cannot take 4 arguments"):
        stream.to("out", partitioner=wrong, name="sink")
    with pytest.raises(Misuse, match=r"^the partitioner of to needs a function of 4 arguments"):
        stream.to("out", partitioner=3)  # type: ignore[arg-type]  # the point of the test


# Repartition topics.


def first(_topic: str, _key: str, _value: object, _partitions: int) -> int:
    return 0


def last(_topic: str, _key: str, _value: object, partitions: int) -> int:
    return partitions - 1


def texts() -> ss.StreamsBuilder:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)


def test_records_of_a_repartition_go_where_the_partitioner_says() -> None:
    builder, seen = texts(), []

    def choose(topic: str, key: str, value: str, partitions: int) -> int | None:
        seen.append((topic, key, value, partitions))
        return None if value == "k" else partitions - 1

    again = builder.stream("in").select_key(lambda _k, v: v)
    again.repartition("again", partitions=5, partitioner=choose).group_by_key().count("n")
    settings = SETTINGS | {"application.id": "app"}
    with TopologyTestDriver(builder.build(), settings, partitions=PARTITIONS) as driver:
        for value in "kak":
            driver.pipe("in", "x", value, 0)
        topic = "app-again-repartition"
        home = murmur2_partition(b"k", 5)
        assert home != 4
        assert placed(driver, topic) == {"k": home, "a": 4}
        assert seen == [(topic, value, value, 5) for value in "kak"]


def test_a_partition_that_a_repartition_topic_lacks_is_refused() -> None:
    builder = texts()
    builder.stream("in").repartition("again", partitioner=lambda _t, _k, _v, n: n).to("out")
    with (
        TopologyTestDriver(builder.build(), SETTINGS, partitions=PARTITIONS) as driver,
        pytest.raises(RecordFailed, match="again-repartition has the partitions 0 to 2"),
    ):
        driver.pipe("in", "k", "v", 0)


def test_a_partitioner_of_repartition_with_too_few_arguments_is_refused() -> None:
    wrong: Any = lambda key, value: 0  # noqa: E731  # the point of the test
    with pytest.raises(Misuse, match=r"^the partitioner of repartition 'r': .* 4 arguments"):
        texts().stream("in").repartition("r", partitioner=wrong)


def joined(left: Any, right: Any) -> ss.Topology:
    builder = texts()
    table = builder.stream("right").repartition("by-right", partitioner=right).to_table("t")
    stream = builder.stream("left").repartition("by-left", partitioner=left)
    stream.join(table, lambda a, b: a + b).to("out")
    return builder.build()


def aggregated(left: Any, right: Any) -> ss.Topology:
    builder = texts()
    one = builder.stream("left").repartition("by-left", partitioner=left)
    other = builder.stream("right").repartition("by-right", partitioner=right)
    one.merge(other).group_by_key().count("n")
    return builder.build()


def by_foreign_key(left: Any, right: Any) -> ss.Topology:
    builder = texts()
    one = builder.stream("left").repartition("by-left", partitioner=left).to_table("l")
    other = builder.stream("right").repartition("by-right", partitioner=right).to_table("r")
    one.join(other, lambda a, b: a + b, foreign_key=lambda v: v, materialized="j")
    return builder.build()


@pytest.mark.parametrize("made", [joined, aggregated])
def test_keys_placed_by_different_partitioners_never_meet(made: Any) -> None:
    for left, right in ((first, None), (None, first), (first, last)):
        with pytest.raises(NotCopartitioned, match=r"by-(left|right)-rep.* different partitioners"):
            made(left, right)
    made(first, first)
    made(None, None)


@pytest.mark.parametrize(("left", "right"), [(first, None), (None, first), (first, first)])
def test_the_tables_of_a_join_by_a_foreign_key_have_no_partitioner(left: Any, right: Any) -> None:
    with pytest.raises(NotCopartitioned, match="a join by a foreign key have none"):
        by_foreign_key(left, right)
    by_foreign_key(None, None)


def test_a_description_names_the_sinks_that_have_a_partitioner() -> None:
    told, plain = joined(first, first), joined(None, None)
    assert "(topic: by-left-repartition, by a partitioner)" in told.describe()
    assert "partitioner" not in plain.describe()
    assert told.fingerprint() != plain.fingerprint()


def test_only_stores_that_are_written_from_such_a_topic_are_placed_apart() -> None:
    builder = texts()
    builder.stream("in").group_by_key().count("before")
    placed_apart = builder.stream("in").repartition("again", partitioner=first)
    placed_apart.group_by_key().count("there")
    placed_apart.join(builder.table("table", materialized="looked-in"), lambda a, b: a + b)
    placed_apart.group_by(lambda _k, v: v, name="by-value").count("after")
    placed_apart.to("own", partitioner=last)
    builder.stream("own").group_by_key().count("read-again")
    assert builder.build().placed_apart() == {"there", "read-again"}
