"""Pipelines with a table of rates that keeps its history, by the prefix of their topics."""

import json
import os

import statestore as ss
from statestore import serdes
from tests.kafka.run_pipelines import PREFIX_VARIABLE

RETENTION_MS = 10 * 86_400_000
GRACE_MS = 50
# Rolled and cleaned as often as the broker looks, if it may.
OFTEN = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.001"}
CLEANED = OFTEN | {"max.compaction.lag.ms": "1"}


def priced() -> ss.Topology:
    """Orders with the rate as of their own time, after waiting for late rates."""
    return _rates(
        ss.Materialized("rates", history_retention=RETENTION_MS, changelog_config=OFTEN),
        grace_ms=GRACE_MS,
    )


def plain() -> ss.Topology:
    """The same with the latest rate."""
    return _rates(ss.Materialized("rates"), grace_ms=0)


def late_spared() -> ss.Topology:
    """As `priced`, its changelog not told to be spared longer."""
    return _rates(ss.Materialized("rates", history_retention=RETENTION_MS), grace_ms=GRACE_MS)


def _rates(kept: ss.Materialized, *, grace_ms: int) -> ss.Topology:
    prefix = os.environ[PREFIX_VARIABLE]
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    table = b.table(f"{prefix}-rates", materialized=kept, name="rates-table")
    orders = b.stream(f"{prefix}-in", name="orders")
    orders.join(table, lambda a, r: json.dumps(f"{a}*{r}"), grace=grace_ms, name="priced").to(
        f"{prefix}-out"
    )
    counts = ss.Materialized("counts", changelog_config=CLEANED)
    orders.group_by_key().count(counts, name="orders-counted")
    return b.build()


def forgetting() -> ss.Topology:
    """The latest value per key; its changelog forgets deletes as soon as the broker looks."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    config = CLEANED | {"delete.retention.ms": "1"}
    rows = ss.Materialized("rows", changelog_config=config)
    b.table(f"{os.environ[PREFIX_VARIABLE]}-in", materialized=rows, name="rows-table")
    return b.build()
