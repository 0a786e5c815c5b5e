"""Avro, Protobuf and JSON Schema without a registry."""

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import cloudpickle
import msgspec
import pydantic
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, RecordFailed
from statestore.extras import install_command
from statestore.testing import TopologyTestDriver
from tests import order_pb2
from tests.builders import DEADLINE_S, child

Message: Any = order_pb2.Order  # type: ignore[attr-defined]  # made at run time
ORDER_1: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "customer", "type": "string"}, {"name": "cents", "type": "long"}],
}
ORDER_2: dict[str, Any] = {
    **ORDER_1,
    "fields": [
        {"name": "cents", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "coupon", "type": ["null", "string"], "default": None},
    ],
}


class Order(msgspec.Struct):
    customer: str
    cents: int


class Model(pydantic.BaseModel):
    customer: str
    cents: int


JSON_ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {"customer": {"type": "string"}, "cents": {"type": "integer", "minimum": 0}},
    "required": ["customer"],
}
PLAIN = {"customer": "ann", "cents": 5}
SERDES: list[tuple[ss.Serde[Any], Any, str]] = [
    (serdes.avro(ORDER_1), PLAIN, "AVRO(shop.Order)"),
    (serdes.avro(ORDER_1, Order), Order("ann", 5), "AVRO(shop.Order)"),
    (serdes.avro(ORDER_1, Model), Model(customer="ann", cents=5), "AVRO(shop.Order)"),
    (serdes.avro("long"), 5, "AVRO(long)"),
    (serdes.avro(["null", "string"]), "x", "AVRO(null | string)"),
    (serdes.protobuf(Message), Message(customer="ann", cents=5), "PROTOBUF(shop.Order)"),
    (serdes.json_schema(JSON_ORDER), PLAIN, "JSON_SCHEMA(Order)"),
    (serdes.json_schema(JSON_ORDER, Order), Order("ann", 5), "JSON_SCHEMA(Order)"),
    (serdes.json_schema(None, Model), Model(customer="a", cents=5), "JSON_SCHEMA(Model)"),
]


@pytest.mark.parametrize(("serde", "value", "name"), SERDES, ids=range(len(SERDES)))
def test_a_format_gives_back_what_it_was_given(serde: ss.Serde[Any], value: Any, name: str) -> None:
    assert serde.name == name
    assert serde.deserialize(serde.serialize(value)) == value
    assert pickle.loads(cloudpickle.dumps(serde)) is serde
    assert serde.schema is not None
    assert not serde.contextual


BAD: list[tuple[ss.Serde[Any], Any]] = [
    (serdes.avro(ORDER_1), {"customer": "ann"}),
    (serdes.avro(ORDER_1), {"customer": "ann", "cents": "five"}),
    (serdes.avro(ORDER_1), "text"),
    (serdes.avro(ORDER_1, Order), PLAIN),
    (serdes.avro(ORDER_1, Order), Order("ann", 2**70)),
    (serdes.protobuf(Message), Timestamp()),
    (serdes.json_schema(JSON_ORDER), {"cents": 5}),
    (serdes.json_schema(JSON_ORDER), {"customer": "ann", "cents": -1}),
    (serdes.json_schema(JSON_ORDER, Order), PLAIN),
]


@pytest.mark.parametrize(("serde", "bad"), BAD, ids=range(len(BAD)))
def test_a_value_that_the_schema_does_not_allow_is_refused(serde: Any, bad: object) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)):
        serde.serialize(bad)


def test_bytes_of_another_schema_are_not_read() -> None:
    row = serdes.avro(ORDER_1).serialize(PLAIN)
    for data in (row[:-1], b"", row + b"\0", b"\xff" + row):
        with pytest.raises((ValueError, EOFError, IndexError, UnicodeDecodeError)):
            serdes.avro(ORDER_1).deserialize(data)
    with pytest.raises(ValueError, match=r"-5 is less than the minimum of 0 - at `\$\.cents`"):
        serdes.json_schema(JSON_ORDER).deserialize(b'{"customer": "ann", "cents": -5}')


