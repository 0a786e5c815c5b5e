"""What is counted of a stream task that is attempted more than once in a run.

Shows I34.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore.tasks.plan import TaskReport
from tests.contract.task_rig import TaskRig

OLD_STAMP = '{"number":1,"stream_time_ms":0}'


def passing() -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.stream("in").filter(lambda _key, value: value != b"no").to("out")
    return builder.build()


@pytest.fixture(params=["exactly_once", "at_least_once"])
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TaskRig]:
    made = TaskRig(passing(), tmp_path, guarantee=request.param, serving="first")
    yield made
    made.end()


def send(rig: TaskRig, count: int) -> None:
    rig.send("in", [(f"k{n}", "no" if n % 5 == 0 else "yes") for n in range(count)])


def committed(rig: TaskRig, count: int) -> TaskReport:
    """The report of a task that reads and commits so many more records, and goes on."""
    send(rig, count)
    task = rig.start()
    assert task.step(0) == count
    task.step_commit()
    return task.report


def counts(report: TaskReport) -> tuple[int, int, int, int]:
    return report.records_in, report.records_before, report.records_out, report.commits


def test_an_attempt_counts_what_earlier_ones_at_the_same_serving_committed(rig: TaskRig) -> None:
    assert counts(committed(rig, 10)) == (10, 0, 8, 1)
    rig.crash()
    assert counts(committed(rig, 5)) == (15, 10, 12, 2)
    rig.crash()
    assert counts(rig.start().report) == (15, 15, 12, 2), "nothing was left to do"


def test_another_serving_of_the_task_counts_from_nothing(rig: TaskRig) -> None:
    committed(rig, 10)
    rig.crash()
    rig.serving = "second"
    assert counts(committed(rig, 5)) == (5, 0, 4, 1)


def test_offsets_committed_by_an_older_version_say_nothing_of_counts(rig: TaskRig) -> None:
    committed(rig, 10)
    rig.crash()
    groups = rig.broker.state.groups
    for committed_to, at in groups.items():
        groups[committed_to] = at._replace(metadata=OLD_STAMP)
    assert counts(committed(rig, 5)) == (5, 0, 4, 1)


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_that_got_no_answer_counts_once(tmp_path: Path, *, happened: bool) -> None:
    rig = TaskRig(passing(), tmp_path, serving="first")
    send(rig, 10)
    task = rig.start()
    assert task.step(0) == 10
    rig.broker.lose_answer("shop-0_0", happened=happened)
    task.step_commit()
    task.step(0)
    task.finish()
    assert counts(task.report)[:3] == (10, 0, 8)
    rig.end()
