"""What does not fit its serde names node, side, type, serde and keyword (INTERFACE rule 3)."""

from collections.abc import Callable
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import StateStoreError
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.builder import StreamsBuilder
from statestore.topology.streams import KStream

WINDOWS = ss.TumblingWindows(10)


def text(store: str) -> ss.Materialized:
    return ss.Materialized(store, value_serde=serdes.STRING)


UNFIT: dict[str, tuple[Callable[[KStream], object], str, str, str, str]] = {
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
            .to("out", key_serde=serdes.STRING, name="it")
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


def test_decoding_what_is_no_such_key_in_a_window_says_so() -> None:
    b: Any = StreamsBuilder(key_serde=serdes.windowed(serdes.STRING, 10))
    b.stream("in").filter(lambda window, _v: window.key == "a").to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", ss.Windowed("a", 10, 20), b"1", 1)
        assert driver.read("out")[0].key == ss.Windowed("a", 10, 20)
