"""Avro without a registry: the bytes are one datum, and the schema is the pipeline's.

Belongs to the extra `avro`.
"""

import io
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import SchemaParseException, UnknownType

from statestore.errors import UNREADABLE, Misuse
from statestore.model.encoders import sorted_json
from statestore.model.records import ArrowForm, Schema, Serde
from statestore.serdes.objects import Objects, objects_of

Read = Callable[[bytes], Any]


@cache
def avro_serde(text: str, kind: Any) -> Serde[Any]:
    """Return the serde of data of this schema, as objects of `kind` or, if it is None, dicts."""
    parsed, objects = parsed_avro(text), objects_of(kind)

    def write(value: Any) -> bytes:
        out = io.BytesIO()
        schemaless_writer(out, parsed, objects.dump(value))
        return out.getvalue()

    def resolve(writer: Schema) -> Read:
        return partial(_read, parsed_avro(writer.text), parsed, objects.load)

    made: Serde[Any] = Serde(
        f"AVRO({name_of_avro(parsed)})",
        write,
        partial(_read, parsed, None, objects.load),
        schema=Schema("AVRO", canonical_avro(parsed)),
        resolve=resolve,
        arrow=cache(lambda: _arrow_form(parsed, objects)),
    )
    return made.made_by(avro_serde, text, kind)


def _arrow_form(parsed: Any, objects: Objects) -> ArrowForm:
    from statestore.serdes.avro_in_arrow import avro_form

    def read(data: bytes) -> Any:
        found = _read(parsed, None, lambda found: found, data)
        objects.load(found)  # It has to be one, although nobody sees it.
        return found

    def write(found: Any) -> bytes:
        out = io.BytesIO()
        schemaless_writer(out, parsed, objects.dump(objects.load(found)))
        return out.getvalue()

    return avro_form(parsed, write, read)


def avro_text(schema: object) -> str:
    """Return a schema given as text, dict or list as text; Misuse if it is not an Avro schema."""
    text = schema if isinstance(schema, str) else sorted_json(schema).decode()
    parsed_avro(text)
    return text


def parsed_avro(text: str) -> Any:
    """Return a schema as fastavro reads it; Misuse if it is none."""
    try:
        try:
            declared = msgspec.json.decode(text)
        except UNREADABLE:
            declared = text  # A primitive type may stand without quotes.
        return parse_schema(declared)
    except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError) as error:
        raise Misuse(
            f"no Avro schema: {type(error).__name__}: {error}; pass a schema as text or as a dict: "
            f"{text:.99}"
        ) from error


def name_of_avro(parsed: Any) -> str:
    """Return the full name of a parsed schema's type."""
    if isinstance(parsed, list):
        return " | ".join(map(name_of_avro, parsed))
    return str(parsed.get("name", parsed["type"]) if isinstance(parsed, dict) else parsed)


def canonical_avro(parsed: Any) -> str:
    """Return a parsed schema as text, with full names and sorted keys."""
    if isinstance(parsed, dict):
        parsed = {key: value for key, value in parsed.items() if not key.startswith("__")}
    return sorted_json(parsed).decode()


def _read(writer: Any, reader: Any, load: Callable[[Any], Any], data: bytes) -> Any:
    source = io.BytesIO(data)
    found = schemaless_reader(source, writer, reader)
    if source.tell() != len(data):
        left = len(data) - source.tell()
        raise ValueError(f"{left} bytes follow the datum: another schema wrote it")
    return load(found)
