"""Our own client's outbox when its broker is gone: it waits no longer than it may, nor forever."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from statestore.errors import Unavailable
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.outbox import WireOutbox
from statestore.ports import Records
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.writing_rig import committed

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


def records(count: int) -> Records:
    """Several batches of them, if there are thousands."""
    values = [b"%d" % number + bytes(1000) for number in range(count)]
    return Records("out", values, values, [5] * count, partition=0)


@contextmanager
def opened(kafka: LocalKafka) -> Iterator[WireOutbox]:
    """An outbox in a transaction, of an owner that waits three seconds for an answer."""
    given = Settings.from_mapping(
        {
            "application.id": "outage",
            "bootstrap.servers": kafka.bootstrap_servers,
            "default.api.timeout.ms": "3000",
            "producer.compression.type": "none",
        }
    )
    with closing(ClusterMap(given, "producer")) as cluster:
        outbox = WireOutbox(given, cluster, transactional_ids=["a"], group_id=None)
        with closing(outbox):
            outbox.open()
            outbox.begin()
            yield outbox


def test_batches_for_a_broker_that_is_gone_are_given_up_and_come_once_it_is_back() -> None:
    """The first of them is refused only when it was sent, and the others at once."""
    with LocalKafka() as kafka:
        kafka.create_topic("out", 1)
        with opened(kafka) as outbox:
            outbox.send(records(10))
            outbox.flush()
            kafka.kill_broker(0)
            outbox.send(records(5000))
            with pytest.raises(Unavailable, match="did not answer"):
                outbox.flush()
        kafka.start_broker(0)
        with opened(kafka) as outbox:
            outbox.send(records(5000))
            outbox.commit()
        found = committed(kafka.bootstrap_servers, "out")
        assert [message.value() for message in found] == list(records(5000).values)
