"""Pipelines with a table that keeps 30 days of history, by the prefix of their topics."""

import json
import os

import statestore as ss
from statestore import serdes
from tests.kafka.run_pipelines import PREFIX_VARIABLE

DAY_MS = 86_400_000
RETENTION_MS = 30 * DAY_MS
# The cleaner takes what it may as soon as it looks. No topic is told to spare anything.
OFTEN = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.001"}


def aged() -> ss.Topology:
    """The table lies on disk."""
    return _table(ss.Materialized("rates", history_retention=RETENTION_MS, changelog_config=OFTEN))


def in_memory() -> ss.Topology:
    """The table is restored from its changelog at each start."""
    spec = ss.in_memory_versioned_key_value_store(
        "rates", RETENTION_MS, key_serde=serdes.STRING, value_serde=serdes.STRING
    )
    return _table(ss.Materialized(spec, changelog_config=OFTEN))


def _table(
    kept: "ss.Materialized[str, str]", b: "ss.StreamsBuilder[str, str] | None" = None
) -> ss.Topology:
    prefix = os.environ[PREFIX_VARIABLE]
    b = b or ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    table = b.table(f"{prefix}-rates", materialized=kept, name="rates-table")
    orders = b.stream(f"{prefix}-in", name="orders")
    orders.left_join(table, lambda a, r: json.dumps(f"{a}*{r}"), name="priced").to(f"{prefix}-out")
    return b.build()


def moved() -> ss.Topology:
    """As `aged`, in another sub-topology, as one more stream comes first."""
    prefix = os.environ[PREFIX_VARIABLE]
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream(f"{prefix}-other", name="others").to(f"{prefix}-out")
    return _table(
        ss.Materialized("rates", history_retention=RETENTION_MS, changelog_config=OFTEN), b
    )
