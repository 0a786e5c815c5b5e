"""What the stream tasks of one slot may hold pending together (SEMANTICS S6)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import statestore as ss
from statestore.model.ids import TaskId
from statestore.settings import NO_LIMIT
from statestore.tasks.memory_share import MemoryLimits, MemoryShare, Step, Usage, plan_step
from tests.contract.task_rig import TaskRig

SHARE = MemoryLimits(max_bytes=1_000_000, max_records=100)


def test_a_slot_sums_up_what_its_tasks_said_last() -> None:
    slot = MemoryShare(SHARE)
    assert slot.hold("0_0", Usage(10, 1)) == Usage(10, 1)
    assert slot.hold("0_1", Usage(30, 2)) == Usage(40, 3)
    assert slot.hold("0_0", Usage(5, 1)) == Usage(35, 3)
    assert slot.hold("0_1", Usage(0, 0)) == Usage(5, 1)


def test_who_holds_most_commits_itself_and_else_is_asked_once() -> None:
    slot = MemoryShare(SHARE)
    slot.hold("0_0", Usage(10, 1))
    slot.hold("0_1", Usage(30, 2))
    assert slot.make_room("0_1")
    assert not slot.take_request("0_1")
    assert not slot.make_room("0_0")
    assert slot.take_request("0_1")
    assert not slot.take_request("0_1")


@pytest.mark.parametrize(
    ("share", "waiting", "take"),
    [
        (MemoryLimits(NO_LIMIT, NO_LIMIT), 50_000, 50_000),
        (MemoryLimits(64 << 20, NO_LIMIT), 50_000, 1000),
        (MemoryLimits(64 << 20, NO_LIMIT), 10, 10),
        (MemoryLimits(NO_LIMIT, 7), 50, 7),
        (MemoryLimits(10_240, NO_LIMIT), 50, 10),
        (MemoryLimits(1, 1), 50, 1),
    ],
)
def test_before_anything_was_measured_a_step_takes_few(
    share: MemoryLimits, waiting: int, take: int
) -> None:
    assert plan_step(Usage(0, 0), None, waiting, share) == Step(commit_first=False, take=take)


def topology() -> ss.Topology:
    """Two sub-topologies with a store each."""
    builder = ss.StreamsBuilder()
    for name in ("one", "two"):
        table = ss.Materialized(ss.persistent_key_value_store(name))
        builder.table(f"in-{name}", materialized=table)
    return builder.build()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[TaskRig, TaskRig]]:
    """Tasks 0_0 and 1_0 in one slot that may hold 100 records."""
    first = TaskRig(topology(), tmp_path, slot=MemoryShare(SHARE))
    second = TaskRig(
        first.topology, tmp_path, broker=first.broker, slot=first.slot, task_id=TaskId(1, 0)
    )
    yield first, second
    first.end()
    second.end()


def pending(*rigs: TaskRig) -> int:
    return sum(rig.running[0]._stores.usage().records for rig in rigs)


def test_tasks_of_one_slot_share_its_limit_and_the_fullest_commits(
    pair: tuple[TaskRig, TaskRig],
) -> None:
    one, two = pair
    a, b = one.start(), two.start()
    one.send("in-one", [(f"k{i}", "x") for i in range(60)])
    two.send("in-two", [(f"k{i}", "x") for i in range(60)])
    assert (a.step(0), pending(one, two)) == (60, 60)
    assert (b.step(0), pending(one, two)) == (0, 60)
    assert (a.report.commits, b.report.commits) == (0, 0)
    a.step(0)
    assert (a.report.commits, pending(one, two)) == (1, 0)
    assert (b.step(0), pending(one, two)) == (60, 60)


def test_tasks_served_in_turn_never_hold_more_than_their_slot_may(
    pair: tuple[TaskRig, TaskRig],
) -> None:
    one, two = pair
    tasks = one.start(), two.start()
    one.send("in-one", [(f"k{i}", "x") for i in range(700)])
    two.send("in-two", [(f"k{i}", "x") for i in range(500)])
    done = turns = 0
    while done < 1200:
        turns += 1
        assert turns < 200, f"stuck after {done} records"
        for task in tasks:
            done += task.step(0)
            assert pending(one, two) <= SHARE.max_records
    assert one.changelog("one").keys() >= {b"k0", b"k599"}


def test_a_task_that_ends_gives_its_part_back(pair: tuple[TaskRig, TaskRig]) -> None:
    one, two = pair
    one.start()
    two.start()
    one.send("in-one", [(f"k{i}", "x") for i in range(90)])
    one.running[0].step(0)
    one.running.pop().close()
    two.send("in-two", [(f"k{i}", "x") for i in range(90)])
    assert two.running[0].step(0) == 90
