"""Serdes of what operators make: values keep their types behind topics, or are refused by name."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, SerdeMismatch
from statestore.testing.driver import TopologyTestDriver


class Invoice(msgspec.Struct):
    customer: str
    cents: int


@dataclasses.dataclass
class Bill:
    cents: int


class Pair(NamedTuple):
    customer: str
    cents: int


INVOICE = serdes.json(Invoice)
Stream = ss.KStream[Any, Any]


class Bills:
    """Forwards an Invoice for each record."""

    def __init__(self, context: ss.ProcessorContext[str, Invoice]) -> None:
        self.context = context

    def process(self, record: ss.Record[str, int]) -> None:
        self.context.forward(record.replace(value=Invoice(record.key, record.value)))

    def process_batch(self, records: Sequence[ss.Record[str, int]]) -> None:
        for record in records:
            self.process(record)


def bill(key: str, value: int) -> Invoice:
    return Invoice(key, value)


def joined(key: Any, left: Any, _right: Any) -> Invoice:
    return Invoice(key, left)


NEAR = ss.JoinWindows(1000)
Make = Callable[[ss.StreamsBuilder, Stream, Any], Stream]
MAKES: dict[str, Make] = {
    "process": lambda _b, s, serde: s.process(Bills, value_serde=serde),
    "process_values": lambda _b, s, serde: s.process_values(Bills, value_serde=serde),
    "process_batch": lambda _b, s, serde: s.process_batch(Bills, value_serde=serde),
    "map": lambda _b, s, serde: s.map(lambda k, v: (k, bill(k, v)), value_serde=serde),
    "map_values": lambda _b, s, serde: s.map_values(bill, value_serde=serde),
    "flat_map": lambda _b, s, serde: s.flat_map(lambda k, v: [(k, bill(k, v))], value_serde=serde),
    "flat_map_values": lambda _b, s, serde: s.flat_map_values(
        lambda k, v: [bill(k, v)], value_serde=serde
    ),
    "left_join of a table": lambda b, s, serde: s.left_join(
        b.table("other", materialized="rows"), joined, value_serde=serde
    ),
    "left_join of a global table": lambda b, s, serde: s.left_join(
        b.global_table("other", materialized="rows"), joined, key=lambda k, _v: k, value_serde=serde
    ),
    "join of streams": lambda _b, s, serde: s.join(
        s.filter(lambda _k, _v: True), joined, NEAR, value_serde=serde
    ),
    "outer_join of streams": lambda _b, s, serde: s.outer_join(
        s.filter(lambda _k, _v: True), joined, NEAR, value_serde=serde
    ),
}


def topology(make: Make, serde: Any) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    made = make(b, b.stream("in"), serde).repartition("between")
    made.map_values(lambda value: type(value).__name__).to("out")
    return b.build()


@pytest.mark.parametrize("make", MAKES)
def test_values_keep_their_type_behind_a_topic_if_the_operator_was_given_their_serde(
    make: str,
) -> None:
    with TopologyTestDriver(topology(MAKES[make], INVOICE)) as driver:
        driver.pipe("in", "ann", 5, 1)
        assert {record.value for record in driver.read("out")} == {"Invoice"}


@pytest.mark.parametrize("make", MAKES)
def test_a_type_that_plain_json_would_lose_is_refused_with_the_serde_that_keeps_it(
    make: str,
) -> None:
    with TopologyTestDriver(topology(MAKES[make], None)) as driver:
        wanted = r"value is Invoice but its serde is JSON .*value_serde=serdes\.json\(Invoice\)"
        with pytest.raises(SerdeMismatch, match=wanted):
            driver.pipe("in", "ann", 5, 1)


@pytest.mark.parametrize("value", [Bill(1), Pair("ann", 1), Invoice("ann", 1)])
@pytest.mark.parametrize("serde", [serdes.JSON, serdes.MSGPACK])
def test_plain_serdes_refuse_every_type_with_fields(value: Any, serde: ss.Serde[Any]) -> None:
    with pytest.raises(TypeError, match=r"would give back a (dict|list)"):
        serde.serialize(value)
    spec = ss.in_memory_key_value_store("s", key_serde=serdes.STRING, value_serde=serde)
    with ss.open_store(spec) as store:
        name = type(value).__name__
        with pytest.raises(SerdeMismatch, match=rf"value_serde=serdes\.json\({name}\)"):
            store.put("k", value)
        store.put("k", {"plain": [1, "a", None, (2,)]})
        assert store.get("k") == {"plain": [1, "a", None, [2]]}
        store.commit()
    kept = serdes.json(type(value))
    assert kept.deserialize(kept.serialize(value)) == value


def test_keys_that_an_operator_made_have_the_serde_that_it_was_given() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    stream = b.stream("in")
    by_number: list[Stream] = [
        stream.select_key(lambda _k, v: v, key_serde=serdes.INT64),
        stream.map(lambda _k, v: (v, v), key_serde=serdes.INT64),
        stream.flat_map(lambda _k, v: [(v, v)], key_serde=serdes.INT64),
    ]
    for number, made in enumerate(by_number):
        made.group_by_key().count(f"counts-{number}")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("in", [("a", 7, 1), ("b", 7, 2), ("c", 8, 3)])
        for number in range(len(by_number)):
            assert dict(driver.store(f"counts-{number}").all()) == {7: 2, 8: 1}


def test_a_join_of_streams_with_new_keys_takes_their_serde() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    left = b.stream("left").select_key(lambda _k, v: v)
    right = b.stream("right").select_key(lambda _k, v: v)
    both = left.join(right, lambda one, other: [one, other], NEAR, key_serde=serdes.INT64)
    both.to("out", key_serde=serdes.INT64)
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("left", "a", 7, 1)
        driver.pipe("right", "b", 7, 2)
        assert [record.key for record in driver.read("out")] == [7]


def test_a_join_refuses_a_key_serde_that_its_keys_or_the_table_do_not_have() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    stream, table = b.stream("in"), b.table("other", materialized="rows")
    wrong: Any = serdes.INT64
    with pytest.raises(SerdeMismatch, match=r"STRING in their topic, not INT64.*repartition"):
        stream.join(table, joined, key_serde=wrong)
    again = stream.select_key(lambda _k, v: v)
    with pytest.raises(SerdeMismatch, match="the keys of the stream are INT64"):
        again.join(table, joined, key_serde=wrong)
    again.join(table, joined, key_serde=serdes.STRING, name="same")


def test_what_is_no_serde_is_refused_where_it_was_given() -> None:
    wrong: Any = Invoice
    for make in MAKES.values():
        b = ss.StreamsBuilder()
        with pytest.raises(Misuse, match=r"is not a value_serde: pass one of statestore\.serdes"):
            make(b, b.stream("in"), wrong)
