"""Arrow arrays of whole columns of Avro data. Belongs to the extra `avro`."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from fastavro.read import LOGICAL_READERS

from statestore.model.arrow_columns import PlainForm
from statestore.serdes.arrow_forms import no_form

_PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
_LOGICAL: dict[str, pa.DataType] = {
    "int-date": pa.date32(),
    "int-time-millis": pa.time32("ms"),
    "long-time-micros": pa.time64("us"),
    "long-timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "long-timestamp-micros": pa.timestamp("us", tz="UTC"),
    "long-local-timestamp-millis": pa.timestamp("ms"),
    "long-local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL128_DIGITS = 38


def avro_form(
    parsed: Any, write: Callable[[Any], bytes], read: Callable[[bytes], Any]
) -> PlainForm:
    """Return the form of a schema, whose data `read` and `write` have as dicts.

    Misuse if Arrow has no type for it.
    """
    return PlainForm(_AvroTypes().type_of(parsed, "the datum"), write, read)


class _AvroTypes:
    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}

    def type_of(self, schema: Any, where: str) -> pa.DataType:
        """Return the Arrow type of a part of a schema."""
        if isinstance(schema, list):
            some = [one for one in schema if one != "null"]
            if len(some) != 1:
                raise no_form(where, "a union of several types")
            return self.type_of(some[0], where)
        if isinstance(schema, str):
            return self._of_name(schema, where)
        kind = schema["type"]
        logical = f"{kind}-{schema.get('logicalType')}"
        if logical in LOGICAL_READERS:
            return self._of_logical(logical, schema, where)
        match kind:
            case "array":
                return pa.large_list(self.type_of(schema["items"], f"{where}[]"))
            case "map":
                return pa.map_(pa.large_string(), self.type_of(schema["values"], f"{where}[…]"))
            case "record" | "error":
                return self._of_record(schema, where)
            case "enum":
                return self._keep(schema, pa.large_string())
            case "fixed":
                return self._keep(schema, pa.binary(schema["size"]))
        return self.type_of(kind, where)

    def _of_name(self, name: str, where: str) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        found = self._named.get(name)
        if found is None:
            raise no_form(where, "null alone" if name == "null" else "a type that contains itself")
        return found

    def _of_logical(self, logical: str, schema: Any, where: str) -> pa.DataType:
        if logical.endswith("-decimal"):
            digits, scale = schema["precision"], schema.get("scale", 0)
            made = pa.decimal128 if digits <= _DECIMAL128_DIGITS else pa.decimal256
            return self._keep(schema, made(digits, scale))
        if logical not in _LOGICAL:
            raise no_form(where, schema["logicalType"])
        return _LOGICAL[logical]

    def _of_record(self, schema: Any, where: str) -> pa.DataType:
        if not schema["fields"]:
            raise no_form(where, "a record without fields")
        self._keep(schema, None)
        return self._keep(
            schema,
            pa.struct(
                [
                    pa.field(one["name"], self.type_of(one["type"], f"{where}.{one['name']}"))
                    for one in schema["fields"]
                ]
            ),
        )

    def _keep(self, schema: Any, found: pa.DataType | None) -> pa.DataType:
        if "name" in schema:
            self._named[schema["name"]] = found
        return found
