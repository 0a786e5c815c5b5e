"""One store name, one store; one topic, one time; what may be shared is (SEMANTICS T1a)."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology
from statestore.model.records import Record
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.ktables import KTable
from statestore.topology.dsl.streams import KStream
from tests.unit.poison_rig import texts


def pair(left: Any, right: Any) -> str:
    return f"{left}{right}"


def history(name: str) -> ss.Materialized:
    return ss.Materialized(name, history_retention=1000)


def waiting(b: StreamsBuilder) -> object:
    table = b.table("t", materialized=history("h"))
    b.stream("b").join(table, pair, grace=10, name="j")
    return b.table("c", materialized=ss.Materialized("j-buffer", key_serde=serdes.BYTES))


SHARERS: dict[str, Callable[[StreamsBuilder], object]] = {
    "two counts": lambda b: [b.stream(t).group_by_key().count("s") for t in "ab"],
    "one count twice": lambda b: [
        g.count("s") for g in [b.stream("a").group_by_key()] for _ in range(2)
    ],
    "two reductions": lambda b: [b.stream(t).group_by_key().reduce(pair, "s") for t in "ab"],
    "two tables": lambda b: [b.table(t, materialized="s") for t in "ab"],
    "one table twice": lambda b: [b.table("a", materialized="s") for _ in range(2)],
    "two tables with history": lambda b: [b.table(t, materialized=history("s")) for t in "ab"],
    "a table and its view": lambda b: b.table("a", materialized="s").filter(pair, "s"),
    "two views": lambda b: [
        t.filter(pair, "s").map_values(str, "s") for t in [b.table("a", materialized="t")]
    ],
    "a join of two": lambda b: b.table("a", materialized="s").join(
        b.table("b", materialized="t"), pair, "s"
    ),
    "two windowed counts": lambda b: [
        b.stream(t).group_by_key().windowed_by(ss.TumblingWindows(10)).count("s") for t in "ab"
    ],
    "a buffer": waiting,
}


@pytest.mark.parametrize("kind", SHARERS)
def test_two_operators_materialized_under_one_name_are_refused(kind: str) -> None:
    b = texts()
    with pytest.raises(InvalidTopology, match=r"'(s|j-buffer)'.*own name"):  # noqa: PT012
        SHARERS[kind](b)
        b.build()


def test_processors_share_a_store_with_each_other_and_with_an_aggregate() -> None:
    class Looks:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self.context, self.store = context, context.store("s")

        def process(self, record: Record[Any, Any]) -> None:
            self.context.forward(record.replace(value=str(self.store.get(record.key))))

    b = texts()
    counts = b.stream("in").group_by_key().count("s")
    spec = ss.persistent_key_value_store("s", key_serde=serdes.STRING, value_serde=serdes.INT64)
    counts.to_stream().process(Looks, "s").to("out")
    b.stream("more").process(Looks, spec).to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "k", "v", 1)
        driver.pipe("more", "k", "v", 2)
        assert [r.value for r in driver.read("out")] == ["1", "1"]


def test_a_named_group_by_feeds_any_number_of_aggregates_through_one_topic() -> None:
    b = texts()
    grouped = b.stream("in").group_by(lambda _k, v: v[0], name="by-first")
    grouped.count("counts").to_stream().to("counts-out")
    grouped.reduce(pair, "joined").to_stream().to("out")
    windowed = grouped.windowed_by(ss.TumblingWindows(10))
    windowed.count("windows")
    topology = b.build()
    assert list(topology.repartitions) == ["by-first"]
    with TopologyTestDriver(topology) as driver:
        driver.pipe_all("in", [Record("k", "a1", 1), Record("j", "a2", 2), Record("k", "b", 3)])
        assert dict(driver.store("counts").all()) == {"a": 2, "b": 1}
        assert dict(driver.store("joined").all()) == {"a": "a1a2", "b": "b"}
        assert driver.store("windows").get("a", 0) == 2


def test_two_group_bys_of_one_name_are_still_refused() -> None:
    b = texts()
    first, second = (b.stream(topic).group_by(pair, name="same") for topic in "ab")
    first.count()
    with pytest.raises(InvalidTopology, match="two repartition topics are named 'same'"):
        second.count()


def rekeyed(b: StreamsBuilder, topic: str) -> KStream[Any, Any]:
    return b.stream(topic).select_key(lambda _k, v: v[0])


def test_tables_of_rekeyed_streams_have_repartition_topics_of_their_own() -> None:
    b = texts()
    tables: list[KTable[Any, Any]] = [rekeyed(b, topic).to_table() for topic in "ab"]
    tables.append(rekeyed(b, "c").to_table("named"))
    tables.append(rekeyed(b, "d").to_table(name="node"))
    for at, table in enumerate(tables):
        table.to_stream().to(f"out-{at}")
    topology = b.build()
    unnamed = [table.store for table in tables[:2]]
    assert list(topology.repartitions) == [*unnamed, "named", "node"]
    assert [r for r in topology.unnamed if r.startswith("repartition")] == [
        f"repartition topic {name}" for name in unnamed
    ]
    with TopologyTestDriver(topology) as driver:
        for at, topic in enumerate("abcd"):
            driver.pipe(topic, "k", f"{topic}1", at)
            assert [(r.key, r.value) for r in driver.read(f"out-{at}")] == [(topic, f"{topic}1")]


# Times.


def by_value(record: Record[Any, Any]) -> int:
    return int(record.value)


def test_two_sources_of_one_topic_that_disagree_about_its_times_are_refused() -> None:
    b = texts()
    b.stream(["in", "other"], timestamp_extractor=by_value)
    b.stream("in")
    with pytest.raises(InvalidTopology, match=r"topic 'in'.*timestamp_extractor.*the same"):
        b.build()
    b = texts()
    b.stream("in", timestamp_extractor=by_value)
    b.table("in", timestamp_extractor=lambda record: int(record.value) + 1)
    with pytest.raises(InvalidTopology, match="timestamp_extractor"):
        b.build()


def test_two_sources_of_one_topic_that_begin_at_different_places_are_refused() -> None:
    b = texts()
    b.stream("in", offset_reset=ss.AutoOffsetReset.latest())
    b.table("in")
    with pytest.raises(InvalidTopology, match=r"topic 'in'.*offset_reset.*the same"):
        b.build()
    b = texts()
    b.stream("in", offset_reset=ss.AutoOffsetReset.earliest())
    b.table("in")
    b.build()
    b = texts()
    b.stream("in", offset_reset=ss.AutoOffsetReset.latest())
    b.table("in", offset_reset=ss.AutoOffsetReset.latest())
    b.build()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ss.AutoOffsetReset.by_duration(-1),
        lambda: ss.AutoOffsetReset.at_time(-1),
        lambda: ss.AutoOffsetReset.at_time(datetime(2026, 1, 1)),  # noqa: DTZ001
    ],
    ids=["age", "time", "no time zone"],
)
def test_a_beginning_that_is_no_time_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ss.errors.Misuse, match=r"pass|time zone"):
        make()


def test_two_sources_of_one_topic_that_agree_about_its_times_are_welcome() -> None:
    b = texts()
    b.stream("in", timestamp_extractor=by_value).to("out")
    b.stream(["in", "more"], timestamp_extractor=by_value).to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "k", "7", 1)
        assert [r.timestamp_ms for r in driver.read("out")] == [7, 7]
