"""Markers that a broker skips are told by its own logs (docs/upstream/kafka-skips-markers.md)."""

import pytest
from confluent_kafka import Producer

from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.kafka.skipped_markers import _ended, skipped_markers
from tests.kafka.wire import read_raw

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

# More than half of the turns skip some.
TURNS = 30


def committing(address: str, topic: str) -> Producer:
    """A producer with a row in an open transaction."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"row", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    return producer


def test_what_a_broker_that_was_killed_skips_is_told_and_nothing_else() -> None:
    with LocalKafka(config={"log.cleaner.enable": False}) as kafka:
        address, behind = kafka.bootstrap_servers, set[str]()
        for turn in range(TURNS):
            topics = [f"t{turn}-{number}" for number in range(3)]
            for topic in topics:
                kafka.create_topic(topic, 1)
            committing(address, topics[0]).abort_transaction(DEADLINE_S)
            committing(address, topics[1]).commit_transaction(DEADLINE_S)
            last = committing(address, topics[2])
            last.commit_transaction(DEADLINE_S)
            kafka.kill_broker(0)
            kafka.start_broker(0)

            def all_ended(wanted: int = 3 * (turn + 1)) -> bool:
                return len(list(_ended(address))) == wanted

            eventually(all_ended, "the broker says that it has ended all", DEADLINE_S)
            for topic in topics:
                raw = read_raw(address, topic, 0, committed=False)
                if raw.end != raw.stable_end:
                    behind.add(topic)
            assert {text.partition("-0 has no ")[0] for text in skipped_markers(address)} == behind
            if behind:
                return
    raise AssertionError(f"nothing was skipped in {TURNS} turns: this test shows nothing any more")
