"""map_values_arrow and filter_arrow do what map_values and filter do, failures included."""

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, RecordFailed, SerdeMismatch
from statestore.testing import TopologyTestDriver
from tests.unit.poison_rig import dropped
from tests.unit.poison_rig import settings as poison_settings


class Order(msgspec.Struct):
    customer: str
    cents: int
    coupon: str | None = None


class Bill(msgspec.Struct):
    customer: str
    euros: float | None
    kind: str


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "coupon", "type": ["null", "string"], "default": None},
    ],
}
ORDERS: dict[str, ss.Serde[Any]] = {
    "json": serdes.json(Order),
    "avro": serdes.avro(AVRO, Order),
    "json schema": serdes.json_schema(None, Order),
}
BILL = serdes.json(Bill)
LIMIT = 1000


def is_small(order: Order | None) -> bool:
    return order is not None and order.cents < LIMIT


def bill(key: str | None, order: Order | None) -> Bill | None:
    """A bill of what is not odd: bills of odd sums lack something."""
    if order is None:
        return None
    euros = None if order.cents % 3 == 0 else order.cents / 100.0
    kind: Any = None if order.cents % 7 == 0 else key or "nobody"
    return Bill(order.customer, euros, kind)


def are_small(_keys: pa.Array, orders: pa.Array) -> pa.Array:
    return pc.less(pc.struct_field(orders, "cents"), LIMIT)


def bills(keys: pa.Array, orders: pa.Array) -> pa.Array:
    cents, none = pc.struct_field(orders, "cents"), pa.scalar(None, pa.float64())
    thirds = pc.equal(cents, pc.multiply(pc.divide(cents, 3), 3))
    sevenths = pc.equal(cents, pc.multiply(pc.divide(cents, 7), 7))
    euros = pc.if_else(thirds, none, pc.divide(cents.cast(pa.float64()), 100.0))
    kinds = pc.if_else(sevenths, pa.scalar(None, pa.large_string()), pc.coalesce(keys, "nobody"))
    return pa.StructArray.from_arrays(
        [kinds, pc.struct_field(orders, "customer"), euros], names=["kind", "customer", "euros"]
    )


def topology(order: ss.Serde[Any], *, in_arrow: bool) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=BILL)
    orders = builder.stream("in", value_serde=order)
    if in_arrow:
        some = orders.filter_arrow(are_small)
        made = some.map_values_arrow(bills)
    else:
        some = orders.filter(lambda _key, one: is_small(one))
        made = some.map_values(bill)
    # What fails to be encoded fails where it is made: also row by row, because here it is counted.
    made.repartition("bills", value_serde=BILL).to("out")
    some.to("small")
    return builder.build()


RECORDS = st.tuples(
    st.sampled_from([b"a", b"b", None, b"\xff"]),
    st.builds(Order, st.text(max_size=3), st.integers(-5, 2 * LIMIT), st.none() | st.text("x"))
    | st.none()
    | st.just(b"\x00poison"),
    st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=1)), max_size=2).map(tuple),
)


@pytest.mark.parametrize(
    ("name", "handler"),
    [("json", "continue"), ("avro", "dead_letter"), ("json schema", "continue")],
)
@settings(max_examples=6, deadline=None)
@given(piped=st.lists(RECORDS, max_size=8))
def test_columns_do_what_single_records_do(handler: str, name: str, piped: list[Any]) -> None:
    order = ORDERS[name]
    found = []
    for in_arrow in (False, True):
        with TopologyTestDriver(topology(order, in_arrow=in_arrow), poison_settings(handler)) as d:
            for time, (key, value, headers) in enumerate(piped):
                data = order.serialize(value) if isinstance(value, Order) else value
                d._produce("in", ss.Record(key, data, time, headers))
            d._drain()
            found.append(
                (
                    d.read("out"),
                    d.read("small"),
                    dropped(d),
                    [_without_reason(one) for one in (d.read("dead") if piped else [])],
                )
            )
    assert found[0] == found[1]


def _without_reason(letter: "ss.Record[Any, Any]") -> tuple[Any, ...]:
    """A dead letter, less the words of its error, and its stage and node."""
    kept = {name: value for name, value in letter.headers if name.endswith(("offset", "topic"))}
    return letter.key, letter.value, letter.timestamp_ms, kept


def order_bytes(cents: int) -> bytes:
    return msgspec.json.encode(Order("x", cents))


def test_the_error_of_an_undecodable_row_is_that_of_its_serde() -> None:
    errors = []
    for in_arrow in (False, True):
        with TopologyTestDriver(topology(ORDERS["json"], in_arrow=in_arrow)) as driver:
            for time, data in enumerate([order_bytes(1), b'{"customer": 1}', order_bytes(2)]):
                driver._produce("in", ss.Record(b"k", data, time))
            with pytest.raises(RecordFailed) as raised:
                driver._drain()
            errors.append(str(raised.value))
    assert errors[0] == errors[1]
    assert "in-0 offset 1: cannot decode the value as JSON(Order)" in errors[0]


