"""One suite for both monitoring clients: what they tell of topics, inputs and the group."""

import pytest

from statestore.errors import TopicMissing, Unavailable
from statestore.model.ids import TopicPartition
from statestore.model.time_marks import TimeMark, key_of
from statestore.ports import Bounds, GroupOffset, InputFacts, Outbox, Records
from tests.contract.broker_steps import STAMP, YEAR_2013, commit, opened, send
from tests.contract.broker_worlds import Row, World


def produced(world: World, *times: int) -> TopicPartition:
    """A topic with one record at each of these milliseconds."""
    tp = TopicPartition(world.topic(), 0)
    world.produce(tp.topic, [Row(b"k", b"v", YEAR_2013 + ms) for ms in times])
    return tp


def commit_input(outbox: Outbox, tp: TopicPartition, offset: int, metadata: str = STAMP) -> None:
    outbox.begin()
    outbox.send_offsets({tp: offset}, metadata)
    outbox.commit()


def facts(world: World, tp: TopicPartition) -> InputFacts:
    return world.monitoring().inputs([tp])[tp]


def test_topics_that_exist_are_told_with_their_partitions(world: World) -> None:
    topic = world.topic(partitions=3)
    assert world.monitoring().partitions([topic, "no-such-topic"]) == {topic: 3}
    assert world.monitoring().partitions([]) == {}


def test_all_topics_are_listed_as_soon_as_they_are_there(world: World) -> None:
    topics = {world.topic(), world.topic(partitions=2)}
    assert topics <= set(world.monitoring().topics())
    assert topics <= set(world.cluster().topics())
    listed = world.cluster().topics()
    assert listed == sorted(listed)


def test_nothing_asked_is_nothing_told(world: World) -> None:
    assert world.monitoring().bounds([]) == {}
    assert world.monitoring().inputs([]) == {}


def test_an_input_nobody_committed_is_unread_from_its_beginning(world: World) -> None:
    tp = produced(world, 5, 9, 7)
    assert facts(world, tp) == InputFacts(Bounds(0, 3), None, YEAR_2013 + 5, YEAR_2013 + 9)


def test_an_input_read_in_part_tells_the_next_record_and_the_newest(world: World) -> None:
    tp = produced(world, 5, 9, 7)
    commit_input(opened(world), tp, 2)
    told = facts(world, tp)
    assert told.committed == GroupOffset(2, STAMP)
    assert told.next_ms == YEAR_2013 + 7
    assert told.newest_ms is not None
    assert told.newest_ms >= YEAR_2013 + 7


def test_time_marks_are_neither_next_nor_newest(world: World) -> None:
    tp = produced(world, 5)
    mark = key_of(TimeMark(0, None, None, "run", idle=True))
    world.produce(tp.topic, [Row(mark, None, YEAR_2013 + 90)])
    assert facts(world, tp) == InputFacts(Bounds(0, 2), None, YEAR_2013 + 5, YEAR_2013 + 5)
    commit_input(opened(world), tp, 1)
    assert facts(world, tp) == InputFacts(Bounds(0, 2), GroupOffset(1, STAMP), None, None)


def test_an_input_read_to_its_end_has_nothing_next(world: World) -> None:
    tp = produced(world, 5, 9)
    commit_input(opened(world), tp, 2)
    assert facts(world, tp) == InputFacts(Bounds(0, 2), GroupOffset(2, STAMP), None, None)


def seen(
    world: World, tp: TopicPartition, start: int, *, each_max: int = 9, bytes_max: int = 99
) -> list[tuple[int | None, bytes | None]]:
    """The offsets and values of records from that offset on, as people look at them."""
    client = world.monitoring()
    spans = {tp: Bounds(start, client.bounds([tp])[tp].end)}
    found = client.records(spans, each_max=each_max, bytes_max=bytes_max)
    return [(record.offset, record.value) for record in found.records]


