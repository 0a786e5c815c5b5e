"""How the stream tasks of a slot begin and end: side by side, and cheaply if they are idle.

What a user wrote is called by one thread, the slot's.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Locked
from statestore.layout import owners
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import Record
from statestore.operations.running.continuous import serve_run
from statestore.operations.running.run import RunRequest, RunSummary
from statestore.operations.running.runner import serve_here
from statestore.ports import GroupOffset, TopicSpec
from statestore.runtime import Runtime
from statestore.tasks.commit import CommitStamp
from statestore.tasks.plan import TaskPlan
from statestore.tasks.task import StreamTask
from statestore.testing.memory_broker import MemoryBroker
from tests.builders import ManualClock

PARTITIONS = 7
COUNTS = ss.key_value_store("counts", key_serde=serdes.STRING, value_serde=serdes.INT64)


class Count:
    """Counts by key, and notes which threads called it."""

    def __init__(self, world: "World", context: ss.ProcessorContext[str, int]) -> None:
        self._world, self._called = world, world.called
        self._called.append(("init", threading.get_ident()))
        self._context = context
        self._counts = context.store(COUNTS)

    def process(self, record: ss.Record[str, str]) -> None:
        self._called.append(("process", threading.get_ident()))
        if self._world.at_first_record is not None:
            self._world.at_first_record()
        count = (self._counts.get(record.key) or 0) + 1
        self._counts.put(record.key, count)
        self._context.forward(record.replace(value=count))

    def close(self) -> None:
        self._called.append(("close", threading.get_ident()))


@dataclass
class World:
    """A broker in memory with `in` and `out`, and a state dir."""

    state_dir: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    clock: ManualClock = field(default_factory=ManualClock)
    called: list[tuple[str, int]] = field(default_factory=list)
    at_first_record: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        specs = [TopicSpec(name, PARTITIONS, {}) for name in ("in", "out")]
        self.broker.cluster("shop").create(specs)

    def topology(self) -> ss.Topology:
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
        counted = b.stream("in").process(lambda context: Count(self, context), COUNTS, name="count")
        counted.to("out", value_serde=serdes.INT64)
        return b.build()

    def send(self, *partitions: int) -> None:
        for partition in partitions:
            record: Record[bytes | None, bytes | None] = Record(b"k", b"v", 0)
            self.broker.produce(TopicPartition("in", partition), record)

    def runtime(self) -> Runtime:
        known: dict[str, object] = {
            "application.id": "shop",
            "state.dir": str(self.state_dir),
            "bootstrap.servers": "memory:9092",
            "processing.guarantee": "exactly_once",
            "statestore.lock.wait.ms": 0,
        }
        return Runtime(known, clock=self.clock, brokers=self.broker.clients)

    def run(self) -> RunSummary:
        with self.runtime() as runtime:
            return serve_run(runtime, self.topology(), RunRequest(), Event(), serve_here)

    def folder(self, partition: int) -> Path:
        return StateLayout(self.state_dir, "shop").task_dir(TaskId(0, partition))

    def written(self) -> int:
        """How many results there are."""
        tps = [TopicPartition("out", p) for p in range(PARTITIONS)]
        return sum(e.is_visible for tp in tps for e in self.broker.state.log(tp).entries)

    def epochs(self) -> list[int]:
        """How often the transactional id of each task was opened."""
        return [self.broker.state.epoch(f"shop-0_{p}") for p in range(PARTITIONS)]


def noting(method: Callable[[StreamTask], None]) -> tuple[set[int], Callable[[StreamTask], None]]:
    """Return the threads that call a method, and the method that notes them."""
    threads: set[int] = set()

    def noted(task: StreamTask) -> None:
        threads.add(threading.get_ident())
        method(task)

    return threads, noted


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_only_the_thread_of_the_slot_calls_what_a_user_wrote(world: World) -> None:
    world.send(*range(PARTITIONS), *range(PARTITIONS))
    assert world.run().records_in == 2 * PARTITIONS
    assert {what for what, _ in world.called} == {"init", "process", "close"}
    assert {thread for _, thread in world.called} == {threading.get_ident()}


def test_what_waits_for_brokers_is_done_by_other_threads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the test before this one would prove nothing."""
    preparing, prepare = noting(StreamTask.prepare)
    releasing, release = noting(StreamTask.release)
    monkeypatch.setattr(StreamTask, "prepare", prepare)
    monkeypatch.setattr(StreamTask, "release", release)
    world.send(*range(PARTITIONS))
    world.run()
    for seen in (preparing, releasing):
        assert len(seen) > 0
        assert threading.get_ident() not in seen


