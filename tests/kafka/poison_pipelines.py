"""Pipelines that meet poison records on a real broker; topics as in run_pipelines.

What a record's value tells a node to do: refuse it, or make it too large. Values are JSON.
"""

import random
from collections.abc import Sequence
from typing import Any

import statestore as ss
from statestore.topology.processors.user_processors import ProcessorContext
from tests.kafka.run_pipelines import builder, prefix

# Above what the test's topic takes, below what the client takes.
LARGE = 5_000


def shaped(value: dict[str, Any]) -> dict[str, Any]:
    """As the value says: refused, or as large as it wants."""
    if "refuse" in value:
        raise ValueError(f"cannot take number {value['number']}")
    noise = random.Random(value["number"]).randbytes(value.get("size", 0) // 2)  # compresses badly
    return {**value, "padding": noise.hex()}


class Remembering:
    """Counts by user in a store, before it looks at the record."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self._seen = context.store("seen")

    def process(self, record: "ss.Record[str, dict[str, Any]]") -> None:
        seen = (self._seen.get(record.value["user"]) or 0) + 1
        self._seen.put(record.value["user"], seen)
        self._context.forward(record.replace(value=shaped({**record.value, "seen": seen})))


def poisoned() -> ss.Topology:
    """Counted through a repartition topic, remembered in a store, written as it is told to."""
    b = builder()
    stream = b.stream(f"{prefix()}-in")
    (
        stream.group_by(lambda _key, value: value["user"], name="by-user")
        .count(ss.Materialized("counts", caching=False))
        .to_stream()
        .to(f"{prefix()}-counted")
    )
    seen = ss.persistent_key_value_store(
        "seen", key_serde=ss.serdes.STRING, value_serde=ss.serdes.INT64
    )
    stream.process(Remembering, seen, name="remembering").to(f"{prefix()}-out")
    return b.build()


def kept() -> ss.Topology:
    """Records wait for a table, and for their window to close; then each is made as it is told."""
    b = builder()
    history = ss.Materialized("rates", history_retention=60_000)
    table = b.table(f"{prefix()}-table", materialized=history)
    stream = b.stream(f"{prefix()}-in")
    joined = stream.left_join(table, lambda value, _rate: value, grace=5, name="priced")
    joined.map_values(shaped).to(f"{prefix()}-out")
    windows = ss.TumblingWindows(10, retention=60_000)
    closing = stream.group_by_key().windowed_by(windows, emit="on_window_close")
    finals = closing.reduce(lambda _old, new: new, "finals").to_stream()
    # Behind a processor of batches, nobody knows which one it was.
    finals.process_batch(Shaping).to(f"{prefix()}-counted")
    return b.build()


class Shaping:
    """Makes values as they say, a batch at once."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    def process_batch(self, records: "Sequence[ss.Record[Any, dict[str, Any]]]") -> None:
        for record in records:
            made = record.replace(key=record.key.key, value=shaped(record.value))
            self._context.forward(made)