def test_records_are_looked_at_with_their_headers_and_in_small_numbers(world: World) -> None:
    tp = TopicPartition(world.topic(partitions=2), 1)
    outbox = opened(world)
    outbox.begin()
    headers = [(("why", b"late"), ("none", None)), ()]
    sent = Records(tp.topic, [b"k", None], [b"a", None], [YEAR_2013] * 2, 1, headers)
    outbox.send(sent)
    outbox.commit()
    outbox.begin()
    send(outbox, tp.topic, "aborted", partition=1)
    outbox.flush()
    outbox.abort()
    outbox.begin()
    send(outbox, tp.topic, "b", "c", partition=1)
    outbox.commit()
    world.settle(tp.topic)
    end = world.monitoring().bounds([tp])[tp].end
    found = world.monitoring().records({tp: Bounds(0, end)}, each_max=9, bytes_max=99)
    first, second, *_ = found.records
    assert (first.key, first.value, first.topic, first.partition) == (b"k", b"a", *tp)
    assert first.headers == (("why", b"late"), ("none", None))
    assert (second.key, second.value, second.headers) == (None, None, ())
    assert [record.value for record in found.records] == [b"a", None, b"b", b"c"]
    assert found.unread == []
    assert [value for _, value in seen(world, tp, 0, each_max=2)] == [b"a", None]
    assert [value for _, value in seen(world, tp, 1)] == [None, b"b", b"c"]
    limited = world.monitoring().records({tp: Bounds(0, end)}, each_max=9, bytes_max=1)
    assert ([record.value for record in limited.records], limited.unread) == ([b"a"], [tp])
    nothing = world.monitoring().records({tp: Bounds(end, end)}, each_max=9, bytes_max=99)
    assert nothing == ([], [])


def test_time_marks_are_no_records_to_look_at(world: World) -> None:
    tp = produced(world, 5)
    mark = key_of(TimeMark(0, None, None, "run", idle=True))
    world.produce(tp.topic, [Row(mark, None, YEAR_2013 + 90)])
    assert seen(world, tp, 0) == [(0, b"v")]


def test_looking_at_records_joins_no_group(world: World) -> None:
    tp = produced(world, 5, 9)
    before = world.cluster().group_offsets([tp])
    assert len(seen(world, tp, 0)) == 2
    assert world.cluster().group_offsets([tp]) == before == {}


def test_records_purged_before_they_were_read_are_not_next(world: World) -> None:
    tp = produced(world, 5, 9, 7)
    commit_input(opened(world), tp, 1)
    world.cluster().delete_before({tp: 2})
    told = facts(world, tp)
    assert (told.bounds, told.next_ms) == ((2, 3), YEAR_2013 + 7)


def test_an_open_transaction_hides_its_records_and_its_offsets(world: World) -> None:
    tp = produced(world, 5)
    writer, reader = opened(world, "0_0"), opened(world, "0_1")
    commit_input(reader, tp, 0, "before")
    writer.begin()
    send(writer, tp.topic, "open")
    writer.flush()
    reader.begin()
    reader.send_offsets({tp: 1}, "open")
    told = facts(world, tp)  # neither waits for it
    assert told == InputFacts(Bounds(0, 1), GroupOffset(0, "before"), YEAR_2013 + 5, YEAR_2013 + 5)


def test_marks_of_transactions_and_aborted_records_are_nothing_to_read(world: World) -> None:
    tp = TopicPartition(world.topic(), 0)
    outbox = opened(world)
    commit(outbox, tp.topic, "a")
    outbox.begin()
    send(outbox, tp.topic, "dropped")
    outbox.flush()
    outbox.abort()
    world.settle(tp.topic)
    told = facts(world, tp)
    assert (told.next_ms, told.newest_ms) == (YEAR_2013, YEAR_2013)
    commit_input(opened(world), tp, 1)
    told = facts(world, tp)
    assert (told.bounds, told.next_ms, told.newest_ms) == ((0, 4), None, None)


def test_a_topic_that_is_not_there_is_named(world: World) -> None:
    with pytest.raises(TopicMissing, match="no-such-topic"):
        world.monitoring().bounds([TopicPartition("no-such-topic", 0)])


def test_brokers_that_do_not_answer_are_unavailable(world: World) -> None:
    away = world.unreachable().monitoring()
    with pytest.raises(Unavailable):
        away.partitions(["topic"])
    with pytest.raises(Unavailable):
        away.topics()
    with pytest.raises(Unavailable):
        away.inputs([TopicPartition("topic", 0)])
