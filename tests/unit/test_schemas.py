"""Which schemas read what others wrote: JSON Schema of typed classes, Avro, Protobuf."""

import base64
import copy
import io
import json
import random
from dataclasses import dataclass, make_dataclass
from typing import Any, Literal

import fastavro
import msgspec
import pytest
from fastavro.utils import generate_many
from google.protobuf import descriptor_pb2

from statestore.model.records import Schema
from statestore.serdes.schemas import same_but_for_notes, unreadable

FieldType = descriptor_pb2.FieldDescriptorProto


def typed(**fields: Any) -> Schema:
    """The schema of a dataclass; a tuple is a type and a default."""
    listed = [
        (name, *told) if isinstance(told, tuple) else (name, told) for name, told in fields.items()
    ]
    required: list[Any] = [one for one in listed if len(one) == 2]
    optional = [one for one in listed if len(one) == 3]
    made = make_dataclass("Made", required + optional)
    return of_type(made)


def of_type(kind: Any) -> Schema:
    return Schema("JSON", json.dumps(msgspec.json.schema(kind), sort_keys=True))


@dataclass
class Inner:
    x: int


@dataclass
class WiderInner:
    x: float
    y: int = 0


class Tree(msgspec.Struct):
    """A type that has itself as a part."""

    value: int
    children: "list[Tree]" = []


class Row(msgspec.Struct, array_like=True):
    a: int


class LongerRow(msgspec.Struct, array_like=True):
    a: int
    b: int = 0


class LongerRequiredRow(msgspec.Struct, array_like=True):
    a: int
    b: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int


JSON_CASES = [
    (typed(a=int), typed(a=int), None),
    (typed(a=int), typed(a=int, b=(str, "")), None),
    (typed(a=int), typed(a=int, b=str), "'b' of the value is required and may be missing"),
    (typed(a=int, b=str), typed(a=int), None),
    (typed(a=int), typed(a=float), None),
    (typed(a=float), typed(a=int), "'a' is integer and was number"),
    (typed(a=int), typed(a=str), "'a' is string and was integer"),
    (typed(a=int), typed(a=(int | None, None)), None),
    (typed(a=(int | None, None)), typed(a=(int, 0)), "'a' is integer and was null"),
    (typed(a=int), typed(a=int | str), None),
    (typed(a=int | str), typed(a=int), "is integer and was string"),
    (typed(a=bool), typed(a=int | str), "none of the types"),
    (typed(a=int), typed(a=Any), None),
    (typed(a=Any), typed(a=int), "could be anything"),
    (typed(a=list[int]), typed(a=list[float]), None),
    (typed(a=list[int]), typed(a=list[str]), "each item of the field 'a'"),
    (typed(a=dict[str, int]), typed(a=dict[str, str]), "each value of the field 'a'"),
    (typed(a=Inner), typed(a=WiderInner), None),
    (typed(a=WiderInner), typed(a=Inner), "'x' is integer and was number"),
    (typed(a=Literal["x"]), typed(a=Literal["x", "y"]), None),
    (typed(a=Literal["x", "y"]), typed(a=Literal["x"]), "fewer possible values"),
    (typed(a=Literal["x"]), typed(a=str), None),
    (typed(a=str), typed(a=Literal["x"]), "fewer possible values"),
    (typed(a=int), of_type(Strict), None),
    (typed(a=int, b=int), of_type(Strict), "'b' is no longer allowed"),
    (of_type(Tree), of_type(Tree), None),
    (of_type(Row), of_type(LongerRow), None),
    (of_type(Row), of_type(LongerRequiredRow), "minItems"),
    (typed(a=int), of_type(Row), "array and was object"),
    (typed(a=tuple[int, int]), typed(a=tuple[int, str]), "item 1 of the field 'a'"),
    (
        of_type(int),
        Schema("JSON", '{"type": "integer", "minimum": 3}'),
        "limit minimum = 3",
    ),
    (
        Schema("JSON", '{"type": "integer", "minimum": 5}'),
        Schema("JSON", '{"type": "integer", "minimum": 3}'),
        None,
    ),
    (
        Schema("JSON", '{"type": "string"}'),
        Schema("JSON", '{"type": "string", "pattern": "^a"}'),
        "pattern",
    ),
    (
        Schema("JSON", '{"type": ["string", "null"]}'),
        Schema("JSON", '{"type": "string"}'),
        "string and was null",
    ),
    (Schema("JSON", "true"), Schema("JSON", "{}"), None),
    (Schema("JSON", "{}"), Schema("AVRO", '"int"'), "JSON became AVRO"),
]


@pytest.mark.parametrize(("writer", "reader", "reason"), JSON_CASES)
def test_a_json_reader_takes_what_its_fields_and_types_allow(
    writer: Schema, reader: Schema, reason: str | None
) -> None:
    found = unreadable(writer, reader)
    assert found is None if reason is None else found is not None and reason in found, found


def avro(schema: Any) -> Schema:
    return Schema("AVRO", json.dumps(schema))


def record(*fields: tuple[Any, ...], name: str = "shop.A") -> dict[str, Any]:
    listed = [dict(zip(("name", "type", "default"), one, strict=False)) for one in fields]
    return {"type": "record", "name": name, "fields": listed}


