"""What a task's folder remembers of its inputs; idle inputs are committed again in time.

Shows I11.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore.errors import HostFailure, RecordFailed
from statestore.tasks.input_checkpoint import REFRESH_MS
from tests.contract.task_rig import TaskRig

ROWS = [("a", "1"), ("b", "2")]


def passing() -> ss.Topology:
    """A task without a store."""
    builder = ss.StreamsBuilder()
    builder.stream("in").to("out")
    return builder.build()


@pytest.fixture(params=["exactly_once", "at_least_once"])
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TaskRig]:
    made = TaskRig(passing(), tmp_path, guarantee=request.param)
    yield made
    made.end()


def run(rig: TaskRig) -> int:
    """One life that reads what is there, with a clean end; the commits it made."""
    task = rig.start()
    task.step(0)
    task.finish()
    task.close()
    rig.running.clear()
    return task.report.commits


def marked(rig: TaskRig) -> list[list[object]]:
    found = json.loads((rig.folder / "inputs.json").read_bytes())
    return list(found["inputs"])


def forget(rig: TaskRig) -> None:
    """As the broker does a week after the last commit."""
    rig.broker.state.groups.clear()


def test_an_input_never_read_leaves_no_mark_and_is_new_again(rig: TaskRig) -> None:
    assert run(rig) == 0
    assert not (rig.folder / "inputs.json").exists()
    assert run(rig) == 0


def test_offsets_the_broker_forgot_are_refused_by_a_task_without_stores(rig: TaskRig) -> None:
    rig.send("in", ROWS)
    run(rig)
    sent = len(rig.broker.records("out"))
    forget(rig)
    with pytest.raises(RecordFailed, match=r"no offset of input in-0, .* up to 1: .* to 2 to go"):
        rig.start()
    assert len(rig.broker.records("out")) == sent


def test_the_mark_outlives_a_kill_after_the_first_commit(rig: TaskRig) -> None:
    rig.send("in", ROWS)
    task = rig.start()
    task.step(0)
    task.finish()
    rig.crash()
    forget(rig)
    with pytest.raises(RecordFailed, match="no offset of input in-0"):
        rig.start()


def test_a_mark_lost_with_its_folder_is_made_again_from_the_group(rig: TaskRig) -> None:
    rig.send("in", ROWS)
    run(rig)
    before = marked(rig)
    (rig.folder / "inputs.json").unlink()
    rig.start()
    rig.crash()
    assert marked(rig) == before


def test_a_run_commits_idle_inputs_again_when_their_last_commit_is_a_day_old(rig: TaskRig) -> None:
    rig.send("in", ROWS)
    assert run(rig) == 1
    rig.clock.advance(REFRESH_MS - 1)
    assert run(rig) == 0
    rig.clock.advance(1)
    assert run(rig) == 1
    assert run(rig) == 0


def test_a_continuous_run_commits_idle_inputs_again_once_a_day(rig: TaskRig) -> None:
    rig.send("in", ROWS)
    run(rig)
    task = rig.start()
    for _ in range(3):
        rig.clock.advance(REFRESH_MS)
        for _ in range(5):
            task.step(0)
    assert task.report.commits == 3


def test_an_unreadable_mark_is_an_error_with_its_way_out(rig: TaskRig) -> None:
    rig.send("in", ROWS)
    run(rig)
    (rig.folder / "inputs.json").write_bytes(b"{")
    with pytest.raises(HostFailure, match=r"inputs\.json is not readable.*remove it"):
        rig.start()


def test_a_mark_keeps_what_it_says_of_other_inputs(rig: TaskRig) -> None:
    rig.send("in", ROWS)
    run(rig)
    path = rig.folder / "inputs.json"
    found = json.loads(path.read_bytes())
    found["inputs"].append(["gone", 0, 7])
    path.write_text(json.dumps(found))
    rig.send("in", ROWS)
    run(rig)
    assert ["gone", 0, 7] in marked(rig)
    assert len(marked(rig)) == 2
