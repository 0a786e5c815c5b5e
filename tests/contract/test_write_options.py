"""What `transactional_kafka` refuses before anything is written, and what rows become."""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from statestore import SchemaRegistry, serdes
from statestore.errors import InvalidSetting, Misuse, RecordFailed
from statestore.spark import TransactionalKafka
from statestore.spark.registry_options import registry_of
from statestore.spark.writing.attempts import EncodedChunk
from statestore.spark.writing.checkpoints import Checkpoint
from statestore.spark.writing.encoding import Encoder, check_columns, settle_schemas
from statestore.spark.writing.markers import (
    AttemptBegun,
    Contents,
    Entry,
    Finished,
    Intent,
    Known,
    encoded,
)
from statestore.spark.writing.write_options import plan_of
from tests import order_pb2

Message: Any = order_pb2.Order  # type: ignore[attr-defined]  # made at run time
ORDER = (
    '{"type":"record","name":"Order","namespace":"shop","fields":'
    '[{"name":"customer","type":"string"},{"name":"cents","type":"long"}]}'
)
AVRO = {
    "valueSerde": "avro",
    "valueSchema": '{"type":"record","name":"A","fields":[{"name":"a","type":"long"}]}',
}
AVRO_OF = {"valueSerde": "avro", "schema_registry": "https://${USER}:${PASSWORD}@r"}
GIVEN = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "query": "q"}


KINDS: Mapping[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "map": MapType(StringType(), BinaryType()),
    "struct": StructType([StructField("a", IntegerType())]),
}


