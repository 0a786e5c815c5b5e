"""Clones killed by SIGKILL at every point: the next one is whole, the original untouched."""

import json
import os
import signal
from typing import Any

import pytest

from statestore.faults import VARIABLE, CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import ROOT
from tests.crash.kill_harness import STATESTORE, Rig
from tests.crash.pipeline import PREFIX_VARIABLE

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
POINTS = [point for point in CrashPoint if point.startswith("clone.")]


@pytest.fixture(scope="module")
def rig(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    rig = Rig(kafka, tmp_path_factory.mktemp("clones") / "state")
    rig.create_topics()
    rig.produce(1700)
    rig.run()
    called(rig, "create", "--for-clone")
    rig.produce(300)
    return rig


def called(rig: Rig, *words: str, crash_at: str = "", dies: bool = False) -> dict[str, Any]:
    """`statestore exports …` in a process of its own."""
    done = processes.run(
        [
            str(STATESTORE),
            "exports",
            *words,
            *rig.command(),
            f"--target={rig.state_dir.parent / 'exports'}",
            "--json",
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            VARIABLE: crash_at,
            PREFIX_VARIABLE: rig.topic_prefix,
        },
        timeout=100,
    )
    assert done.returncode == (-signal.SIGKILL if dies else 0), done.stderr[-4000:]
    return {} if dies else dict(json.loads(done.stdout))


@pytest.mark.parametrize("point", POINTS)
def test_a_clone_killed_is_made_anew_by_the_next_and_the_original_is_as_it_was(
    rig: Rig, point: str
) -> None:
    clone_id = point.replace(".", "-")
    before = {topic: rig.read(topic) for topic in rig.written()}, rig.committed()
    called(rig, "restore", f"--as={clone_id}", crash_at=point, dies=True)
    if point == CrashPoint.CLONE_FINISHED:
        called(rig, "drop-clone", clone_id)
    report = called(rig, "restore", f"--as={clone_id}")
    clone = Rig(
        rig.kafka,
        rig.state_dir,
        application_id=clone_id,
        topic_prefix=rig.topic_prefix,
        produced=rig.produced,
        expected=rig.expected,
    )
    summary = clone.run()
    assert (summary["restored_records"], summary["records_in"]) == (0, 600)
    assert clone.store_rows() == dict(rig.expected)
    assert ({topic: rig.read(topic) for topic in rig.written()}, rig.committed()) == before
    assert set(report["topics"]) >= {f"{rig.topic_prefix}-passed", f"{rig.topic_prefix}-counts"}
    called(rig, "drop-clone", clone_id)
