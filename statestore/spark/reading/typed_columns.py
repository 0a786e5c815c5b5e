"""Columns of DataFrames from the bytes of keys and values, whole columns at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from statestore import serdes
from statestore.commands.printing import json_text
from statestore.errors import Misuse
from statestore.model.records import OF_REGISTRY, ArrowForm, Serde
from statestore.serdes.arrow_forms import builtins_of
from statestore.serdes.described import by_description
from statestore.serdes.java_serdes import scalar_type
from statestore.serdes.serde_names import parsed
from statestore.stores.migration import MigratingSerde, outside

Rows = Sequence[bytes | None]
TIME = pa.timestamp("us", tz="UTC")
"""The type of all times that are no part of a key or a value."""
WAYS_OUT = (
    '.option("pipeline", "module:function") for the serdes of the pipeline, or '
    '.option("raw", "true"); for those of a schema registry, .option("schema_registry", its URL)'
)
_AS_TEXT = '.option("typed", "false") for JSON text'
_BIG_ENDIAN: tuple[tuple[Serde[Any], str], ...] = (
    (serdes.INT64, ">i8"),
    (serdes.INT32, ">i4"),
    (serdes.INT16, ">i2"),
    (serdes.FLOAT64, ">f8"),
    (serdes.FLOAT32, ">f4"),
)
_IN_LISTS: tuple[Serde[Any], ...] = (
    *(serdes.STRING, serdes.BYTES, serdes.BOOLEAN),
    *(one for one, _ in _BIG_ENDIAN),
)
_DECIMAL_DIGITS_MAX = 38


class ColumnDecoder(NamedTuple):
    """The type of a column, and the function that makes an array of it from bytes.

    A row without bytes is null. `is_text`: the column has JSON text of values of any type.
    """

    type: pa.DataType
    decode: Callable[[Rows], pa.Array]
    is_text: bool = False

    def column(self, store: str, rows: Rows) -> pa.Array:
        """Return the column; Misuse shows bytes that cannot be decoded, and the way out."""
        try:
            return self.decode(rows)
        except Exception as error:
            raise self._undecodable(store, rows, error) from error

    def _undecodable(self, store: str, rows: Rows, error: Exception) -> Exception:
        ways = WAYS_OUT if self.is_text else f"{_AS_TEXT}, {WAYS_OUT}"
        for one in rows:
            try:
                self.decode([one])
            except Exception as cause:  # noqa: BLE001  # a user's serde may raise anything
                shown = serdes.printable((one or b"")[:200])
                return Misuse(f"store {store!r}: cannot decode {shown} ({cause}): pass {ways}")
        return error


def decoder_of(serde: Serde[Any], *, typed: bool = True) -> ColumnDecoder:
    """Return the decoder of what a serde wrote.

    `typed` False: values with fields, and lists, become JSON text, as those do of which nothing
    says what type they are.
    """
    if serde is serdes.BYTES:
        return ColumnDecoder(pa.binary(), lambda rows: pa.array(rows, pa.binary()))
    if serde is serdes.STRING:
        # Arrow checks that it is UTF-8, as the serde does.
        return ColumnDecoder(pa.string(), lambda rows: pa.array(rows, pa.binary()).cast("string"))
    read, shown = serde.deserialize, outside(serde)
    if shown is serdes.STRING:
        return ColumnDecoder(pa.string(), _one_by_one(read, pa.string()))
    scalar = scalar_type(shown)
    if scalar is not None:
        each = _one_by_one(read, scalar)
        packed = next((packed for one, packed in _BIG_ENDIAN if one is serde), None)
        return ColumnDecoder(scalar, each if packed is None else _at_once(packed, each))
    if shown is serdes.UUID:
        return ColumnDecoder(pa.string(), _one_by_one(lambda data: str(read(data)), pa.string()))
    found = _typed(serde, shown) if typed else None
    if found is not None:
        return found
    as_text = _one_by_one(lambda data: json_text(read(data)), pa.string())
    return ColumnDecoder(pa.string(), as_text, is_text=True)


def spark_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the Arrow type that Spark has for this one; None if it has none.

    Spark has one type for texts, lists and times of each sort. A time of day becomes text.
    """
    types = pa.types
    if types.is_large_string(kind) or types.is_string(kind) or types.is_time(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or types.is_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_list(kind) or types.is_large_list(kind):
        item = spark_type(kind.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if types.is_map(kind):
        key, item = spark_type(kind.key_type), spark_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if types.is_struct(kind):
        fields = [(field.name, spark_type(field.type)) for field in kind]
        return None if any(of is None for _, of in fields) else pa.struct(fields)
    if types.is_decimal(kind):
        fits = types.is_decimal128(kind) and kind.precision <= _DECIMAL_DIGITS_MAX
        return kind if fits else None
    plain = types.is_signed_integer(kind) or types.is_boolean(kind) or types.is_date32(kind)
    return kind if plain or types.is_float32(kind) or types.is_float64(kind) else None


def _typed(serde: Serde[Any], shown: Serde[Any]) -> ColumnDecoder | None:
    """Return the decoder for a serde that knows the type of its values; None if Arrow has none."""
    of_list = _of_list(serde)
    if of_list is not None:
        return of_list
    of_registry = shown.name.startswith(OF_REGISTRY)
    form = _form_of(_as_if_alone(shown) if of_registry else shown)
    kind = None if form is None else spark_type(form.type)
    if form is None or kind is None:
        return None
    if of_registry or isinstance(serde, MigratingSerde):
        return ColumnDecoder(kind, _migrated(serde.deserialize, form.type, kind))
    return ColumnDecoder(kind, lambda rows: form.decode(list(rows)).cast(kind))


def _as_if_alone(serde: Serde[Any]) -> Serde[Any]:
    """Return the serde with the schema of a registry's serde, for the type of its values."""
    schema = serde.schema
    if schema is None:
        return serde
    try:
        return by_description(f"{schema.kind}(of a registry)", schema)
    except Misuse:
        return serde


def _form_of(serde: Serde[Any]) -> ArrowForm | None:
    """Return how the serde reads columns, by its type or else by its schema."""
    try:
        return serde.arrow_form()
    except Misuse:
        described = by_description(serde.name, serde.schema) if serde.schema else serde
    if described is serde or described.schema != serde.schema:
        return None
    try:
        return described.arrow_form()
    except Misuse:
        return None


def _of_list(serde: Serde[Any]) -> ColumnDecoder | None:
    made = parsed(serde.name)
    if made is None or made.constructor.head != "LIST":
        return None
    inner = next((one for one in _IN_LISTS if one.name == made.arguments[0]), None)
    if inner is None:
        return None
    kind = pa.list_(pa.field("element", decoder_of(inner).type))
    return ColumnDecoder(kind, _one_by_one(serde.deserialize, kind))


def _one_by_one(read: Callable[[bytes], Any], kind: pa.DataType) -> Callable[[Rows], pa.Array]:
    return lambda rows: pa.array([None if row is None else read(row) for row in rows], kind)


def _at_once(packed: str, each: Callable[[Rows], pa.Array]) -> Callable[[Rows], pa.Array]:
    """Return the decoder of numbers, all of whose bytes are taken as one buffer."""
    kind = np.dtype(packed)
    native = kind.newbyteorder("=")

    def decode(rows: Rows) -> pa.Array:
        whole = all(row is not None and len(row) == kind.itemsize for row in rows)
        if not whole:
            return each(rows)
        joined = b"".join(rows)  # type: ignore[arg-type]  # none of them is None
        return pa.array(np.frombuffer(joined, kind).astype(native))

    return decode


def _migrated(
    read: Callable[[bytes], Any], kind: pa.DataType, shown: pa.DataType
) -> Callable[[Rows], pa.Array]:
    """Return the decoder of rows that several serdes wrote, as values of the last one."""

    def decode(rows: Rows) -> pa.Array:
        values = [None if row is None else read(row) for row in rows]
        return pa.array(builtins_of(values), kind).cast(shown)

    return decode
