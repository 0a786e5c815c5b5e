"""Rows of DataFrames as records: which columns there may be, their bytes, and what they add up to.

The columns are those of Spark's own sink for Kafka: key and value (string or binary), headers,
topic, partition; and timestamp. What Spark's sink passes over in silence is refused here: a column
that no record has.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from statestore.errors import ABOUT_A_RECORD, Misuse, RecordFailed, StateStoreError
from statestore.model.arrow_columns import pylist
from statestore.model.records import Header, SerdeContext
from statestore.spark.writing.attempts import EncodedChunk, EncodedRows
from statestore.spark.writing.column_serdes import ColumnSerde
from statestore.spark.writing.markers import Contents
from statestore.spark.writing.write_options import NAME, WritePlan

_COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp")
_US_PER_MS: Final = 1000
_told: Final = msgspec.msgpack.Encoder(order="deterministic", enc_hook=repr).encode
# The finalizer of splitmix64, which makes a sum depend on which values stand in one row.
_MIX: Final = tuple(np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9))
_SHIFTS: Final = (np.uint64(30), np.uint64(27))


def check_columns(plan: WritePlan, schema: StructType) -> None:
    """Misuse names a column that is missing, not known, or of a type that cannot be written."""
    found = {field.name: field.dataType for field in schema.fields}
    told = f"{NAME}: the rows have the columns {', '.join(found) or 'none'}"
    if len(found) < len(schema.fields):
        raise Misuse(f"{told}: one of them twice: drop one")
    if "value" not in found:
        raise Misuse(f"{told}: `value` is missing: select it")
    if plan.topic is None and "topic" not in found:
        raise Misuse(f'{told}: pass .option("topic", …), or select a column `topic`')
    for name, kind in found.items():
        if name not in _COLUMNS:
            raise Misuse(
                f"{told}: no record has {name!r}: select only {', '.join(_COLUMNS)}, as far as "
                "you need them"
            )
        serde = plan.sides[("key", "value").index(name)] if name in {"key", "value"} else None
        if serde is not None:
            if _has_variant(kind):
                raise Misuse(
                    f"{NAME}: column {name!r} is {kind.simpleString()}: no serde reads a variant: "
                    "select to_json of it, or cast it to a type with fields"
                )
            serde.check_fields(kind, serde.schema)
        elif not _fits(name, kind):
            serdes = f", or pass {name}Serde" if name in {"key", "value"} else ""
            raise Misuse(
                f"{NAME}: column {name!r} is {kind.simpleString()}: want {_wanted(name)}{serdes}"
            )


def settle_schemas(plan: WritePlan, schema: StructType) -> None:
    """Have a schema registry take the schemas before rows are written; Misuse says if it does not.

    Of a column `topic` the topics are known only when its rows are.
    """
    for side in plan.sides:
        if plan.topic is None or side is None or side.column not in schema.fieldNames():
            continue
        side.check_fields(schema[side.column].dataType, side.settle(plan.topic))


def _fits(name: str, kind: DataType) -> bool:
    match name:
        case "key" | "value":
            return isinstance(kind, StringType | BinaryType)
        case "topic":
            return isinstance(kind, StringType)
        case "partition":
            return isinstance(kind, IntegerType)
        case "timestamp":
            return isinstance(kind, TimestampType)
    item = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(item, StructType) or item.fieldNames() != ["key", "value"]:
        return False
    key, value = (field.dataType for field in item.fields)
    return isinstance(key, StringType) and isinstance(value, BinaryType)


def _has_variant(kind: DataType) -> bool:
    """Whether there are variants in a column; Spark gives a writer their own binary form."""
    match kind:
        case StructType():
            return any(_has_variant(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_variant(kind.elementType)
        case MapType():
            return _has_variant(kind.keyType) or _has_variant(kind.valueType)
    return isinstance(kind, VariantType)


def _wanted(name: str) -> str:
    return {
        "topic": "string",
        "partition": "int",
        "timestamp": "timestamp",
        "headers": "array<struct<key:string,value:binary>>",
    }.get(name, "string or binary")


class Encoder:
    """Encodes the rows of one Spark partition, in Arrow batches, and counts them for errors."""

    def __init__(self, plan: WritePlan, spark_partition: int) -> None:
        self._plan = plan
        self._spark_partition = spark_partition
        self._sides = [None if one is None else _SideEncoder(one) for one in plan.sides]
        self._before = 0

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[EncodedChunk]:
        """Yield the rows of each batch; RecordFailed names a row that cannot be written."""
        for batch in batches:
            if batch.num_rows:
                yield self._encoded(batch)
                self._before += batch.num_rows

    def _encoded(self, batch: pa.RecordBatch) -> EncodedChunk:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        count = batch.num_rows
        topics = self._topics(columns)
        times = self._times(columns.get("timestamp"))
        headers = self._headers(columns.get("headers"))
        places = self._places(columns.get("partition"))
        out = _Rows(topics or [self._plan.topic or ""] * count, headers)
        keys, told_keys = self._bytes(columns.get("key"), 0, out)
        values, told_values = self._bytes(columns["value"], 1, out)
        digest = _digest(count, told_keys, told_values, topics, times, headers, places)
        if self._plan.topic is not None:
            # To another topic, the same rows are other rows.
            digest = (digest + count * int(_hashes(1, [self._plan.topic])[0])) % 2**64
        rows = EncodedRows(
            self._plan.topic or "",
            keys,
            values,
            times,
            out.headers,
            places,
            range(self._before, self._before + count),
            self._spark_partition,
        )
        found = [rows] if topics is None else list(_by_topic(rows, topics))
        return EncodedChunk(found, Contents(count, digest))

    def _bytes(
        self, column: pa.Array | None, side: int, out: "_Rows"
    ) -> tuple[list[bytes | None], list[bytes | None]]:
        """Return the bytes of a column, and those that its digest is made of.

        The digest is of the values themselves: the ids of schemas, and which schema is the latest,
        may differ when a task is tried again, and the rows are the same.
        """
        if column is None:
            nothing: list[bytes | None] = [None] * len(out.topics)
            return nothing, nothing
        encoder = self._sides[side]
        if encoder is None:
            plain: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
            return plain, plain
        values = pylist(column)
        written: list[bytes | None] = []
        for row, value in enumerate(values):
            if value is None:
                written.append(None)
                continue
            try:
                written.append(encoder.serialized(row, value, out))
            except Exception as error:
                raise self._unfit(encoder.serde, row, value, out, error) from error
        return written, [None if value is None else _told(value) for value in values]

    def _unfit(
        self, serde: ColumnSerde, row: int, value: Any, out: "_Rows", error: Exception
    ) -> Exception:
        where = f"{self._row(row)}: column {serde.column!r} for topic {out.topics[row]}"
        if isinstance(error, StateStoreError) and not isinstance(error, ABOUT_A_RECORD):
            return type(error)(f"{where}: {error}")
        return RecordFailed(
            f"{where}: a value of type {type(value).__name__} does not fit serde {serde.name}: "
            f"{error}: change the column, {serde.column}Serde or {serde.column}Schema"
        )

    def _topics(self, columns: dict[str, pa.Array]) -> list[str] | None:
        """The topic of each row; None: that of the option, which as in Spark comes first."""
        if self._plan.topic is not None:
            return None
        topics = columns["topic"].to_pylist()
        if not all(topics):
            row = next(n for n, topic in enumerate(topics) if not topic)
            raise RecordFailed(f"{self._row(row)} has no topic: fill the column `topic`")
        found: list[str] = topics
        marker_topic = self._plan.output.marker_topic
        if marker_topic in found:
            row = found.index(marker_topic)
            raise RecordFailed(
                f"{self._row(row)} is for {marker_topic}, which is the topic of the markers: "
                "filter it out, or name another one with markerTopic"
            )
        return found

    def _headers(self, column: pa.Array | None) -> list[tuple[Header, ...]] | None:
        if column is None or not self._plan.headers:
            return None
        return [self._header(row, found) for row, found in enumerate(column.to_pylist())]

    def _header(self, row: int, found: list[dict[str, Any] | None] | None) -> tuple[Header, ...]:
        if any(one is None or one["key"] is None for one in found or ()):
            raise RecordFailed(f"{self._row(row)} has a header without a key: filter it out")
        return tuple((one["key"], one["value"]) for one in found or () if one is not None)

    def _places(self, column: pa.Array | None) -> list[int | None] | None:
        if column is None:
            return None
        found: list[int | None] = column.to_pylist()
        if negative := [n for n, place in enumerate(found) if place is not None and place < 0]:
            row = negative[0]
            raise RecordFailed(f"{self._row(row)}: partition {found[row]}: want 0 or more, or null")
        return found

    def _times(self, column: pa.Array | None) -> list[int | None] | None:
        """Return times in ms; a row without one gets that of its writing."""
        if column is None:
            return None
        us = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
        if early := [n for n, one in enumerate(us) if one is not None and one < 0]:
            row = early[0]
            raise RecordFailed(
                f"{self._row(row)}: timestamp {us[row] // _US_PER_MS} ms: Kafka has no times "
                "before 1970: correct it, or leave it null for the time of writing"
            )
        return [None if one is None else one // _US_PER_MS for one in us]

    def _row(self, row: int) -> str:
        return f"row {self._before + row} of Spark partition {self._spark_partition}"


class _Rows:
    """What a serde may need of the rows, and the headers that go out with them."""

    def __init__(self, topics: list[str], headers: list[tuple[Header, ...]] | None) -> None:
        self.topics = topics
        self.headers = None if headers is None else list(headers)

    def with_headers(self, row: int, headers: list[Header]) -> None:
        """Keep the headers of a row, to which a serde may have added."""
        if self.headers is None:
            if not headers:
                return
            self.headers = [()] * len(self.topics)
        self.headers[row] = tuple(headers)


class _SideEncoder:
    """Writes the values of a column with its serde."""

    def __init__(self, serde: ColumnSerde) -> None:
        self.serde = serde
        self._made = serde.made()
        self._value = serde.value()

    def serialized(self, row: int, value: Any, out: _Rows) -> bytes:
        """The bytes of a value."""
        if not self._made.contextual:
            return self._made.serialize(self._value(value))
        headers = list(out.headers[row]) if out.headers is not None else []
        context = SerdeContext(out.topics[row], self.serde.column, headers)
        written = self._made.write(self._value(value), context)
        out.with_headers(row, headers)
        return written


def _by_topic(rows: EncodedRows, topics: list[str]) -> Iterator[EncodedRows]:
    """Yield the rows of each topic, in their order."""
    if len(names := dict.fromkeys(topics)) == 1:
        yield rows._replace(topic=topics[0])
        return
    for name in names:
        at = [n for n, topic in enumerate(topics) if topic == name]
        columns: Any = rows[1:-1]  # all but topic and origin
        picked: Any = [None if column is None else [column[n] for n in at] for column in columns]
        yield EncodedRows._make([name, *picked, rows.origin])


def _digest(count: int, *columns: Any) -> int:
    """Return the sum, modulo 2**64, of a hash of each row, which is the same in any order."""
    hashed = np.zeros(count, dtype=np.uint64)
    for column in columns:
        hashed = _mixed(hashed + _MIX[0] + _hashes(count, column))
    return int(hashed.sum(dtype=np.uint64))


def _hashes(count: int, column: list[Any] | None) -> npt.NDArray[np.uint64]:
    if column is None:
        return np.zeros(count, dtype=np.uint64)
    first = next((one for one in column if one is not None), None)
    if first is None:
        return np.ones(count, dtype=np.uint64)
    if isinstance(first, int):
        return np.fromiter((-1 if one is None else one for one in column), np.int64, count).view(
            np.uint64
        )
    if isinstance(first, tuple):
        column = [repr(one) for one in column]
    made = np.empty(count, dtype=object)
    made[:] = column
    found: npt.NDArray[np.uint64] = pd.util.hash_array(made, categorize=False)
    if None in column:  # which pandas takes for the text "None"
        found[[n for n, one in enumerate(column) if one is None]] = 1
    return found


def _mixed(hashed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    hashed = (hashed ^ hashed >> _SHIFTS[0]) * _MIX[1]
    return hashed ^ hashed >> _SHIFTS[1]
