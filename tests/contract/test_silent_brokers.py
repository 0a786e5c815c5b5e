"""Brokers that fall silent: a broker of its own, as nobody else could use it meanwhile."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from statestore.errors import CommitUnknown, Unavailable
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.testing.local_kafka import LocalKafka
from tests.contract.broker_steps import commit, opened, read_all, send, values
from tests.contract.broker_worlds import KafkaWorld, WireWorld, World
from tests.shared_kafka import CONFIG


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(config=CONFIG) as broker:
        yield broker


@pytest.mark.parametrize("is_asked_before", [False, True])
def test_an_unanswered_commit_goes_on_when_called_again(
    world: World, *, is_asked_before: bool
) -> None:
    topic = world.topic()
    # Long enough to be opened on a busy machine; the silence lasts as long.
    outbox = opened(world, request_timeout_ms=10_000)
    outbox.begin()
    send(outbox, topic, "once")
    outbox.flush()
    with world.silent_commit("0_0"):
        if is_asked_before:
            outbox.ask_commit()
        with pytest.raises(CommitUnknown):
            outbox.commit()
    outbox.commit()
    commit(outbox, topic, "next")
    assert values(read_all(world, TopicPartition(topic, 0))) == [b"once", b"next"]


@pytest.mark.kafka
def test_closing_does_not_wait_for_a_silent_broker(reading_world: KafkaWorld) -> None:
    topic = reading_world.topic()
    tp = TopicPartition(topic, 0)
    # Whatever waits for an answer here runs into the time limit of the test.
    patient: dict[str, Any] = {"request_timeout_ms": 600_000}
    outbox, plain = reading_world.outbox(**patient), reading_world.plain_outbox(**patient)
    source = reading_world.source(**patient)
    outbox.open()
    outbox.begin()
    outbox.send(Records(topic, [b"k"], [b"v"], [1], partition=0))
    outbox.flush()
    plain.open()
    source.start({tp: 0})
    source.poll(1, 500)
    with reading_world.silent_commit("0_0"):
        plain.send(Records(topic, [b"k"], [b"v"], [1], partition=0))
        outbox.close()
        plain.close()
        source.close()


@pytest.mark.kafka
def test_records_without_an_answer_are_unavailable_and_the_id_goes_on(
    wire_world: WireWorld,
) -> None:
    topic = wire_world.topic()
    outbox = wire_world.wire_outbox(
        inputs=[TopicPartition(topic, 0)], number_of=lambda _: 0, request_timeout_ms=2000
    )
    _insist(outbox.open)
    _insist(lambda: outbox.begin(1))
    send(outbox, topic, "known")
    _insist(outbox.flush)
    with wire_world.silent_commit("0_0"):
        send(outbox, topic, "unknown")
        with pytest.raises(Unavailable, match=r"have 1 records acknowledged: .*did not answer"):
            outbox.flush()
        outbox.abort()
    _insist(lambda: outbox.begin(1))
    send(outbox, topic, "again")
    _insist(outbox.commit)
    assert [row.value for row in wire_world.rows(topic)] == [b"again"]


def _insist(call: Callable[[], object]) -> None:
    """Repeat a call that a broker, slow or silent until now, does not answer in its short time."""
    for _ in range(20):
        try:
            call()
        except (CommitUnknown, Unavailable):
            continue
        return
    call()
