"""Serdes of a schema registry, with a real one."""

import logging
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidSetting, Misuse, RecordFailed, Unavailable
from statestore.testing import TopologyTestDriver
from tests import order_pb2
from tests.schema_registry_rig import Registry, local_registry, started_registry

Message: Any = order_pb2.Order  # type: ignore[attr-defined]  # made at run time
pytestmark = pytest.mark.kafka
ORDER_1 = (
    '{"type":"record","name":"Order","namespace":"shop","fields":'
    '[{"name":"customer","type":"string"},{"name":"cents","type":"long"}]}'
)
ORDER_2 = ORDER_1.replace("]}", ',{"name":"coupon","type":["null","string"],"default":null}]}')
JSON_ORDER = '{"title":"Order","type":"object","properties":{"cents":{"type":"integer"}}}'
APPLICATION = {"application.id": "shop"}


class Order(msgspec.Struct):
    customer: str
    cents: int


running = pytest.fixture(scope="module")(started_registry)


def asked(running: Registry, **options: Any) -> ss.SchemaRegistry:
    return ss.SchemaRegistry(running.url, **{"auto_register": True, **options})


def copying(serde: ss.Serde[Any], name: str) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serde)
    builder.stream(f"{name}-in").to(f"{name}-out")
    return builder.build()


FORMS: list[tuple[str, Any, Any]] = [
    (
        "avro",
        lambda registry: serdes.avro(ORDER_1, registry=registry),
        {"customer": "a", "cents": 5},
    ),
    ("avro-of", lambda registry: serdes.avro(ORDER_1, Order, registry=registry), Order("a", 5)),
    ("protobuf", lambda registry: serdes.protobuf(Message, registry=registry), Message(cents=5)),
    ("json", lambda registry: serdes.json_schema(JSON_ORDER, registry=registry), {"cents": 5}),
    ("json-of", lambda r: serdes.json_schema(None, Order, registry=r), Order("a", 5)),
]


@pytest.mark.parametrize(("name", "make", "value"), FORMS, ids=[name for name, _, _ in FORMS])
def test_a_format_has_the_wire_format_of_confluents_clients(
    running: Registry, name: str, make: Any, value: Any
) -> None:
    registry = asked(running)
    serde = make(registry)
    with TopologyTestDriver(copying(serde, name), APPLICATION) as driver:
        driver.pipe(f"{name}-in", "k", value)
        (record,) = driver.read(f"{name}-out")
        assert record.value == value
    assert {f"{name}-in-value", f"{name}-out-value"} <= set(running.subjects())
    data = serde.at(f"{name}-out", "value").serialize(value)
    assert data[0] == 0
    assert running.ask(f"/schemas/ids/{int.from_bytes(data[1:5])}")["schema"]
    again = pickle.loads(cloudpickle.dumps(serde))
    assert again.at(f"{name}-out", "value").deserialize(data) == value


def test_bytes_go_to_and_come_from_confluents_own_serializers(running: Registry) -> None:
    with SchemaRegistryClient({"url": running.url}) as client:
        context = SerializationContext("peer-in", MessageField.VALUE, [])
        write, read = AvroSerializer(client, ORDER_1), AvroDeserializer(client)
        order = {"customer": "ann", "cents": 5}
        serde = serdes.avro(ORDER_1, registry=asked(running))
        with TopologyTestDriver(copying(serde, "peer"), APPLICATION) as driver:
            driver.pipe_bytes("peer-in", b"k", write(order, context))
            assert driver.read("peer-out")[0].value == order
        data = serde.at("peer-out", "value").serialize(order)
        assert read(data, SerializationContext("peer-out", MessageField.VALUE, [])) == order


def test_records_of_an_older_schema_are_read_as_the_newer_one(running: Registry) -> None:
    registry = asked(running)
    before = serdes.avro(ORDER_1, registry=registry).at("old-in", "value")
    data = before.serialize({"customer": "ann", "cents": 5})
    after = serdes.avro(ORDER_2, registry=registry)
    with TopologyTestDriver(copying(after, "old"), APPLICATION) as driver:
        driver.pipe_bytes("old-in", b"k", data)
        assert driver.read("old-out")[0].value == {"customer": "ann", "cents": 5, "coupon": None}
    as_written = serdes.avro(registry=registry).at("old-in", "value")
    assert as_written.deserialize(data) == {"customer": "ann", "cents": 5}


