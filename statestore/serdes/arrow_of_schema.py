"""Arrow arrays of columns of JSON of which only a JSON Schema is known, as topology.json keeps it.

The schema is one that `typed_json` wrote: msgspec's, or pydantic's. Types are made of it that have
the fields of the pipeline's type, so that a tool reads a store with its types and without the
pipeline. What the schema leaves open, such as a field of any type, becomes JSON text, and so does a
part that contains itself. A time is a timestamp only where the schema says that it has a zone.
"""

import datetime as dt
import uuid
from functools import reduce
from operator import or_
from typing import Annotated, Any

import msgspec

from statestore.model.decoders import json_decoder, users_decoder
from statestore.model.records import ArrowForm
from statestore.serdes.arrow_forms import JsonText, TypedForm

_ZONED = Annotated[dt.datetime, msgspec.Meta(tz=True)]
_FORMATS: dict[str, Any] = {
    "date": dt.date,
    "partial-time": Annotated[dt.time, msgspec.Meta(tz=False)],
    "duration": dt.timedelta,
    "uuid": uuid.UUID,
}
_PLAIN: dict[str, Any] = {"integer": int, "number": float, "boolean": bool, "null": None}


def form_of_schema(text: str) -> ArrowForm:
    """Return how columns are read whose JSON this schema describes; Misuse if Arrow has no form."""
    schema = json_decoder(dict[str, Any]).decode(text)
    named = schema.get("$defs", {})
    kind = _Types(named, zoned=not _is_pydantics([schema, *named.values()])).of(schema)
    return TypedForm(kind, users_decoder(kind, _as_text).decode)


def _as_text(_kind: type, found: Any) -> JsonText:
    return JsonText(msgspec.json.encode(found).decode())


class _Types:
    """Makes types of the parts of one schema."""

    def __init__(self, named: dict[str, Any], *, zoned: bool) -> None:
        """`zoned`: what is called a date-time has a zone."""
        self._named = named
        self._zoned = zoned
        self._made: dict[str, Any] = {}

    def of(self, schema: Any) -> Any:
        """Return the type of a part."""
        if not isinstance(schema, dict):
            return JsonText
        if "$ref" in schema:
            return self._of_name(schema["$ref"].rpartition("/")[2])
        if "anyOf" in schema:
            return self._of_union(schema["anyOf"])
        if "enum" in schema:
            return _of_values(schema["enum"])
        if "const" in schema:
            return _of_values([schema["const"]])
        match schema.get("type"):
            case "string":
                return self._of_text(schema)
            case "array" if isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
                return list[self.of(schema["items"])]  # type: ignore[misc]  # a type made here
            case "object":
                return self._of_object(schema)
            case str(name) if name in _PLAIN:
                return _PLAIN[name]
        return JsonText

    def _of_name(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = JsonText  # where it stands within itself
            self._made[name] = self.of(self._named.get(name))
        return self._made[name]

    def _of_union(self, parts: list[Any]) -> Any:
        some = [one for one in parts if one != {"type": "null"}]
        kind = self.of(some[0]) if len(some) == 1 else JsonText
        return kind if len(some) == len(parts) else reduce(or_, (kind, None))

    def _of_text(self, schema: dict[str, Any]) -> Any:
        if schema.get("contentEncoding") == "base64":
            return bytes
        form = schema.get("format")
        if form == "date-time" and self._zoned:
            return _ZONED
        return _FORMATS.get(form or "", str)

    def _of_object(self, schema: dict[str, Any]) -> Any:
        fields = schema.get("properties")
        if not fields:
            items = schema.get("additionalProperties")
            return dict[str, self.of(items)] if isinstance(items, dict) else JsonText  # type: ignore[misc]  # a type made here
        required = [name for name in schema.get("required", ()) if name in fields]
        # Schemas are kept with sorted keys; the required fields still have their own order.
        names = [*required, *(name for name in fields if name not in required)]
        made: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for place, name in enumerate(names):
            kind = self.of(fields[name])
            if name in required:
                made.append((f"f{place}", kind))
            else:
                made.append((f"f{place}", *_with_default(kind, fields[name])))
        renamed = {f"f{place}": name for place, name in enumerate(names)}
        title = str(schema.get("title", "Row"))
        return msgspec.defstruct(
            title if title.isidentifier() else "Row", made, rename=renamed, kw_only=True, gc=False
        )


def _with_default(kind: Any, schema: Any) -> tuple[Any, Any]:
    """Return the type of a field that may be missing, and what it then has."""
    given = schema.get("default") if isinstance(schema, dict) else None
    if given is None:
        return reduce(or_, (kind, None)), None
    if kind is JsonText:
        return kind, _as_text(JsonText, given)
    read = users_decoder(kind, _as_text).decode
    copied = msgspec.json.encode(given)
    default = read(copied)
    if isinstance(default, str | int | float | bool | bytes):
        return kind, default
    return kind, msgspec.field(default_factory=lambda: read(copied))


def _is_pydantics(schemas: list[Any]) -> bool:
    """Tell whether pydantic wrote a schema: it gives fields titles.

    It calls times without a zone a date-time, too.
    """
    fields = [one for schema in schemas for one in schema.get("properties", {}).values()]
    return any("title" in one for one in fields if isinstance(one, dict))


def _of_values(values: list[Any]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    kind: Any = kinds.pop() if kinds in ({str}, {int}, {bool}) else JsonText
    return kind if None not in values else reduce(or_, (kind, None))
