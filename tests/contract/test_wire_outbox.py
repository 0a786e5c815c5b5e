"""Our own client's transactions: beside librdkafka's in one group, and where they differ.

Shows I31.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from kafka.protocol.producer import EndTxnRequest, EndTxnResponse

from statestore.errors import Fenced, RecordFailed
from statestore.kafka.wire.outbox import WireOutbox
from statestore.model.ids import TopicPartition
from statestore.ports import Outbox, Records
from statestore.tasks.commit import CommitStamp
from tests.contract.broker_steps import YEAR_2013, commit, send
from tests.contract.broker_worlds import WireWorld
from tests.tiers import commit_seed

pytestmark = pytest.mark.kafka
STEPS = 40


class Owner(NamedTuple):
    """An owner of a stream task, who may have been replaced without noticing."""

    outbox: Outbox
    committed: list[int]
    """The number of its last commit, alone."""


@pytest.mark.parametrize(
    "seed",
    [commit_seed(), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(20))],
)
def test_owners_with_both_clients_commit_each_number_once(wire_world: WireWorld, seed: int) -> None:
    chosen = random.Random(seed)
    topic = wire_world.topic()
    inputs = [TopicPartition(topic, 0)]
    make: list[Callable[[], Outbox]] = [
        lambda: wire_world.wire_outbox(inputs=inputs),
        lambda: wire_world.numbered_outbox(inputs=inputs),
    ]
    owners: list[Owner] = []
    for _ in range(STEPS):
        if not owners or chosen.random() < 0.15:
            outbox = chosen.choice(make)()
            outbox.open()
            owners.append(Owner(outbox, [_committed(wire_world, inputs[0])]))
        owner = chosen.choice(owners[-3:])
        number = owner.committed[0] + 1
        try:
            owner.outbox.begin(number)
            send(owner.outbox, topic, str(number))
            owner.outbox.send_offsets({inputs[0]: number}, CommitStamp(number, None).text())
            if chosen.random() < 0.2:
                owner.outbox.abort()
            else:
                owner.outbox.commit()
                owner.committed[0] = number
        except Fenced:
            owners.remove(owner)
    last = _committed(wire_world, inputs[0])
    found = [row.value for row in wire_world.rows(topic)]
    assert found == [str(number).encode() for number in range(1, last + 1)], seed
    assert last > 3, seed


def _committed(world: WireWorld, tp: TopicPartition) -> int:
    found = world.cluster().group_offsets([tp])
    return CommitStamp.number_in(found[tp].metadata) if found else 0


def test_a_late_end_of_a_transaction_does_nothing_to_the_next_one(wire_world: WireWorld) -> None:
    topic = wire_world.topic()
    outbox = wire_world.wire_outbox(number_of=lambda _: 0)
    outbox.open()
    commit(outbox, topic, "first")
    epochs = [(one.producer_id, one.epoch) for one in outbox._ids]
    commit(outbox, topic, "other id")
    outbox.begin()
    send(outbox, topic, "open")
    outbox.flush()
    owner = outbox._owner()
    before = (owner.producer_id, owner.epoch)
    assert before in epochs, "the epoch that the first commit's answer brought"
    owner.epoch -= 1
    with pytest.raises(Fenced):
        owner.end(commit=False, deadline_s=outbox._deadline_s())
    owner.epoch += 1
    outbox.commit()
    assert [row.value for row in wire_world.rows(topic)] == [b"first", b"other id", b"open"]


def test_a_commit_that_is_told_again_has_happened_once(wire_world: WireWorld) -> None:
    """As after an answer that was lost: the same request, with the epoch of before."""
    topic = wire_world.topic()
    outbox = wire_world.wire_outbox(number_of=lambda _: 0)
    outbox.open()
    outbox.begin()
    send(outbox, topic, "once")
    outbox.flush()
    owner = outbox._owner()
    asked = EndTxnRequest(
        version=5,
        transactional_id=owner.name,
        producer_id=owner.producer_id,
        producer_epoch=owner.epoch,
        committed=True,
    )
    deadline_s = outbox._deadline_s()
    link = owner.coordinator.send(lambda _: asked, EndTxnResponse, deadline_s)
    assert link.read(deadline_s=deadline_s).error_code == 0
    outbox.commit()
    commit(outbox, topic, "other id")
    commit(outbox, topic, "same id")
    assert [row.value for row in wire_world.rows(topic)] == [b"once", b"other id", b"same id"]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_records_of_any_codec_are_read_by_others_as_they_were_written(
    wire_world: WireWorld, compression: str
) -> None:
    topic = wire_world.topic(partitions=3)
    outbox = wire_world.wire_outbox(
        number_of=lambda _: 0,
        clients={"producer.compression.type": compression, "producer.batch.size": "100000"},
    )
    outbox.open()
    count = 20_000
    keys = [b"%d" % at for at in range(count)]
    outbox.begin()
    for begin in range(0, count, 7_000):
        some = keys[begin : begin + 7_000]
        outbox.send(Records(topic, some, some, [YEAR_2013] * len(some)), tracked=True)
    outbox.commit()
    rows = wire_world.rows(topic)
    assert sorted(row.value or b"" for row in rows) == sorted(keys)
    for partition in range(3):
        found = [int(row.value or b"") for row in rows if row.partition == partition]
        assert found == sorted(found), "in order"
        assert outbox.ends()[TopicPartition(topic, partition)] == len(found)


def test_a_record_that_is_too_large_is_named_before_it_is_sent(wire_world: WireWorld) -> None:
    topic = wire_world.topic()
    outbox: WireOutbox = wire_world.wire_outbox(number_of=lambda _: 0)
    outbox.open()
    outbox.begin()
    values = [b"small", b"x" * 1_000_000]
    with pytest.raises(RecordFailed, match=r"key b'b', has 1000000 bytes.*max.message.bytes") as no:
        outbox.send(Records(topic, [b"a", b"b"], values, [YEAR_2013] * 2))
    assert no.value.at == 1
    outbox.abort()
    commit(outbox, topic, "after")
    assert [row.value for row in wire_world.rows(topic)] == [b"after"]