def schema(text: str) -> StructType:
    """Columns as in "key string, value int"; Spark's own parser needs its JVM."""
    pairs = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kafka.transactional.id": "x"}, r"leave kafka\.transactional\.id out"),
        ({"kafka.enable.idempotence": "false"}, r"kafka\.enable\.idempotence = 'false'"),
        ({"kafka.acks": "1"}, r"kafka\.acks = '1': the guarantees depend on 'all'"),
        ({"kafka.value.serializer": "x"}, "valueSerde"),
        ({"markerTopic": "t"}, "'t' is the topic of the rows, too"),
        ({"atomic": "rows"}, "want partition or batch"),
        ({"batchId": "-1"}, "want a whole number"),
        ({"batchId": "9" * 5000}, "want a whole number"),
        ({"firstBatch": "3"}, "firstBatch is for streams"),
        ({"kafka.max.block.ms": "1"}, r"Java clients: leave it out: kafka\.default\.api\.timeout"),
        ({"kafka.ssl.truststore.location": "/a.jks"}, r"as PEM, and pass kafka\.ssl\.ca\.location"),
        ({"kafka.sasl.jaas.config": "a.Krb5LoginModule required;"}, r"kafka\.sasl\.username"),
        ({"kafka.buffer.memory": "32m"}, "whole number of bytes"),
        ({"kafka.buffer.memory": "9" * 5000}, "whole number of bytes"),
        (
            {"kafka.max.request.size": "2000", "kafka.message.max.bytes": "3000"},
            "say the same thing: pass one",
        ),
        ({"query": "a/b"}, "names a topic"),
        ({"query": ""}, r'pass \.option\("query"'),
        ({"checkpoint": "x"}, "no option 'checkpoint'"),
        ({"includeHeaders": "maybe"}, "true or false"),
        ({"valueSerde": "nonesuch"}, "valueSerde: no serde named"),
        ({"kafka.bootstrap.servers": ""}, r"kafka\.bootstrap\.servers"),
        ({"valueSerde": "avro"}, "AVRO has no schema: pass valueSchema"),
        ({"valueSerde": "avro", "valueSchema": "{}"}, "no Avro schema"),
        ({"keySerde": "int64", "keySchema": "x"}, "INT64 takes no schema"),
        ({"valueSchema": "x"}, "valueSchema without valueSerde"),
        ({"valueSerde": "protobuf", "schema_registry": "http://r"}, "pass valueSchema, module:M"),
        ({"valueSerde": "protobuf", "valueSchema": "nowhere:A"}, "want module:Message"),
        ({"schema_registry": "http://r"}, "neither keys nor values are of a registry"),
        ({"schema_registry.ids": "headers"}, "without schema_registry"),
        (AVRO_OF | {"schema_registry": "http://me:abc@r"}, r"write https://\$\{USER\}"),
        (AVRO_OF | {"schema_registry.bearer_auth_token": "abc"}, r"token.*write \$\{VARIABLE\}"),
        (AVRO_OF | {"schema_registry.basic_auth_user_info": "me:abc"}, "in place of the secret"),
        (AVRO_OF | {"schema_registry.basic.auth.user.info": "me:abc"}, "in place of the secret"),
        (AVRO_OF | {"schema_registry.proxy": "http://me:abc@p"}, "in place of the secret"),
        (AVRO_OF | {"schema_registry.url": "http://r"}, "pass the URL as schema_registry"),
        (AVRO_OF | {"schema_registry.subjects": "x"}, "topic, record, topic-record"),
        (AVRO_OF | {"schema_registry.auto_register": "x"}, "true or false"),
    ],
)
def test_an_option_that_is_wrong_is_refused_by_name(options: Mapping[str, str], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        plan_of(GIVEN | dict(options), streaming=False)


@pytest.mark.parametrize("text", ["0042", "42", "9" * 20])
@pytest.mark.parametrize("name", ["bearer_auth_client_id", "bearer.auth.client.id"])
def test_a_text_of_the_registrys_client_may_have_only_digits(name: str, text: str) -> None:
    options = {"schema_registry": "http://r", f"schema_registry.{name}": text}
    assert registry_of(options, "s") == SchemaRegistry("http://r", bearer_auth_client_id=text)


@pytest.mark.parametrize("name", ["timeout", "cache_capacity", "max.retries"])
def test_a_number_of_the_registrys_client_is_one(name: str) -> None:
    options = {"schema_registry": "http://r", f"schema_registry.{name}": "7"}
    assert registry_of(options, "s") == SchemaRegistry("http://r", **{name: 7})  # type: ignore[arg-type]  # properties
    assert registry_of(options, "s") != SchemaRegistry("http://r", **{name: "7"})  # type: ignore[arg-type]  # properties


def test_settings_of_kafkas_java_clients_become_those_of_ours() -> None:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required "
    given = {
        "kafka.max.request.size": "2000000",
        "kafka.buffer.memory": "33554432",
        "kafka.sasl.jaas.config": login + """username='me' password="a\\"b;c=d";""",
    }
    settings = plan_of(GIVEN | given, streaming=False).output.settings
    told = {
        "producer.message.max.bytes": "2000000",
        "producer.queue.buffering.max.kbytes": "32768",
        "sasl.username": "me",
        "sasl.password": 'a"b;c=d',
    }
    assert {name: settings[name] for name in told} == told


def test_a_java_login_that_cannot_be_read_is_not_shown() -> None:
    given = {"kafka.sasl.jaas.config": 'a.OAuthBearerLoginModule required clientSecret="abc";'}
    with pytest.raises(Misuse) as refused:
        plan_of(GIVEN | given, streaming=False)
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("json_schema", '{"type":"object"}'),
        ("avro", '["null",{"type":"record","name":"A","fields":[]}]'),
    ],
)
@pytest.mark.parametrize("subjects", ["record", "topic-record"])
def test_a_schema_without_a_name_has_no_subject_that_goes_by_it(
    name: str, text: str, subjects: str
) -> None:
    registry = {"schema_registry": "http://localhost:1", "schema_registry.subjects": subjects}
    plan = plan_of(GIVEN | registry | {"valueSerde": name, "valueSchema": text}, streaming=False)
    with pytest.raises(Misuse, match=r"names no record.*give the schema a name"):
        settle_schemas(plan, schema("value struct"))


def test_a_client_setting_that_is_wrong_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidSetting, match=r"nonsense"):
        plan_of(GIVEN | {"kafka.nonsense": "1"}, streaming=False)


def test_what_depends_on_the_kind_of_write_is_refused() -> None:
    with pytest.raises(Misuse, match="leave batchId out"):
        plan_of(GIVEN | {"batchId": "1"}, streaming=True)
    with pytest.raises(Misuse, match="overwritten"):
        TransactionalKafka(dict(GIVEN)).writer(schema("value string"), overwrite=True)
    with pytest.raises(Misuse, match="append"):
        TransactionalKafka(dict(GIVEN)).streamWriter(schema("value string"), overwrite=True)


def test_the_query_of_a_stream_is_that_of_its_checkpoint(tmp_path: Path) -> None:
    given = {name: text for name, text in GIVEN.items() if name != "query"}
    given["checkpointLocation"] = tmp_path.as_uri()
    with pytest.raises(Misuse, match="id of the checkpoint cannot be read"):
        plan_of(given, streaming=True)
    (tmp_path / "metadata").write_text(json.dumps({"id": "6fd0-77"}), encoding="utf-8")
    assert plan_of(given, streaming=True).output.query == "6fd0-77"
    with pytest.raises(Misuse, match="which output is it"):
        plan_of(given, streaming=False)
    with pytest.raises(Misuse, match="is in s3a"):
        plan_of(given | {"checkpointLocation": "s3a://bucket/a"}, streaming=True)


