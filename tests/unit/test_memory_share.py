"""What the stream tasks of one slot may hold pending together (SEMANTICS S6)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

import statestore as ss
from statestore.model.ids import TaskId
from statestore.settings import NO_LIMIT
from statestore.tasks.memory_share import MemoryLimits, MemoryShare, Usage, plan_step
from tests.contract.task_rig import TaskRig
from tests.tiers import first_of

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
    step = plan_step(Usage(0, 0), None, [b"x"] * waiting, share)
    assert (step.commit_first, step.take) == (False, take)


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


MOST_BYTES = 1_000_000
KEPT = ss.persistent_key_value_store("kept")
Rows = Iterable[tuple[bytes, bytes]]
RowsOf = Callable[[bytes, bytes], Rows]


class Watched(MemoryShare):
    """The memory of a slot that knows the most that its tasks have held."""

    most = 0

    def hold(self, task: str, usage: Usage) -> Usage:
        held = super().hold(task, usage)
        self.most = max(self.most, held.size_bytes)
        return held


def as_it_is(key: bytes, value: bytes) -> Rows:
    return [(key, value)]


def longer(key: bytes, value: bytes) -> Rows:
    """One row of as many bytes as the value says."""
    return [(key, b"x" * int(value))]


def many(key: bytes, value: bytes) -> Rows:
    """Rows of 100 bytes, with as many bytes together as the value says."""
    return [(b"%s-%d" % (key, i), b"x" * 100) for i in range(int(value) // 100)]


def of_size(size: int) -> str:
    return "x" * size


def processing(rows_of: RowsOf) -> ss.Topology:
    class Keeps:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self._store = context.store(KEPT)

        def process(self, record: "ss.Record[bytes, bytes]") -> None:
            for key, value in rows_of(record.key, record.value):
                self._store.put(key, value)

    builder = ss.StreamsBuilder()
    builder.stream("in").process(Keeps, KEPT, name="keeps")
    return builder.build()


def mapping(rows_of: RowsOf) -> ss.Topology:
    """The last value of each key, of those that a function makes of a value."""
    builder = ss.StreamsBuilder()
    values = builder.stream("in").flat_map_values(
        lambda key, value: [made for _, made in rows_of(key, value)], name="values"
    )
    values.group_by_key().reduce(lambda old, new: new if len(new) > len(old) else old + new, "kept")
    return builder.build()


def table(_rows_of: RowsOf) -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.table("in", materialized=ss.Materialized(KEPT))
    return builder.build()


# What is written, and the value of a record that makes rows of so many bytes.
WRITERS = [
    pytest.param(table, as_it_is, of_size, id="table"),
    pytest.param(processing, as_it_is, of_size, id="process, as much as is read"),
    pytest.param(processing, longer, str, id="process, more bytes than are read"),
    pytest.param(processing, many, str, id="process, more rows than are read"),
    pytest.param(mapping, many, str, id="flat_map_values"),
]


@pytest.mark.parametrize(("make", "rows_of", "value_of"), WRITERS)
@pytest.mark.parametrize(
    "sizes", first_of([(20_000, 100, 20_000), (100, 20_000), (0, 20_000), (10, 2000)])
)
def test_sizes_that_jump_within_a_batch_never_pass_the_limit(
    tmp_path: Path,
    make: Callable[[RowsOf], ss.Topology],
    rows_of: RowsOf,
    value_of: Callable[[int], str],
    sizes: tuple[int, ...],
) -> None:
    slot = Watched(MemoryLimits(MOST_BYTES, NO_LIMIT))
    rig = TaskRig(make(rows_of), tmp_path, slot=slot)
    task = rig.start()
    left = 0
    for size in sizes:
        rig.send("in", [(f"k{left + i}", value_of(size)) for i in range(1000)])
        left += 1000
    while left:
        left -= task.step(0)
    rig.end()
    assert slot.most <= MOST_BYTES


def test_a_record_that_alone_exceeds_the_limit_is_pending_alone(tmp_path: Path) -> None:
    large = MOST_BYTES // 2
    slot = Watched(MemoryLimits(large // 5, NO_LIMIT))
    rig = TaskRig(table(as_it_is), tmp_path, slot=slot)
    task = rig.start()
    for i in range(20):
        rig.send("in", [(f"small-{i}-{n}", "x" * 100) for n in range(100)])
        rig.send("in", [(f"large-{i}", "x" * large)])
    left = 20 * 101
    while left:
        left -= task.step(0)
    rig.end()
    assert slot.most < large + 200


def test_small_records_are_still_taken_as_one_batch(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Watches:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self._store = context.store(KEPT)

        def process_batch(self, records: "Sequence[ss.Record[bytes, bytes]]") -> None:
            sizes.append(len(records))
            self._store.put_all((record.key, record.value) for record in records)

    builder = ss.StreamsBuilder()
    builder.stream("in").process_batch(Watches, KEPT, name="watches")
    rig = TaskRig(builder.build(), tmp_path)
    task = rig.start()
    for i in range(2):
        rig.send("in", [(f"{i}-{n}", "x" * 100) for n in range(30_000)])
        while task.report.records_in < 30_000 * (i + 1):
            task.step(0)
            task.step_commit()
    rig.end()
    assert sizes == [1000, 29_000, 30_000]
