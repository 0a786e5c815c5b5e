"""Global tables as they are written: what is refused, and what a description says of them."""

from collections.abc import Sequence
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.graph import Topology

RATES, INPUT, OUT = "rates", "in", "out"


def joined(**options: Any) -> Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table(RATES, materialized=RATES, **options)
    b.stream(INPUT).left_join(rates, lambda v, rate: [v, rate], key=lambda _k, v: v).to(OUT)
    return b.build()


HISTORY = ss.Materialized("h", history_retention=1)
IN_MEMORY = ss.Materialized(ss.in_memory_key_value_store("m"))


def refused(write: Any) -> str:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)

    def written() -> None:
        write(b, b.global_table(RATES, materialized=RATES))
        b.build()

    with pytest.raises((InvalidTopology, Misuse)) as caught:
        written()
    return str(caught.value)


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda b, t: b.stream("in").join(t, min), "pass key="),
        (lambda b, t: b.stream("in").join(t, min, key="x"), "key of join"),
        (lambda b, t: b.stream("in").join(t, min, key=lambda v: v), "cannot take 2 arguments"),
        (lambda b, t: b.stream("in").join(t, min, key=min, grace=5), "without windows, grace"),
        (lambda b, t: b.stream("in").join(b.table("t", materialized="t"), min, key=min), "only a"),
        (lambda b, t: b.table("t", materialized="t").join(t, min), "KTable"),
        (lambda b, t: ss.StreamsBuilder().stream("in").join(t, min, key=min), "another builder"),
        (lambda b, t: b.global_table("x", materialized=RATES), "two global tables"),
        (lambda b, t: b.table("x", materialized=RATES).to_stream().to("y"), "named 'rates'"),
        (lambda b, t: b.global_table("x", materialized=HISTORY), "history"),
        (lambda b, t: b.global_table("x", materialized=IN_MEMORY), "persistent"),
        (lambda b, t: b.global_table(["x"]), "name of a topic"),
        (lambda b, t: None, "reads no topic"),
    ],
)  # fmt: skip
def test_a_global_table_is_refused_with_the_way_out(write: Any, told: str) -> None:
    assert told in refused(write)


def test_a_method_of_other_tables_says_what_to_call_instead() -> None:
    b = ss.StreamsBuilder()
    with pytest.raises(AttributeError, match=r"stream\.join\(table, function, key=selector\)"):
        b.global_table(RATES).to_stream()  # type: ignore[attr-defined]


def test_a_processor_cannot_write_it() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table(RATES, materialized=RATES)

    class Writing:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self.rows = context.store(rates.store)

        def process(self, record: ss.Record[str, Any]) -> None:
            getattr(self.rows, record.key)(*record.value)

    b.stream(INPUT).process(Writing, rates.store)
    calls: Sequence[tuple[str, list[Any]]] = [
        ("put", ["a", 1]),
        ("put_all", [[["a", 1]]]),
        ("put_if_absent", ["a", 1]),
        ("delete", ["a"]),
        ("discard", ["a"]),
        ("delete_range", [None, None]),
        ("delete_prefix", ["a"]),
        ("commit", [{}]),
    ]
    for verb, arguments in calls:
        told = rf"{verb}\(\) of store 'rates'.*read-only"
        with TopologyTestDriver(b.build()) as driver, pytest.raises(Misuse, match=told):
            driver.pipe(INPUT, verb, arguments)


def test_description_and_fingerprint_tell_of_it() -> None:
    described = joined().describe()
    assert "Sub-topology: 1 for global store (will not generate tasks)" in described
    assert "(stores: [], global: [rates])" in described
    other = joined(value_serde=serdes.STRING)
    assert other.describe() == described
    assert other.fingerprint() != joined().fingerprint()
