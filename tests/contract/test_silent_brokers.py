"""Brokers that fall silent: a broker of its own, as nobody else could use it meanwhile."""

from collections.abc import Iterator
from typing import Any

import pytest

from statestore.errors import CommitUnknown
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.testing.local_kafka import LocalKafka
from tests.contract.broker_steps import commit, opened, read_all, send, values
from tests.contract.broker_worlds import KafkaWorld, World
from tests.shared_kafka import CONFIG


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    with LocalKafka(config=CONFIG) as broker:
        yield broker


def test_an_unanswered_commit_goes_on_when_called_again(world: World) -> None:
    topic = world.topic()
    outbox = opened(world, request_timeout_ms=3000)
    outbox.begin()
    send(outbox, topic, "once")
    outbox.flush()
    with world.silent_commit("0_0"), pytest.raises(CommitUnknown):
        outbox.commit()
    outbox.commit()
    commit(outbox, topic, "next")
    assert values(read_all(world, TopicPartition(topic, 0))) == [b"once", b"next"]


@pytest.mark.kafka
def test_closing_does_not_wait_for_a_silent_broker(kafka_world: KafkaWorld) -> None:
    topic = kafka_world.topic()
    tp = TopicPartition(topic, 0)
    # Whatever waits for an answer here runs into the time limit of the test.
    patient: dict[str, Any] = {"request_timeout_ms": 600_000}
    outbox, plain = kafka_world.outbox(**patient), kafka_world.plain_outbox(**patient)
    source = kafka_world.source(**patient)
    outbox.open()
    outbox.begin()
    outbox.send(Records(topic, [b"k"], [b"v"], [1], partition=0))
    outbox.flush()
    plain.open()
    source.start({tp: 0})
    source.poll(1, 500)
    with kafka_world.silent_commit("0_0"):
        plain.send(Records(topic, [b"k"], [b"v"], [1], partition=0))
        outbox.close()
        plain.close()
        source.close()