def test_a_schema_that_is_not_registered_is_not_registered_by_default(running: Registry) -> None:
    serde = serdes.avro(ORDER_1, registry=ss.SchemaRegistry(running.url))
    expected = (
        r"not have the schema of AVRO\(shop\.Order\) of the values of manual-out.*auto_register"
    )
    topology = copying(serde, "manual")
    running.register("manual-in-value", ORDER_1)
    order = {"customer": "ann", "cents": 5}
    with TopologyTestDriver(topology, APPLICATION) as driver, pytest.raises(Misuse, match=expected):
        driver.pipe("manual-in", "k", order)
    assert "manual-out-value" not in running.subjects()
    running.register("manual-out-value", ORDER_1)
    with TopologyTestDriver(copying(serde, "manual"), APPLICATION) as driver:
        driver.pipe("manual-in", "k", order)
        assert driver.read("manual-out")[0].value == order
    latest = serdes.avro(registry=ss.SchemaRegistry(running.url)).at("manual-out", "value")
    assert latest.deserialize(latest.serialize(order)) == order


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [
        ("topic", "named-in-value"),
        ("record", "shop.Named"),
        ("topic-record", "named-in-shop.Named"),
    ],
)
def test_schemas_are_under_the_subjects_of_the_strategy(
    running: Registry, subjects: str, expected: str
) -> None:
    schema = ORDER_1.replace('"Order"', '"Named"')
    serde = serdes.avro(schema, registry=asked(running, subjects=subjects))
    serde.at("named-in", "value").serialize({"customer": "ann", "cents": 5})
    assert expected in running.subjects()


def totals(serde: ss.Serde[Any]) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serde)
    kept = ss.Materialized("totals", caching=False)
    orders = builder.stream("orders").group_by(lambda key, order: order.customer)
    orders.reduce(lambda old, new: Order(new.customer, old.cents + new.cents), kept).to_stream().to(
        "sums"
    )
    return builder.build()


def test_rows_of_a_store_have_subjects_as_with_kafka_streams(running: Registry) -> None:
    registry = asked(running)
    with TopologyTestDriver(
        totals(serdes.avro(ORDER_1, Order, registry=registry)), APPLICATION
    ) as driver:
        driver.pipe("orders", "k", Order("ann", 5))
        driver.crash()
        driver.pipe("orders", "k", Order("ann", 7))
        assert [record.value for record in driver.read("sums")] == [
            Order("ann", 5),
            Order("ann", 12),
        ]
    subjects = set(running.subjects())
    assert {"shop-totals-changelog-value", "shop-totals-repartition-value"} <= subjects


def test_no_request_is_made_per_record(tmp_path: Path) -> None:
    with local_registry(tmp_path) as registry:
        serde = serdes.avro(ORDER_1, Order, registry=asked(registry))
        with TopologyTestDriver(totals(serde), APPLICATION) as driver:
            driver.pipe_all("orders", [("k", Order("ann", i), i) for i in range(20)])
            registry.stop()
            driver.pipe_all("orders", [("k", Order("bob", i), i) for i in range(20)])
            assert driver.read("sums")[-1].value == Order("bob", sum(range(20)))


def test_a_registry_that_is_down_is_no_records_fault(tmp_path: Path) -> None:
    with local_registry(tmp_path) as registry:
        asks = asked(registry, max_retries=0)
        data = (
            serdes.avro(ORDER_1, registry=asks)
            .at("in", "value")
            .serialize({"customer": "ann", "cents": 5})
        )
        url = registry.url
    down = ss.SchemaRegistry(url, auto_register=True, max_retries=0, timeout=7)
    topology = copying(serdes.avro(ORDER_1, registry=down), "down")
    passing = {**APPLICATION, "deserialization.exception.handler": "continue"}
    with (
        TopologyTestDriver(topology, passing) as driver,
        pytest.raises(
            Unavailable,
            match=r"the schema registry at http://\S+ does not answer .*may be repeated",
        ),
    ):
        driver.pipe_bytes("down-in", b"k", data)


