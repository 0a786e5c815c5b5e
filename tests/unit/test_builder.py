"""The DSL: serdes that are inherited, repartitions where keys changed, names, refusals."""

from collections.abc import Callable
from typing import Any

import pytest

from statestore import serdes
from statestore.stores.specs import in_memory_key_value_store, persistent_key_value_store
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.streams import KStream
from statestore.topology.graph import Topology
from statestore.topology.materialized import Materialized
from statestore.topology.nodes import SinkNode, SourceNode
from tests.unit.pipelines import KEY, OWN_VALUE, VALUE, builder, pair, right, typed


def sink_serdes(topology: Topology) -> list[str]:
    sink = next(n for n in topology.nodes if isinstance(n, SinkNode) and n.topic.name == "out")
    return [sink.key_serde.name, sink.value_serde.name]


def repartitions(topology: Topology) -> list[str]:
    return list(topology.repartitions)


# Serdes (INTERFACE rule 3).

INHERITED: dict[str, tuple[Callable[[KStream[Any, Any]], KStream[Any, Any]], str, str]] = {
    "as read": (lambda s: s, "INT64", "FLOAT64"),
    "filter": (lambda s: s.filter(lambda k, v: True), "INT64", "FLOAT64"),
    "filter_not": (lambda s: s.filter_not(lambda k, v: True), "INT64", "FLOAT64"),
    "peek": (lambda s: s.peek(lambda k, v: None), "INT64", "FLOAT64"),
    "filter_records": (lambda s: s.filter_records(lambda r: True), "INT64", "FLOAT64"),
    "set_timestamp": (lambda s: s.set_timestamp(lambda r: 0), "INT64", "FLOAT64"),
    "set_headers": (lambda s: s.set_headers(lambda r: []), "INT64", "FLOAT64"),
    "branch": (lambda s: s.branch(lambda k, v: True)[1], "INT64", "FLOAT64"),
    "split": (lambda s: s.split({"a": lambda k, v: True})["a"], "INT64", "FLOAT64"),
    "map": (lambda s: s.map(lambda k, v: (k, v)), "STRING", "JSON"),
    "flat_map": (lambda s: s.flat_map(lambda k, v: []), "STRING", "JSON"),
    "map_values": (lambda s: s.map_values(lambda v: v), "INT64", "JSON"),
    "flat_map_values": (lambda s: s.flat_map_values(lambda v: [v]), "INT64", "JSON"),
    "select_key": (lambda s: s.select_key(lambda k, v: k), "STRING", "FLOAT64"),
    "process": (lambda s: s.process(lambda c: object()), "STRING", "JSON"),  # type: ignore[arg-type, return-value]  # never made
    "repartition": (lambda s: s.repartition("r"), "INT64", "FLOAT64"),
    "repartition told": (
        lambda s: s.repartition("r", key_serde=serdes.BYTES, value_serde=serdes.MSGPACK),
        "BYTES",
        "MSGPACK",
    ),
    "to_table": (lambda s: s.to_table("t").to_stream(), "INT64", "FLOAT64"),
    "count": (lambda s: s.group_by_key().count("c").to_stream(), "INT64", "INT64"),
    "reduce": (lambda s: s.group_by_key().reduce(max, "r").to_stream(), "INT64", "FLOAT64"),
    "aggregate": (
        lambda s: s.group_by_key().aggregate(dict, lambda k, v, a: a, "a").to_stream(),
        "INT64",
        "JSON",
    ),
    "materialized told": (
        lambda s: (
            s.group_by_key()
            .aggregate(dict, lambda k, v, a: a, Materialized("a", value_serde=serdes.MSGPACK))
            .to_stream()
        ),
        "INT64",
        "MSGPACK",
    ),
    "join": (lambda s: s.join(right(s), pair), "INT64", "JSON"),
    "left join": (lambda s: s.left_join(right(s), pair), "INT64", "JSON"),
    "table filter": (
        lambda s: s.to_table("t").filter(lambda k, v: True).to_stream(),
        "INT64",
        "FLOAT64",
    ),
    "table map_values": (
        lambda s: s.to_table("t").map_values(lambda v: v).to_stream(),
        "INT64",
        "JSON",
    ),
    "table map_values told": (
        lambda s: (
            s.to_table("t")
            .map_values(lambda v: v, Materialized("m", value_serde=serdes.MSGPACK))
            .to_stream()
        ),
        "INT64",
        "MSGPACK",
    ),
    "table join": (lambda s: s.to_table("t").join(right(s), pair).to_stream(), "INT64", "JSON"),
    "group_by": (lambda s: s.group_by(lambda k, v: v).count("c").to_stream(), "STRING", "INT64"),
    "group_by told": (
        lambda s: s.group_by(lambda k, v: v, key_serde=OWN_VALUE).count("c").to_stream(),
        "FLOAT64",
        "INT64",
    ),
}


