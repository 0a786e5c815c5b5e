"""What only a real client can get wrong: full queues, a broker that refuses or keeps silent."""

import random
import threading
import time
from collections.abc import Callable

import pytest

from statestore.errors import Fenced, InvalidSetting, RecordFailed, StateStoreError, Unavailable
from statestore.kafka import source as kafka_source
from statestore.kafka.epochs import abort_open_transactions
from statestore.kafka.outbox import TransactionalOutbox
from statestore.kafka.wire import source as wire_source
from statestore.model.ids import TopicPartition
from statestore.ports import Outbox, Records
from statestore.tasks.commit import CommitStamp
from tests.builders import DEADLINE_S
from tests.contract.broker_steps import send
from tests.contract.broker_worlds import KafkaWorld, Row

pytestmark = pytest.mark.kafka

# Brokers weigh what is compressed.
TOO_LARGE = random.Random(7).randbytes(5000)
SMALL_QUEUE = {"producer.queue.buffering.max.messages": "500", "producer.linger.ms": "0"}


@pytest.mark.parametrize("with_headers", [False, True])
@pytest.mark.parametrize("transactional", [True, False])
def test_a_full_queue_neither_loses_nor_doubles_nor_reorders(
    kafka_world: KafkaWorld, transactional: bool, with_headers: bool
) -> None:
    topic = kafka_world.topic(partitions=2)
    outbox = (
        kafka_world.outbox(clients=SMALL_QUEUE)
        if transactional
        else kafka_world.plain_outbox(clients=SMALL_QUEUE)
    )
    outbox.open()
    outbox.begin()
    count = 20_000
    data: list[bytes | None] = [b"%d" % i for i in range(count)]
    times = list(range(1, count + 1))
    headers = [(("n", b"%d" % i),) for i in range(count)] if with_headers else None
    outbox.send(Records(topic, data, data, times, partition=1, headers=headers), tracked=True)
    outbox.commit()
    assert outbox.ends() == {TopicPartition(topic, 1): count}
    assert kafka_world.rows(topic) == [
        Row(item, item, at, headers[i] if headers else (), 1, i)
        for i, (item, at) in enumerate(zip(data, times, strict=True))
    ]


def until_committed(step: Callable[[], None], abort: Callable[[], None]) -> int:
    """How often a unit of work had to be repeated."""
    for failures in range(4):
        try:
            step()
        except Unavailable:
            abort()
        else:
            return failures
    raise AssertionError("it never committed")


def test_a_record_the_broker_refuses_is_named_and_the_next_unit_goes_on(
    kafka_world: KafkaWorld,
) -> None:
    topic = kafka_world.topic(config={"max.message.bytes": "2000"})
    outbox = kafka_world.outbox()
    outbox.open()

    def unit(value: bytes) -> None:
        outbox.begin()
        outbox.send(Records(topic, [b"k"], [value], [1], partition=0), tracked=True)
        outbox.flush()
        outbox.send(Records(topic, [b"k"], [b"after"], [1], partition=0))
        outbox.commit()

    with pytest.raises(RecordFailed, match=topic):
        unit(TOO_LARGE)
    outbox.abort()
    # The client has to ask for a new epoch first, which may cost one more transaction.
    assert until_committed(lambda: unit(b"small"), outbox.abort) <= 1
    assert [row.value for row in kafka_world.rows(topic)] == [b"small", b"after"]


def test_a_plain_commit_fails_if_any_record_did(kafka_world: KafkaWorld) -> None:
    topic = kafka_world.topic(config={"max.message.bytes": "2000"})
    outbox = kafka_world.plain_outbox(clients={"producer.batch.num.messages": "1"})
    outbox.open()
    outbox.begin()
    values: list[bytes | None] = [b"a", TOO_LARGE, b"b"]
    outbox.send(Records(topic, values, values, [1, 1, 1], partition=0))
    with pytest.raises(RecordFailed, match=topic):
        outbox.commit()
    outbox.begin()
    outbox.commit()


def test_time_zero_is_stamped_one_millisecond_late(kafka_world: KafkaWorld) -> None:
    topic = kafka_world.topic()
    outbox = kafka_world.outbox()
    outbox.open()
    outbox.begin()
    outbox.send(Records(topic, [b"a", b"b"], [b"a", b"b"], [0, 5], partition=0))
    outbox.commit()
    assert [row.timestamp_ms for row in kafka_world.rows(topic)] == [1, 5]


