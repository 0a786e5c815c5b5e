"""Serdes of the columns `key` and `value`, as the options name them.

They are those of `statestore.serdes`. AVRO, JSON_SCHEMA and PROTOBUF take their schema from an
option, or from a schema registry, which is asked on the driver before anything is written and then
once by each process that writes.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.model.records import Serde, SerdeContext, Side

_FORMS: Final[Mapping[str, str]] = {"AVRO": "AVRO", "JSON_SCHEMA": "JSON", "PROTOBUF": "PROTOBUF"}
"""The serdes that take a schema, by their names, and what the registry calls their formats."""


class ColumnSerde(NamedTuple):
    """The serde of a column: its name, and what else the options say of it; it carries no secret.

    `schema`: of AVRO and JSON_SCHEMA the text, of PROTOBUF `module:Message`. Without it, the
    registry's latest schema of the subject is written.
    """

    column: Side
    name: str
    schema: str | None = None
    registry: ss.SchemaRegistry | None = None

    @property
    def has_schema(self) -> bool:
        """Whether it is one of those that take a schema."""
        return self.name in _FORMS

    def made(self) -> Serde[Any]:
        """Return the serde; Misuse names the option that is wrong."""
        if not self.has_schema:
            if self.schema is not None:
                raise Misuse(
                    f"{self.column}Schema: the serde {self.name} takes no schema: leave it out, "
                    f"or set {self.column}Serde to one of {', '.join(_FORMS)}"
                )
            return serdes.by_name(self.name)
        if self.schema is None and (self.registry is None or self.name == "PROTOBUF"):
            what = "module:Message" if self.name == "PROTOBUF" else "its text"
            others = "" if self.name == "PROTOBUF" else ", or schema_registry, which knows it"
            raise Misuse(
                f"serde {self.name} has no schema: pass {self.column}Schema, {what}{others}"
            )
        match self.name:
            case "AVRO":
                return serdes.avro(self.schema, registry=self.registry)
            case "JSON_SCHEMA":
                return serdes.json_schema(self.schema, registry=self.registry)
        return serdes.protobuf(self._message(), registry=self.registry)

    def value(self) -> Callable[[Any], Any]:
        """Return what makes the serde's values of those of a column."""
        if self.name != "PROTOBUF":
            return _same
        message = self._message()
        return lambda fields: message(**fields)

    def check_fields(self, kind: DataType, schema: str | None) -> None:
        """Misuse if the column has a field that the schema has not, which Avro would leave out."""
        if self.name != "AVRO" or schema is None:
            return
        try:
            form = serdes.avro(schema).arrow_form()
        except Misuse:
            return  # Arrow has no type for it; rows are checked by the serde alone
        unknown = None if form is None else _unknown(kind, form.type)
        if unknown is not None:
            raise Misuse(
                f"column {self.column!r} has the field {unknown[1:]!r}, which its Avro schema has "
                "not: drop the field, or add it to the schema"
            )

    def settle(self, topic: str) -> str | None:
        """Have the registry find or take the schema for this topic; return what will be written.

        None: that is not known before the first row.
        """
        if self.registry is None or not self.has_schema:
            return self.schema
        schema = self._message() if self.name == "PROTOBUF" else self.schema
        context = SerdeContext(topic, self.column)
        try:
            return self.registry.settle(_FORMS[self.name], schema, context)
        except Misuse as refused:
            raise Misuse(
                f"column {self.column!r} for topic {topic}: {refused}. Nothing was written. Give "
                f"{self.column}Schema a schema that the subject's compatibility allows, leave it "
                "out to write the latest one, register it, or pass schema_registry.auto_register"
            ) from refused

    def _message(self) -> Any:
        module, colon, name = (self.schema or "").partition(":")
        try:
            found: Any = importlib.import_module(module) if colon else None
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise Misuse(
                f"{self.column}Schema = {self.schema!r:.99}: want module:Message of a class that "
                f"protoc made, which driver and executors can import ({error})"
            ) from error
        return found


def _unknown(column: DataType, schema: pa.DataType) -> str | None:
    """Return the path of a field of the column that the schema has not."""
    match column:
        case StructType() if pa.types.is_struct(schema):
            known = {field.name: field.type for field in schema}
            for field in column.fields:
                if field.name not in known:
                    return f".{field.name}"
                inner = _unknown(field.dataType, known[field.name])
                if inner is not None:
                    return f".{field.name}{inner}"
        case MapType() if pa.types.is_map(schema):
            inner = _unknown(column.valueType, schema.item_type)
            return None if inner is None else f"[…]{inner}"
        case ArrayType() if pa.types.is_large_list(schema):
            inner = _unknown(column.elementType, schema.value_type)
            return None if inner is None else f"[]{inner}"
    return None


def _same(value: Any) -> Any:
    return value
