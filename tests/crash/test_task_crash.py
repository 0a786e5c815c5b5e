# ruff: noqa: T201 - what each kill met is part of the result
"""SIGKILL of a run at every crash point and at random moments: nothing seen twice, nothing lost.

One application goes through all points in a chain, each run finishing what the killed one before it
left behind.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.faults import CrashPoint
from statestore.model.modes import KafkaClient
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import ELSEWHERE, Kill, Rig
from tests.tiers import commit_seed

pytestmark = pytest.mark.kafka

# Where writes are open in a transaction when the process dies. At the other points the log holds
# everything or nothing: before the first record, or after the log's commit.
OPEN_WITHIN_S = 2.0
OPEN_AT = {CrashPoint.COMMIT_RECORDS_SENT, CrashPoint.COMMIT_OFFSETS_SENT}
# The nth visit, so that commits of this very run came before the death.
VISIT = {point: 4 for point in CrashPoint if point.value.startswith("commit.")}
VISITED = [point for point in CrashPoint if point not in ELSEWHERE]
SEED = 20130101


def rig_on(kafka: LocalKafka, folder: Path, **fields: object) -> Rig:
    rig = Rig(kafka, folder, **fields)  # type: ignore[arg-type]  # fields of a dataclass
    rig.create_topics()
    return rig


def killed_at(
    points: Iterable[CrashPoint], rig: Rig, clients: Sequence[KafkaClient] = ()
) -> tuple[dict[CrashPoint, Kill], list[str]]:
    """What each kill met, and what the audit found after the last run; points take client turns."""
    rig.produce(4000)
    rig.run()
    kills: dict[CrashPoint, Kill] = {}
    for nth, point in enumerate(points):
        if clients:
            client = str(clients[nth % len(clients)])
            rig.settings = {**rig.settings, "kafka.client": client}
        for later in (0, 3, 5, 7):
            rig.produce(6000)
            visit = f"{point}:{VISIT.get(point, 1) + later}"
            kills[point] = rig.run_until_crash(
                visit, open_within_s=OPEN_WITHIN_S if point in OPEN_AT else 0.0
            )
            # Records sent may still lie in the client when the process dies: meet a later visit.
            if point not in OPEN_AT or kills[point].counts:
                break
    rig.run()
    return kills, rig.findings()


# The commit decides which one is killed first: with two in turn, what one was killed at is finished
# by the other, and each point has a kill of either in two commits.
BOTH = sorted(KafkaClient, reverse=bool(commit_seed() % 2))


@pytest.mark.parametrize(
    "clients",
    [
        BOTH,
        pytest.param([KafkaClient.WIRE], marks=pytest.mark.thorough),
        pytest.param([KafkaClient.LIBRDKAFKA], marks=pytest.mark.thorough),
    ],
    ids=["both", "wire", "librdkafka"],
)
def test_a_run_killed_at_every_crash_point_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path, clients: Sequence[KafkaClient]
) -> None:
    name = f"points-{'-'.join(clients)}"
    rig = rig_on(kafka, tmp_path, application_id=name, topic_prefix=name)
    kills, findings = killed_at(VISITED, rig, clients)
    for point, kill in kills.items():
        print(f"{point}: {kill}")
        assert kill.died, f"{point} was not reached: it proves nothing"
        assert kill.commits_before, f"{point}: no commit came before"
        assert kill.writes_open or point not in OPEN_AT, f"{point}: no write was open"
    assert findings == []


@pytest.mark.parametrize(
    "points",
    [
        [CrashPoint.COMMIT_LOG_ASKED],
        pytest.param([point for point in VISIT if point in VISITED], marks=pytest.mark.thorough),
    ],
    ids=["asked", "each"],
)
def test_a_continuous_run_killed_while_commits_overlap_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path, points: list[CrashPoint]
) -> None:
    """Both stream tasks are in the middle of a commit; one of them dies at the point."""
    name = f"beside-{len(points)}"
    settings = {"kafka.client": "wire"}
    rig = rig_on(kafka, tmp_path, application_id=name, topic_prefix=name, settings=settings)
    for later, point in enumerate(points):
        rig.produce(6000)
        endless = replace(rig, options=("--run-for=300s",))
        # The first or the second of the two tasks.
        kill = endless.run_until_crash(f"{point}:{VISIT[point] + later % 2}")
        assert kill.died, f"{point} was not reached: it proves nothing"
        assert kill.commits_before, f"{point}: no commit came before"
    rig.run()
    assert rig.findings() == []


@pytest.mark.thorough
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
    kills, findings = killed_at(VISIT, rig)
    print("\n".join(findings))
    assert all(kill.died for kill in kills.values())
    assert any("more than once" in finding for finding in findings)
    assert any("store differs" in finding for finding in findings)


@pytest.mark.thorough
@pytest.mark.parametrize("wanted", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path, wanted: int
) -> None:
    rng = random.Random(SEED)
    # A longer interval, so that a transaction is open most of the time.
    rig = rig_on(
        kafka,
        tmp_path,
        application_id=f"moments-{wanted}",
        topic_prefix=f"moments-{wanted}",
        settings={"commit.interval.ms": 200, "statestore.batch.max.records": 100},
    )
    counted = killed = 0
    # Not every moment counts: between a commit and the next write nothing is open.
    for _ in range(10 * wanted):
        kill = rig.run_until_killed(rng)
        killed += kill.died
        counted += kill.counts
        if counted >= wanted:
            break
    rig.run()
    print(f"seed {SEED}: {killed} kills, {counted} with commits before and writes open")
    assert counted >= wanted, f"seed {SEED}: too few kills met open writes"
    assert rig.findings() == [], f"seed {SEED}"