def test_a_poll_of_large_values_ends_before_memory_does(
    reading_world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (kafka_source, wire_source):
        monkeypatch.setattr(module, "_BATCH_BYTES", 1 << 20)
    topic = reading_world.topic()
    reading_world.produce(topic, [Row(None, bytes(1000), 1) for _ in range(6000)])
    tp, reader = TopicPartition(topic, 0), reading_world.source()
    reader.start({tp: 0})
    sizes: list[int] = []
    while reader.position(tp) < 6000:
        sizes += [len(batch) for batch in reader.poll(1_000_000, 2000)]
    assert sum(sizes) == 6000
    assert max(sizes) <= 2100, "a megabyte, and a call into the client"


def test_a_source_that_hears_nothing_says_so(reading_world: KafkaWorld) -> None:
    tp = TopicPartition(reading_world.topic(), 0)
    source = reading_world.unreachable().source()
    source.start({tp: 0})
    heard: list[StateStoreError] = []
    deadline = time.monotonic() + DEADLINE_S
    while not heard:
        assert time.monotonic() < deadline
        try:
            source.poll(10, 200)
        except Unavailable as error:
            heard.append(error)
    assert "refused" in str(heard[0])
    source.close()


def test_a_transaction_timeout_above_the_brokers_limit_is_a_setting_wherever_an_id_is_opened(
    kafka_world: KafkaWorld,
) -> None:
    settings = kafka_world.settings(transaction_timeout_ms=2_000_000_000)
    wanted = "transaction.timeout.ms.*transaction.max.timeout.ms"
    for _ in range(2):
        with pytest.raises(InvalidSetting, match=wanted):
            kafka_world.outbox(transaction_timeout_ms=2_000_000_000).open()
        with pytest.raises(InvalidSetting, match=wanted):
            abort_open_transactions(
                settings, [kafka_world.transactional_ids(str(n))[0] for n in range(20)]
            )


def numbered(outbox: Outbox, topic: str, number: int, text: str) -> None:
    """One commit of a stream task."""
    outbox.begin(number)
    send(outbox, topic, text)
    outbox.send_offsets({TopicPartition(topic, 0): number}, CommitStamp(number, None).text())
    outbox.commit()


class Late(threading.Event):
    """Holds an owner up before it opens an id anew, until it is set."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(DEADLINE_S)

    def is_set(self) -> bool:
        return False


def replaced(world: KafkaWorld, topic: str) -> tuple[Late, TransactionalOutbox, Outbox]:
    """An owner that has committed and is about to open the id of its commit anew; its successor."""
    inputs = [TopicPartition(topic, 0)]
    old = world.numbered_outbox(inputs=inputs)
    old.open()
    late = old._epochs._cancelled = Late()
    numbered(old, topic, 1, "1")
    new = world.numbered_outbox(inputs=inputs)
    new.open()
    return late, old, new


def test_an_owner_that_opens_an_id_when_its_successor_has_used_it_is_fenced(
    kafka_world: KafkaWorld,
) -> None:
    topic = kafka_world.topic()
    late, old, new = replaced(kafka_world, topic)
    for number in range(2, 4):
        numbered(new, topic, number, f"{number}")
    late.set()
    with pytest.raises(Fenced, match="commit 3 of this stream task is not this owner's"):
        old.begin(3)
    assert [row.value for row in kafka_world.rows(topic)] == [b"1", b"2", b"3"]


def test_an_owner_that_tries_a_commit_again_when_its_successor_has_made_it_is_fenced(
    kafka_world: KafkaWorld,
) -> None:
    """Its first try was dropped before anything told which inputs it had read."""
    topic = kafka_world.topic()
    inputs = [TopicPartition(topic, 0)]
    old, new = (kafka_world.numbered_outbox(inputs=inputs) for _ in range(2))
    old.open()
    old.begin(1)
    send(old, topic, "1, dropped")
    new.open()
    numbered(new, topic, 1, "1")
    old.abort()
    with pytest.raises(Fenced, match="commit 1 of this stream task is not this owner's"):
        old.begin(1)
    assert [row.value for row in kafka_world.rows(topic)] == [b"1"]


def test_of_two_owners_of_one_commit_number_the_one_that_opened_last_succeeds(
    kafka_world: KafkaWorld,
) -> None:
    topic = kafka_world.topic()
    late, old, new = replaced(kafka_world, topic)
    numbered(new, topic, 2, "2")
    late.set()
    numbered(old, topic, 3, "3")
    with pytest.raises(Fenced):
        numbered(new, topic, 3, "3 again")
    assert [row.value for row in kafka_world.rows(topic)] == [b"1", b"2", b"3"]
