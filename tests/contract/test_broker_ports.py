"""Outbox and transactions: one suite for the real broker and the one in memory."""

import pytest

from statestore.errors import (
    Fenced,
    RecordFailed,
    TopicMissing,
    Unavailable,
)
from statestore.kafka.partitioner import murmur2_partition
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.model.time_marks import TimeMark, key_of
from statestore.ports import GroupOffset, Records
from tests.contract.broker_steps import (
    STAMP,
    YEAR_2013,
    commit,
    opened,
    read,
    read_all,
    send,
    succeed,
    until,
    values,
)
from tests.contract.broker_worlds import Row, World

# Transactions and what readers see of them.


def test_committed_records_are_read_and_aborted_ones_are_not(world: World) -> None:
    topic = world.topic()
    outbox = opened(world)
    commit(outbox, topic, "a", "b")
    outbox.begin()
    send(outbox, topic, "dropped")
    outbox.flush()
    outbox.abort()
    commit(outbox, topic, "c")
    assert values(read_all(world, TopicPartition(topic, 0))) == [b"a", b"b", b"c"]
    assert [row.value for row in world.rows(topic)] == [b"a", b"b", b"c"]


def test_control_records_take_offsets_and_positions_pass_them(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    outbox = opened(world)
    commit(outbox, topic, "a", "b")
    world.settle(topic)  # else its mark may come behind what follows
    commit(outbox, topic, "c")
    source = world.source()
    source.start({tp: 0})
    records = read(source, {tp: 5})
    assert [record.offset for record in records] == [0, 1, 3]
    assert source.position(tp) == 5
    assert world.cluster().bounds([tp])[tp] == (0, 5)


def test_an_open_transaction_holds_readers_at_the_last_stable_offset(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    first, second = opened(world, "0_0"), opened(world, "0_1")
    commit(first, topic, "a")
    world.settle(topic)  # else its mark may come behind what follows
    first.begin()
    send(first, topic, "held")
    first.flush()
    commit(second, topic, "behind it")
    assert world.cluster().bounds([tp])[tp] == (0, 2)
    assert world.changelog().bounds([tp])[tp] == (0, 2)
    assert world.cluster().undecided([tp]) == [tp]
    source = world.source()
    source.start({tp: 0})
    assert values(read(source, {tp: 2})) == [b"a"]
    assert source.poll(10, 200) == []
    first.commit()
    assert world.cluster().undecided([tp]) == []
    assert values(read(source, {tp: 6})) == [b"held", b"behind it"]


def test_opening_an_id_again_aborts_what_its_last_owner_left(world: World) -> None:
    topic = world.topic()
    lost = opened(world)
    lost.begin()
    send(lost, topic, "lost")
    lost.flush()
    commit(opened(world), topic, "kept")
    assert values(read_all(world, TopicPartition(topic, 0))) == [b"kept"]


@pytest.mark.parametrize("step", ["send", "send_offsets", "commit", "begin"])
def test_a_fenced_owner_cannot_go_on(world: World, step: str) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    old = opened(world)
    commit(old, topic, "before")
    if step != "begin":
        old.begin()
        send(old, topic, "zombie")
        old.flush()
    new = opened(world)

    def go_on() -> None:
        match step:
            case "send":
                send(old, topic, "zombie")
            case "send_offsets":
                old.send_offsets({tp: 1}, "zombie")
            case "begin":
                old.begin()
                send(old, topic, "zombie")
        old.commit()

    with pytest.raises(Fenced):
        go_on()
    with pytest.raises(Fenced):
        old.begin()
    old.close()
    succeed(new, topic, "after")
    assert values(read_all(world, tp)) == [b"before", b"after"]


def test_a_fenced_owner_that_opens_again_is_the_owner(world: World) -> None:
    topic = world.topic()
    outbox = opened(world)
    opened(world)
    with pytest.raises(Fenced):
        commit(outbox, topic, "zombie")
    outbox.open()
    outbox.abort()
    succeed(outbox, topic, "owner")
    assert values(read_all(world, TopicPartition(topic, 0))) == [b"owner"]


def test_settled_ids_have_nothing_open_and_their_owners_are_fenced(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    names = [f"{ordinal}_0" for ordinal in range(3)]
    owners = [opened(world, name) for name in names[:2]]
    for owner in owners:
        owner.begin()
        send(owner, topic, "lost")
        owner.send_offsets({tp: 7}, "lost")
        owner.flush()
    assert world.cluster().bounds([tp])[tp].end == 0
    world.cluster().abort_open_transactions(
        [one for name in names for one in world.transactional_ids(name)]
    )
    assert world.cluster().bounds([tp])[tp].end == 4, "two records, two marks of the end"
    assert world.cluster().group_offsets([tp]) == {}
    for owner in owners:
        with pytest.raises(Fenced):
            owner.commit()
    commit(opened(world), topic, "kept")
    assert values(read_all(world, tp)) == [b"kept"]


def test_nobody_settles_what_no_broker_answers_for(world: World) -> None:
    away = world.unreachable()
    with pytest.raises(Unavailable):
        away.cluster(request_timeout_ms=500).abort_open_transactions(away.transactional_ids())
    world.cluster().abort_open_transactions([])


def test_an_expired_transaction_looks_like_a_fence(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    outbox = opened(world, transaction_timeout_ms=1000)
    outbox.begin()
    send(outbox, topic, "late")
    outbox.flush()
    world.expire("0_0")
    cluster = world.cluster()
    until(lambda: cluster.bounds([tp])[tp].end > 1, "the abort marker")
    with pytest.raises(Fenced):
        outbox.commit()
    outbox.open()
    commit(outbox, topic, "again")
    assert values(read_all(world, tp)) == [b"again"]


# Input offsets.


def test_a_transaction_of_offsets_alone_commits_them_with_their_metadata(world: World) -> None:
    topic = world.topic(partitions=3)
    first, second, third = (TopicPartition(topic, p) for p in range(3))
    outbox, cluster = opened(world), world.cluster()
    assert cluster.group_offsets([first, second]) == {}
    outbox.begin()
    outbox.send_offsets({first: 7, second: 0}, '{"number":1,"stream_time_ms":null}')
    outbox.commit()
    outbox.begin()
    outbox.send_offsets({first: 9}, '{"number":2}')
    outbox.commit()
    assert cluster.group_offsets([first, second, third]) == {
        first: GroupOffset(9, '{"number":2}'),
        second: GroupOffset(0, '{"number":1,"stream_time_ms":null}'),
    }


def test_offsets_of_an_aborted_transaction_are_not_committed(world: World) -> None:
    tp = TopicPartition(world.topic(), 0)
    outbox = opened(world)
    outbox.begin()
    outbox.send_offsets({tp: 7}, "")
    outbox.abort()
    assert world.cluster().group_offsets([tp]) == {}


def test_pending_offsets_are_waited_for_never_overlooked(world: World) -> None:
    tp = TopicPartition(world.topic(), 0)
    outbox, impatient = opened(world), world.cluster(request_timeout_ms=500)
    outbox.begin()
    outbox.send_offsets({tp: 7}, STAMP)
    outbox.flush()
    with pytest.raises(Unavailable, match="open"):
        impatient.group_offsets([tp])
    outbox.commit()
    assert world.cluster().group_offsets([tp]) == {tp: GroupOffset(7, STAMP)}


# Records as they are.


def test_tracked_ends_are_where_the_records_landed(world: World) -> None:
    log, output = world.topic(partitions=2), world.topic()
    outbox = opened(world)
    commit(outbox, log, "earlier")
    outbox.begin()
    for count in (3, 2):
        data: list[bytes | None] = [b"k"] * count
        outbox.send(Records(log, data, data, [1] * count, partition=1), tracked=True)
    outbox.send(Records(log, [b"k"], [b"v"], [1], partition=0), tracked=True)
    send(outbox, output, "untracked")
    outbox.commit()
    ends = outbox.ends()
    rows = world.rows(log)
    assert ends == {
        TopicPartition(log, p): max(row.offset for row in rows if row.partition == p) + 1
        for p in range(2)
    }
    outbox.begin()
    outbox.commit()
    assert outbox.ends() == {}


def test_nulls_empty_bytes_headers_and_old_times_survive(world: World) -> None:
    topic = world.topic()
    rows = [
        Row(None, b"null key", YEAR_2013),
        Row(b"null value", None, YEAR_2013 - 1),
        Row(b"", b"", YEAR_2013),
        Row(b"k", b"v", 1, (("h", b"1"), ("h", b""), ("none", None))),
        Row(b"\x00\xff" * 50, b"\x00" * 100, YEAR_2013),
    ]
    outbox = opened(world)
    outbox.begin()
    outbox.send(
        Records(
            topic,
            [row.key for row in rows],
            [row.value for row in rows],
            [row.timestamp_ms for row in rows],
            partition=0,
            headers=[row.headers for row in rows],
        )
    )
    outbox.commit()
    expected = [row._replace(offset=i) for i, row in enumerate(rows)]
    assert world.rows(topic) == expected
    assert read_all(world, TopicPartition(topic, 0)) == [
        Record(row.key, row.value, row.timestamp_ms, row.headers, topic, 0, row.offset)
        for row in expected
    ]


def test_records_go_where_a_choice_puts_them_and_the_rest_where_their_placing_bytes_do(
    world: World,
) -> None:
    topic = world.topic(partitions=5)
    keys: list[bytes | None] = [b"a", b"b", b"c", b"d", b"a"]
    asked: list[int] = []

    def choose(partitions: int) -> list[int | None]:
        asked.append(partitions)
        return [4, None, 0, None, None]

    outbox = opened(world)
    outbox.begin()
    times = [YEAR_2013] * len(keys)
    outbox.send(Records(topic, keys, keys, times, choose=choose))
    outbox.send(Records(topic, keys, keys, times, placing=[b"p"] * len(keys), choose=choose))
    outbox.commit()
    assert asked == [5, 5]
    found = sorted((row.key or b"", row.partition) for row in world.rows(topic))
    home = {key: murmur2_partition(key, 5) for key in (b"a", b"b", b"d", b"p")}
    by_key = [4, home[b"b"], 0, home[b"d"], home[b"a"]]
    by_placing = [4, home[b"p"], 0, home[b"p"], home[b"p"]]
    assert found == sorted(zip(keys * 2, by_key + by_placing, strict=True))


def test_records_without_a_partition_go_where_java_would_put_them(world: World) -> None:
    topic = world.topic(partitions=7)
    keys: list[bytes | None] = [bytes(range(200, 200 + n)) + b"%d" % n for n in range(40)]
    keys += [b"", b"\xff", b"\x80" * 5, b"N14228", "Zürich".encode()]
    outbox = opened(world)
    outbox.begin()
    outbox.send(Records(topic, keys, keys, [YEAR_2013] * len(keys)))
    outbox.commit()
    rows = world.rows(topic)
    assert len(rows) == len(keys)
    assert [row.partition for row in rows] == [murmur2_partition(row.key or b"", 7) for row in rows]


def test_records_go_where_their_placing_bytes_say_whatever_their_keys(world: World) -> None:
    topic = world.topic(partitions=7)
    placing: list[bytes | None] = [b"k%d" % (n % 40) for n in range(400)]
    keys: list[bytes | None] = [b"%b%d" % (one, n) for n, one in enumerate(placing) if one]
    outbox = opened(world)
    outbox.begin()
    outbox.send(Records(topic, keys, keys, [YEAR_2013] * len(keys), placing=placing))
    outbox.commit()
    rows = {row.key: row.partition for row in world.rows(topic)}
    wanted = {k: murmur2_partition(one or b"", 7) for k, one in zip(keys, placing, strict=True)}
    assert rows == wanted


def test_keys_in_windows_are_judged_by_the_key_alone(world: World) -> None:
    topic = world.topic(partitions=7)
    placing: list[bytes | None] = [b"k%d" % n for n in range(40)]
    keys: list[bytes | None] = [
        b"%b\x00\x00\x00\x00\x00\x00\x00\x0a" % one for one in placing if one
    ]
    outbox = opened(world)
    outbox.begin()
    outbox.send(Records(topic, keys, keys, [YEAR_2013] * len(keys), placing=placing))
    outbox.commit()
    world.settle(topic)
    cluster = world.cluster()
    assert cluster.key_hashes({topic: 7}, {topic: 8})[topic].murmur2
    assert not cluster.key_hashes({topic: 7})[topic].murmur2


def test_time_marks_are_no_keys_that_a_hash_placed(world: World) -> None:
    topic = world.topic(partitions=4)
    mark = key_of(TimeMark(0, YEAR_2013, YEAR_2013, "run"))
    keys: list[bytes | None] = [b"k%d" % n for n in range(40)]
    outbox = opened(world)
    outbox.begin()
    outbox.send(Records(topic, keys, keys, [YEAR_2013] * len(keys), placing=keys))
    for partition in range(4):
        outbox.send(Records(topic, [mark], [None], [YEAR_2013], partition))
    outbox.commit()
    cluster = world.cluster()
    bounds = [TopicPartition(topic, partition) for partition in range(4)]
    until(
        lambda: sum(bound.end for bound in cluster.bounds(bounds).values()) >= 44,
        "the end of the transaction",
    )
    assert cluster.key_hashes({topic: 4})[topic] == (40, True, False)


def test_sends_are_kept_in_order_per_partition(world: World) -> None:
    topic = world.topic(partitions=2)
    outbox = opened(world)
    outbox.begin()
    for start in range(0, 3000, 500):
        data: list[bytes | None] = [b"%d" % i for i in range(start, start + 500)]
        for partition in range(2):
            outbox.send(Records(topic, data, data, [1] * 500, partition=partition))
    outbox.commit()
    for partition in range(2):
        got = [int(row.value or b"") for row in world.rows(topic) if row.partition == partition]
        assert got == list(range(3000))


def test_a_record_too_large_fails_by_name_and_abort_lets_the_next_go_on(world: World) -> None:
    topic = world.topic()
    outbox = opened(world)
    outbox.begin()
    send(outbox, topic, "with it")
    with pytest.raises(RecordFailed, match=topic):
        outbox.send(Records(topic, [b"k"], [b"x" * 2_000_000], [YEAR_2013], partition=0))
    outbox.abort()
    commit(outbox, topic, "after")
    assert values(read_all(world, TopicPartition(topic, 0))) == [b"after"]


def test_a_missing_topic_is_named(world: World) -> None:
    missing = TopicPartition("no-such-topic", 0)
    outbox, source = opened(world), world.source()
    with pytest.raises(TopicMissing, match="no-such-topic"):
        commit(outbox, missing.topic, "x")
    outbox.abort()
    with pytest.raises(TopicMissing, match="no-such-topic"):
        world.changelog().bounds([missing])
    source.start({missing: 0})
    with pytest.raises(TopicMissing, match="no-such-topic"):
        until(lambda: bool(source.poll(10, 500)), "an error")
    assert world.cluster().partitions(["no-such-topic"]) == {}


def test_an_unreachable_broker_is_unavailable_soon(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each call fails after a second; with clients' own patience the test would be timed out."""
    tp = TopicPartition("t", 0)
    with world.unreachable() as nobody:
        for call in (
            nobody.cluster().check,
            nobody.outbox().open,
            lambda: nobody.cluster().partitions(["t"]),
            lambda: nobody.cluster().group_offsets([tp]),
            lambda: nobody.changelog().bounds([tp]),
        ):
            with pytest.raises(Unavailable):
                call()
    # Clients of earlier tests may still look for their brokers.
    assert [line for line in capfd.readouterr().err.splitlines() if "127.0.0.1:9/" in line] == []
