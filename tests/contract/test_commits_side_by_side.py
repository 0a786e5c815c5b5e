"""The commits of a slot's tasks overlap: each keeps its order, and none is left half done.

Shows I4 and I6.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

import statestore as ss
from statestore import faults, serdes
from statestore.errors import CommitUnknown, Fenced
from statestore.faults import CrashPoint
from statestore.model.ids import TopicPartition
from statestore.operations.running.continuous import serve_run
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import serve_here
from statestore.ports import GroupOffset, Outbox
from statestore.tasks.commit import CommitStamp
from statestore.tasks.slot import FOREVER_MS
from tests.contract.broker_steps import commit, send
from tests.contract.broker_worlds import WireWorld, World
from tests.contract.test_lives_of_a_slot import COUNTS, PARTITIONS
from tests.contract.test_lives_of_a_slot import World as Slot

ORDER = [
    CrashPoint.COMMIT_BEGIN,
    CrashPoint.COMMIT_RECORDS_SENT,
    CrashPoint.COMMIT_OFFSETS_SENT,
    CrashPoint.COMMIT_LOG_ASKED,
    CrashPoint.COMMIT_LOG_DONE,
    CrashPoint.COMMIT_STORE_WRITTEN,
    CrashPoint.COMMIT_DONE,
]


class Asking:
    """Counts by key, and asks for a commit with each record."""

    def __init__(self, context: ss.ProcessorContext[str, int], run: "Continuous") -> None:
        self._context = context
        self._counts = context.store(COUNTS)
        self._run = run

    def process(self, record: ss.Record[str, str]) -> None:
        self._run.at_record()
        count = (self._counts.get(record.key) or 0) + 1
        self._counts.put(record.key, count)
        self._context.forward(record.replace(value=count))
        self._context.commit()


class Continuous:
    """A continuous run over the broker in memory, until each task has committed once."""

    def __init__(self, folder: Path) -> None:
        self.slot = Slot(folder)
        self.visits: list[CrashPoint] = []
        self.at_visit: Callable[[CrashPoint], None] = lambda _point: None
        self.at_record: Callable[[], None] = lambda: None
        self._stop = Event()

    def run(self, *, commits: int = PARTITIONS) -> None:
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
        counted = b.stream("in").process(
            lambda context: Asking(context, self), COUNTS, name="count"
        )
        counted.to("out", value_serde=serdes.INT64)
        faults.on_reach(lambda point: self._visit(point, commits))
        with self.slot.runtime() as runtime:
            request = RunRequest(run_for_ms=FOREVER_MS)
            serve_run(runtime, b.build(), request, self._stop, serve_here)

    def _visit(self, point: CrashPoint, commits: int) -> None:
        if point in ORDER:
            self.visits.append(point)
            self.at_visit(point)
        if self.visits.count(CrashPoint.COMMIT_DONE) == commits:
            self._stop.set()


@pytest.fixture
def continuous(tmp_path: Path) -> Iterator[Continuous]:
    yield Continuous(tmp_path)
    faults.on_reach(None)


def test_all_tasks_ask_before_any_waits_and_each_keeps_its_order(continuous: Continuous) -> None:
    continuous.slot.send(*range(PARTITIONS))
    continuous.run()
    steps = [
        ORDER[:2],  # records
        ORDER[2:3],  # offsets
        ORDER[3:4],  # the end of the transaction
        ORDER[4:],  # the answer, and the store
    ]
    assert continuous.visits == [point for step in steps for point in step * PARTITIONS]
    assert continuous.slot.written() == PARTITIONS


def test_a_task_whose_transaction_expired_goes_back_after_the_others_have_committed(
    continuous: Continuous,
) -> None:
    slot, epochs, records = continuous.slot, [], []

    def expire() -> None:
        """When the last task processes, as then the transactions of the others are open."""
        records.append("one")
        if len(records) == PARTITIONS:
            slot.broker.expire("shop-0_2")

    def note(point: CrashPoint) -> None:
        if point is CrashPoint.COMMIT_DONE:
            epochs.append(slot.epochs()[2])

    continuous.at_record, continuous.at_visit = expire, note
    slot.send(*range(PARTITIONS))
    continuous.run()
    assert len(records) == PARTITIONS + 1, "one record was processed again"
    assert len(set(epochs[:-1])) == 1, "the others had committed before it was opened again"
    assert epochs[-1] > epochs[0]
    assert slot.written() == PARTITIONS


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_without_an_answer_beside_others_happens_once(
    continuous: Continuous, *, happened: bool
) -> None:
    continuous.slot.send(*range(PARTITIONS))
    continuous.at_record = lambda: continuous.slot.broker.lose_answer("shop-0_4", happened=happened)
    continuous.run()
    assert continuous.slot.written() == PARTITIONS


# The broker's part, with all clients.


def committed(world: World, tp: TopicPartition) -> GroupOffset | None:
    return world.cluster().group_offsets([tp]).get(tp)


def asked(outbox: Outbox, topic: str, partition: int, text: str) -> None:
    """A commit as far as its answer."""
    outbox.begin()
    send(outbox, topic, text, partition=partition)
    outbox.push()
    outbox.send_offsets({TopicPartition(topic, partition): 7}, '{"number": 7}')
    outbox.ask_commit()


def test_commits_of_several_outboxes_are_asked_for_and_then_settled(world: World) -> None:
    topic = world.topic(partitions=3)
    outboxes = [world.outbox(f"0_{partition}") for partition in range(3)]
    for outbox in outboxes:
        outbox.open()
    for turn in range(2):
        for partition, outbox in enumerate(outboxes):
            asked(outbox, topic, partition, f"{partition}-{turn}")
        for outbox in outboxes:
            outbox.commit()
    found = sorted(row.value or b"" for row in world.rows(topic))
    assert found == [b"0-0", b"0-1", b"1-0", b"1-1", b"2-0", b"2-1"]
    for partition in range(3):
        assert committed(world, TopicPartition(topic, partition)) == (7, '{"number": 7}')


def test_a_commit_that_was_asked_for_and_given_up_is_whole_or_not_at_all(world: World) -> None:
    topic = world.topic()
    outbox = world.outbox()
    outbox.open()
    asked(outbox, topic, 0, "given up")
    outbox.close()
    after = world.outbox()
    after.open()
    happened = committed(world, TopicPartition(topic, 0)) is not None
    commit(after, topic, "after")
    found = [row.value for row in world.rows(topic)]
    assert found == [*([b"given up"] if happened else []), b"after"]


def test_a_commit_that_was_asked_for_is_whole_or_not_at_all_if_another_owner_opens_the_id(
    world: World,
) -> None:
    topic = world.topic()
    outbox, newer = world.outbox(), world.outbox()
    outbox.open()
    asked(outbox, topic, 0, "first")
    newer.open()
    happened = committed(world, TopicPartition(topic, 0)) is not None
    try:
        outbox.commit()
    except (Fenced, CommitUnknown):
        assert not happened
    else:
        assert happened
    commit(newer, topic, "second")
    assert [row.value for row in world.rows(topic)] == [b"first"] * happened + [b"second"]


def test_an_abort_after_the_commit_was_asked_for_never_repeats_what_it_did(
    wire_world: WireWorld,
) -> None:
    """As of a task that ends in the middle; the next transaction has the same number."""
    topic = wire_world.topic()
    tp = TopicPartition(topic, 0)
    outbox = wire_world.wire_outbox(inputs=[tp])
    outbox.open()
    outbox.begin(1)
    send(outbox, topic, "once")
    outbox.send_offsets({tp: 1}, CommitStamp(1, None).text())
    outbox.ask_commit()
    outbox.abort()
    try:
        outbox.begin(1)
    except Fenced:
        found = [row.value for row in wire_world.rows(topic)]
        assert found == [b"once"]
    else:
        assert committed(wire_world, tp) is None
        assert wire_world.rows(topic) == []
