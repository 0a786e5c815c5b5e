"""An owner that was stopped, taken over from, and goes on: it writes where nobody reads (E10).

Only a volume without file locks lets a second owner in while the first lives.

Shows I13.
"""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from statestore.errors import Fenced
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.crash.kill_harness import PARTITIONS, Rig
from tests.crash.pipeline import PREFIX_VARIABLE
from tests.processes import Process

pytestmark = pytest.mark.kafka

# Once `haunt` is there: rows, flushes and compactions straight into every open database, at the
# latest when the first is closed. Other threads may close theirs meanwhile. `stop` turns `stopped`
# where the test is to stop the process.
HAUNTED = """
import sys, time
from contextlib import suppress
from pathlib import Path
from statestore import faults
from statestore.engines import rocks

folder, stop_at = Path(sys.argv[1]), sys.argv[2]

def visit(point):
    if point == stop_at and (folder / "stop").exists():
        (folder / "stop").unlink()
        (folder / "stopped").touch()
        while not (folder / "go on").exists():
            time.sleep(0.01)
    if point in {"commit.begin", "store.close"} and (folder / "haunt").exists():
        (folder / "haunt").unlink()
        for engine in list(rocks._engines):
            with suppress(Exception):  # it was closed
                for number in range(40):
                    rows = {b"ghost-%d-%d" % (number, i): b"boo" * 50 for i in range(200)}
                    engine.write({"data": rows})
                    engine.flush()
                    if number % 10 == 9:
                        engine._families["data"].compact_range(None, None)
                (folder / "haunted").touch()

sys.argv = ["statestore", *sys.argv[3:]]
from statestore import cli
cli.arm_from_environment = lambda: faults.on_reach(visit)
cli.main()
"""


def rig_on(kafka: LocalKafka, folder: Path, name: str, **settings: object) -> Rig:
    given = {key.replace("_", "."): value for key, value in settings.items()}
    rig = Rig(kafka, folder / "state", application_id=name, topic_prefix=name, settings=given)
    rig.create_topics()
    rig.produce(2000)
    rig.run()
    return rig


def haunted(rig: Rig, folder: Path, *flags: str, stop_at: str = "") -> Process:
    """A run that may be stopped at a crash point and may haunt its stores; it logs to a file."""
    arguments = [str(folder), stop_at, "run", *rig.command(), *flags]
    with (folder / "log").open("w") as log:
        return processes.start(
            [sys.executable, "-c", HAUNTED, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), PREFIX_VARIABLE: rig.topic_prefix},
            stdout=log,
            stderr=log,
        )


def stores(rig: Rig) -> dict[TaskId, Path]:
    layout = StateLayout(rig.state_dir, rig.application_id)
    return {TaskId(1, p): layout.store_dir(TaskId(1, p), "counts") for p in range(PARTITIONS)}


def raw_rows(path: Path) -> dict[bytes, bytes]:
    """What lies there, read with rocksdict alone."""
    options = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(path), options)}
    db = Rdict(str(path), options, families, AccessType.read_only())
    data = db.get_column_family("data")
    rows: dict[Any, Any] = dict(data.items())
    data.close()
    db.close()
    return rows


def test_a_stopped_owner_that_comes_back_harms_nothing_and_ends_fenced(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path, "zombie", statestore_volume_locks="false")
    first = rig.committed()
    zombie = haunted(rig, tmp_path, "--run-for=300s")
    try:
        rig.produce(2000)
        eventually(lambda: rig.committed() != first, "the owner commits")
        zombie.send_signal(signal.SIGSTOP)
        rig.produce(2000)
        rig.run()
        old = {task: path.parent for task, path in stores(rig).items()}
        (tmp_path / "haunt").touch()
        rig.produce(1000)
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(DEADLINE_S) == Fenced.exit_code, (tmp_path / "log").read_text()[-3000:]
    finally:
        zombie.kill()
        zombie.wait()
    assert (tmp_path / "haunted").exists(), "the zombie flushed nothing: this proves nothing"
    assert {task: path.parent for task, path in stores(rig).items()} == old
    folded: dict[bytes, bytes] = {}
    for _, key, value in rig.read(f"{rig.application_id}-counts-changelog"):
        folded[key or b""] = value or b""
    found: dict[bytes, bytes] = {}
    for path in stores(rig).values():
        found |= raw_rows(path)
    assert found == folded
    rig.run()
    assert rig.findings() == []
    layout = StateLayout(rig.state_dir, rig.application_id)
    assert [len(layout.stores_folders(task)) for task in stores(rig)] == [1, 1]


def test_a_takeover_killed_at_any_point_is_finished_by_the_next_start(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path, "taken", statestore_volume_locks="false")
    for point in ("takeover.linked:3", "takeover.published:3", "claim.owned:3", "takeover.linked"):
        rig.produce(1000)
        assert rig.run_until_crash(point).died, point
    rig.run()
    assert rig.findings() == []
    layout = StateLayout(rig.state_dir, rig.application_id)
    for task in stores(rig):
        (name,) = [path.name for path in layout.stores_folders(task)]
        assert re.fullmatch(r"rocksdb\.\d+", name)
        assert list(layout.task_dir(task).glob(".rocksdb*")) == []


def test_an_owner_whose_transaction_expired_while_it_was_stopped_goes_on(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path, "expired", transaction_timeout_ms=1500)
    rig.produce(3000)
    (tmp_path / "stop").touch()
    owner = haunted(rig, tmp_path, stop_at="commit.offsets-sent")
    try:
        eventually((tmp_path / "stopped").exists, "it is in the middle of a commit")
        owner.send_signal(signal.SIGSTOP)
        eventually(lambda: not rig.writes_open(), "the broker aborts")
        (tmp_path / "go on").touch()
        owner.send_signal(signal.SIGCONT)
        assert owner.wait(DEADLINE_S) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        owner.kill()
        owner.wait()
    assert rig.findings() == []