def test_a_checkpoint_is_of_one_output(tmp_path: Path) -> None:
    def require(query: str, **options: str) -> None:
        named = {"checkpointLocation": tmp_path.as_uri(), "query": query}
        plan = plan_of(GIVEN | named | options, streaming=True)
        assert plan.checkpoint is not None
        output = plan.output
        plan.checkpoint.require_output(output.query, output.marker_topic, plan.first_batch)

    require("a")
    assert not list(tmp_path.iterdir()), "Spark has its checkpoint in another file system"
    (tmp_path / "metadata").write_text(json.dumps({"id": "6fd0-77"}), encoding="utf-8")
    for _ in range(2):
        require("a")
    for options in ({}, {"firstBatch": "0"}):
        with pytest.raises(Misuse, match=r"output 'b': .* is of output 'a' .* go back to that"):
            require("b", **options)
    with pytest.raises(Misuse, match="markerTopic"):
        require("a", markerTopic="others")
    require("a")
    # Whoever says where the other output begins has looked; once, not for good.
    require("b", firstBatch="3")
    require("b", firstBatch="3")
    with pytest.raises(Misuse, match="is of output 'b'"):
        require("a", firstBatch="3")
    require("b")
    (note,) = set(tmp_path.iterdir()) - {tmp_path / "metadata"}
    note.write_text("{", encoding="utf-8")
    with pytest.raises(Misuse, match="cannot be read"):
        require("b")
    note.unlink()
    require("a")
    # Spark notes the offsets of a batch before it plans it, and none of continuous processing.
    checkpoint = Checkpoint(str(tmp_path), given=False)
    checkpoint.require_batch()
    (tmp_path / "offsets").mkdir()
    with pytest.raises(Misuse, match="use trigger"):
        checkpoint.require_batch()
    (tmp_path / "offsets" / "0").touch()
    checkpoint.require_batch()
    elsewhere = GIVEN | {"checkpointLocation": "s3a://bucket/a"}
    assert plan_of(elsewhere, streaming=True).checkpoint is None


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("key string", "`value` is missing"),
        ("value int", r"'value' is int: want string or binary, or pass valueSerde"),
        ("value string, offset bigint", "no record has 'offset'"),
        ("value string, partition bigint", "want int"),
        ("value string, topic binary", "want string"),
        ("value string, timestamp bigint", "want timestamp"),
        ("value string, headers map", "want array<struct<key:string,value:binary>>"),
        ("value string, value binary", "twice"),
    ],
)
def test_a_column_that_cannot_be_written_is_refused_by_name(columns: str, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        check_columns(plan_of(GIVEN, streaming=False), schema(columns))


def test_rows_without_a_topic_are_refused_at_the_start() -> None:
    given = GIVEN | {"topic": ""}
    with pytest.raises(Misuse, match="topic"):
        check_columns(plan_of(given, streaming=False), schema("value string"))
    check_columns(plan_of(given, streaming=False), schema("value string, topic string"))
    check_columns(
        plan_of(given | {"valueSerde": "json"}, streaming=False),
        schema("value struct, topic string"),
    )


@pytest.mark.parametrize(
    "kind",
    [
        VariantType(),
        ArrayType(StructType([StructField("a", VariantType())])),
        MapType(StringType(), VariantType()),
    ],
)
def test_a_variant_is_refused_where_a_serde_would_write_its_binary_form(kind: DataType) -> None:
    plan = plan_of(GIVEN | {"valueSerde": "json"}, streaming=False)
    with pytest.raises(Misuse, match=r"'value' is .*variant.*: no serde reads.*to_json"):
        check_columns(plan, StructType([StructField("value", kind)]))


def chunks(columns: Mapping[str, Any], **options: str) -> list[EncodedChunk]:
    plan = plan_of(GIVEN | options, streaming=False)
    return list(Encoder(plan, 3).chunks([pa.RecordBatch.from_pydict(dict(columns))]))


def test_columns_become_the_fields_of_records() -> None:
    moment = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    columns = {
        "key": ["k", None],
        "value": pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())])),
        "topic": ["one", "two"],
        "partition": pa.array([None, 4], pa.int32()),
        "timestamp": [moment, None],
        "headers": headers,
    }
    (chunk,) = chunks(columns, topic="", valueSerde="json")
    one, two = chunk.rows
    assert (one.topic, one.keys, one.values) == ("one", [b"k"], [b'{"a":1}'])
    assert (one.times, one.partitions) == ([int(moment.timestamp() * 1000)], [None])
    assert one.headers == [(("h", b"1"),)]
    assert (two.topic, two.keys, two.values, two.headers) == ("two", [None], [None], [()])
    assert (two.times, two.partitions) == ([None], [4])
    assert two.records().timestamps[0] > int(moment.timestamp() * 1000)
    (chunk,) = chunks(columns, valueSerde="json", includeHeaders="false")
    assert [(rows.topic, rows.headers) for rows in chunk.rows] == [("t", None)]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"value": ["a", "b"], "topic": ["t", None]}, {"topic": ""}, "row 1 of Spark partition 3"),
        (
            {"value": ["a", "b"], "topic": ["t", "q-spark-markers"]},
            {"topic": ""},
            "row 1 .* the topic of the markers",
        ),
        ({"value": ["a"], "partition": [-2]}, {}, "partition -2"),
        ({"value": ["a"], "timestamp": pa.array([-5], pa.timestamp("us"))}, {}, "before 1970"),
        ({"value": ["text"]}, {"valueSerde": "int64"}, "row 0 .* column 'value' .* type str"),
        ({"value": [{"a": 1}, {"a": None}]}, AVRO, r"row 1 .* column 'value' for topic t.*AVRO"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    columns: Mapping[str, Sequence[Any]], options: Mapping[str, str], said: str
) -> None:
    with pytest.raises(RecordFailed, match=said):
        chunks(columns, **options)


