# ruff: noqa: T201 - the seed is part of the result
"""SIGKILL of a versioned store's owner: the next opening finds one past commit, whole.

Its history, its stream time and what it rejects are those of that commit (SEMANTICS V4, V9).
"""

import signal
from pathlib import Path

import pytest

from statestore.faults import CrashPoint
from tests.crash.test_store_crash import FOREVER, Rig, kill_at_random_moments

FEW = {
    "statestore.wal": "false",
    "statestore.memory.bytes": 1 << 20,
    "statestore.flush.lag.max.records": 400,
}


@pytest.fixture
def versions(tmp_path: Path) -> Rig:
    made = Rig(tmp_path, settings=dict(FEW), writer="tests.crash.version_writer")
    print(f"STATESTORE_SEED={made.seed}")
    return made


def test_random_kills_leave_history_and_stream_time_of_one_past_commit(versions: Rig) -> None:
    kill_at_random_moments(versions, 4)


def test_a_kill_before_a_flush_keeps_the_history_of_a_flushed_commit(versions: Rig) -> None:
    life = versions.live(FOREVER, f"{CrashPoint.STORE_FLUSH}:3")
    assert life.returncode == -signal.SIGKILL
    assert life.commit > life.durable > 0
    versions.check()


def test_a_clean_close_keeps_all(versions: Rig) -> None:
    assert versions.live(60).closed
    assert versions.check().found == 60


@pytest.mark.slow
def test_a_hundred_random_kills_leave_history_of_one_past_commit_each_time(versions: Rig) -> None:
    kill_at_random_moments(versions, 100)
