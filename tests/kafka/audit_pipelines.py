"""A pipeline with a store of every kind, for audits; its topics begin with a prefix."""

from typing import Any

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
    windows = stream.group_by_key().windowed_by(ss.TumblingWindows(WINDOW_MS, retention=10**6))
    windows.count("windows")
    sessions = stream.group_by_key().windowed_by(ss.SessionWindows(0, retention=10**6))
    sessions.count("sessions")
    rates = ss.Materialized("rates", history_retention=10**6, value_serde=serdes.STRING)
    b.table(f"{prefix()}-rates", value_serde=serdes.STRING, materialized=rates)
    return b.build()


TTL_MS = 10**6
RECENT = ss.persistent_key_value_store(
    "recent", key_serde=serdes.STRING, value_serde=serdes.STRING, ttl=TTL_MS
)
REMINDERS = ss.timer_store("reminders", key_serde=serdes.STRING)


class Keeping:
    """Keeps the last number of each key for a while, and sets a timer for it."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._store, self._timers = context.store(RECENT), context.timers(REMINDERS)

    def process(self, record: ss.Record[str, dict[str, Any]]) -> None:
        self._store.put(record.key, str(record.value["number"]))
        self._timers.schedule(record.key, record.timestamp_ms + TTL_MS)

    def on_timer(self, timer: ss.Timer[str]) -> None:
        """Do nothing: no timer of these fires."""


def every_row() -> ss.Topology:
    """A store of every kind, each with all rows that it can have beside those of its changelog."""
    b = builder()
    stream = b.stream(f"{prefix()}-in")
    stream.process(Keeping, RECENT, REMINDERS, name="keep")
    by_key = stream.group_by_key()
    counted = by_key.count("counts")
    counted.suppress(ss.Suppressed.until_time_limit(10**6), name="held").to_stream().to(
        f"{prefix()}-out"
    )
    by_key.windowed_by(ss.TumblingWindows(WINDOW_MS, retention=10**6)).count("windows")
    by_key.windowed_by(ss.SlidingWindows(WINDOW_MS, grace=10**6)).count("slides")
    by_key.windowed_by(ss.SessionWindows(20, retention=10**6)).count("sessions")
    by_key.windowed_by(ss.CountWindows(3, 1)).count("threes")
    rates = ss.Materialized("rates", history_retention=10**6, value_serde=serdes.STRING)
    b.table(f"{prefix()}-rates", value_serde=serdes.STRING, materialized=rates)
    other = stream.filter(lambda _key, value: value["number"] % 2 == 0)
    near = ss.JoinWindows(WINDOW_MS, grace=10**6)
    stream.left_join(other, lambda left, right: [left, right], near, name="near").to(
        f"{prefix()}-pairs"
    )
    return b.build()
