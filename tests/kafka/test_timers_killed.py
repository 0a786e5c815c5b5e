"""Timers fire exactly once, through kills, relocation and restore, and are rows as any (I40)."""

import json
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from tests import processes
from tests.builders import DEADLINE_S
from tests.kafka.run_rig import SMALL_COMMITS, STATESTORE, App, Row

pytestmark = pytest.mark.kafka

STREAM, WALL = "stream_time", "wall_clock_time"


def told(rows: list[Row]) -> dict[str, list[Any]]:
    """What fired in each partition by stream time, in order, and by the wall clock."""
    found: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        kind, *timer = row.value
        found[f"{kind} {row.key}"].append(timer)
    return {name: sorted(some) if name.startswith(WALL) else some for name, some in found.items()}


def wanted(rows: list[Row]) -> tuple[dict[str, list[Any]], list[list[Any]]]:
    """What a naive reading of the input gives, and the timers that wait in the end."""
    timers: dict[int, dict[tuple[str, str], int]] = defaultdict(dict)
    now: dict[int, int] = {}
    found: dict[str, list[Any]] = defaultdict(list)
    for partition, _, value, at in rows:
        waiting = timers[partition]
        while due := [(t, *of) for of, t in waiting.items() if t < max(at, now.get(partition, 0))]:
            due_ms, user, name = min(due)
            del waiting[user, name]
            found[f"{STREAM} {partition}"].append([user, name, due_ms])
        now[partition] = max(at, now.get(partition, 0))
        user, number = value["user"], value["number"]
        waiting[user, ""] = at + 8
        if number % 10 == 0:
            waiting[user, "later"] = at + 25
        if number % 30 == 0:
            waiting.pop((user, "later"), None)
        if number % 100 == 0:
            found[f"{WALL} {partition}"].append([user, str(number), number])
    for name, some in found.items():
        if name.startswith(WALL):
            some.sort()
    left = [[*of, t, STREAM] for waiting in timers.values() for of, t in waiting.items()]
    return found, sorted(left)


def called(app: App, *words: str) -> list[Any]:
    """What a command prints that must succeed."""
    flags = [f"--application-id={app.name}", f"--state-dir={app.state_dir}", "--json"]
    done = processes.run([STATESTORE, *words, *flags], timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.thorough
def test_times_of_partitions_are_those_of_the_commit_after_kills(app: App) -> None:
    app.killed_at_each_step("previous_times")
    last: dict[int, int] = {}
    expected = {}
    for partition, key, value, at in app.read("in"):
        if value["number"] % 3 == 0 or partition not in last:
            last[partition] = max(at, last.get(partition, 0))
            expected[key] = at
        else:
            expected[key] = last[partition]
    found = app.read()
    assert len(found) == len(expected)
    assert {row.key: row.timestamp_ms for row in found} == expected


def test_timers_of_killed_runs_are_neither_lost_nor_doubled(app: App) -> None:
    app.killed_at_each_step("reminding")
    expected, waiting = wanted(app.read("in"))
    assert sum(len(some) for name, some in expected.items() if name.startswith(STREAM)) > 500
    assert told(app.read()) == expected
    assert len(waiting) > 5
    rows = [row["key"] for row in called(app, "stores", "range", "reminders")]
    by_key = [[user, name, None, None] for user, name, _, _ in waiting]
    assert sorted(rows, key=str) == sorted(waiting + by_key, key=str)

    # The timers that wait move with the processor, and are restored from the changelog.
    app.kafka.create_topic(f"{app.name}-other", 2)
    app.kafka.create_topic(f"{app.name}-elsewhere", 2)
    app.produce(range(4020, 4520))
    app.drained(*SMALL_COMMITS, pipeline="reminding_elsewhere")
    for folder in (app.state_dir / app.name).glob("*/rocksdb/reminders"):
        shutil.rmtree(folder)
    app.produce(range(4520, 5020))
    app.drained(*SMALL_COMMITS, pipeline="reminding_elsewhere")
    expected, _ = wanted(app.read("in"))
    assert told(app.read()) == expected
    called(app, "audit", f"--bootstrap-servers={app.kafka.bootstrap_servers}")


@pytest.mark.slow
def test_the_same_kills_without_transactions_double_timers_and_lose_none(app: App) -> None:
    unsafe = replace(app, settings={"processing.guarantee": "at_least_once"})
    unsafe.killed_at_each_step("reminding")
    expected, _ = wanted(app.read("in"))
    found = told(app.read())

    def times(fired: dict[str, list[Any]]) -> Counter[str]:
        return Counter(f"{where} {timer}" for where, some in fired.items() for timer in some)

    assert times(found) - times(expected), "timers that fired again"
    assert not times(expected) - times(found)
