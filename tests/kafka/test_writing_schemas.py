"""Rows of Spark with the serdes of a schema registry, with a real one and a real broker."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql.pandas.types import from_arrow_schema

from statestore.errors import Misuse, RecordFailed, Unavailable
from statestore.spark.writing import attempts
from statestore.spark.writing.attempts import EncodedChunk
from statestore.spark.writing.encoding import Encoder, check_columns, settle_schemas
from statestore.spark.writing.kafka_sink import BatchWriter
from statestore.spark.writing.markers import WritePart
from statestore.spark.writing.write_options import WritePlan, plan_of
from statestore.testing.local_kafka import LocalKafka
from tests import order_pb2
from tests.kafka.run_rig import name_of
from tests.kafka.writing_rig import Sink, committed
from tests.schema_registry_rig import Registry, started_registry
from tests.tiers import first_of

Message: Any = order_pb2.Order  # type: ignore[attr-defined]  # made at run time
pytestmark = pytest.mark.kafka
ORDER = (
    '{"type":"record","name":"Order","namespace":"shop","fields":'
    '[{"name":"customer","type":"string"},{"name":"cents","type":"long"}]}'
)
WITH_COUPON = ORDER.replace("]}", ',{"name":"coupon","type":["null","string"],"default":null}]}')
OTHER_CENTS = ORDER.replace('"long"', '"string"')
JSON_ORDER = (
    '{"title":"Order","type":"object","properties":{"customer":{"type":"string"},'
    '"cents":{"type":"integer"}},"required":["cents"]}'
)
ORDERS = [{"customer": "ann", "cents": 5}, None, {"customer": "bob", "cents": 7}]
KIND = pa.struct([("customer", pa.string()), ("cents", pa.int64())])
BATCH = pa.RecordBatch.from_pydict({"key": ["a", None, "b"], "value": pa.array(ORDERS, KIND)})


running = pytest.fixture(scope="module")(started_registry)


def plan(running: Registry, topic: str, **options: str) -> WritePlan:
    """A plan without a broker; options of the registry are given by what follows its dot."""
    ours = ("auto_register", "subjects", "ids", "max_retries")
    given = {f"schema_registry.{name}" if name in ours else name: options[name] for name in options}
    fixed = {"kafka.bootstrap.servers": "localhost:1", "topic": topic, "query": "q"}
    fixed |= {"valueSerde": "avro", "schema_registry": running.url}
    return plan_of(fixed | given, streaming=False)


def settle(plan: WritePlan, batch: pa.RecordBatch = BATCH) -> None:
    """What the driver does before anything is written."""
    schema = from_arrow_schema(batch.schema)
    check_columns(plan, schema)
    settle_schemas(plan, schema)


def chunk(plan: WritePlan, batch: pa.RecordBatch = BATCH) -> EncodedChunk:
    """What a task makes of the rows."""
    (found,) = Encoder(plan, 3).chunks([batch])
    return found


@pytest.mark.parametrize("form", first_of(["avro", "json_schema", "protobuf"]))
def test_structs_are_written_once_in_the_wire_format_of_confluents_clients(
    running: Registry, kafka: LocalKafka, request: pytest.FixtureRequest, form: str
) -> None:
    schema = {"avro": ORDER, "json_schema": JSON_ORDER, "protobuf": "tests.order_pb2:Order"}[form]
    given = {"valueSerde": form, "valueSchema": schema, "schema_registry": running.url}
    given["schema_registry.auto_register"] = "true"
    sink = Sink(kafka, name_of(request.node.name), given).create()
    settle(sink.plan)
    assert f"{sink.name}-value" in running.subjects(), "it is registered before any row"
    for _ in range(2):
        begun = sink.begin()
        part = WritePart(sink.name, begun.name, 0, 0)
        sink.finish(
            [attempts.write(begun, part, Encoder(sink.plan, 0).chunks([BATCH]), hand_over=False)]
        )
    with SchemaRegistryClient({"url": running.url}) as client:
        read: Any = {
            "avro": lambda: AvroDeserializer(client),
            "json_schema": lambda: JSONDeserializer(None, schema_registry_client=client),
            "protobuf": lambda: ProtobufDeserializer(Message, {}, client),
        }[form]()
        context = SerializationContext(sink.name, MessageField.VALUE, [])
        found = [read(m.value(), context) for m in committed(kafka.bootstrap_servers, sink.name)]
    expected = [None if one is None or form != "protobuf" else Message(**one) for one in ORDERS]
    wanted = expected if form == "protobuf" else ORDERS
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_a_digest_does_not_depend_on_ids_or_on_which_schema_is_the_latest(
    running: Registry,
) -> None:
    running.register("latest-value", ORDER)
    before = chunk(plan(running, "latest"))
    newer = running.register("latest-value", WITH_COUPON)
    # In another process, which has not asked before; a URL of its own stands for it.
    elsewhere = Registry(0, running._process)
    elsewhere.url = running.url + "/"
    after = chunk(plan(elsewhere, "latest"))
    (first, *_), (second, *_) = before.rows[0].values, after.rows[0].values
    assert first is not None
    assert second is not None
    assert first[:5] != second[:5] == b"\0" + newer.to_bytes(4)
    assert first[5:] != second[5:], "the coupon has a byte"
    assert before.contents == after.contents
    in_headers = chunk(plan(running, "latest", ids="headers"))
    assert in_headers.rows[0].headers is not None
    assert [len(headers) for headers in in_headers.rows[0].headers] == [1, 0, 1]
    assert in_headers.contents == before.contents
    others = BATCH.set_column(1, "value", pa.array([*ORDERS[:2], {"cents": 8}], KIND))
    with pytest.raises(RecordFailed, match="row 2 of Spark partition 3: column 'value' for topic"):
        chunk(plan(running, "latest"), others)


def test_what_the_subject_does_not_allow_is_refused_before_a_row_is_written(
    running: Registry,
) -> None:
    running.ask("/config/strict-value", {"compatibility": "BACKWARD"}, "PUT")
    running.register("strict-value", ORDER)
    other = BATCH.set_column(1, "value", pa.array([{"customer": "a", "cents": "5"}] * 3))
    given = plan(running, "strict", valueSchema=OTHER_CENTS, auto_register="true")
    said = r"column 'value' for topic strict: .*AVRO\(shop\.Order\).*compatib"
    with pytest.raises(Misuse, match=said):
        settle(given, other)
    assert running.ask("/subjects/strict-value/versions") == [1]
    settle(plan(running, "strict", valueSchema=WITH_COUPON, auto_register="true"))


def test_a_schema_that_is_missing_or_lacks_a_field_is_refused_before_a_row_is_written(
    running: Registry,
) -> None:
    for options in ({}, {"valueSchema": ORDER}):
        with pytest.raises(Misuse, match=r"column 'value' for topic nothing: .*auto_register"):
            settle(plan(running, "nothing", **options))
    running.register("narrow-value", ORDER)
    wide = pa.array([{"customer": "a", "cents": 5, "coupon": "x"}] * 3)
    with pytest.raises(Misuse, match="'coupon', which its Avro schema has not"):
        settle(plan(running, "narrow"), BATCH.set_column(1, "value", wide))


def test_a_writer_whose_schema_was_refused_is_refused_again(
    running: Registry, kafka: LocalKafka, request: pytest.FixtureRequest
) -> None:
    given = {"valueSerde": "avro", "valueSchema": ORDER, "schema_registry": running.url}
    sink = Sink(kafka, name_of(request.node.name), given).create()
    writer = BatchWriter(sink.plan, from_arrow_schema(BATCH.schema))
    for _ in range(2):
        with pytest.raises(Misuse, match=r"column 'value' for topic .*auto_register"):
            pickle.dumps(writer)


def test_topics_of_a_column_have_subjects_of_their_own_and_the_registry_is_asked_once_for_each(
    running: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    topics = ["col-a", "col-b", "col-a"]
    batch = BATCH.append_column("topic", pa.array(topics))
    batch = batch.set_column(1, "value", pa.array([ORDERS[0]] * 3, KIND))
    given = plan(running, "", valueSchema=ORDER, auto_register="true")
    settle(given, batch)
    with caplog.at_level("INFO"):
        found = [one for _ in range(2) for one in Encoder(given, 0).chunks([batch] * 3)]
    assert [rows.topic for one in found for rows in one.rows] == ["col-a", "col-b"] * 6
    asked = [one for one in caplog.messages if "HTTP Request" in one]
    assert [sum(topic in one for one in asked) for topic in ("col-a", "col-b")] == [1, 1]
    assert len(asked) == 2
    assert {"col-a-value", "col-b-value"} <= set(running.subjects())


def test_a_registry_that_is_away_is_unavailable_and_shows_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "abc123")
    url = "http://me@localhost:1"
    with pytest.raises(Misuse, match="as they are"):
        plan(_at(url), "away")
    given = plan(
        _at("http://${USER:-me}:${REGISTRY_PASSWORD}@localhost:1"), "away", max_retries="0"
    )
    with pytest.raises(Unavailable) as told:
        settle(given)
    with pytest.raises(Unavailable, match="row 0 of Spark partition 3: column 'value'") as row:
        chunk(given)
    assert "abc123" not in f"{told.value!r} {row.value!r} {given!r}"


def _at(url: str) -> Registry:
    made = Registry(0, None)  # type: ignore[arg-type]  # nothing runs there
    made.url = url
    return made
