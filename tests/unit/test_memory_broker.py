"""What the broker in memory does beyond its contract: faults on demand, compaction, no chance."""

import sys
from threading import Thread

import pytest

from statestore.errors import CommitUnknown, Fenced, Unavailable
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.ports import GroupOffset, Records, TopicSpec
from statestore.testing.memory_broker import MemoryBroker

LOG = TopicPartition("log", 0)


def broker_with(*keys: bytes) -> MemoryBroker:
    broker = MemoryBroker()
    broker.cluster("app").create([TopicSpec("log", 1, {})])
    for i, key in enumerate(keys):
        broker.produce(LOG, Record(key, b"%d" % i, i))
    return broker


@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_answer_leaves_the_outcome_open_until_commit_is_called_again(happened: bool) -> None:
    broker = broker_with()
    outbox = broker.outbox("app-0_0", "app")
    outbox.open()
    outbox.begin()
    outbox.send(Records("log", [b"k"], [b"v"], [1], partition=0), tracked=True)
    outbox.send_offsets({LOG: 7}, "m")
    broker.lose_answer("app-0_0", happened=happened)
    with pytest.raises(CommitUnknown):
        outbox.commit()
    assert len(broker.records("log")) == int(happened)
    outbox.commit()
    assert [record.value for record in broker.records("log")] == [b"v"]
    assert broker.cluster("app").group_offsets([LOG]) == {LOG: GroupOffset(7, "m")}
    assert outbox.ends() == {LOG: 1}


@pytest.mark.parametrize("happened", [True, False])
def test_opening_after_a_lost_answer_settles_it(happened: bool) -> None:
    broker = broker_with()
    outbox = broker.outbox("app-0_0", "app")
    outbox.open()
    outbox.begin()
    outbox.send_offsets({LOG: 7}, "m")
    broker.lose_answer("app-0_0", happened=happened)
    with pytest.raises(CommitUnknown):
        outbox.commit()
    outbox.open()
    assert len(broker.cluster("app").group_offsets([LOG])) == int(happened)


def test_an_expired_transaction_fences_its_owner() -> None:
    broker = broker_with()
    outbox = broker.outbox("app-0_0", "app")
    outbox.open()
    outbox.begin()
    outbox.send(Records("log", [b"k"], [b"v"], [1]))
    broker.expire("app-0_0")
    with pytest.raises(Fenced):
        outbox.commit()
    assert broker.records("log") == []


def test_replay_of_a_compacted_log_passes_its_gaps() -> None:
    broker = broker_with(b"a", b"b", b"a", b"b", b"a", b"c", b"c")
    broker.compact("log")
    stretches = list(broker.changelog().replay(LOG, 0, 7))
    assert [stretch.offset_next for stretch in stretches] == [7]
    (batch,) = (stretch.batch for stretch in stretches)
    assert list(zip(batch.keys.objects, batch.values.objects, strict=True)) == [
        (b"b", b"3"),
        (b"a", b"4"),
        (b"c", b"6"),
    ]
    assert list(batch.offsets or ()) == [3, 4, 6]


def test_a_stopped_broker_forgets_nothing() -> None:
    broker = broker_with(b"a")
    source = broker.source()
    source.start({LOG: 0})
    broker.stop()
    with pytest.raises(Unavailable):
        source.poll(10, 0)
    broker.resume()
    assert [len(batch) for batch in source.poll(10, 0)] == [1]


def test_records_without_a_key_go_the_same_way_every_time() -> None:
    def places() -> list[int | None]:
        broker = MemoryBroker()
        broker.cluster("app").create([TopicSpec("log", 3, {})])
        outbox = broker.plain_outbox("app")
        outbox.open()
        outbox.send(Records("log", [None] * 9, [b"%d" % i for i in range(9)], [1] * 9))
        return [record.partition for record in broker.records("log")]

    assert places() == places()
    assert len(set(places())) == 3


def test_no_record_is_passed_over_that_another_thread_appends_during_a_poll() -> None:
    broker, count = broker_with(), 3000
    source = broker.source()
    source.start({LOG: 0})

    def append() -> None:
        for _ in range(count):
            broker.produce(LOG, Record(b"k", b"v", 0))

    appending, seen, before = Thread(target=append), 0, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        appending.start()
        while appending.is_alive() or not source.at_end(LOG):
            seen += sum(len(batch) for batch in source.poll(100, 0))
    finally:
        sys.setswitchinterval(before)
        appending.join()
    assert seen == count


def test_offsets_are_asked_for_while_other_threads_open_and_end_transactions() -> None:
    """As the tasks of a slot do."""
    broker, count = broker_with(), 300

    def own() -> None:
        for i in range(count):
            outbox = broker.outbox(f"app-{i}", "app")
            outbox.open()
            outbox.begin()
            outbox.commit()

    owning, cluster, before = Thread(target=own), broker.cluster("app"), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        owning.start()
        while owning.is_alive():
            assert cluster.group_offsets([LOG]) == {}
    finally:
        sys.setswitchinterval(before)
        owning.join()
