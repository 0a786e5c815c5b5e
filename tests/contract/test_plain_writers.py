"""Records that are appended outside of transactions, by either client: in order, each once."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient

from statestore.errors import RecordFailed, TopicMissing, Unavailable
from statestore.kafka.outbox import PlainOutbox
from statestore.kafka.output_log import LogWriter
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.plain_writer import WirePlainWriter
from statestore.model.ids import TopicPartition
from statestore.model.modes import KafkaClient
from statestore.ports import Records
from statestore.settings import Settings
from tests.builders import DEADLINE_S
from tests.contract.broker_worlds import KafkaWorld

pytestmark = pytest.mark.kafka


def writer_of(client: KafkaClient, settings: Settings) -> Iterator[LogWriter]:
    if client is KafkaClient.LIBRDKAFKA:
        with closing(PlainOutbox(settings, group_id="none")) as outbox:
            outbox.open()
            yield outbox
        return
    with (
        closing(ClusterMap(settings, "producer")) as cluster,
        closing(WirePlainWriter(settings, cluster)) as wire_writer,
    ):
        yield wire_writer


@pytest.fixture(params=KafkaClient)
def client(request: pytest.FixtureRequest) -> KafkaClient:
    return KafkaClient(request.param)


@pytest.fixture
def writer(client: KafkaClient, kafka_world: KafkaWorld) -> Iterator[LogWriter]:
    yield from writer_of(client, kafka_world.settings())


def rows(topic: str, partition: int, *values: bytes) -> Records:
    return Records(topic, [b"k"] * len(values), list(values), [1] * len(values), partition)


def appended(writer: LogWriter, *records: Records) -> dict[TopicPartition, int]:
    """The ends of what was appended, as a log of an output does it."""
    writer.begin()
    for some in records:
        writer.send(some, tracked=True)
    writer.flush()
    return writer.ends()


def test_what_was_appended_is_there_in_order_and_its_ends_are_told(
    kafka_world: KafkaWorld, writer: LogWriter
) -> None:
    topic = kafka_world.topic(2)
    first = appended(writer, rows(topic, 0, b"a", b"b"), rows(topic, 1, b"c"))
    second = appended(writer, rows(topic, 0, b"d"))
    assert first == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 1}
    assert second == {TopicPartition(topic, 0): 3}
    found = [(row.partition, row.value) for row in kafka_world.rows(topic)]
    assert found == [(0, b"a"), (0, b"b"), (0, b"d"), (1, b"c")]


def test_it_goes_on_after_an_error(kafka_world: KafkaWorld, writer: LogWriter) -> None:
    topic = kafka_world.topic()
    with pytest.raises((TopicMissing, RecordFailed)):
        appended(writer, rows(topic, 0, b"a"), rows("nowhere", 0, b"b"))
    with pytest.raises(RecordFailed):
        appended(writer, rows(topic, 0, b"x" * 2_000_000))
    end = appended(writer, rows(topic, 0, b"c"))[TopicPartition(topic, 0)]
    found = [row.value for row in kafka_world.rows(topic)]
    assert found[-1] == b"c"
    assert end == len(found)
    assert found.count(b"a") <= 1


def test_a_topic_that_was_made_anew_is_written_to(
    kafka_world: KafkaWorld, writer: LogWriter
) -> None:
    topic = kafka_world.topic()
    appended(writer, rows(topic, 0, b"a"))
    admin = AdminClient({"bootstrap.servers": kafka_world.bootstrap_servers})
    admin.delete_topics([topic], operation_timeout=DEADLINE_S)[topic].result()
    kafka_world.kafka.create_topic(topic, 1)
    # The number of the next record is not 0, and the new log knows nothing of those before.
    end = appended(writer, rows(topic, 0, b"b"))
    assert end == {TopicPartition(topic, 0): 1}
    assert [row.value for row in kafka_world.rows(topic)] == [b"b"]


def test_nobody_there_is_told(client: KafkaClient, kafka_world: KafkaWorld) -> None:
    nobody = kafka_world.unreachable()
    assert isinstance(nobody, KafkaWorld)
    for writer in writer_of(client, nobody.settings()):
        with pytest.raises(Unavailable, match="could not"):
            appended(writer, rows("topic", 0, b"a"))
