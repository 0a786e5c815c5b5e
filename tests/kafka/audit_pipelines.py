"""A pipeline with a store of every kind, for audits; its topics begin with a prefix."""

import statestore as ss
from statestore import serdes
from tests.kafka.run_pipelines import builder, prefix

KEYS = 100
WINDOW_MS = 50


def every_kind() -> ss.Topology:
    """Counts by name behind a repartition, counts by key and window, counts by key and session, and
    rates with history."""
    b = builder()
    stream = b.stream(f"{prefix()}-in")
    named = stream.group_by(lambda _key, value: f"n{value['number'] % KEYS}", name="by-name")
    named.count("counts").to_stream().to(f"{prefix()}-out")
    windows = stream.group_by_key().windowed_by(ss.TumblingWindows(WINDOW_MS, retention_ms=10**6))
    windows.count("windows")
    sessions = stream.group_by_key().windowed_by(ss.SessionWindows(0, retention_ms=10**6))
    sessions.count("sessions")
    rates = ss.Materialized("rates", history_retention_ms=10**6, value_serde=serdes.STRING)
    b.table(f"{prefix()}-rates", value_serde=serdes.STRING, materialized=rates)
    return b.build()
