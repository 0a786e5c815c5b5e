"""The documents that a server of state sends, and what JSON and Arrow have of rows."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from statestore import serdes
from statestore.model.batch import in_lots
from statestore.model.served import Freshness, ServedRow
from statestore.serdes.java_serdes import scalar_type
from statestore.serving.encoding import Encoding, to_json
from statestore.serving.values import RowsFound, RowStream, StoreAbout
from statestore.stores.reads import Entry

ARROW = "application/vnd.apache.arrow.stream"
_BATCH = 10_000
_BATCH_BYTES = 1 << 20


class RowsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a store; where keys were asked for, one row or null for each, in order.

    Under the serde BYTES, as with raw=true, keys and values are base64.
    """

    store: str
    key_serde: str
    value_serde: str
    rows: list[ServedRow | None]
    freshness: list[Freshness]
    next_page_token: str | None = None


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The row of one key; null if there is none."""

    store: str
    key_serde: str
    value_serde: str
    row: ServedRow | None
    freshness: list[Freshness]


class StoresAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All stores of the application."""

    application_id: str
    stores: list[StoreAbout]


class TasksAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How new the copy of each stream task is."""

    application_id: str
    tasks: list[Freshness]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong (RFC 9457): `error` is its class in statestore.errors, `detail` the way out.

    `retry`: whether the same request may succeed later.
    """

    title: str
    status: int
    detail: str
    error: str
    retry: bool
    type: str = "about:blank"


ANSWERS: Sequence[type] = (
    RowsAnswer,
    RowAnswer,
    StoresAnswer,
    TasksAnswer,
    Problem,
)


def rows_answer(answer: RowsFound, encoding: Encoding) -> bytes:
    """Encode rows."""
    return to_json(
        RowsAnswer(
            store=encoding.store,
            key_serde=encoding.key_serde.name,
            value_serde=encoding.value_serde.name,
            rows=[_served(row, encoding, answer.span_names) for row in answer.rows],
            freshness=answer.freshness,
            next_page_token=answer.next_token,
        )
    )


def row_answer(answer: RowsFound, encoding: Encoding) -> bytes:
    """Encode the only row."""
    (row,) = answer.rows
    return to_json(
        RowAnswer(
            store=encoding.store,
            key_serde=encoding.key_serde.name,
            value_serde=encoding.value_serde.name,
            row=_served(row, encoding, answer.span_names),
            freshness=answer.freshness,
        )
    )


def arrow_chunks(stream: RowStream, encoding: Encoding) -> Iterator[bytes]:
    """Encode rows as an Arrow IPC stream; the schema's metadata has their freshness.

    Keys and values are strings, numbers, booleans or binary by their serdes; those of other serdes
    are JSON texts.
    """
    key_type, value_type = _arrow_type(encoding.key_serde), _arrow_type(encoding.value_serde)
    fields = [pa.field("key", key_type), pa.field("value", value_type)]
    fields += [pa.field(name, pa.int64()) for name in stream.span_names]
    schema = pa.schema(
        fields,
        metadata={
            "statestore.store": encoding.store,
            "statestore.freshness": msgspec.json.encode(stream.freshness),
        },
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        yield _taken(sink)
        for rows in in_lots(
            stream.rows,
            lambda row: len(row.key) + len(row.value),
            rows_max=_BATCH,
            bytes_max=_BATCH_BYTES,
        ):
            columns = [
                _column([encoding.shown_key(row.key) for row in rows], key_type),
                _column([encoding.shown_value(row.value) for row in rows], value_type),
            ]
            if stream.span_names:
                columns.append(pa.array([row.begins_ms for row in rows], pa.int64()))
                columns.append(pa.array([row.ends_ms for row in rows], pa.int64()))
            writer.write_batch(pa.record_batch(columns, schema=schema))
            yield _taken(sink)
    yield _taken(sink)


def _served(row: Entry | None, encoding: Encoding, span_names: Sequence[str]) -> ServedRow | None:
    if row is None:
        return None
    spans = dict(zip(span_names, row[2:], strict=False))
    key, value = encoding.shown_key(row.key), encoding.shown_value(row.value)
    return ServedRow(key=key, value=value, **spans)


def _arrow_type(serde: Any) -> pa.DataType:
    if serde is serdes.BYTES:
        return pa.binary()
    return scalar_type(serde) or pa.string()


def _column(items: list[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.string():
        items = [item if isinstance(item, str) else to_json(item).decode() for item in items]
    elif pa.types.is_floating(kind):
        items = [float(item) for item in items]  # NaN and infinities are texts in JSON alone
    return pa.array(items, kind)


def _taken(sink: io.BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