@pytest.mark.parametrize("operator", INHERITED)
def test_serdes_stay_until_an_operator_changes_key_or_value_then_the_builders_hold(
    operator: str,
) -> None:
    apply, key, value = INHERITED[operator]
    b = builder()
    apply(typed(b)).to("out")
    assert sink_serdes(b.build()) == [key, value]


def test_merge_has_the_serdes_of_the_stream_it_is_called_on() -> None:
    b = builder()
    typed(b).merge(b.stream("other")).to("out")
    assert sink_serdes(b.build()) == ["INT64", "FLOAT64"]


def test_a_source_that_names_no_serdes_has_the_builders_and_a_sink_may_have_its_own() -> None:
    b = builder()
    b.stream("in").to("out", value_serde=serdes.STRING)
    topology = b.build()
    source = next(n for n in topology.nodes if isinstance(n, SourceNode))
    assert (source.key_serde, source.value_serde) == (KEY, VALUE)
    assert sink_serdes(topology) == ["STRING", "STRING"]


def test_without_defaults_everything_is_bytes() -> None:
    b = StreamsBuilder()
    b.stream("in").map(lambda k, v: (k, v)).to("out")
    assert sink_serdes(b.build()) == ["BYTES", "BYTES"]


def test_a_count_is_int64_also_in_a_store_that_names_no_value_serde() -> None:
    b = builder()
    spec = in_memory_key_value_store("c", key_serde=KEY)
    b.stream("in").group_by_key().count(Materialized(spec)).to_stream().to("out")
    topology = b.build()
    assert topology.stores["c"].value_serde is serdes.INT64
    assert not topology.stores["c"].persistent
    assert sink_serdes(topology) == ["STRING", "INT64"]


def test_serdes_of_materialized_beat_those_of_its_spec() -> None:
    b = builder()
    told = Materialized(
        persistent_key_value_store("a"), key_serde=serdes.STRING, value_serde=serdes.MSGPACK
    )
    b.stream("in").group_by_key().aggregate(dict, lambda k, v, a: a, told)
    spec = b.build().stores["a"]
    assert (spec.key_serde, spec.value_serde) == (serdes.STRING, serdes.MSGPACK)


# Repartitions.

REPARTITIONED: dict[str, tuple[Callable[[KStream[Any, Any]], object], list[str]]] = {
    "same key": (lambda s: s.group_by_key().count("c"), []),
    "values changed": (lambda s: s.map_values(lambda v: v).group_by_key().count("c"), []),
    "filtered": (lambda s: s.filter(lambda k, v: True).group_by_key().count("c"), []),
    "mapped": (lambda s: s.map(lambda k, v: (k, v)).group_by_key().count("c"), ["c"]),
    "key selected": (lambda s: s.select_key(lambda k, v: k).group_by_key().count("c"), ["c"]),
    "flat mapped": (lambda s: s.flat_map(lambda k, v: []).group_by_key().count("c"), ["c"]),
    "processed": (lambda s: s.process(lambda c: object()).group_by_key().count("c"), ["c"]),  # type: ignore[arg-type, return-value]  # never made
    "mapped, then filtered": (
        lambda s: s.map(lambda k, v: (k, v)).filter(lambda k, v: True).group_by_key().count("c"),
        ["c"],
    ),
    "mapped, then branched": (
        lambda s: s.map(lambda k, v: (k, v)).branch(lambda k, v: True)[0].group_by_key().count("c"),
        ["c"],
    ),
    "merged with a mapped one": (
        lambda s: s.merge(s.map(lambda k, v: (k, v))).group_by_key().count("c"),
        ["c"],
    ),
    "grouped anew": (lambda s: s.group_by(lambda k, v: v).count("c"), ["c"]),
    "grouped anew, named": (lambda s: s.group_by(lambda k, v: v, name="day").count("c"), ["day"]),
    "grouped by key, named": (
        lambda s: s.map(lambda k, v: (k, v)).group_by_key(name="day").count("c"),
        ["day"],
    ),
    "repartitioned by hand": (
        lambda s: s.map(lambda k, v: (k, v)).repartition("mine").group_by_key().count("c"),
        ["mine"],
    ),
    "joined": (lambda s: s.join(right(s), pair), []),
    "mapped, then joined": (
        lambda s: s.map(lambda k, v: (k, v)).join(right(s), pair, name="j"),
        ["j"],
    ),
    "key selected, then left-joined": (
        lambda s: s.select_key(lambda k, v: k).left_join(right(s), pair, name="j"),
        ["j"],
    ),
    "to a table": (lambda s: s.to_table("t"), []),
    "mapped to a table": (lambda s: s.map(lambda k, v: (k, v)).to_table("t", name="x"), ["x"]),
}