def test_what_does_not_fit_its_serde_names_the_record_and_the_field() -> None:
    with TopologyTestDriver(topology(ORDERS["json"], in_arrow=True)) as driver:
        for time, cents in enumerate([1, 2, 7]):
            driver._produce("in", ss.Record(b"k", order_bytes(cents), time))
        with pytest.raises(SerdeMismatch) as raised:
            driver._drain()
    told = str(raised.value)
    assert "in-0 offset 2: the value is dict but its serde is JSON(Bill)" in told
    assert "Expected `str`, got `null` - at `$.kind`" in told


def entries(function: Any, **options: Any) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    builder.stream("in").map_values_arrow(function, **options).to("out")
    return builder.build()


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda values: values.to_pylist(), "the function returned list, want a pyarrow.Array"),
        (lambda values: values.slice(1), "the function returned 0 rows for 1 records"),
        (lambda values: pc.cast(values, "string"), "the column is string, want int64"),
        (lambda _values: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_a_function_that_makes_no_such_column_fails_as_its_record_does(
    function: Any, error: str
) -> None:
    with (
        TopologyTestDriver(entries(function)) as driver,
        pytest.raises((RecordFailed, SerdeMismatch), match=f"in-0 offset 0.*{error}"),
    ):
        driver.pipe("in", "a", 1, 0)


def test_a_predicate_returns_booleans() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    builder.stream("in").filter_arrow(lambda values: values).to("out")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(RecordFailed, match="the function returned int64, want booleans"),
    ):
        driver.pipe("in", "a", 1, 0)


def test_a_record_without_a_value_stays_without_one() -> None:
    topology = entries(lambda values: pc.coalesce(values, 7))
    with TopologyTestDriver(topology) as driver:
        driver.pipe_all("in", [("a", None, 0), ("b", 1, 1), ("c", None, 2)])
        assert [record.value for record in driver.read("out")] == [None, 1, None]


def test_what_a_filter_kept_is_what_the_next_function_takes() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    large = builder.stream("in").filter_arrow(lambda values: pc.greater(values, 1))
    large.map_values_arrow(lambda values: pc.multiply(values, 2)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe_all("in", [("a", n, time) for time, n in enumerate((1, 3, None, 2))])
        assert [record.value for record in driver.read("out")] == [6, 4]


def test_a_serde_of_the_users_own_may_offer_arrow() -> None:
    class Halves:
        type = pa.float64()

        def decode(self, rows: list[bytes | None]) -> pa.Array:
            return pa.array([None if row is None else row[0] / 2 for row in rows], self.type)

        def encode(self, column: pa.Array) -> list[bytes | None]:
            return [None if x is None else bytes([int(x * 2)]) for x in column.to_pylist()]

    halves: ss.Serde[float] = ss.Serde(
        "HALVES", lambda x: bytes([int(x * 2)]), lambda data: data[0] / 2, arrow=Halves
    )
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=halves)
    builder.stream("in").map_values_arrow(lambda values: pc.add(values, 0.5)).to("out")
    with TopologyTestDriver(builder.build(), poison_settings("continue")) as driver:
        for time, data in enumerate([b"\x03", b"", b"\x05"]):
            driver._produce("in", ss.Record(b"k", data, time))
        driver._drain()
        assert [record.value for record in driver.read("out")] == [2.0, 3.0]
        assert dropped(driver) == 1, "the row that it does not take, and no other"


def test_operators_that_cannot_work_are_refused_when_the_topology_is_written() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.JSON, value_serde=serdes.JSON)
    plain = builder.stream("plain")
    with pytest.raises(
        Misuse, match="map_values_arrow: the value has the serde JSON, which offers"
    ):
        plain.map_values_arrow(lambda values: values)
    with pytest.raises(Misuse, match="filter_arrow: the value has the serde JSON"):
        plain.filter_arrow(lambda values: values)
    orders = builder.stream("orders", value_serde=ORDERS["json"])
    with pytest.raises(Misuse, match=r"map_values_arrow: .*JSON.*: pass value_serde=…"):
        orders.map_values_arrow(lambda values: values)
    with pytest.raises(Misuse, match=r"filter_arrow: the key has the serde JSON.*values alone"):
        orders.filter_arrow(lambda _keys, values: values)
    with pytest.raises(Misuse, match="cannot take 1 argument"):
        orders.filter_arrow(lambda _a, _b, _c: None)
    orders.map_values_arrow(lambda values: values, value_serde=ORDERS["json"]).to("out")
    _, written = builder.build().topics()
    assert list(written) == ["out"]
