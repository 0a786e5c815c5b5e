"""SIGKILL of a run at every crash point and at random moments: nothing seen twice, nothing lost.

One application goes through all points in a chain, each run finishing what the killed one before it left behind.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.faults import CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import Kill, Rig

pytestmark = pytest.mark.kafka

# Where writes are open in a transaction when the process dies. At the other points the log holds
# everything or nothing: before the first record, or after the log's commit.
OPEN_AT = {CrashPoint.COMMIT_RECORDS_SENT, CrashPoint.COMMIT_OFFSETS_SENT, CrashPoint.COMMIT_BEGIN}
# The nth visit, so that commits of this very run came before the death.
LATER = {point: 7 for point in CrashPoint if point.value.startswith("commit.")}
# Visited only when something is broken: these have tests of their own.
ELSEWHERE = {CrashPoint.QUARANTINE_RENAMED}
SEED = 20130101


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka() as broker:
        yield broker


def rig_on(kafka: LocalKafka, folder: Path, **fields: object) -> Rig:
    rig = Rig(kafka, folder, **fields)  # type: ignore[arg-type]  # fields of a dataclass
    rig.create_topics()
    return rig


def test_a_run_killed_at_every_crash_point_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path, application_id="points", topic_prefix="points")
    rig.produce(4000)
    rig.run()
    report: dict[str, Kill] = {}
    for point in CrashPoint:
        if point in ELSEWHERE:
            continue
        rig.produce(6000)
        kill = rig.run_until_crash(f"{point}:{LATER.get(point, 1)}")
        report[point] = kill
        assert kill.died, f"{point} was not reached: it proves nothing"
        assert kill.commits_before, f"{point}: no commit came before"
        if point in OPEN_AT:
            assert kill.writes_open, f"{point}: no write was open"
    rig.run()
    print("\n".join(f"{point}: {kill}" for point, kill in report.items()))
    assert rig.findings() == []


def test_a_run_killed_at_ten_random_moments_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    rig = rig_on(kafka, tmp_path, application_id="moments", topic_prefix="moments")
    counted = killed = 0
    for _ in range(30):
        rig.produce(8000)
        kill = rig.run_until_killed(rng)
        killed += kill.died
        counted += kill.counts
        if counted >= 10:
            break
    rig.run()
    print(f"seed {SEED}: {killed} kills, {counted} with commits before and writes open")
    assert counted >= 10, f"seed {SEED}: too few kills met open writes"
    assert rig.findings() == [], f"seed {SEED}"


def test_the_same_kills_without_transactions_are_found_out(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(
        kafka,
        tmp_path,
        application_id="unsafe",
        topic_prefix="unsafe",
        guarantee="at_least_once",
    )
    for point in (CrashPoint.COMMIT_LOG_DONE, CrashPoint.COMMIT_STORE_WRITTEN):
        rig.produce(6000)
        assert rig.run_until_crash(f"{point}:7").died
    rig.run()
    findings = rig.findings()
    print("\n".join(findings))
    assert any("more than once" in finding for finding in findings)