def test_a_task_that_is_locked_ends_the_run_after_those_before_it_and_all_are_released(
    world: World,
) -> None:
    world.send(*range(PARTITIONS))
    claims = []

    def claim_the_sixth() -> None:
        """When the first task processes, as the run itself looks at all folders before."""
        world.at_first_record = None
        world.folder(5).mkdir(parents=True, exist_ok=True)
        claims.append(owners.claim(world.folder(5), what="it", wait_ms=0, clock=world.clock))

    world.at_first_record = claim_the_sixth
    with pytest.raises(Locked, match="task 0_5"):
        world.run()
    claims[0].release()
    assert world.written() == 5
    left = [owners.read_owner(world.folder(p)) for p in range(PARTITIONS)]
    assert all(owner is None or owner.released for owner in left)
    assert world.run().records_in == PARTITIONS - 5


def test_a_task_with_nothing_to_do_opens_no_producer(world: World) -> None:
    world.send(*range(PARTITIONS))
    world.run()
    before = world.epochs()
    again = world.run()
    assert (again.records_in, again.commits, again.caught_up) == (0, 0, True)
    assert world.epochs() == before
    world.send(2)
    assert world.run().records_in == 1
    assert world.epochs() == [epoch + (p == 2) for p, epoch in enumerate(before)]


def test_what_an_owner_left_that_did_not_release_its_task_is_ended_by_a_run_without_input(
    world: World,
) -> None:
    world.send(*range(PARTITIONS))
    world.run()
    claim = owners.claim(world.folder(4), what="task 0_4", wait_ms=0, clock=world.clock)
    claim.abandon()
    before = world.epochs()
    world.run()
    assert world.epochs() == [epoch + (p == 4) for p, epoch in enumerate(before)]


def started(world: World, runtime: Runtime) -> StreamTask:
    """Task 0_0 with nothing to do up to its planned end."""
    topology = world.topology()
    tp = TopicPartition("in", 0)
    ends = {tp: runtime.cluster.bounds([tp])[tp].end}
    part = topology.sub_topologies[0]
    plan = TaskPlan(TaskId(0, 0), part, topology.stores, (tp,), ends)
    task = StreamTask(plan, runtime.task_edges(plan, None), runtime.settings, runtime.layout)
    task.start()
    assert task.finished()
    return task


def test_its_first_write_fences_and_goes_on_from_what_was_committed(world: World) -> None:
    world.send(0)
    world.run()
    before = world.epochs()[0]
    with world.runtime() as runtime:
        task = started(world, runtime)
        assert world.epochs()[0] == before
        task.step_commit()
        task.close()
    assert (world.epochs()[0], task.report.commits, task.report.rewinds) == (before + 1, 1, 0)


def test_its_first_write_meets_a_commit_that_came_after_its_start_and_goes_back_to_it(
    world: World,
) -> None:
    world.send(0)
    world.run()
    tp = TopicPartition("in", 0)
    with world.runtime() as runtime:
        task = started(world, runtime)
        groups = world.broker.state.groups
        found = groups["shop", tp]
        stamp = CommitStamp.latest({tp: found})
        later = replace_number(stamp, stamp.number + 1)
        groups["shop", tp] = GroupOffset(found.offset, later.text())
        task.step_commit()
        assert (task.report.commits, task.report.rewinds) == (0, 1)
        task.step_commit()
        task.close()
    assert CommitStamp.latest({tp: groups["shop", tp]}).number == stamp.number + 2


def replace_number(stamp: CommitStamp, number: int) -> CommitStamp:
    return CommitStamp(number, stamp.stream_time_ms, stamp.tally)
