"""Punctuations fire exactly once: their output and writes are part of the task's transactions."""

from collections import defaultdict
from typing import Any

import pytest

from tests.kafka.run_rig import COMMIT_STEPS, App, Row

pytestmark = pytest.mark.kafka

INTERVAL_MS = 10


def ticks(times_ms: list[int]) -> list[list[int]]:
    """What stream time must give for records of these times: [time, records so far]."""
    made: list[list[int]] = []
    now: int | None = None
    for count, time_ms in enumerate(times_ms, 1):
        if now is None or time_ms // INTERVAL_MS > now // INTERVAL_MS:
            made.append([time_ms, count])
        now = time_ms if now is None else max(now, time_ms)
    return made


def by_key(rows: list[Row]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.key].append(row.value)
    return found


def test_punctuations_of_killed_runs_are_neither_lost_nor_doubled(app: App) -> None:
    app.killed_at_each_step("ticking")
    inputs: dict[int, list[int]] = defaultdict(list)
    for row in app.read("in"):
        inputs[row.partition].append(row.timestamp_ms)
    found = by_key(app.read())
    for partition, times_ms in inputs.items():
        wanted = ticks(times_ms)
        assert len(wanted) > 100, "few ticks prove little"
        assert found[f"stream-{partition}"] == wanted
        walls = found[f"wall-{partition}"]
        assert walls == list(range(1, len(walls) + 1))
        assert len(walls) >= len(COMMIT_STEPS), "each life fires when it opens"
