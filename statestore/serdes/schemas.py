"""Tells whether rows written with one schema can be read with another one. Pure.

The rules are those of the kinds of schemas: an Avro reader resolves the writer's schema, a Protobuf
reader goes by the numbers of fields, and a JSON reader by names and required fields. What a schema
does not say is not known here. The answer is a reason, or None if every row can be read.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from statestore.errors import Misuse
from statestore.model.records import Schema

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"

Node = Any
"""A part of a schema, as JSON has it."""


def unreadable(writer: Schema, reader: Schema) -> str | None:
    """Return why some rows written with `writer` cannot be read with `reader`; None: all can."""
    if writer == reader:
        return None
    if writer.kind != reader.kind:
        return f"{writer.kind} became {reader.kind}"
    match writer.kind:
        case "JSON":
            return _JsonReading(_bare(_parsed(writer)), _bare(_parsed(reader))).reason()
        case "AVRO":
            return _AvroReading(_parsed(writer), _parsed(reader)).reason()
        case "PROTOBUF":
            return _protobuf_reason(writer.text, reader.text)
    return f"nothing is known of schemas of the kind {writer.kind}"


def same_but_for_notes(one: Schema, other: Schema) -> bool:
    """Tell whether two schemas differ in titles, comments and defaults at most.

    Values of both have the same bytes, so that keys stay where they are.
    """
    if one.kind != other.kind or one.kind == PROTOBUF:
        return one == other
    return one == other or bool(_bare(_parsed(one)) == _bare(_parsed(other)))


_NOTES: Final = {"title", "description", "doc", "examples", "$comment", "default"}


def _bare(node: Node) -> Node:
    if isinstance(node, Mapping):
        return {
            key: {name: _bare(one) for name, one in value.items()}
            # Here the keys are names of the user's, such as `title`.
            if key in {"properties", "$defs"} and isinstance(value, Mapping)
            else _bare(value)
            for key, value in node.items()
            if key not in _NOTES
        }
    return [_bare(one) for one in node] if isinstance(node, list) else node


def _parsed(schema: Schema) -> Node:
    try:
        return json.loads(schema.text)
    except ValueError as error:
        raise Misuse(f"a schema of the kind {schema.kind} is not JSON: {error}") from error


# JSON Schema.

_ANYTHING: Final[Sequence[Node]] = (True, {}, None)
_ABOUT_NUMBERS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_ABOUT_LENGTHS: Final = ("minLength", "minItems", "minProperties", "maxLength", "maxItems")
_TO_THE_LETTER: Final = (
    "format",
    "pattern",
    "multipleOf",
    "uniqueItems",
    "contentEncoding",
    "not",
    "patternProperties",
    "propertyNames",
    "if",
    "dependentRequired",
)


class _JsonReading:
    """Compares two JSON Schemas, part by part."""

    def __init__(self, writer: Node, reader: Node) -> None:
        self._roots = (writer, reader)
        self._seen: set[tuple[int, int]] = set()

    def reason(self) -> str | None:
        """Return why `reader` refuses something that `writer` describes."""
        return self._compare(*self._roots, "the value")

    def _compare(self, writer: Node, reader: Node, at: str) -> str | None:
        writer, reader = self._followed(writer, 0), self._followed(reader, 1)
        if (id(writer), id(reader)) in self._seen:
            return None  # A schema that refers to itself is compared once.
        self._seen.add((id(writer), id(reader)))
        if reader in _ANYTHING or writer is False:
            return None
        for one in _branches(writer):
            reason = self._compare(one, reader, at)
            if reason is not None:
                return reason
        if _branches(writer):
            return None
        branches = _branches(reader)
        if branches:
            reasons = [self._compare(writer, one, at) for one in branches]
            if None in reasons:
                return None
            return reasons[0] if len(reasons) == 1 else f"{at} is of none of the types it may have"
        if reader is False:
            return f"{at} is no longer allowed"
        return self._of_one_type(writer, reader, at)

    def _of_one_type(self, writer: Node, reader: Node, at: str) -> str | None:
        if writer in _ANYTHING:
            return f"{at} could be anything and has a type now"
        allowed = _values(reader)
        if allowed is not None:
            written = _values(writer)
            if written is None or any(one not in allowed for one in written):
                return f"{at} has fewer possible values"
            return None
        was, now = _types(writer), _types(reader)
        if now and not was <= _widened(now):
            return f"{at} is {_named(now)} and was {_named(was)}"
        return (
            _constrained(writer, reader, at)
            or self._properties(writer, reader, at)
            or self._items(writer, reader, at)
        )

    def _properties(self, writer: Node, reader: Node, at: str) -> str | None:
        known, had = reader.get("properties", {}), writer.get("properties", {})
        always = writer.get("required", ())
        for name in reader.get("required", ()):
            if name not in always:
                return (
                    f"the field {name!r} of {at} is required and may be missing: give it a default"
                )
        others = reader.get("additionalProperties", True)
        for name, one in had.items():
            reason = self._compare(one, known.get(name, others), f"the field {name!r}")
            if reason is not None:
                return reason
        if "object" not in _types(writer):
            return None
        beyond = writer.get("additionalProperties", None if "properties" in writer else True)
        if beyond in (None, False):
            return None
        return self._compare(beyond, others, f"each value of {at}")

    def _items(self, writer: Node, reader: Node, at: str) -> str | None:
        heads = (writer.get("prefixItems", []), reader.get("prefixItems", []))
        # Items without a description are never written, as fields are not.
        rests = (writer.get("items", not heads[0]), reader.get("items", True))
        if "array" not in _types(writer):
            return None
        for place in range(max(map(len, heads))):
            was, now = (
                head[place] if place < len(head) else rest
                for head, rest in zip(heads, rests, strict=True)
            )
            reason = self._compare(was, now, f"item {place} of {at}")
            if reason is not None:
                return reason
        return self._compare(*rests, f"each item of {at}")

    def _followed(self, node: Node, root: int) -> Node:
        for _ in range(100):
            if not isinstance(node, Mapping) or "$ref" not in node:
                return node
            found: Node = self._roots[root]
            for step in str(node["$ref"]).removeprefix("#").strip("/").split("/"):
                if step:
                    found = found[step.replace("~1", "/").replace("~0", "~")]
            node = found
        return node


def _branches(node: Node) -> list[Node]:
    if not isinstance(node, Mapping):
        return []
    found = node.get("anyOf") or node.get("oneOf") or []
    kinds = node.get("type")
    if not found and isinstance(kinds, list):
        found = [{**node, "type": kind} for kind in kinds]
    if not found and isinstance(node.get("allOf"), list) and len(node["allOf"]) == 1:
        found = node["allOf"]
    return list(found)


def _values(node: Node) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    return list(node["enum"]) if "enum" in node else None


def _types(node: Node) -> set[str]:
    kind = node.get("type")
    if kind is not None:
        return {kind}
    values = _values(node)
    if values is not None:
        return {_NAMES.get(type(one), "object") for one in values}
    return {"object"} if "properties" in node else set()


_NAMES: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
}


def _widened(kinds: set[str]) -> set[str]:
    return kinds | {"integer"} if "number" in kinds else kinds


def _named(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds)) or "anything"


def _constrained(writer: Node, reader: Node, at: str) -> str | None:
    for word in (*_ABOUT_NUMBERS, *_ABOUT_LENGTHS):
        asked, had = reader.get(word), writer.get(word)
        if asked is None or asked == had:
            continue
        least = "min" in word.lower()
        if had is None and word.startswith("min") and asked == 0:
            continue
        if had is None or (asked > had if least else asked < had):
            return f"{at} has the limit {word} = {asked}"
    for word in _TO_THE_LETTER:
        if word in reader and reader[word] != writer.get(word):
            return f"{at} has to have the {word} {reader[word]}"
    return None


# Avro (the specification's "Schema Resolution").

_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
}  # The specification also reads bytes as a string, which fails if they are no UTF-8.
_NAMED_KINDS: Final = ("record", "error", "enum", "fixed")


class _AvroReading:
    """Compares two Avro schemas, part by part."""

    def __init__(self, writer: Node, reader: Node) -> None:
        self._roots = (writer, reader)
        self._names = tuple(dict(_definitions(root)) for root in self._roots)
        self._seen: set[tuple[int, int]] = set()

    def reason(self) -> str | None:
        """Return why the reader's schema does not resolve something of the writer's."""
        return self._compare(*self._roots, "the value")

    def _compare(self, writer: Node, reader: Node, at: str) -> str | None:
        writer, reader = self._followed(writer, 0), self._followed(reader, 1)
        if isinstance(writer, list):
            for one in writer:
                reason = self._compare(one, reader, at)
                if reason is not None:
                    return reason
            return None
        if isinstance(reader, list):
            return self._in_union(writer, reader, at)
        was, now = _kind(writer), _kind(reader)
        if was != now:
            return None if now in _PROMOTED.get(was, ()) else f"{at} is {now} and was {was}"
        if "decimal" in (_logical(writer), _logical(reader)):
            parts = ("logicalType", "scale", "precision")
            if [_logical(writer, part) for part in parts] != [_logical(reader, p) for p in parts]:
                return f"{at} is another decimal"
        if was not in (*_NAMED_KINDS, "array", "map"):
            return None
        if was in _NAMED_KINDS and not _called_alike(writer, reader):
            return f"{at} is {reader['name']} and was {writer['name']}: give it an alias"
        if (id(writer), id(reader)) in self._seen:
            return None
        self._seen.add((id(writer), id(reader)))
        return self._of_parts(was, writer, reader, at)

    def _in_union(self, writer: Node, reader: list[Node], at: str) -> str | None:
        for one in reader:
            # Readers take the first type that the rules allow, and bytes may be no UTF-8.
            if (_kind(writer), _kind(self._followed(one, 1))) == ("bytes", "string"):
                break
            if self._compare(writer, one, at) is None:
                return None
        return f"{at} was {_kind(writer)}, which the union does not have now"

    def _of_parts(self, kind: str, writer: Node, reader: Node, at: str) -> str | None:
        match kind:
            case "array":
                return self._compare(writer["items"], reader["items"], f"each item of {at}")
            case "map":
                return self._compare(writer["values"], reader["values"], f"each value of {at}")
            case "fixed" if writer["size"] != reader["size"]:
                return f"{at} has {reader['size']} bytes and had {writer['size']}"
            case "enum" if "default" not in reader:
                gone = [one for one in writer["symbols"] if one not in reader["symbols"]]
                return f"{at} no longer has the symbol {gone[0]!r}" if gone else None
            case "record" | "error":
                return self._fields(writer, reader)
        return None

    def _fields(self, writer: Node, reader: Node) -> str | None:
        had = {one["name"]: one["type"] for one in writer["fields"]}
        for one in reader["fields"]:
            names = [name for name in (one["name"], *one.get("aliases", ())) if name in had]
            at = f"the field {one['name']!r}"
            if not names:
                if "default" not in one:
                    return f"{at} was added without a default"
                continue
            reason = self._compare(had[names[0]], one["type"], at)
            if reason is not None:
                return reason
        return None

    def _followed(self, node: Node, root: int) -> Node:
        return self._names[root].get(node, node) if isinstance(node, str) else node


def _logical(node: Node, part: str = "logicalType") -> Any:
    return node.get(part) if isinstance(node, Mapping) else None


def _called_alike(writer: Node, reader: Node) -> bool:
    """Tell whether the names are the same without their spaces, or one is an alias."""
    names = (reader["name"], *reader.get("aliases", ()))
    last = [str(name).rpartition(".")[2] for name in names]
    return str(writer["name"]).rpartition(".")[2] in last


def _kind(node: Node) -> str:
    kind = node["type"] if isinstance(node, Mapping) else node
    return str(_kind(kind) if isinstance(kind, Mapping) else kind)


def _definitions(node: Node, space: str = "") -> Iterator[tuple[str, Node]]:
    if isinstance(node, list):
        for one in node:
            yield from _definitions(one, space)
    if not isinstance(node, Mapping):
        return
    if node.get("type") in _NAMED_KINDS:
        name = str(node["name"])
        space = name.rpartition(".")[0] or str(node.get("namespace", space))
        yield (name if "." in name or not space else f"{space}.{name}"), node
        yield name.rpartition(".")[2], node
    for key in ("type", "items", "values"):
        yield from _definitions(node.get(key), space)
    for one in node.get("fields", ()):
        yield from _definitions(one["type"], space)


# Protobuf.

_SAME_ON_THE_WIRE: Final = (
    {3, 4, 5, 8, 13, 14},  # int64, uint64, int32, bool, uint32, enum
    {17, 18},  # sint32, sint64
    {7, 15},  # fixed32, sfixed32
    {6, 16},  # fixed64, sfixed64
    {9, 12},  # string, bytes
)
_64_BITS, _FEWER_BITS = (3, 4), (5, 8, 13, 14)
_MESSAGE: Final = (10, 11)
_REQUIRED, _REPEATED = 2, 3


def _protobuf_reason(writer: str, reader: str) -> str | None:
    (was, all_was), (now, all_now) = _message(writer), _message(reader)
    return _protobuf_fields(was, now, all_was, all_now, set())


def _protobuf_fields(
    was: Any, now: Any, all_was: dict[str, Any], all_now: dict[str, Any], seen: set[Any]
) -> str | None:
    if (id(was), id(now)) in seen:
        return None
    seen.add((id(was), id(now)))
    had = {field.number: field for field in was.field}
    for field in now.field:
        old, at = had.get(field.number), f"the field {field.name!r}"
        if field.label == _REQUIRED and (old is None or old.label != _REQUIRED):
            return f"{at} is required and may be missing"
        if old is None:
            continue
        alike = old.type == field.type or any(
            {old.type, field.type} <= kinds for kinds in _SAME_ON_THE_WIRE
        )
        if old.type in _64_BITS and field.type in _FEWER_BITS:
            return f"{at} has fewer bits than it had, so that numbers would be cut off"
        if not alike:
            return f"{at} has another type on the wire under its number {field.number}"
        if old.label == _REPEATED and field.label != _REPEATED:
            return f"{at} was repeated and has one value now"
        if field.type in _MESSAGE and old.type_name in all_was and field.type_name in all_now:
            inner = (all_was[old.type_name], all_now[field.type_name])
            reason = _protobuf_fields(*inner, all_was, all_now, seen)
            if reason is not None:
                return reason
    return None


def _message(text: str) -> tuple[Any, dict[str, Any]]:
    """Return the message that a schema's text names, and all that its files define."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    data, _, name = text.partition("#")
    files = FileDescriptorSet.FromString(base64.b64decode(data))
    found: dict[str, Any] = {}

    def add(prefix: str, messages: Any) -> None:
        for one in messages:
            found[f"{prefix}.{one.name}"] = one
            add(f"{prefix}.{one.name}", one.nested_type)

    for file in files.file:
        add(f".{file.package}" if file.package else "", file.message_type)
    if f".{name}" not in found:
        raise Misuse(f"a Protobuf schema does not define the message {name} that it names")
    return found[f".{name}"], found
