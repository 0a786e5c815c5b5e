# ruff: noqa: T201 - what each kill met is part of the result
"""SIGKILL within runs of two workers, of a worker and of the run itself: exactly once, as with one.

A worker that dies at a crash point is replaced within the same run, which ends well.
"""

import json
import random
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from statestore.faults import CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import ELSEWHERE, Rig
from tests.processes import Process

pytestmark = pytest.mark.kafka

VISITED = [point for point in CrashPoint if point not in ELSEWHERE]
# One for each way to go on: stores taken as they are, a tail to replay, a transaction to abort.
QUICK = [CrashPoint.CLAIM_OWNED, CrashPoint.COMMIT_OFFSETS_SENT, CrashPoint.COMMIT_LOG_DONE]
SEED = 20261122
LOT = 6000


def rig_on(kafka: LocalKafka, folder: Path, name: str, **fields: object) -> Rig:
    rig = Rig(
        kafka,
        folder,
        application_id=name,
        topic_prefix=name,
        options=["--workers=2"],
        **fields,  # type: ignore[arg-type]  # fields of a dataclass
    )
    rig.create_topics()
    return rig


def visit(point: CrashPoint) -> int:
    """The nth one, so that commits came before; the first claim is that of the application.

    A worker has a part of the stream tasks only, and not every one of them has a store.
    """
    return 2 if point.startswith(("commit.", "claim.")) else 1


def killed_workers(points: Iterable[CrashPoint], rig: Rig, folder: Path) -> list[str]:
    """What the audit finds after a run for each point, in which one worker died there."""
    rig.produce(2000)
    rig.run()
    for point in points:
        rig.produce(LOT)
        died = folder / point
        process = rig.start(f"{point}:{visit(point)}:{died}")
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, f"{point}: {err[-4000:]}"
        if rig.guarantee == "exactly_once":
            # By its stream tasks of both sub-topologies, and by the dead worker's as well.
            assert json.loads(out.splitlines()[-1])["records_in"] == 2 * LOT, point
        assert died.exists(), f"{point} was not reached: it proves nothing"
        assert err.count("was killed by SIGKILL: another one takes over") == 1, err
        print(f"{point}: taken over")
    rig.run()
    return rig.findings()


@pytest.mark.thorough
@pytest.mark.parametrize("points", [QUICK, pytest.param(VISITED, marks=pytest.mark.slow)], ids=len)
def test_a_worker_killed_at_a_crash_point_is_replaced_and_nothing_is_lost_or_doubled(
    kafka: LocalKafka, tmp_path: Path, points: list[CrashPoint]
) -> None:
    # Each of the two workers writes half of the few keys, and a flush is to fall due all the same.
    settings = {"statestore.flush.lag.max.records": 10}
    rig = rig_on(kafka, tmp_path / "state", f"workers-{len(points)}", settings=settings)
    assert killed_workers(points, rig, tmp_path) == []


@pytest.mark.slow
def test_the_same_kills_without_transactions_are_found_out(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path / "state", "unsafe-workers", guarantee="at_least_once")
    commits = [point for point in VISITED if point.startswith("commit.")]
    findings = killed_workers(commits, rig, tmp_path)
    print("\n".join(findings))
    assert any("more than once" in finding for finding in findings)
    assert any("store differs" in finding for finding in findings)


def kill_one(process: Process, rng: random.Random) -> str:
    """Kill the run or one of its workers; empty if it had ended."""
    run = psutil.Process(process.pid)
    try:
        victim = rng.choice([run, *run.children()])
        victim.kill()
    except psutil.NoSuchProcess:
        return ""
    return "the run" if victim == run else "a worker"


@pytest.mark.slow
def test_runs_and_workers_killed_at_random_moments_lose_and_double_nothing(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    settings = {"commit.interval.ms": 200, "statestore.batch.max.records": 100}
    rig = rig_on(kafka, tmp_path, "worker-moments", settings=settings)
    met: list[str] = []
    for _ in range(20):
        rig.produce(8000)
        process = rig.start()
        try:
            process.wait(rng.uniform(1.0, 4.0))
        except subprocess.TimeoutExpired:
            met.append(kill_one(process, rng))
        _, err = process.communicate(timeout=180)
        wanted = -signal.SIGKILL if met and met[-1] == "the run" else 0
        assert process.returncode in {0, wanted}, f"seed {SEED}: {err[-4000:]}"
    rig.run()
    print(f"seed {SEED}: {met}")
    assert {"the run", "a worker"} <= set(met), f"seed {SEED}: too few kills"
    assert rig.findings() == [], f"seed {SEED}"