@pytest.mark.parametrize("case", REPARTITIONED)
def test_a_repartition_topic_stands_where_the_key_changed_named_after_name_or_store(
    case: str,
) -> None:
    apply, expected = REPARTITIONED[case]
    b = builder()
    apply(typed(b))
    topology = b.build()
    assert repartitions(topology) == expected
    assert len(topology.sub_topologies) == 1 + len(expected)


def test_both_ends_of_a_repartition_topic_have_the_same_serdes_and_its_partitions() -> None:
    b = builder()
    typed(b).repartition("r", key_serde=serdes.BYTES, partitions=7)
    topology = b.build()
    sink = next(n for n in topology.nodes if isinstance(n, SinkNode))
    source = next(n for n in topology.nodes if isinstance(n, SourceNode) and n.topics[0].internal)
    assert sink.topic == source.topics[0]
    assert (sink.key_serde, sink.value_serde) == (serdes.BYTES, OWN_VALUE)
    assert (source.key_serde, source.value_serde) == (serdes.BYTES, OWN_VALUE)
    assert topology.repartitions["r"].partitions == 7


# Names (INTERFACE rule 8).


def test_generated_names_are_kafka_streams_and_listed_as_unnamed() -> None:
    b = builder()
    b.stream("in").group_by(lambda k, v: v).count().to_stream().to("out")
    topology = b.build()
    assert [node.name for node in topology.nodes] == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-KEY-SELECT-0000000001",
        "KSTREAM-SINK-0000000003",
        "KSTREAM-SOURCE-0000000004",
        "KSTREAM-AGGREGATE-0000000005",
        "KTABLE-TOSTREAM-0000000006",
        "KSTREAM-SINK-0000000007",
    ]
    store = "KSTREAM-AGGREGATE-STATE-STORE-0000000002"
    assert list(topology.stores) == [store]
    assert topology.unnamed == (f"store {store}", f"repartition topic {store}")


UNNAMED: dict[str, tuple[Callable[[KStream[Any, Any]], object], int]] = {
    "stateless": (lambda s: s.map(lambda k, v: (k, v)).to("out"), 0),
    "named store": (lambda s: s.group_by_key().count("c"), 0),
    "named by Materialized": (lambda s: s.group_by_key().count(Materialized("c")), 0),
    "named store, repartitioned": (lambda s: s.group_by(lambda k, v: v).count("c"), 0),
    "nothing named": (lambda s: s.group_by_key().count(), 1),
    "grouping named, store not": (lambda s: s.group_by(lambda k, v: v, name="day").count(), 1),
    "unnamed table": (lambda s: s.to_table(), 1),
}


@pytest.mark.parametrize("case", UNNAMED)
def test_resources_without_a_name_of_their_own_are_listed(case: str) -> None:
    apply, expected = UNNAMED[case]
    b = builder()
    apply(typed(b))
    assert len(b.build().unnamed) == expected


def test_names_given_are_the_names_of_the_nodes() -> None:
    b = builder()
    stream = b.stream("in", name="source").filter(lambda k, v: True, name="kept")
    left, rest = stream.branch(lambda k, v: True, name="split")
    left.group_by_key().count("c", name="counted").to_stream(name="updates").to("out", name="sink")
    rest.to("rest", name="rest-sink")
    names = [node.name for node in b.build().nodes]
    assert names[:5] == ["source", "kept", "split", "split-1", "split-rest"]
    assert names[5:] == ["counted", "updates", "sink", "rest-sink"]


def test_branches_and_topics_chosen_by_record_are_nodes_of_their_names() -> None:
    b = builder()
    named = b.stream("in", name="source").split({"a": lambda k, v: True}, default="b", name="by")
    named["a"].to(lambda record: "x", topics=["x", "y"], name="out")
    topology = b.build()
    names = [node.name for node in topology.nodes]
    assert names == ["source", "by", "by-a", "by-b", "out", "out-x", "out-y"]
    assert topology.topics() == ({"in"}, {"x", "y"})
    assert topology.unnamed == ()


def test_a_store_keeps_its_changelog_settings() -> None:
    b = builder()
    config = {"min.compaction.lag.ms": "1"}
    b.stream("in").group_by_key().count(Materialized("c", changelog_config=config))
    assert b.build().stores["c"].changelog_config == config


def test_a_stream_stays_usable_after_each_call() -> None:
    b = builder()
    stream = b.stream("in")
    stream.filter(lambda k, v: True).to("kept")
    stream.map_values(str).to("texts")
    assert len(b.build().children()["KSTREAM-SOURCE-0000000000"]) == 2


def test_a_table_reads_its_topic_into_its_store() -> None:
    b = builder()
    table = b.table("prices", materialized="latest", name="table")
    topology = b.build()
    assert table.store == "latest"
    assert topology.sub_topologies[0].stores == ("latest",)
    assert topology.topics() == ({"prices"}, set())
