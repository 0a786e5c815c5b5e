"""Tables of the latest value per key, as operators."""

from typing import Any

from statestore.model.batch import Batch, Column
from statestore.stores.specs import KeyValueSpec
from statestore.topology.aggregates import Before
from statestore.topology.failures import encoded, keyed
from statestore.topology.graph import Build, Forward, NodeContext, Push


def tabled(node: str, spec: KeyValueSpec[Any, Any], *, before: Before | None = None) -> Build:
    """The latest value per key into a store; null keys are dropped, null values delete."""

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(spec.name)
        wanted = before is not None and before.wanted

        def push(batch: Batch) -> None:
            batch, keys = keyed(context, node, batch, spec.key_serde)
            if not keys:
                return
            values = encoded(node, batch, "value", spec.value_serde)
            writes: dict[Any, bytes | None] = dict(zip(keys, values, strict=True))
            if wanted:
                known = sorted(writes)
                old = dict(zip(known, table.get_many(known), strict=True))
                replaced = [_swapped(old, key, new) for key, new in zip(keys, values, strict=True)]
                batch = batch.with_columns()
                batch.before = Column(raw=replaced, serde=spec.value_serde)
            # Of the last record of each key, as the values.
            table.put_all(writes, list(dict(zip(keys, batch.timestamps, strict=True)).values()))
            forward(batch, None)

        return push

    return build


def _swapped(held: dict[Any, bytes | None], key: Any, new: bytes | None) -> bytes | None:
    """What is held for `key`; `new` is held from here on."""
    old = held[key]
    held[key] = new
    return old