def test_bytes_of_an_unknown_schema_are_that_records_fault(running: Registry) -> None:
    topology = copying(serdes.avro(ORDER_1, registry=asked(running)), "unknown")
    passing = {**APPLICATION, "deserialization.exception.handler": "continue"}
    for bad in (b"\0\0\x0f\xff\xff\x06ann\x0a", b"no magic byte", b"\0", b""):
        with TopologyTestDriver(topology, passing) as driver:
            driver.pipe_bytes("unknown-in", b"k", bad)
            assert driver.read("unknown-out") == []
        with (
            TopologyTestDriver(topology, APPLICATION) as driver,
            pytest.raises(
                RecordFailed,
                match=r"unknown-in-0 offset 0: cannot decode the value as CONFLUENT_AVRO",
            ),
        ):
            driver.pipe_bytes("unknown-in", b"k", bad)


def test_a_schema_that_the_registry_does_not_take_ends_the_run(running: Registry) -> None:
    running.register("changed-out-value", ORDER_1)
    running.ask("/config/changed-out-value", {"compatibility": "FULL"}, method="PUT")
    other = ORDER_1.replace('"long"', '"string"')
    serde = serdes.avro(other, registry=asked(running))
    passing = {**APPLICATION, "production.exception.handler": "continue"}
    expected = (
        r"does not take the schema of AVRO\(shop\.Order\) of the values of changed-out: .*409"
    )
    with (
        TopologyTestDriver(copying(serde, "changed"), passing) as driver,
        pytest.raises(Misuse, match=expected),
    ):
        driver.pipe("changed-in", "k", {"customer": "ann", "cents": "five"})


def test_ids_in_headers_of_the_input_do_not_go_out_with_other_bytes(running: Registry) -> None:
    serde = serdes.avro(ORDER_1, registry=asked(running))
    topology = copying(serde, "headers")
    with TopologyTestDriver(topology, APPLICATION) as driver:
        driver.pipe(
            "headers-in", "k", {"customer": "ann", "cents": 5}, 0, headers=[("other", b"x")]
        )
        (record,) = driver.read("headers-out")
        assert record.headers == (("other", b"x"),)


def test_secrets_are_expanded_where_they_are_needed_and_never_shown(
    running: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ss.SchemaRegistry(
        running.url.replace("//", "//joe:hidden@"),
        bearer_auth_token="${TOKEN}",
        ssl_key_password="x",
    )
    assert "hidden" not in repr(registry)
    assert "joe" not in repr(registry)
    assert "TOKEN" not in repr(registry)
    logged_in = asked(running, basic_auth_user_info="${REGISTRY_LOGIN}")
    serde = serdes.avro(ORDER_1, registry=logged_in).at("secret", "value")
    monkeypatch.delenv("REGISTRY_LOGIN", raising=False)
    with pytest.raises(
        InvalidSetting, match=r"refers to \$\{REGISTRY_LOGIN\}: set that environment"
    ):
        serde.serialize({"customer": "ann", "cents": 5})
    monkeypatch.setenv("REGISTRY_LOGIN", "joe:hidden")
    assert serde.serialize({"customer": "ann", "cents": 5})


def test_a_user_in_the_url_logs_in_and_is_in_no_message(
    running: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    url = running.url.replace("//", "//joe:hid%40den@")
    caplog.set_level(logging.DEBUG)
    serde = serdes.avro(ORDER_1, registry=asked(running, subjects="record"))
    with_user = serdes.avro(ORDER_1, registry=ss.SchemaRegistry(url, auto_register=True))
    order = {"customer": "ann", "cents": 5}
    assert serde.at("user", "value").serialize(order)
    assert with_user.at("user", "value").serialize(order)
    wrong = ss.SchemaRegistry(url.replace("http:", "other:"))
    with pytest.raises(InvalidSetting, match="Invalid url") as refused:
        serdes.avro(ORDER_1, registry=wrong).at("user", "value").serialize(order)
    assert refused.value.__cause__ is None
    for text in (caplog.text, str(refused.value)):
        assert "hid" not in text
        assert "joe" not in text


def test_wrong_arguments_are_refused(running: Registry) -> None:
    with pytest.raises(Misuse, match="pass one of topic, record, topic-record"):
        ss.SchemaRegistry(running.url, subjects="else")
    unknown = ss.SchemaRegistry(running.url, no_such_thing=1)
    with pytest.raises(InvalidSetting, match=r"no\.such\.thing"):
        serdes.avro(ORDER_1, registry=unknown).at("t", "value").serialize(
            {"customer": "a", "cents": 1}
        )
