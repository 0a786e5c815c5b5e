"""JSON that a JSON Schema allows, without a registry. Belongs to the extra `json-schema`."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from statestore.errors import UNREADABLE, Misuse
from statestore.model.encoders import json_of, sorted_json
from statestore.model.records import ArrowForm, Schema, Serde
from statestore.serdes.objects import objects_of


@cache
def json_schema_serde(text: str, kind: Any) -> Serde[Any]:
    """Return the serde of JSON of this schema, as objects of `kind` or, if it is None, dicts."""
    declared = msgspec.json.decode(text)
    validator, objects = _validator(declared), objects_of(kind)

    def check(found: Any) -> None:
        for error in validator.iter_errors(found):
            raise ValueError(f"{error.message} - at `{error.json_path}`")

    def write(value: Any) -> bytes:
        plain = objects.dump(value)
        check(plain)
        return json_of(plain)

    def read(data: bytes) -> Any:
        found = msgspec.json.decode(data)
        check(found)
        return objects.load(found)

    made: Serde[Any] = Serde(
        f"JSON_SCHEMA({name_of_json(text)})",
        write,
        read,
        schema=Schema("JSON", canonical(text)),
        arrow=None if kind is None else cache(lambda: _arrow_form(kind, read, write)),
    )
    return made.made_by(json_schema_serde, text, kind)


def _arrow_form(
    kind: Any, read: Callable[[bytes], Any], write: Callable[[Any], bytes]
) -> ArrowForm:
    from statestore.serdes.arrow_forms import TypedForm

    return TypedForm(kind, read, lambda objects: list(map(write, objects)))


def json_schema_text(schema: object) -> str:
    """Return a schema given as text or as a dict as text; Misuse if it is not a JSON Schema."""
    text = schema if isinstance(schema, str) else sorted_json(schema).decode()
    try:
        _validator(msgspec.json.decode(text))
    except (SchemaError, TypeError, AttributeError, *UNREADABLE) as error:
        why = error.message if isinstance(error, SchemaError) else error
        raise Misuse(
            f"no JSON Schema: {why}; pass a schema as text or as a dict: {text:.99}"
        ) from error
    return text


def title_of(text: str) -> str | None:
    """Return a schema's title; None if it has none."""
    declared = msgspec.json.decode(text)
    return str(declared["title"]) if isinstance(declared, dict) and "title" in declared else None


def name_of_json(text: str) -> str:
    """Return what a schema is called in messages: by its title, if it has one."""
    title = title_of(text)
    if title is not None:
        return title
    return "object" if isinstance(msgspec.json.decode(text), dict) else "any"


def canonical(text: str) -> str:
    """Return a schema with sorted keys."""
    return sorted_json(msgspec.json.decode(text)).decode()


def _validator(declared: Any) -> Any:
    found = validator_for(declared)
    found.check_schema(declared)
    return found(declared)
