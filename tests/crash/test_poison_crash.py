"""SIGKILL of runs among poison records: one dead letter each, and nothing else of them (I11).

Shows I12.
"""

from pathlib import Path

import pytest

from statestore.faults import CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests.crash.kill_harness import Rig
from tests.crash.poison_pipeline import is_refused

pytestmark = pytest.mark.kafka

POINTS = [point for point in CrashPoint if point.startswith("commit.")]


def test_runs_killed_among_poison_records_bury_each_of_them_once(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = Rig(
        kafka,
        tmp_path,
        application_id="poison",
        topic_prefix="poison",
        pipeline="tests.crash.poison_pipeline:topology",
        settings={
            "processing.exception.handler": "dead_letter",
            "errors.dead.letter.queue.topic.name": "poison-dead",
        },
        is_poison=is_refused,
    )
    rig.create_topics()
    rig.produce(1000)
    rig.run()
    for point in POINTS:
        rig.produce(1000)
        # Poison records cut the stream into many commits: at the 4th some are behind, some ahead.
        kill = rig.run_until_crash(f"{point}:4")
        assert kill.died, f"{point} was not reached: it proves nothing"
        assert kill.commits_before, f"{point}: no commit came before"
    summary = rig.run()
    assert summary["caught_up"]
    assert rig.findings() == []
    assert rig.burial_findings() == []
    assert len(rig.poison()) > 60