def test_structs_become_avro_and_protobuf_without_a_registry() -> None:
    kinds = {"customer": pa.string(), "cents": pa.int64()}
    column = pa.array([{"customer": "ann", "cents": 5}, None], pa.struct(list(kinds.items())))
    avro = serdes.avro(ORDER)
    (chunk,) = chunks({"value": column}, valueSerde="Avro".lower(), valueSchema=ORDER)
    assert chunk.rows[0].values == [avro.serialize({"customer": "ann", "cents": 5}), None]
    given = {"valueSerde": "PROTOBUF", "valueSchema": "tests.order_pb2:Order"}
    (chunk,) = chunks({"value": column}, **given)
    assert chunk.rows[0].values == [Message(customer="ann", cents=5).SerializeToString(), None]
    with pytest.raises(RecordFailed, match=r"row 0 .*PROTOBUF"):
        chunks({"value": [{"nothing": 1}]}, **given)


def test_a_field_that_the_avro_schema_has_not_is_refused_before_any_row() -> None:
    given = GIVEN | {"valueSerde": "avro", "valueSchema": ORDER}
    fields = [StructField("customer", StringType()), StructField("sum", LongType())]
    rows = StructType([StructField("value", StructType(fields))])
    with pytest.raises(Misuse, match="column 'value' has the field 'sum'"):
        check_columns(plan_of(given, streaming=False), rows)


def contents(*rows: tuple[str | None, str | None], **options: str) -> Contents:
    keys, values = zip(*rows, strict=True)
    (chunk,) = chunks({"key": pa.array(keys, pa.string()), "value": list(values)}, **options)
    return chunk.contents


def test_a_digest_depends_on_rows_and_not_on_their_order() -> None:
    whole = contents(("a", "1"), ("b", "2"), (None, "3"))
    assert whole == contents((None, "3"), ("b", "2"), ("a", "1"))
    assert whole == contents(("b", "2")) + contents((None, "3"), ("a", "1"))
    others = [
        contents(("a", "2"), ("b", "1"), (None, "3")),
        contents(("a", "1"), ("b", "2"), ("None", "3")),
        contents(("a", "1"), ("b", "2"), ("", "3")),
        contents(("1", "a"), ("b", "2"), (None, "3")),
        contents(("a", "1"), ("b", "2"), (None, "3"), topic="u"),
    ]
    assert len({other.digest for other in [whole, *others]}) == len(others) + 1


def known(*entries: Entry) -> Known:
    return Known().with_values([encoded(entry)[1] for entry in entries])


def test_what_may_still_be_written_is_known_after_any_history() -> None:
    begun: list[Entry] = [AttemptBegun("a"), Intent("a", 0), Intent("a", 1)]
    more = Contents(1, 7)
    assert known(*begun).unsettled == [0, 1]
    done = Finished("a", 0, (0,), more)
    assert known(*begun, done).unsettled == [1], "a copy of a task without rows may come late"
    other: list[Entry] = [AttemptBegun("b"), Intent("b", 5)]
    assert known(*begun, *other, done).unsettled == [0, 1, 5], "a driver that was replaced"
    assert known(*begun, done, *other, Finished("b", 1, (5,), more)).unsettled == []
    late = known(Finished("b", 1, (0,), more), Finished("a", 0, (0,), more))
    assert late.newest_batch == 1
    assert late.finished_of(1) is not None
