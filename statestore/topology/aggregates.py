"""The stateful operators: count, reduce, aggregate, table.

One get_many and one put_all per batch; updates are stamped and placed at the key's last record in
the batch.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from statestore.model import Batch, Column, Serde
from statestore.stores import serdes
from statestore.stores.specs import KeyValueSpec
from statestore.topology.graph import Build, Forward, NodeContext, Push
from statestore.topology.operators import encoded, failed, mismatch

# INT64's bytes, one by one and as arrays.
_COUNT = struct.Struct(">q")
_NO_COUNT = _COUNT.pack(0)
_COUNTS, _COUNT_BYTES = np.dtype(">i8"), np.dtype("V8")


class Updates(NamedTuple):
    """What an operator hands on: places in the batch it answers, keys, values."""

    places: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]


def counted(
    node: str, spec: KeyValueSpec[Any, Any], key_serde: Serde[Any], *, every_update: bool
) -> Build:
    """Records per key. Touches keys only, and those as bytes."""

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(spec.name)

        def push(batch: Batch) -> None:
            keys = encoded(node, batch, "key", key_serde)
            found = _distinct(keys)
            if not found.keys:
                return
            stored = table.get_many(found.keys)
            rows = b"".join([_NO_COUNT if count is None else count for count in stored])
            before = np.frombuffer(rows, _COUNTS)
            after = (before + found.counts).astype(_COUNTS).view(_COUNT_BYTES).tolist()
            table.put_all(dict(zip(found.keys, after, strict=True)))
            if every_update:
                updates = _run(keys, dict(zip(found.keys, before.tolist(), strict=True)))
            else:
                order = np.argsort(found.last)
                updates = Updates(
                    found.last[order].tolist(),
                    list(map(found.keys.__getitem__, order)),
                    list(map(after.__getitem__, order)),
                )
            forward(_updated(batch, updates, key_serde, serdes.INT64), None)

        return push

    return build


class _Distinct(NamedTuple):
    """The keys of a batch in byte order, how often each is there, and where last."""

    keys: list[bytes]
    counts: NDArray[np.int64]
    last: NDArray[np.int64]


def _distinct(keys: list[bytes | None]) -> _Distinct:
    """Null keys left out. In key order, so that neither look-up nor commit has to sort.

    Buffers are handed over as they are: Arrow's own conversions would import pandas, for seconds.
    """
    places = np.arange(len(keys))
    known = [key for key in keys if key is not None]
    if len(known) < len(keys):
        places = np.array([i for i, key in enumerate(keys) if key is not None], np.int64)
    column = _binary(known).dictionary_encode()
    indices = np.frombuffer(column.indices.buffers()[1], np.int32, len(known))
    size = len(column.dictionary)
    last = np.empty(size, np.int64)
    last[indices] = np.arange(len(known))  # of equal indices the last assignment stays
    sorted_places = pyarrow.compute.sort_indices(column.dictionary)
    order = np.frombuffer(sorted_places.buffers()[1], np.uint64, size)
    last = last[order]
    counts = np.bincount(indices, minlength=size)[order]
    return _Distinct(list(map(known.__getitem__, last)), counts, places[last])


def _binary(rows: list[bytes]) -> pa.LargeBinaryArray:
    """The rows as Arrow has them."""
    ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(b"".join(rows))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)


def _last_of(
    keys: list[bytes | None], last: Mapping[Any, int], after: Mapping[Any, bytes | None]
) -> Updates:
    """One update per key, placed and stamped at its last record."""
    places = sorted(last.values())
    unique = [keys[i] for i in places]
    return Updates(places, unique, list(map(after.__getitem__, unique)))


def _run(keys: list[bytes | None], running: dict[bytes, int]) -> "Updates":
    """One update per record."""
    rows = Updates([], [], [])
    for i, key in enumerate(keys):
        if key is not None:
            running[key] += 1
            rows.places.append(i)
            rows.keys.append(key)
            rows.values.append(_COUNT.pack(running[key]))
    return rows


def _updated(batch: Batch, rows: Updates, key_serde: Serde[Any], value_serde: Serde[Any]) -> Batch:
    return Batch(
        keys=Column(raw=rows.keys, serde=key_serde),
        values=Column(raw=rows.values, serde=value_serde),
        timestamps=list(map(batch.timestamps.__getitem__, rows.places)),
    )


def aggregated(
    node: str,
    spec: KeyValueSpec[Any, Any],
    key_serde: Serde[Any],
    step: Callable[[Any, Any, Any], Any],
    initial: Callable[[], Any] | None,
    *,
    every_update: bool,
) -> Build:
    """A fold per key; `step(key, value, old)`.

    Without `initial` the first value stands as it is (reduce).
    """
    decode = spec.value_serde.deserialize

    def encode(value: Any) -> bytes | None:
        try:
            return None if value is None else spec.value_serde.serialize(value)
        except Exception as error:
            raise mismatch(node, "value", value, spec.value_serde, error) from error

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(spec.name)

        def fold(batch: Batch) -> tuple[dict[bytes, bytes | None], Updates]:
            raw = encoded(node, batch, "key", key_serde)
            rows = [
                (i, data, value)
                for i, (data, value) in enumerate(zip(raw, batch.values.objects, strict=True))
                if data is not None and value is not None
            ]
            unique = list(dict.fromkeys(data for _, data, _ in rows))
            stored = zip(unique, table.get_many(unique), strict=True)
            state = {data: None if old is None else decode(old) for data, old in stored}
            names = {data: key_serde.deserialize(data) for data in unique}
            last: dict[bytes, int] = {}
            every = Updates([], [], [])
            for i, data, value in rows:
                old = state[data]
                if old is None and initial is None:
                    new = value
                else:
                    start = initial() if old is None and initial is not None else old
                    new = step(names[data], value, start)
                state[data] = new
                last[data] = i
                if every_update:
                    every.places.append(i)
                    every.keys.append(data)
                    every.values.append(encode(new))
            after = {data: encode(new) for data, new in state.items()}
            return after, every if every_update else _last_of(raw, last, after)

        def push(batch: Batch) -> None:
            try:
                after, updates = fold(batch)
            except Exception as error:
                raise failed(node, batch, error) from error
            if after:
                table.put_all(after)
                forward(_updated(batch, updates, key_serde, spec.value_serde), None)

        return push

    return build


def tabled(
    node: str, spec: KeyValueSpec[Any, Any], key_serde: Serde[Any], value_serde: Serde[Any]
) -> Build:
    """The latest value per key into a store; null keys are dropped, null values delete."""

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(spec.name)

        def push(batch: Batch) -> None:
            keys = encoded(node, batch, "key", key_serde)
            if None in keys:
                batch = batch.take([i for i, key in enumerate(keys) if key is not None])
                keys = [key for key in keys if key is not None]
            if not keys:
                return
            values = encoded(node, batch, "value", value_serde)
            table.put_all({k: v for k, v in zip(keys, values, strict=True) if k is not None})
            forward(batch, None)

        return push

    return build