def test_rows_of_an_older_avro_schema_are_read_through_the_schema_that_wrote_them() -> None:
    before, now = serdes.avro(ORDER_1), serdes.avro(ORDER_2)
    assert before.schema is not None
    read = now.reading(before.schema)
    assert read(before.serialize(PLAIN)) == {**PLAIN, "coupon": None}
    assert serdes.avro(ORDER_2, Order).reading(before.schema)(before.serialize(PLAIN)) == Order(
        "ann", 5
    )


def test_equal_schemas_are_equal_however_they_are_written() -> None:
    text = msgspec.json.encode(dict(reversed(ORDER_1.items()))).decode()
    assert serdes.avro(text).schema == serdes.avro(ORDER_1).schema
    assert serdes.avro(ORDER_2).schema != serdes.avro(ORDER_1).schema


def test_logical_types_are_those_of_python() -> None:
    class Paid(msgspec.Struct):
        at: dt.datetime
        amount: Decimal

    schema = {
        "type": "record",
        "name": "Paid",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {
                "name": "amount",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
        ],
    }
    paid = Paid(dt.datetime(2024, 1, 2, tzinfo=dt.UTC), Decimal("1.25"))
    serde = serdes.avro(schema, Paid)
    assert serde.deserialize(serde.serialize(paid)) == paid


WRONG: list[tuple[Any, str]] = [
    (serdes.avro, "without a schema, a registry"),
    (lambda: serdes.avro({"type": "record"}), "no Avro schema"),
    (lambda: serdes.avro("{not json"), "no Avro schema"),
    (lambda: serdes.protobuf(Order), "is not a message class"),
    (lambda: serdes.protobuf(Message()), "is not a message class"),
    (serdes.json_schema, "pass a schema, a type, or a registry"),
    (lambda: serdes.json_schema({"type": "nothing"}), "no JSON Schema"),
    (lambda: serdes.json_schema("{"), "no JSON Schema"),
]


@pytest.mark.parametrize(("call", "told"), WRONG, ids=range(len(WRONG)))
def test_what_is_no_schema_is_refused_with_the_way_out(call: Any, told: str) -> None:
    with pytest.raises(Misuse, match=told):
        call()


EXTRAS = [
    ("fastavro", "serdes.avro('long')", "avro"),
    ("google.protobuf", "serdes.protobuf(object)", "protobuf"),
    ("jsonschema", "serdes.json_schema({})", "json-schema"),
    ("fastavro", "serdes.avro('long', registry=ss.SchemaRegistry('http://x'))", "schema-registry"),
]


@pytest.mark.parametrize(("missing", "call", "extra"), EXTRAS, ids=[e for _, _, e in EXTRAS])
def test_a_format_whose_extra_is_missing_names_it(missing: str, call: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
import statestore as ss
from statestore import serdes
print([name for name in ("fastavro", "jsonschema", "httpx2", "pydantic") if sys.modules.get(name)])
try:
    {call}
except ss.errors.Misuse as error:
    print(error)
"""
    done = child(code)
    out, err = done.communicate(timeout=DEADLINE_S)
    loaded, told = out.splitlines()
    assert loaded == "[]", err
    assert told.endswith(f": {install_command(extra)}")


@pytest.mark.parametrize(
    "serde", [serdes.avro(ORDER_1, Order), serdes.json_schema(JSON_ORDER, Order)], ids=["a", "j"]
)
def test_a_pipeline_counts_in_objects_and_stores_them(serde: ss.Serde[Order]) -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serde)
    kept = ss.Materialized("kept", caching=False)
    table = (
        builder.stream("in")
        .group_by_key()
        .reduce(lambda old, new: Order(new.customer, old.cents + new.cents), kept)
    )
    table.to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "a", Order("ann", 5))
        driver.pipe("in", "a", Order("bob", 7))
        driver.crash()
        driver.pipe("in", "a", Order("cid", 1))
        assert [r.value.cents for r in driver.read("out")] == [5, 12, 13]
        with pytest.raises(RecordFailed, match=rf"cannot decode the value as {serde.name[:4]}"):
            driver.pipe_bytes("in", b"a", b"\xff\xff")
