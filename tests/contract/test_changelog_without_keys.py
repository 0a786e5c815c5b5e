"""Changelog records without a key, which only another producer leaves: passed over and counted."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from tests.contract.task_rig import APPLICATION, TaskRig
from tests.contract.user_stores import rows_in, supplier
from tests.contract.user_stores import topology as of_a_users_own

STORE = "kept"
LOG = TopicPartition(f"{APPLICATION}-{STORE}-changelog", 0)
COUNT = 500


def in_memory() -> ss.Topology:
    return key_value(ss.in_memory_key_value_store(STORE))


def key_value(spec: Any = None) -> ss.Topology:
    b = ss.StreamsBuilder()
    b.table("in", materialized=ss.Materialized(spec or STORE))
    return b.build()


def versioned() -> ss.Topology:
    b = ss.StreamsBuilder()
    b.table("in", materialized=ss.Materialized(STORE, history_retention=10_000))
    return b.build()


def windowed() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING)
    b.stream("in").group_by_key().windowed_by(ss.TumblingWindows(10)).count(STORE)
    return b.build()


def in_sessions() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING)
    b.stream("in").group_by_key().windowed_by(ss.SessionWindows(10)).count(STORE)
    return b.build()


def shown(rig: TaskRig) -> dict[object, object]:
    store: Any = rig.running[-1].store(STORE)
    if hasattr(store, "range_as_of"):
        with store.range_as_of(None, None, 0) as scan:
            return dict(scan)
    with store.all() as scan:
        return dict(scan)


@pytest.mark.parametrize("build", [key_value, in_memory, versioned, windowed, in_sessions])
def test_a_restore_passes_over_records_without_a_key_and_counts_them(
    build: Callable[[], ss.Topology], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = TaskRig(build(), tmp_path)
    task = rig.start()
    rig.send("in", [(f"k{i}", "1") for i in range(COUNT)])
    task.step(0)
    rig.broker.produce(LOG, Record(None, b"nobody's", 5))
    rig.broker.produce(LOG, Record(None, None, 6))
    task.step_commit()
    rows = shown(rig)
    assert len(rows) == COUNT
    rig.broker.produce(LOG, Record(None, b"nobody's", 7))
    rig.root = tmp_path / "new volume"
    for running in rig.running:
        running.abandon()
    rig.running.clear()
    with caplog.at_level(logging.WARNING):
        task = rig.start()
    assert shown(rig) == rows
    assert (task.report.quarantined, task.report.dropped_records) == ([], 3)
    assert f"passed over 3 records of {LOG} without a key" in caplog.text
    rig.end()
    # One in memory is restored anew at each start.
    assert rig.start().report.dropped_records == (3 if build is in_memory else 0)
    rig.end()


def test_a_store_of_a_users_own_is_given_no_record_without_a_key(tmp_path: Path) -> None:
    rig = TaskRig(of_a_users_own(supplier(manages=True)), tmp_path)
    task = rig.start()
    rig.send("in", [("a", "1"), ("b", "2")])
    task.step(0)
    rig.broker.produce(TopicPartition(f"{APPLICATION}-book-changelog", 0), Record(None, b"x", 0))
    task.step_commit()
    rig.end()
    rig.root = tmp_path / "new volume"
    task = rig.start()
    assert task.report.dropped_records == 1
    rig.end()
    assert rows_in(rig.store_dir("book")) == {"a": "1", "b": "2"}