ENUM = {"type": "enum", "name": "E", "symbols": ["a", "b"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
AVRO_CASES = [
    (record(("a", "int")), record(("a", "int"), ("b", "string", "")), None),
    (
        record(("a", "int")),
        record(("a", "int"), ("b", "string")),
        "'b' was added without a default",
    ),
    (record(("a", "int"), ("b", "string")), record(("a", "int")), None),
    (record(("a", "int")), record(("a", "double")), None),
    (record(("a", "double")), record(("a", "int")), "'a' is int and was double"),
    (record(("a", "int")), record(("a", ["null", "int"])), None),
    (record(("a", ["null", "int"])), record(("a", "int")), "'a' is int and was null"),
    (record(("a", "int")), record(("a", ["null", "string"])), "which the union does not have"),
    (record(("a", ENUM)), record(("a", {**ENUM, "symbols": ["a", "b", "c"]})), None),
    (
        record(("a", ENUM)),
        record(("a", {**ENUM, "symbols": ["a"]})),
        "no longer has the symbol 'b'",
    ),
    (record(("a", ENUM)), record(("a", {**ENUM, "symbols": ["a"], "default": "a"})), None),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, None),
    ("string", "bytes", None),
    ("bytes", "string", "the value is string and was bytes"),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "each value"),
    (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "F", "size": 8},
        "8 bytes and had 4",
    ),
    (record(("a", "int")), record(("a", "int"), name="shop.B"), "was shop.A: give it an alias"),
    (record(("a", "int")), {**record(("a", "int"), name="shop.B"), "aliases": ["shop.A"]}, None),
    (DECIMAL, {**DECIMAL, "scale": 3}, "another decimal"),
    (DECIMAL, "bytes", "another decimal"),
    (
        record(("a", ["null", "shop.A"], None)),
        record(("a", ["null", "shop.A"], None), ("b", "int", 0)),
        None,
    ),
    (
        record(("old", "int")),
        {
            "type": "record",
            "name": "shop.A",
            "fields": [{"name": "new", "aliases": ["old"], "type": "int"}],
        },
        None,
    ),
]


@pytest.mark.parametrize(("writer", "reader", "reason"), AVRO_CASES)
def test_an_avro_reader_resolves_the_writers_schema(
    writer: Any, reader: Any, reason: str | None
) -> None:
    found = unreadable(avro(writer), avro(reader))
    assert found is None if reason is None else found is not None and reason in found, found


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [case for case in AVRO_CASES if case[2] != "another decimal"],
)
def test_fastavro_reads_what_is_said_to_be_readable_and_fails_over_the_rest(
    writer: Any, reader: Any, reason: str | None
) -> None:
    random.seed(1)
    parsed = fastavro.parse_schema(copy.deepcopy(writer))
    failed = 0
    for value in generate_many(parsed, 50):
        data = io.BytesIO()
        fastavro.schemaless_writer(data, parsed, value)
        data.seek(0)
        try:
            fastavro.schemaless_reader(data, parsed, fastavro.parse_schema(copy.deepcopy(reader)))
        except Exception:  # noqa: BLE001  # it raises errors of many kinds
            failed += 1
    assert (failed > 0) == (reason is not None), f"{failed} of 50 failed"


def protobuf(*fields: tuple[int, str, int], inner: tuple[tuple[int, str, int], ...] = ()) -> Schema:
    """A message of fields, each a number, a name and a type."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="a.proto", package="shop")
    for name, listed in (("A", fields), ("Inner", inner)):
        message = file.message_type.add(name=name)
        for number, field, kind in listed:
            made = message.field.add(number=number, name=field, type=kind, label=1)
            if kind == FieldType.TYPE_MESSAGE:
                made.type_name = ".shop.Inner"
    return Schema("PROTOBUF", base64.b64encode(files.SerializeToString()).decode() + "#shop.A")


INT, LONG, TEXT, MESSAGE = 5, 3, 9, 11
PROTOBUF_CASES = [
    (protobuf((1, "a", INT)), protobuf((1, "a", INT), (2, "b", TEXT)), None),
    (protobuf((1, "a", INT)), protobuf((1, "renamed", INT)), None),
    (protobuf((1, "a", INT)), protobuf((1, "a", LONG)), None),
    (protobuf((1, "a", LONG)), protobuf((1, "a", INT)), "fewer bits"),
    (protobuf((1, "a", INT)), protobuf((1, "a", TEXT)), "another type on the wire"),
    (protobuf((1, "a", INT), (2, "b", INT)), protobuf((1, "a", INT)), None),
    (
        protobuf((1, "a", MESSAGE), inner=((1, "x", INT),)),
        protobuf((1, "a", MESSAGE), inner=((1, "x", TEXT),)),
        "'x' has another type",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "reason"), PROTOBUF_CASES)
def test_a_protobuf_reader_goes_by_the_numbers_of_fields(
    writer: Schema, reader: Schema, reason: str | None
) -> None:
    found = unreadable(writer, reader)
    assert found is None if reason is None else found is not None and reason in found, found


def test_keys_have_the_same_bytes_only_under_schemas_that_differ_in_notes() -> None:
    described = {**record(("a", "int")), "doc": "a key"}
    assert same_but_for_notes(avro(record(("a", "int"))), avro(described))
    assert not same_but_for_notes(
        avro(record(("a", "int"))), avro(record(("a", "int"), ("b", "int", 0)))
    )
    assert not same_but_for_notes(typed(title=int), typed(doc=int))
    assert not same_but_for_notes(Schema("JSON", "{}"), Schema("AVRO", "{}"))
