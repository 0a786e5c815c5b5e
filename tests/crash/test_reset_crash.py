"""Resets killed by SIGKILL at every point: no start goes on before the reset is finished."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from statestore.faults import VARIABLE, CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, ROOT
from tests.crash.kill_harness import STATESTORE, Rig
from tests.crash.pipeline import PREFIX_VARIABLE

pytestmark = pytest.mark.kafka
POINTS = [point for point in CrashPoint if point.startswith("reset.")]
MISUSE = 2


def called(rig: Rig, *words: str, crash_at: str = "") -> "subprocess.CompletedProcess[str]":
    """`statestore reset` in a process of its own."""
    where = [
        f"--application-id={rig.application_id}",
        f"--bootstrap-servers={rig.kafka.bootstrap_servers}",
        f"--state-dir={rig.state_dir}",
    ]
    return processes.run(
        [str(STATESTORE), "reset", *words, *where, "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: crash_at},
        timeout=100,
    )


def reset(rig: Rig, *words: str) -> dict[str, Any]:
    done = called(rig, "--yes", *words)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout))


def started(rig: Rig) -> "subprocess.CompletedProcess[str]":
    return processes.run(
        [str(STATESTORE), "run", *rig.command()],
        env={**os.environ, "PYTHONPATH": str(ROOT), PREFIX_VARIABLE: rig.topic_prefix},
        timeout=100,
    )


def test_killed_resets_are_finished_by_the_next_and_the_application_begins_again(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = Rig(kafka, tmp_path / "state", application_id="reset", topic_prefix="reset")
    rig.create_topics()
    rig.produce(600)
    rig.run()
    counts = rig.store_rows()
    for point in POINTS:
        assert called(rig, "--yes", crash_at=point).returncode == -signal.SIGKILL, point
        refused = started(rig)
        assert refused.returncode == MISUSE, (point, refused.stderr[-2000:])
        assert "repeat `statestore reset`" in refused.stderr
        done = reset(rig)
        assert {at["after"] for at in done["offsets"]} == {0}
        assert rig.committed() == {("reset-in", 0): 0, ("reset-in", 1): 0}
        assert rig.run()["records_in"] >= 600, point
        assert rig.store_rows() == counts, point


def test_a_reset_moves_back_by_some_records_or_to_a_time_and_asks_before_it_does(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = Rig(kafka, tmp_path / "state", application_id="shifted", topic_prefix="shifted")
    rig.create_topics()
    rig.produce(400)
    rig.run()
    ends = rig.committed()
    unasked = called(rig)
    assert unasked.returncode == MISUSE
    assert "--yes" in unasked.stderr
    planned = json.loads(called(rig, "--shift-by=-50", "--dry-run").stdout)
    assert not planned["applied"]
    assert rig.committed() == ends
    reset(rig, "--shift-by=-50")
    assert rig.committed() == {tp: end - 50 for tp, end in ends.items()}
    reset_to = 1_700_000_000_000 + 200
    with pytest.raises(AssertionError, match="nothing was deployed"):
        reset(rig, f"--to-time={reset_to}")
    assert rig.run()["records_in"] >= 100
    reset(rig, f"--to-time={reset_to}")
    assert sum(rig.committed().values()) == sum(ends.values()) - 200
    rig.run()
    assert sum(rig.store_rows().values()) == 200


def test_an_application_whose_input_is_gone_is_reset_all_the_same(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = Rig(kafka, tmp_path / "state", application_id="no-input", topic_prefix="no-input")
    rig.create_topics()
    rig.produce(100)
    rig.run()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_topics(["no-input-in"], operation_timeout=DEADLINE_S).values():
        future.result(timeout=DEADLINE_S)
    done = reset(rig)
    assert done["offsets"] == []
    assert rig.store_rows() == {}
