"""State is served while owners are killed, restore and end, on a real broker.

Shows I39.
"""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from statestore import serdes
from statestore.layout.folders import StateLayout
from statestore.reading.questions import Range
from statestore.runtime import Runtime
from statestore.serving.followers import OwnerState
from statestore.serving.service import StateService
from statestore.testing.local_kafka import LocalKafka
from tests.builders import eventually
from tests.crash.kill_harness import PARTITIONS, Rig
from tests.crash.test_snapshot_crash import rig_on
from tests.crash.test_snapshot_crash import serving as running

pytestmark = pytest.mark.kafka
WAIT_S = 90.0


def counted(service: StateService) -> dict[str, int]:
    """Read every row, and require that those of one task are of one commit."""
    stream = service.scan("counts", Range())
    try:
        return {row.key.decode(): serdes.INT64.deserialize(row.value) for row in stream.rows}
    finally:
        stream.close()


def states(service: StateService) -> dict[str, tuple[str, bool]]:
    return {one.stream_task: (one.owner, one.stale) for one in service.tasks()}


def all_are(service: StateService, owner: OwnerState, *, stale: bool) -> bool:
    found = states(service)
    return len(found) >= PARTITIONS and set(found.values()) == {(owner, stale)}


def test_answers_go_on_through_kills_and_end_at_what_the_input_makes(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path / "state", "served")
    settings = {"application.id": rig.application_id, "state.dir": str(rig.state_dir)}
    seen: dict[str, int] = {}

    def never_less() -> dict[str, int]:
        now = counted(service)
        for key, count in seen.items():
            assert now.get(key, 0) >= count, f"{key} went back from {count}"
        seen.update(now)
        return now

    with StateService(Runtime(settings)) as service:
        eventually(lambda: all_are(service, OwnerState.STOPPED, stale=False), "at rest", WAIT_S)
        assert never_less() == dict(rig.expected)
        for _ in range(2):
            owner = running(rig, tmp_path)
            try:
                eventually(
                    lambda: all_are(service, OwnerState.RUNNING, stale=False), "followed", WAIT_S
                )
                rig.produce(600)
                more = partial(
                    lambda before: sum(never_less().values()) > before, sum(seen.values())
                )
                eventually(more, "a commit", WAIT_S)
                os.kill(owner.pid, signal.SIGKILL)
            finally:
                owner.kill()
                owner.wait()
            eventually(lambda: all_are(service, OwnerState.DEAD, stale=True), "dead", WAIT_S)
            never_less()
        rig.run()
        eventually(lambda: all_are(service, OwnerState.STOPPED, stale=False), "at rest", WAIT_S)
        assert never_less() == dict(rig.expected)
    assert rig.findings() == []
    assert left_behind(rig) == []


def left_behind(rig: Rig) -> list[Path]:
    folder = StateLayout(rig.state_dir, rig.application_id).application_dir
    return list(folder.glob("*/snapshots/*"))
