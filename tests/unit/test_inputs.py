"""Where a stream task's inputs go on, and which of them are refused."""

import pytest

from statestore.errors import RecordFailed
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.model.records import Record
from statestore.ports import TopicSpec
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.tasks.commit import CommitStamp
from statestore.tasks.input_checkpoint import committed_inputs
from statestore.tasks.plan import TaskPlan
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.sub_topologies import SubTopology
from tests.builders import memory_store

OLD, NEW = TopicPartition("old", 0), TopicPartition("new", 0)
STAMP = CommitStamp(7, 1_700_000_000_000)


def broker_with(records: int, *, committed: int | None = None) -> MemoryBroker:
    """Both topics with as many records; the group's offset of `old`, if it has one."""
    broker = MemoryBroker()
    broker.cluster("app").create([TopicSpec(tp.topic, 1, {}) for tp in (OLD, NEW)])
    for tp in (OLD, NEW):
        for number in range(records):
            broker.produce(tp, Record(b"k", b"v", number))
    if committed is not None:
        outbox = broker.plain_outbox("app")
        outbox.open()
        outbox.send_offsets({OLD: committed}, STAMP.text())
    return broker


def store_at(*processed: tuple[TopicPartition, int]) -> TransactionalKeyValueStore[bytes, bytes]:
    store = memory_store()
    store.staged.commit({}, Position.of(dict(processed)))
    return store


def asked(
    broker: MemoryBroker,
    *stores: object,
    end: int | None = None,
    marked: dict[TopicPartition, int] | None = None,
) -> tuple[dict[TopicPartition, int], CommitStamp]:
    ends = None if end is None else {OLD: end, NEW: end}
    plan = TaskPlan(TaskId(0, 0), SubTopology(0, ()), {}, (OLD, NEW), ends)
    return committed_inputs(plan, broker.cluster("app"), stores, marked or {})[:2]


def test_inputs_go_on_at_the_groups_offset_and_new_ones_at_the_start_of_their_log() -> None:
    broker = broker_with(10, committed=4)
    broker.cluster("app").delete_before({NEW: 3})
    assert asked(broker, store_at((OLD, 3)), end=10) == ({OLD: 4, NEW: 3}, STAMP)
    assert asked(broker, store_at((OLD, 3))) == ({OLD: 4, NEW: 3}, STAMP)


def test_an_offset_past_an_earlier_planned_end_is_no_loss() -> None:
    assert asked(broker_with(10, committed=9), end=2)[0][OLD] == 9


def test_an_offset_past_the_end_of_the_log_is_refused() -> None:
    broker = broker_with(10, committed=11)
    with pytest.raises(RecordFailed, match=r"old-0 ends at offset 10, .* at 11: .* created again"):
        asked(broker, end=10)


def test_an_input_the_stores_have_processed_and_the_group_forgot_is_refused() -> None:
    with pytest.raises(RecordFailed, match=r"no offset of input old-0, .* up to 3: .* to 4 to go"):
        asked(broker_with(10), store_at((OLD, 3)), end=10)


def test_an_input_the_mark_knows_and_the_group_forgot_is_refused() -> None:
    with pytest.raises(RecordFailed, match=r"no offset of input old-0, .* up to 3: .* to 4 to go"):
        asked(broker_with(10), store_at((OLD, 1)), end=10, marked={OLD: 4})


def test_without_stores_and_mark_every_input_is_new() -> None:
    assert asked(broker_with(10), end=10) == ({OLD: 0, NEW: 0}, CommitStamp(0, None))
