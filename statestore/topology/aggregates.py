"""The stateful operators: count, reduce, aggregate, table.

One get_many and one put_all per batch; updates are stamped and placed at the key's last record in
the batch.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from statestore.model import Batch, Column, Serde
from statestore.stores import serdes
from statestore.stores.specs import KeyValueSpec
from statestore.topology.graph import Build, Forward, NodeContext, Push
from statestore.topology.operators import encoded, failed, mismatch


def counted(
    node: str, spec: KeyValueSpec[Any, Any], key_serde: Serde[Any], *, every_update: bool
) -> Build:
    """Records per key. Touches keys only, and those as bytes."""
    pack, unpack = serdes.INT64.serialize, serdes.INT64.deserialize

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(spec.name)

        def push(batch: Batch) -> None:
            keys = encoded(node, batch, "key", key_serde)
            added = Counter(keys)
            known = [key for key in added if key is not None]
            if not known:
                return
            before = [0 if old is None else unpack(old) for old in table.get_many(known)]
            after = {key: pack(old + added[key]) for key, old in zip(known, before, strict=True)}
            table.put_all(after)
            if every_update:
                running = dict(zip(known, before, strict=True))
                rows = _run(keys, running, pack)
            else:
                rows = _last(keys, after)
            forward(_updates(batch, rows, key_serde, serdes.INT64), None)

        return push

    return build


def _run(
    keys: list[bytes | None], running: dict[bytes, int], pack: Callable[[int], bytes]
) -> list[tuple[int, bytes, bytes | None]]:
    rows: list[tuple[int, bytes, bytes | None]] = []
    for i, key in enumerate(keys):
        if key is not None:
            running[key] += 1
            rows.append((i, key, pack(running[key])))
    return rows


def _last(
    keys: list[bytes | None], after: dict[bytes, bytes]
) -> list[tuple[int, bytes, bytes | None]]:
    """One update per key, placed and stamped at its last record."""
    place = {key: i for i, key in enumerate(keys)}
    return sorted((place[key], key, value) for key, value in after.items())


def _updates(
    batch: Batch,
    rows: list[tuple[int, bytes, bytes | None]],
    key_serde: Serde[Any],
    value_serde: Serde[Any],
) -> Batch:
    times = batch.timestamps
    return Batch(
        keys=Column(raw=[key for _, key, _ in rows], serde=key_serde),
        values=Column(raw=[value for _, _, value in rows], serde=value_serde),
        timestamps=[times[i] for i, _, _ in rows],
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

        def fold(
            batch: Batch,
        ) -> tuple[dict[bytes, bytes | None], list[tuple[int, bytes, bytes | None]]]:
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
            place: dict[bytes, int] = {}
            updates: list[tuple[int, bytes, bytes | None]] = []
            for i, data, value in rows:
                old = state[data]
                if old is None and initial is None:
                    new = value
                else:
                    start = initial() if old is None and initial is not None else old
                    new = step(names[data], value, start)
                state[data] = new
                place[data] = i
                if every_update:
                    updates.append((i, data, encode(new)))
            after = {data: encode(new) for data, new in state.items()}
            return after, updates or sorted((i, data, after[data]) for data, i in place.items())

        def push(batch: Batch) -> None:
            try:
                after, updates = fold(batch)
            except Exception as error:
                raise failed(node, batch, error) from error
            if after:
                table.put_all(after)
                forward(_updates(batch, updates, key_serde, spec.value_serde), None)

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
