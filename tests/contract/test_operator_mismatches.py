"""What does not fit its serde names node, side, type, serde and keyword (INTERFACE rule 3)."""

from collections.abc import Callable
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import SerdeMismatch, StateStoreError
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.streams import KStream


def pair(left: object, right: object) -> tuple[object, object]:
    return left, right


WINDOWS = ss.TumblingWindows(10)


def text(store: str) -> ss.Materialized:
    return ss.Materialized(store, value_serde=serdes.STRING)


UNFIT: dict[str, tuple[Callable[[KStream[Any, Any]], object], str, str, str, str]] = {
    "sink value": (
        lambda s: s.to("out", value_serde=serdes.STRING, name="it"),
        "value",
        "int",
        "STRING",
        "value_serde",
    ),
    "sink key": (
        lambda s: s.to("out", key_serde=serdes.INT64, name="it"),
        "key",
        "str",
        "INT64",
        "key_serde",
    ),
    "aggregate": (
        lambda s: s.group_by_key().aggregate(int, lambda _k, v, a: a + v, text("a"), name="it"),
        "value",
        "int",
        "STRING",
        "value_serde",
    ),
    "windowed reduce": (
        lambda s: s.group_by_key().windowed_by(WINDOWS).reduce(max, text("a"), name="it"),
        "value",
        "int",
        "STRING",
        "value_serde",
    ),
    "table": (lambda s: s.to_table(text("a"), name="it"), "value", "int", "STRING", "value_serde"),
    "kept view": (
        lambda s: s.to_table("t").map_values(lambda v: v, text("a"), name="it"),
        "value",
        "int",
        "STRING",
        "value_serde",
    ),
    "key of a window": (
        lambda s: (
            s.group_by_key()
            .windowed_by(WINDOWS)
            .count("a")
            .to_stream()
            .to("out", key_serde=serdes.STRING, name="it")  # type: ignore[arg-type]  # the mistake
        ),
        "key",
        "Windowed",
        "STRING",
        "key_serde",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_mismatch_names_node_side_type_serde_and_the_keyword_to_pass(case: str) -> None:
    build, side, kind, serde, keyword = UNFIT[case]
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    build(b.stream("in"))
    with TopologyTestDriver(b.build()) as driver:
        with pytest.raises(StateStoreError) as caught:
            driver.pipe("in", "a", 1, 1)
        message = str(caught.value)
        for said in ("it", f"the {side} is {kind}", f"its serde is {serde}", f"pass {keyword}="):
            assert said in message, message


JOINS: dict[
    str, tuple[Callable[[StreamsBuilder, ss.KTable[Any, Any]], object], Any, tuple[str, ...]]
] = {
    "key, rekeyed for the table": (
        lambda b, table: b.stream("in").select_key(lambda k, _v: k).join(table, pair, name="it"),
        "a",
        ("the key is str", "its serde is INT64", "pass key_serde=… to a repartition() before 'it'"),
    ),
    "value, repartitioned": (
        lambda b, table: (
            b.stream("in").map(lambda k, _v: (len(k), 1j)).join(table, pair, name="it")
        ),
        "a",
        ("value is complex", "serde is JSON", "pass value_serde=… to a repartition() before 'it'"),
    ),
    "value that waits": (
        lambda b, table: (
            b.stream("in", key_serde=serdes.INT64)
            .map_values(lambda _v: 1j)
            .join(table, pair, grace=5, name="it")
        ),
        1,
        (
            "node it",
            "the value is complex",
            "its serde is JSON",
            "pass value_serde=… to StreamsBuilder()",
        ),
    ),
}


@pytest.mark.parametrize("case", JOINS)
def test_a_mismatch_on_the_way_to_a_join_says_what_takes_the_serde(case: str) -> None:
    build, key, parts = JOINS[case]
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    kept = ss.Materialized("rates", history_retention=1000)
    table = b.table("rates", key_serde=serdes.INT64, materialized=kept)
    build(b, table)
    with TopologyTestDriver(b.build()) as driver:
        with pytest.raises(SerdeMismatch) as caught:
            driver.pipe("in", key, 1, 1)
        for said in parts:
            assert said in str(caught.value), caught.value


@pytest.mark.parametrize("left", [False, True])
def test_keys_under_other_serdes_never_meet_and_are_refused_when_the_join_is_made(
    left: bool,
) -> None:
    b = StreamsBuilder(key_serde=serdes.STRING)
    stream, numbers = b.stream("in"), b.table("t", key_serde=serdes.INT64, name="numbers")
    join = stream.left_join if left else stream.join
    verb = "left_join" if left else "join"
    said = f"{verb} it: the keys of the stream are STRING, .* node numbers are INT64.*key_serde=…"
    with pytest.raises(SerdeMismatch, match=said):
        join(numbers, pair, name="it")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(SerdeMismatch, match="the keys of the first table are STRING"):
        b.table("u").join(numbers, pair)  # type: ignore[arg-type]  # the mistake


def test_decoding_what_is_no_such_key_in_a_window_says_so() -> None:
    b: Any = StreamsBuilder(key_serde=serdes.windowed(serdes.STRING, 10))
    b.stream("in").filter(lambda window, _v: window.key == "a").to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", ss.Windowed("a", 10, 20), b"1", 1)
        assert driver.read("out")[0].key == ss.Windowed("a", 10, 20)
