"""What the DSL refuses: wrong graphs, names, functions and joins, before anything runs."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, SerdeMismatch
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.streams import KStream
from statestore.topology.materialized import Materialized
from statestore.topology.nodes import SinkNode
from tests.unit.pipelines import OWN_KEY, builder, pair, right, typed


def duplicate_nodes(b: StreamsBuilder) -> object:
    return b.stream("in", name="n").filter(lambda k, v: True, name="n")


def duplicate_stores(b: StreamsBuilder) -> object:
    b.stream("in").group_by_key().count("c")
    return b.stream("other").group_by_key().reduce(max, "c")


def duplicate_repartitions(b: StreamsBuilder) -> object:
    return b.stream("in").repartition("r"), b.stream("other").repartition("r")


def merged_across_builders(b: StreamsBuilder) -> object:
    return b.stream("in").merge(StreamsBuilder().stream("other"))


def counts_as_text(b: StreamsBuilder) -> object:
    return b.stream("in").group_by_key().count(Materialized("c", value_serde=serdes.STRING))  # type: ignore[arg-type]  # the mistake


def undeclared_store(b: StreamsBuilder) -> object:
    return b.stream("in").process(lambda c: object(), "ghost")  # type: ignore[arg-type, return-value]  # never made


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (duplicate_nodes, "two nodes are named 'n'"),
        (duplicate_stores, "two different stores are named 'c'"),
        (duplicate_repartitions, "two repartition topics are named 'r'"),
        (merged_across_builders, "another builder"),
        (undeclared_store, "'ghost', which is not declared"),
        (lambda b: b.stream([]), "at least one topic"),
        (counts_as_text, r"count\(\) gives INT64, but the store's values are STRING"),
        (lambda b: None, "reads no topic"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_topology_that_cannot_run_is_refused_at_build(
    wrong: Callable[[StreamsBuilder], object], message: str
) -> None:
    b = builder()
    with pytest.raises(InvalidTopology, match=message):  # noqa: PT012  # either may refuse
        wrong(b)
        b.build()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.group_by_key().count("no/slash"),
        lambda s: s.repartition(".hidden"),
        lambda s: s.group_by_key().count(Materialized("x" * 201)),
    ],
    ids=["a slash", "a dot in front", "too long"],
)
def test_names_that_are_no_folder_or_topic_names_are_refused(
    wrong: Callable[[KStream[Any, Any]], object],
) -> None:
    with pytest.raises(Misuse, match="1 to 200"):
        wrong(builder().stream("in"))


def takes_one(_a: Any) -> Any:
    raise AssertionError


def takes_three(_a: Any, _b: Any, _c: Any) -> Any:
    raise AssertionError


def takes_four(_a: Any, _b: Any, _c: Any, _d: Any) -> Any:
    raise AssertionError


ARITIES: list[tuple[str, Callable[[KStream[Any, Any], Callable[..., Any]], object], int]] = [
    ("filter", lambda s, f: s.filter(f), 2),
    ("map", lambda s, f: s.map(f), 2),
    ("map_values", lambda s, f: s.map_values(f), 1),
    ("flat_map", lambda s, f: s.flat_map(f), 2),
    ("flat_map_values", lambda s, f: s.flat_map_values(f), 1),
    ("select_key", lambda s, f: s.select_key(f), 2),
    ("peek", lambda s, f: s.peek(f), 2),
    ("filter_records", lambda s, f: s.filter_records(f), 1),
    ("set_timestamp", lambda s, f: s.set_timestamp(f), 1),
    ("set_headers", lambda s, f: s.set_headers(f), 1),
    ("filter_not", lambda s, f: s.filter_not(f), 2),
    ("foreach", lambda s, f: s.foreach(f), 2),
    ("filter_not", lambda s, f: s.to_table("t").filter_not(f), 2),
    ("to_stream", lambda s, f: s.to_table("t").to_stream(f), 2),
    ("branch", lambda s, f: s.branch(f), 2),
    ("split: branch 'some'", lambda s, f: s.split({"some": f}), 2),
    ("group_by", lambda s, f: s.group_by(f), 2),
    ("join", lambda s, f: s.join(right(s), f), 2),
    ("left_join", lambda s, f: s.left_join(right(s), f), 2),
    ("filter", lambda s, f: s.to_table("t").filter(f), 2),
    ("map_values", lambda s, f: s.to_table("t").map_values(f), 1),
    ("join", lambda s, f: s.to_table("t").join(right(s), f), 2),
    ("left_join", lambda s, f: s.to_table("t").left_join(right(s), f), 2),
    ("process", lambda s, f: s.process(f), 1),
    ("process_batch", lambda s, f: s.process_batch(f), 1),
    ("reduce", lambda s, f: s.group_by_key().reduce(f, "c"), 2),
    ("aggregate", lambda s, f: s.group_by_key().aggregate(dict, f, "c"), 3),
    ("aggregate initial", lambda s, f: s.group_by_key().aggregate(f, takes_three, "c"), 0),
]


@pytest.mark.parametrize(("operator", "call", "count"), ARITIES, ids=range(len(ARITIES)))
def test_a_function_of_the_wrong_arity_is_refused_naming_the_operator(
    operator: str, call: Callable[[KStream[Any, Any], Callable[..., Any]], object], count: int
) -> None:
    for wrong in (takes_four, takes_one if count != 1 else takes_three):
        with pytest.raises(Misuse, match=rf"^{operator}.* {count} arguments"):
            call(typed(builder()), wrong)
    with pytest.raises(Misuse, match=rf"^{operator}.*needs a function of {count} argument"):
        call(typed(builder()), "not callable")  # type: ignore[arg-type]  # the point of the test


def test_a_function_of_the_wrong_arity_is_refused_with_the_name_of_its_node() -> None:
    with pytest.raises(Misuse, match=r"^filter 'big ones': 'takes_one' cannot take 2 arguments"):
        builder().stream("in").filter(takes_one, name="big ones")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda s: s.filter(lambda v: v), "write it as lambda key, value: …"),
        (lambda s: s.split({"a": lambda v: v}), "write it as lambda key, value: …"),
        (lambda s: s.group_by_key().reduce(lambda v: v), "write it as lambda so_far, value: …"),
        (
            lambda s: s.group_by_key().aggregate(int, lambda total, v: total + v),
            "write it as lambda key, value, so_far: …",
        ),
        (lambda s: s.filter_records(lambda k, v: v), "write it as lambda record: …"),
    ],
    ids=["filter", "split", "reduce", "aggregate", "filter_records"],
)
def test_a_function_of_the_wrong_arity_is_refused_with_how_to_write_it(
    call: Callable[[Any], object], told: str
) -> None:
    with pytest.raises(Misuse, match=re.escape(told)):
        call(builder().stream("in"))


def test_topics_chosen_by_record_must_be_named_and_no_others() -> None:
    stream = builder().stream("in")
    with pytest.raises(Misuse, match=r"to\('out'\) writes to one topic: leave out topics="):
        stream.to("out", topics=["out"])
    wrong: list[Any] = [None, [], "out"]
    for topics in wrong:
        with pytest.raises(Misuse, match=r"needs topics=\[…\], all topics that the function may"):
            stream.to(lambda record: "out", topics=topics)
    with pytest.raises(Misuse, match=r"^to 'sink': 'takes_three' cannot take 1 argument"):
        stream.to(takes_three, topics=["out"], name="sink")  # type: ignore[arg-type]  # the point of the test


def test_branches_need_names_of_their_own() -> None:
    stream = builder().stream("in")
    with pytest.raises(Misuse, match=r"split\(\) needs at least one branch"):
        stream.split({})
    with pytest.raises(Misuse, match="'a' is a branch and the default: give them two names"):
        stream.split({"a": lambda k, v: True}, default="a")


# Joins.


def test_a_join_waits_for_history_before_it_waits_for_late_records() -> None:
    b = builder()
    for verb in ("join", "left_join"):
        with pytest.raises(Misuse, match=rf"^{verb}: grace needs a table with history"):
            getattr(b.stream("in"), verb)(b.table("right"), pair, grace=timedelta(seconds=1))


def test_only_a_table_of_the_same_builder_can_be_joined() -> None:
    b = builder()
    stream: Any = b.stream("in")
    with pytest.raises(Misuse, match=r"join needs a KTable, not a KStream: .* to_table\(\)"):
        b.table("other").join(stream, pair)
    with pytest.raises(InvalidTopology, match="left_join: the table has another builder"):
        stream.left_join(builder().table("right"), pair)
    with pytest.raises(InvalidTopology, match="join: the table has another builder"):
        b.table("in").join(builder().table("right"), pair)


def test_keys_that_would_lie_apart_are_refused_and_rekeyed_ones_take_the_tables_serde() -> None:
    b = builder()
    with pytest.raises(SerdeMismatch, match=r"of the stream are STRING, .* are INT64"):
        b.stream("in").join(right(typed(b)), pair)
    b = builder()
    b.stream("in").select_key(lambda k, v: 1).join(right(typed(b)), pair, name="j")
    sink = next(node for node in b.build().nodes if isinstance(node, SinkNode))
    assert (sink.topic.name, sink.key_serde) == ("j", OWN_KEY)


def test_a_computed_table_has_a_store_only_if_one_is_named() -> None:
    b = builder()
    table = b.table("in", materialized="t")
    views = [table.filter(lambda k, v: True), table.map_values(str), table.join(table, pair)]
    assert [view.store for view in views] == [None, None, None]
    kept = [table.filter(lambda k, v: True, "f"), table.join(table, pair, Materialized("j"))]
    assert [view.store for view in kept] == ["f", "j"]
    assert list(b.build().stores) == ["t", "f", "j"]


def test_an_operator_put_in_between_renames_no_named_store() -> None:
    def stores(inserted: bool) -> list[str]:
        b = builder()
        stream = b.stream("in")
        if inserted:
            stream = stream.filter(lambda k, v: True).map_values(str)
        stream.group_by_key().count("c").filter(lambda k, v: True, "f")
        return list(b.build().stores)

    assert stores(inserted=False) == stores(inserted=True) == ["c", "f"]


def with_default(value: Any, other: int = 3) -> Any:
    raise AssertionError


def test_functions_with_defaults_or_any_arguments_are_welcome() -> None:
    b = builder()
    b.stream("in").filter(lambda *args: True).map_values(with_default).map_values(str)
    b.stream("other").map_values(int)
    assert len(b.build().nodes) == 6
